"""Minimal pairs of the grammar: what each paradigm changes, gold, and a control that nothing can learn."""

import pytest

from lmdyn.datamodules import GrammarCorpus, GrammarPairs
from lmdyn.datamodules.grammar.grammar_pairs import _attractors
from lmdyn.datamodules.grammar.grammar_tasks import RULES


@pytest.fixture(scope="module")
def corpus():
    return GrammarCorpus(n_test_tokens=20_000)


@pytest.fixture(scope="module")
def pairs(corpus):
    data = GrammarPairs(corpus, n_pairs=200)
    data.setup("fit")
    return data.pairs


def changes(pair):
    """Places at which the sentences of a pair differ, with both words."""
    return [(a, b) for a, b in zip(pair.good.split(), pair.bad.split(), strict=True) if a != b]


def test_right_sentences_are_the_corpus_s_but_for_the_control(corpus, pairs):
    written = {" ".join(s.words) for document in corpus.documents("test") for s in document}
    of_rules = pairs[pairs["paradigm"] != "control"]
    assert set(of_rules["good"]) <= written
    assert not set(of_rules["bad"]) & written
    assert set(pairs["paradigm"]) == {*RULES, "anaphor_agreement", "control"}
    assert pairs.groupby("paradigm").size().max() == 200
    assert not pairs.duplicated(["paradigm", "pair"]).any()
    right = pairs[pairs["paradigm"] == "control"]["good"].isin(written)
    assert abs(right.mean() - 0.5) < 4 * (0.25 / len(right)) ** 0.5  # drawn


def test_anaphors_and_control_change_one_word(corpus, pairs):
    people = {lexeme.lemma for lexeme in corpus.grammar.lexemes["PROPN"] if lexeme.kind == "person"}
    for pair in pairs[pairs["paradigm"] == "anaphor_agreement"].itertuples():
        (change,) = changes(pair)
        assert (change[0] == "themselves") != (change[1] == "themselves")
    for pair in pairs[pairs["paradigm"] == "control"].itertuples():
        (change,) = changes(pair)
        assert set(change) <= people


class Parsed:
    """the keys of the cabinet near a door are old"""

    words = ("the", "keys", "of", "the", "cabinet", "near", "a", "door", "are", "old")
    upos = ("DET", "NOUN", "ADP", "DET", "NOUN", "ADP", "DET", "NOUN", "AUX", "ADJ")
    xpos = ("DT", "NNS", "IN", "DT", "NN", "IN", "DT", "NN", "VBP", "JJ")
    heads = (1, 9, 4, 4, 1, 7, 7, 4, 9, -1)
    deprels = ("det", "nsubj", "case", "det", "nmod", "case", "det", "nmod", "cop", "root")


def test_attractors_have_the_number_of_the_wrong_verb(pairs):
    wrong = (*Parsed.words[:8], "is", "old")
    assert _attractors(Parsed, wrong) == "2"
    assert set(pairs[pairs["paradigm"] != "verb_agreement"]["attractors"]) == {""}
    assert {"0", "1"} <= set(pairs[pairs["paradigm"] == "verb_agreement"]["attractors"])


def test_the_same_pairs_again_and_what_is_refused(corpus, pairs):
    again = GrammarPairs(corpus, n_pairs=200)
    with pytest.raises(RuntimeError, match="call setup"):
        _ = again.pairs
    again.setup("fit")
    assert again.pairs.equals(pairs)
    with pytest.raises(ValueError, match="n_pairs"):
        GrammarPairs(corpus, n_pairs=0)

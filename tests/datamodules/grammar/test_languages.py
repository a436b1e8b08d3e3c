"""Other languages: the same words and dependencies in another order, as the rules say, and agreement or none."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from lmdyn.datamodules import GrammarCorpus, GrammarFacts, GrammarPairs, GrammarTasks
from lmdyn.datamodules.corpora.sentence import Sentence
from lmdyn.datamodules.grammar.grammar import Grammar
from lmdyn.datamodules.grammar.languages import Language

SEEDS = range(24)
SMALL = {"n_nouns": 60, "n_verbs": 60, "n_adjectives": 30, "n_adverbs": 10, "n_names": 40, "n_facts": 20}


@cache
def sentences(seed: int | None) -> list[tuple[Language, Sentence]]:
    """Return sentences of a language, which are those of English in another order."""
    grammar = Grammar(language_seed=seed, **SMALL)
    return [(grammar.language, s) for document in grammar.documents("train", 2000) for s in document]


def edges(s: Sentence) -> Counter[tuple[str, str, str]]:
    words = [*s.words, ""]
    return Counter(zip(s.words, (words[h] for h in s.heads), s.deprels, strict=True))


def test_24_seeds_in_a_row_are_all_languages():
    assert len({Language.drawn(seed) for seed in SEEDS}) == 24
    assert len({Language.drawn(seed) for seed in range(100, 108)}) == 8
    assert Language.drawn(None) == Language()


def test_no_language_is_english_and_has_the_settings_of_before():
    assert "language_seed" not in Grammar().settings()
    assert Grammar(language_seed=3).settings()["language_seed"] == 3
    english = next(seed for seed in SEEDS if Language.drawn(seed) == Language())
    for (_, one), (_, other) in zip(sentences(None), sentences(english), strict=True):
        assert one == other


@pytest.mark.parametrize("seed", SEEDS)
def test_words_and_dependencies_are_those_of_english_and_projective(seed):
    different = 0
    for (language, s), (_, english) in zip(sentences(seed), sentences(None), strict=True):
        if language.agreement:
            assert edges(s) == edges(english)
        assert Counter(s.deprels) == Counter(english.deprels)
        assert len(s.roles) == len(english.roles)
        assert len(s.mentions) == len(english.mentions)
        different += s.words != english.words
        arcs = [sorted((i, h)) for i, h in enumerate(s.heads) if h >= 0]
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs)
        covered = {(r.predicate, r.label, s.words[r.start : r.end]) for r in s.roles}
        assert all(words for _, _, words in covered)
    assert bool(different) == (language != Language())


@pytest.mark.parametrize("seed", SEEDS)
def test_each_rule_orders_what_it_names(seed):
    for language, s in sentences(seed):
        for i, (head, relation) in enumerate(zip(s.heads, s.deprels, strict=True)):
            after = i > head
            if relation == "case" and s.upos[i] == "ADP":
                assert after == language.postpositions, s.words
            if relation in ("acl", "acl:relcl"):
                assert after != language.relatives_first, s.words
            asks = "?" in s.words or s.xpos[i] in ("WDT", "WP") or relation.startswith("expl")
            if relation.startswith("nsubj") and s.upos[head] == "VERB" and not asks and s.words[0] != "there":
                finite = [
                    j for j, h in enumerate(s.heads)
                    if s.xpos[j] in ("VBZ", "VBP", "VBD", "MD") and (j == head or (h == head and s.upos[j] == "AUX"))
                ]  # fmt: skip
                if finite and "there" not in s.words:
                    assert (i < finite[0]) == (language.clause != "VSO"), s.words
            if relation in ("obj", "ccomp") and s.xpos[i] not in ("WDT", "WP"):
                assert after == (language.clause != "SOV"), s.words


@pytest.mark.parametrize("seed", [s for s in SEEDS if not Language.drawn(s).agreement])
def test_without_agreement_no_verb_shows_the_number_of_its_subject(seed):
    for _, s in sentences(seed):
        assert "VBZ" not in s.xpos
        assert not {"is", "was", "has", "does", "seems", "comes"} & set(s.words)


def test_what_needs_english_refuses_other_languages():
    corpus = GrammarCorpus(language_seed=next(s for s in SEEDS if Language.drawn(s) != Language()), **SMALL)
    for cls in (GrammarPairs, GrammarTasks, GrammarFacts):
        with pytest.raises(ValueError, match=rf"{cls.__name__} requires English, got language_seed"):
            cls(corpus)
    with pytest.raises(ValueError, match="language_seed"):
        Grammar(language_seed=-1)


def test_a_rule_that_is_not_applied_fails_the_tests_above():
    """The control: English sentences under the label of another language."""
    wrong = replace(Language(), postpositions=True)
    found = [
        i > head
        for _, s in sentences(None)
        for i, (head, relation) in enumerate(zip(s.heads, s.deprels, strict=True))
        if relation == "case" and s.upos[i] == "ADP"
    ]
    assert any(after != wrong.postpositions for after in found)

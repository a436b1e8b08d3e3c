"""That the grammar's tasks are true: what is broken is broken, what is rated is rated so, and nothing leaks."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from lmdyn.datamodules.corpora.sentence import Sentence
from lmdyn.datamodules.corpora.tokenization import subword_tokenizer
from lmdyn.datamodules.grammar.grammar import GrammarCorpus
from lmdyn.datamodules.grammar.grammar_tasks import RULES, GrammarTasks, corruptions, judged, rated

SMALL = {
    "n_nouns": 120, "n_verbs": 60, "n_adjectives": 40, "n_adverbs": 20, "n_names": 40, "n_facts": 20,
}  # fmt: skip
CORPUS = GrammarCorpus(30_000, 10_000, 100, **SMALL)
GRAMMAR = CORPUS.grammar
SENTENCES = list(dict.fromkeys(s for d in CORPUS.documents("train") for s in d))
TOKENIZER = subword_tokenizer("wordpiece", Counter(w for s in SENTENCES for w in s.words), vocab_size=600)
BY_WORDS = {s.words: s for s in SENTENCES}


def random(seed=0):
    return np.random.default_rng(seed)


# sentence, rule and broken words, of all sentences
BROKEN = [(s, rule, words) for s in SENTENCES for rule, words in corruptions(s, GRAMMAR, random()).items()]


def test_every_rule_is_broken_often():
    counts = Counter(rule for _, rule, _ in BROKEN)
    assert set(counts) == set(RULES)
    assert min(counts.values()) > 50


def test_nothing_that_is_broken_is_a_sentence_of_the_grammar():
    """A hundred thousand words of the same grammar hold none of them; of the sentences themselves they hold many."""
    everything = {s.words for d in GRAMMAR.documents("test", 100_000) for s in d} | set(BY_WORDS)
    assert not {words for _, _, words in BROKEN} & everything
    assert len({s.words for d in GRAMMAR.documents("validation", 10_000) for s in d} & everything) > 20


def changed(a, b):
    assert len(a) == len(b)
    return [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]


def test_agreement_is_broken_in_one_word_of_the_other_number():
    pairs = {"is": "are", "has": "have", "does": "do"}
    numbers = {x.forms["VBZ"]: x.forms["VBP"] for x in GRAMMAR.lexemes["VERB"]} | pairs
    for s, rule, words in BROKEN:
        if rule == "verb_agreement":
            (i,) = changed(s.words, words)
            old, new = s.words[i], words[i]
            assert numbers.get(old) == new or numbers.get(new) == old
            assert (s.xpos[i] == "VBZ") == (old in numbers)
        elif rule == "determiner_agreement":
            (i,) = changed(s.words, words)
            noun = s.heads[i]
            assert words[i] in ({"these", "those"} if s.xpos[noun] == "NN" else {"this"})


def test_order_and_finite_verb():
    finite = {"VBZ", "VBP", "VBD"}
    for s, rule, words in BROKEN:
        if rule == "word_order":
            i, j = changed(s.words, words)
            assert j == i + 1
            assert words[j] in ("the", "a", "an")
            assert words[i] == s.words[j]
            assert s.xpos[j] in ("NN", "NNS")
        elif rule == "finite_verb":
            assert len(words) == len(s.words) - 1
            i = next(i for i in range(len(s.words)) if i == len(words) or s.words[i] != words[i])
            left = [tag for tag in s.xpos if tag in finite | {"MD"}]
            assert len(left) == 1
            assert Counter(s.words) - Counter(words) == Counter([s.words[s.xpos.index(left[0])]])
            forms = {
                f for w in words for x in GRAMMAR.lexicon.get(w, ()) for f, v in x.forms.items() if v == w
            }
            assert not forms & finite  # no other word can be read as a finite verb


def test_readings_that_repair_are_avoided():
    either = Sentence(
        words=("the", "cat", "or", "the", "dogs", "have", "it"),
        upos=("DET", "NOUN", "CCONJ", "DET", "NOUN", "VERB", "PRON"),
        xpos=("DT", "NN", "CC", "DT", "NNS", "VBP", "PRP"), heads=(1, 5, 4, 4, 1, -1, 5),
        deprels=("det", "nsubj", "cc", "det", "conj", "root", "obj"),
    )  # fmt: skip
    assert "verb_agreement" not in corruptions(either, GRAMMAR, random())
    both = Sentence(**{name: getattr(either, name) for name in either.layers}, words=(
        *either.words[:2], "and", *either.words[3:],
    ))  # fmt: skip
    assert corruptions(both, GRAMMAR, random())["verb_agreement"][5] == "has"


def test_half_are_acceptable_and_each_sentence_is_there_once():
    found = list(judged(iter(SENTENCES), GRAMMAR, 401, random()))
    assert [e.label for e in found].count(1) == 200
    assert len(found) == 401
    for e in found:
        assert (tuple(e.first.split()) in BY_WORDS) == e.label
    assert found == list(judged(iter(SENTENCES), GRAMMAR, 401, random()))
    assert found != list(judged(iter(SENTENCES), GRAMMAR, 401, random(1)))


def content(s):
    """Places of the words of the lexicon with the part of speech that they have there."""
    return [i for i, w in enumerate(s.words) if any(x.upos == s.upos[i] for x in GRAMMAR.lexicon.get(w, ()))]


def test_similarity_is_the_share_of_content_words_that_stay():
    pairs = list(rated(iter(SENTENCES), GRAMMAR, 500, random()))
    assert len(pairs) == 500
    for pair in pairs:
        second = pair.second.split()
        s = BY_WORDS[tuple(pair.first.split())]
        replaced, places = changed(s.words, second), content(s)
        assert set(replaced) <= set(places)
        assert pair.label == pytest.approx(5 * (1 - len(replaced) / len(places)))
        for i in replaced:
            of = [x for x in GRAMMAR.lexicon[second[i]] if x.forms.get(s.xpos[i]) == second[i]]
            was = [x for x in GRAMMAR.lexicon[s.words[i]] if x.forms.get(s.xpos[i]) == s.words[i]]
            assert {(x.upos, x.kind, x.gender) for x in of} & {(x.upos, x.kind, x.gender) for x in was}
        for a, b in pairwise(second):
            assert a != "a" or b[0] not in "aeiou"
            assert a != "an" or b[0] in "aeiou"
    scores = np.array([p.label for p in pairs])
    assert scores.min() == 0
    assert scores.max() == 5
    assert 1.5 < scores.mean() < 3.5
    assert len(set(scores.round(3))) > 10
    # control: of unrelated sentences of equal length hardly any word stays
    unrelated = [len(changed(a.words, b.words)) / len(a.words) for a in SENTENCES[:40] for b in SENTENCES[:40]
                 if a is not b and len(a.words) == len(b.words)]  # fmt: skip
    assert np.mean(unrelated) > 0.5


def tasks(**kwargs):
    data = GrammarTasks(CORPUS, n_train=300, n_evaluation=100, **kwargs)
    data.tokenizer = TOKENIZER
    data.setup()
    return data


def test_the_datamodule():
    found = tasks().tasks
    assert list(found) == ["acceptability", "similarity"]
    one, two = found.values()
    assert (one.kind, one.num_labels) == ("classification", 2)
    assert (two.kind, two.num_labels) == ("regression", 1)
    for task in found.values():
        assert (len(task.train), len(task.evaluation[""])) == (300, 100)
        ids = [tuple(e["input_ids"].tolist()) for e in (*task.train, *task.evaluation[""])]
        assert len(set(ids)) == 400  # none twice, none in both
    labels = np.array([float(e["label"]) for e in one.train])
    assert labels.mean() == 0.5
    assert {int(e["token_type_ids"].max()) for e in two.train} == {1}
    again, other = tasks().tasks, tasks(seed=1).tasks
    for name, task in found.items():
        assert task.fingerprint == again[name].fingerprint != other[name].fingerprint


def test_no_sentence_is_trained_on_and_evaluated_on():
    raw = next(iter(GrammarTasks(CORPUS, ["similarity"], n_train=300, n_evaluation=100).read()))
    assert not {e.first for e in raw.train} & {e.first for e in raw.evaluation[""]}


def test_too_few_sentences():
    data = GrammarTasks(CORPUS, n_train=100_000)
    with pytest.raises(ValueError, match=r"from the train documents: raise n_train_tokens"):
        list(data.read())

"""``order_seed``: the same documents in another order, and nothing else."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from lmdyn.datamodules import GrammarCorpus, ScaffoldCorpus, TextCorpus

SMALL = {"n_train_tokens": 1500, "n_validation_tokens": 200, "n_test_tokens": 200, "n_nouns": 60, "n_verbs": 30,
         "n_adjectives": 20, "n_adverbs": 5, "n_names": 20, "n_facts": 5, "n_topics": 5, "batch_size": 3}  # fmt: skip


def ready(corpus):
    corpus.setup()
    return corpus


def grammar(folder, **settings):
    return ready(GrammarCorpus(**SMALL, cache_dir=str(folder), **settings))


def documents(split, layers=()):
    """Each document as its tokens, starts of sentences and words, and labels."""
    sentences = np.append(split.sentence_starts, split.num_tokens)
    ends = np.append(split.document_starts, split.num_sentences)
    found = []
    for first, last in pairwise(ends):
        start, end = sentences[first], sentences[last]
        arrays = [split.tokens, split.word_start, *(split.layer(layer) for layer in split.names)]
        arrays += [split.shuffled(layer, 0) for layer in layers]
        starts = (sentences[first:last] - start).tolist()
        found.append((tuple(starts), *(tuple(a[start:end].tolist()) for a in arrays)))
    return found


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def test_another_order_of_the_same_documents(tmp_path):
    published = grammar(tmp_path)
    before = files(published.encoded("train").folder)
    first, again, second = (grammar(tmp_path, order_seed=seed) for seed in (0, 0, 1))
    there = [documents(corpus.encoded("train"), ["upos"]) for corpus in (published, first, again, second)]
    assert len(there[0]) > 5
    assert len({str(d) for d in there[0]}) == len(there[0])
    assert Counter(there[0]) == Counter(there[1]) == Counter(there[3])
    assert there[1] == there[2]
    assert there[0] != there[1] != there[3] != there[0]
    order = np.random.default_rng(1).permutation(len(there[0]))
    assert there[3] == [there[0][i] for i in order]
    # what is not the training text, and the text in its own order, stays byte for byte
    for split in ("validation", "test"):
        assert published.encoded(split).folder == first.encoded(split).folder
    kept = files(published.encoded("train").folder)
    assert {name: kept[name] for name in before} == before
    assert first.label_names == published.label_names
    assert first.tokenizer.get_vocab() == published.tokenizer.get_vocab()
    assert first.token_counts.equals(published.token_counts)


def test_text_of_one_document_has_no_other_order(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("one line of words\n", encoding="utf-8")
    settings = {"layout": "paragraphs", "drop_rare_sentences": False, "cache_dir": str(tmp_path)}
    with pytest.raises(
        ValueError, match=r"order_seed 1 requires two documents or more, got 1 .*: omit order_seed"
    ):
        ready(TextCorpus(str(path), order_seed=1, **settings))
    path.write_text("one line of words\nanother line\nand one\n", encoding="utf-8")
    ready(TextCorpus(str(path), order_seed=1, **settings))  # the control


@pytest.mark.parametrize("length", [1, 3])
def test_instances_of_a_language_without_documents(length, tmp_path):
    """The rule holds in each order, over the same scaffolds; words outside of it are the same."""
    sizes = {"n_rules": 30, "n_phrases": 5, "n_outside": 4, "n_types": 30, "n_train_tokens": 800,
             "n_validation_tokens": 100, "n_test_tokens": 100, "cache_dir": str(tmp_path)}  # fmt: skip
    made = [ready(ScaffoldCorpus(True, length, order_seed=seed, **sizes)) for seed in (None, 0, 1)]
    texts = [corpus.text("train") for corpus in made]
    scaffolds = []
    for text in texts:
        opens = np.flatnonzero(text == 30)
        assert (text[opens + length + 1] == 31).all()
        scaffolds.append(Counter(tuple(text[i : i + length + 2].tolist()) for i in opens))
    assert scaffolds[0] == scaffolds[1] == scaffolds[2]
    assert Counter(texts[0].tolist()) == Counter(texts[1].tolist())
    assert len({text.tobytes() for text in texts}) == 3
    assert len({corpus.encoded("train").fingerprint() for corpus in made}) == 3
    assert len({corpus.encoded("validation").fingerprint() for corpus in made}) == 1
    assert made[0].content_key() == made[1].content_key()  # the language is the same
    assert len(list(tmp_path.glob("vocabulary-*"))) == 1

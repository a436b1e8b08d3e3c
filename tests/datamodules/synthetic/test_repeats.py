"""Random words with repeats: what occurs twice, what predicts it, rows that are documents, bad sizes."""

import math
from collections import Counter

import numpy as np
import torch

from lmdyn.datamodules import RepeatsCorpus


def longest_repeat(row):
    """Length and distance of the longest sequence that occurs twice without overlap, by brute force."""
    n, best = len(row), (0, 0)
    for i in range(n):
        for j in range(i + 1, n):
            k = 0
            while j + k < n and i + k < j and row[i + k] == row[j + k]:
                k += 1
            best = max(best, (k, j - i))
    return best


def test_each_document_repeats_a_sequence_of_random_length_at_random_distance():
    corpus = RepeatsCorpus(length=40, shortest=6, longest=12, n_types=200, n_train_tokens=40 * 300)
    text = corpus.text("train")
    assert text.shape == (300, 40)
    found = [longest_repeat(row.tolist()) for row in text]
    lengths = Counter(length for length, _ in found)
    assert min(lengths) >= 6
    assert max(lengths) <= 13  # a word more repeats by chance
    assert {6, 7, 8, 9, 10, 11, 12} <= set(lengths)
    assert len({distance for _, distance in found}) > 20
    # uniform words
    assert np.isclose(np.bincount(text.ravel(), minlength=200).std(), math.sqrt(60), rtol=0.5)


def test_places_of_both_are_uniform():
    """x, y and z share the words that are left: each has a third on average."""
    corpus = RepeatsCorpus(length=30, shortest=5, longest=5, n_types=10_000, n_train_tokens=30 * 2000)
    starts = []
    for row in corpus.text("train").tolist():
        seen: dict[int, int] = {}
        again = next(i for i, word in enumerate(row) if word in seen or seen.update({word: i}))
        starts.append((row.index(row[again]), again))
    first, second = np.array(starts).T
    assert abs(first.mean() - 20 / 3) < 0.4
    assert abs((second - first).mean() - (20 / 3 + 5)) < 0.4


def test_rows_of_batches_are_documents(tmp_path):
    corpus = RepeatsCorpus(
        length=16, shortest=4, longest=6, n_types=50, n_train_tokens=16 * 24, batch_size=4, sequence_length=16,
        n_validation_tokens=160, n_test_tokens=160, cache_dir=str(tmp_path),
    )  # fmt: skip
    corpus.setup("fit")
    rows = torch.cat([batch["input_ids"] for batch in corpus.train_dataloader()])
    ids = corpus.tokenizer.get_vocab()
    there = {tuple(ids[corpus.vocabulary[w]] for w in row) for row in corpus.text("train")}
    assert len(rows) == 24
    assert {tuple(row.tolist()) for row in rows[:-1]} < there  # the last word of the text has no next one


def test_splits_and_seeds_differ_and_the_same_settings_repeat():
    one, other = RepeatsCorpus(n_train_tokens=640), RepeatsCorpus(n_train_tokens=640, language_seed=1)
    assert np.array_equal(one.text("train"), RepeatsCorpus(n_train_tokens=640).text("train"))
    assert not np.array_equal(one.text("train"), other.text("train"))
    assert not np.array_equal(one.text("train"), one.text("validation")[:10])
    assert one.content_key() != other.content_key()
    assert set(one.word_counts()) == set(one.vocabulary)

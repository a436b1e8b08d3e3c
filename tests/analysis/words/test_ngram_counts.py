"""Counts of n-grams against counting by hand."""

from collections import Counter

import numpy as np
import pytest

from lmdyn.analysis.words import ngram_counts
from lmdyn.analysis.words.ngram_counts import NgramCounts

ORDER = 4


def grams(texts, n):
    return Counter(tuple(t[i : i + n].tolist()) for t in texts for i in range(len(t) - n + 1))


def spelled(counts, n, number):
    if n == 0:
        return ()
    level = counts.levels[n - 1]
    context = np.searchsorted(level.starts, number, side="right") - 1
    return (*spelled(counts, n - 1, context), int(level.words[number]))


@pytest.fixture(params=[(5, 1 << 22), (5, 50), (300, 7)], ids=["at once", "in parts", "many words"])
def counted(request, monkeypatch, tmp_path):
    words, at_once = request.param
    monkeypatch.setattr(ngram_counts, "_SORTED", at_once)
    random = np.random.default_rng(0)
    texts = [random.integers(0, words, random.integers(0, 30)) for _ in range(30)]
    return texts, NgramCounts.of(iter(texts), words + 1, ORDER, tmp_path)


def test_counts_are_those_by_hand(counted):
    texts, counts = counted
    for n, level in enumerate(counts.levels, 1):
        names = [spelled(counts, n, i) for i in range(len(level.words))]
        assert names == sorted(names)
        assert dict(zip(names, level.counts, strict=True)) == grams(texts, n)
        if n > 1:
            shorter = [spelled(counts, n - 1, i) for i in level.suffixes]
            assert shorter == [name[1:] for name in names]
        if n < ORDER:
            before = Counter(longer[1:] for longer in grams(texts, n + 1))
            assert list(level.preceding) == [before[name] for name in names]


def test_ngrams_that_end_at_positions(counted):
    texts, counts = counted
    text = np.concatenate([texts[3], texts[0][::-1], [counts.vocab_size - 1, -1], texts[5]])
    for n, numbers in enumerate(counts.ending(text), 1):
        known = grams(texts, n)
        for end, number in enumerate(numbers, 1):
            name = tuple(text[end - n : end].tolist()) if end >= n else None
            assert (number >= 0) == (name in known)
            assert number < 0 or spelled(counts, n, number) == name


def test_files_and_memory_hold_the_same(counted, tmp_path):
    texts, counts = counted
    assert not (tmp_path / "text").exists()
    for other in (NgramCounts.read(tmp_path), NgramCounts.of(texts, counts.vocab_size, ORDER)):
        for one, level in zip(other.levels, counts.levels, strict=True):
            assert all(np.array_equal(getattr(one, f), getattr(level, f)) for f in vars(level))


@pytest.mark.parametrize(
    ("texts", "message"),
    [([[0, 3]], "from 0 to 2, got 0 to 3"), ([[]], "at least one token"), ([[-1]], "got -1")],
)
def test_refusals(texts, message):
    with pytest.raises(ValueError, match=message):
        NgramCounts.of(texts, 3)

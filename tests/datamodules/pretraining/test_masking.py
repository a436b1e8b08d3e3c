"""Masks: what is chosen, in which shares, and what is read in its place."""

import numpy as np
import pytest

from lmdyn.datamodules.pretraining.masking import Masking, choose_positions, mask_row


def row(rng, length=60):
    starts = rng.random(length) < 0.6
    starts[0] = True
    maskable = np.ones(length, bool)
    maskable[[0, 25, length - 1]] = False  # [CLS] A [SEP] B [SEP]
    return starts, maskable


def words_of(starts, maskable):
    """The naive reading: each word as a set of positions."""
    words, current = [], None
    for i in range(len(starts)):
        if not maskable[i]:
            current = None
        elif starts[i] or current is None:
            current = [i]
            words.append(current)
        else:
            current.append(i)
    return words


@pytest.mark.parametrize("max_ngram", [1, 3])
def test_whole_words_and_never_too_many(max_ngram):
    rng = np.random.default_rng(0)
    masking = Masking(max_ngram=max_ngram)
    for trial in range(200):
        starts, maskable = row(rng)
        chosen = choose_positions(np.random.default_rng(trial), masking, starts, maskable, 9)
        assert len(chosen) <= 9
        assert (np.diff(chosen) > 0).all()
        assert maskable[chosen].all()
        for word in words_of(starts, maskable):
            assert np.isin(word, chosen).all() or not np.isin(word, chosen).any()
        # a row has single-piece words enough to fill the share
        assert len(chosen) == 9


def test_pieces_are_chosen_alone_without_whole_words():
    rng = np.random.default_rng(0)
    starts, maskable = row(rng)
    masking = Masking(whole_words=False)
    draws = [choose_positions(np.random.default_rng(t), masking, starts, maskable, 5) for t in range(300)]
    long_words = [w for w in words_of(starts, maskable) if len(w) > 1]
    assert any(0 < np.isin(w, chosen).sum() < len(w) for chosen in draws for w in long_words)


def test_each_word_is_as_likely():
    starts, maskable = np.ones(20, bool), np.ones(20, bool)
    counts = np.zeros(20)
    for trial in range(4000):
        counts[choose_positions(np.random.default_rng(trial), Masking(), starts, maskable, 3)] += 1
    expected = 4000 * 3 / 20
    assert np.abs(counts - expected).max() < 5 * expected**0.5


def test_lengths_of_spans_are_harmonic():
    """In a long row with a small budget spans hardly meet: p(n) ∝ 1/n."""
    starts, maskable = np.ones(3000, bool), np.ones(3000, bool)
    lengths = np.zeros(7)
    for trial in range(300):
        chosen = choose_positions(np.random.default_rng(trial), Masking(max_ngram=3), starts, maskable, 30)
        runs = np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1)
        for run in runs:
            lengths[min(len(run), 6)] += 1
    share = lengths[1:4] / lengths.sum()
    np.testing.assert_allclose(share, np.array([1, 1 / 2, 1 / 3]) / (11 / 6), atol=0.03)


def test_spans_do_not_cross_special_tokens():
    starts, maskable = np.ones(9, bool), np.ones(9, bool)
    maskable[4] = False
    for trial in range(100):
        chosen = choose_positions(np.random.default_rng(trial), Masking(max_ngram=3), starts, maskable, 8)
        assert 4 not in chosen
        assert len(chosen) == 8


def test_shares_of_replacements():
    ids = np.arange(1000, 11000)
    positions = np.arange(0, 10000, 2)
    masking = Masking(mask_share=0.8, random_share=0.1)
    inputs = mask_row(np.random.default_rng(0), masking, ids, positions, 4, np.arange(5, 900))
    assert (inputs[1::2] == ids[1::2]).all()
    at = inputs[positions]
    assert abs((at == 4).mean() - 0.8) < 0.02
    assert abs((at == ids[positions]).mean() - 0.1) < 0.02
    other = at[(at != 4) & (at != ids[positions])]
    assert abs(len(other) / 5000 - 0.1) < 0.02
    assert other.min() >= 5
    assert other.max() < 900
    assert len(np.unique(other)) > 300

"""Frequency matching: every pair of ranges tried one by one, and what its error names."""

import math

import numpy as np
import pytest
import torch

from lmdyn.analysis import match_frequency


def brute_force_match(first, second, size):
    """Every pair of ranges of the two sorted lists: the closest averages, the most frequent of equals."""
    a, b = sorted(first, reverse=True), sorted(second, reverse=True)
    best = min(
        (abs(math.log((sum(a[i : i + size]) / size) / (sum(b[j : j + size]) / size))), i, j)
        for i in range(len(a) - size + 1)
        for j in range(len(b) - size + 1)
    )
    return best[0]


class TestMatchFrequency:
    def test_closest_of_all_pairs_of_ranges(self):
        rng = np.random.default_rng(0)
        for _ in range(20):
            first = rng.integers(100, 5000, size=40).tolist()
            second = rng.integers(100, 90000, size=15).tolist()
            matched = match_frequency(torch.tensor(first), torch.tensor(second), size=6, tolerance=10.0)
            gap = abs(math.log(matched.means[0] / matched.means[1]))
            assert gap == pytest.approx(brute_force_match(first, second, 6), abs=1e-12)
            for ids, words, mean in (
                (matched.first, first, matched.means[0]),
                (matched.second, second, matched.means[1]),
            ):
                chosen = [words[i] for i in ids]
                assert mean == pytest.approx(sum(chosen) / 6)
                ranked = sorted(words, reverse=True)
                # a range of the sorted list
                assert any(chosen == ranked[i : i + 6] for i in range(len(ranked)))

    def test_impossible_match_says_what_is_possible(self):
        first, second = torch.tensor([100] * 50), torch.tensor([100] * 7 + [9000] * 50)
        with pytest.raises(ValueError, match=r"no ranges of 20 words.*largest size with a match is 7"):
            match_frequency(first, second, size=20, tolerance=0.01)
        assert len(match_frequency(first, second, size=7, tolerance=0.01).second) == 7
        with pytest.raises(ValueError, match="largest size with a match is 0"):
            match_frequency(torch.tensor([1.0]), torch.tensor([1000.0]), size=1)

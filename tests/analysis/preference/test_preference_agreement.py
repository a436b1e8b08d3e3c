"""Agreement of two preferences: scipy's correlations, intervals that cover, controls that find what was put in."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from lmdyn.analysis import compare_preferences, shuffled_within


def normal(seed, n=300, rho=0.6):
    """Two preferences of n types with correlation rho, and counts of their own."""
    random = np.random.default_rng(seed)
    x, e = random.normal(size=(2, n))
    return x, rho * x + math.sqrt(1 - rho**2) * e, random.permutation(n) + 1


class TestValues:
    def test_equal_scipy(self):
        x, y, counts = normal(0)
        y, counts = np.round(y, 1), counts // 3  # with ties
        found = compare_preferences(x, y, counts, resamplings=10)
        assert found.types == 300
        assert found.pearson == pytest.approx(pearsonr(x, y).statistic, abs=1e-12)
        assert found.spearman == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
        # rank 1 is the most frequent
        xf, yf = (spearmanr(v, -counts).statistic for v in (x, y))
        partial = (found.spearman - xf * yf) / math.sqrt((1 - xf**2) * (1 - yf**2))
        assert found.spearman_given_frequency == pytest.approx(partial, abs=1e-12)

    def test_only_the_most_frequent_finite_types(self):
        x, y, counts = normal(1)
        counts = counts // 4  # ties at the cut
        x[::7], y[::11], y[5] = np.nan, np.inf, -np.inf
        finite = [i for i in range(300) if math.isfinite(x[i]) and math.isfinite(y[i])]
        kept = sorted(finite, key=lambda i: (-counts[i], i))[:101]
        found = compare_preferences(x, y, counts, top=101)
        assert found.types == 101
        assert astuple(found) == astuple(compare_preferences(x[kept], y[kept], counts[kept]))
        assert found.pearson == pytest.approx(pearsonr(x[kept], y[kept]).statistic, abs=1e-12)
        assert found.pearson != compare_preferences(x, y, counts, top=100).pearson
        assert compare_preferences(x, y, counts).types == len(finite)

    @pytest.mark.parametrize("sign", [1, -1])
    def test_a_preference_with_itself(self, sign):
        x, _, counts = normal(3)
        found = compare_preferences(x, sign * 2 * x + 1, counts, resamplings=100)
        assert [found.pearson, found.pearson_low, found.pearson_high] == pytest.approx([sign] * 3, abs=1e-12)
        assert [found.spearman, found.spearman_low, found.spearman_high] == pytest.approx(
            [sign] * 3, abs=1e-12
        )
        assert found.shuffled < 0.1

    def test_undefined(self):
        x, y, counts = normal(4)
        found = compare_preferences(np.full(300, 0.1), y, counts, resamplings=20)
        assert found.types == 300
        assert np.isnan([found.pearson, found.pearson_low, found.spearman, found.shuffled]).all()
        assert np.isnan(astuple(compare_preferences(x[:2], y[:2], counts[:2]))[1:]).all()


class TestIntervals:
    @pytest.mark.slow
    @pytest.mark.parametrize("rho", [0.0, 0.6, 0.94])
    def test_cover_what_is_known_of_normal_variables(self, rho):
        """Of 95 % intervals from 200 samples all but some 10 hold the correlation (here: 3 to 22)."""
        known = (rho, 6 / math.pi * math.asin(rho / 2))
        inside, widths = np.zeros(2), []
        for seed in range(200):
            found = compare_preferences(*normal(seed, rho=rho), resamplings=200, seed=seed)
            inside += (
                found.pearson_low <= known[0] <= found.pearson_high,
                found.spearman_low <= known[1] <= found.spearman_high,
            )
            widths.append(math.atanh(found.pearson_high) - math.atanh(found.pearson_low))
        assert (inside >= 178).all(), inside
        assert (inside <= 197).all(), inside
        # Fisher: the standard deviation of z is 1/√(n − 3), whatever the correlation
        assert np.mean(widths) == pytest.approx(2 * 1.96 / math.sqrt(297), rel=0.05)

    def test_confidence_and_seed(self):
        data = normal(8)
        wide, narrow, other = (
            compare_preferences(*data, confidence=c, seed=s) for c, s in ((0.95, 0), (0.5, 0), (0.95, 1))
        )
        assert wide.pearson_low < narrow.pearson_low < wide.pearson < narrow.pearson_high < wide.pearson_high
        assert narrow.shuffled_high < wide.shuffled_high
        assert astuple(wide) == astuple(compare_preferences(*data))
        assert other.pearson == wide.pearson
        assert other.pearson_low != wide.pearson_low
        assert other.pearson_low == pytest.approx(wide.pearson_low, abs=0.02)


class TestControls:
    def test_shuffling_leaves_what_chance_gives(self):
        found = compare_preferences(*normal(9, n=2000, rho=0.9), resamplings=2000)
        # |r| of unrelated values: half normal with deviation 1/√(n − 1)
        assert found.shuffled == pytest.approx(math.sqrt(2 / math.pi / 1999), rel=0.05)
        assert found.shuffled_high == pytest.approx(1.96 / math.sqrt(1999), rel=0.1)
        assert found.pearson_low > 10 * found.shuffled_high

    def test_agreement_that_is_frequency_alone(self):
        random = np.random.default_rng(11)
        counts = random.permutation(2000) + 1
        noise = random.normal(size=(3, 2000)) * 600
        first, second = noise[0] - counts, noise[1] - counts
        found = compare_preferences(first, second, counts, resamplings=10)
        assert found.spearman > 0.4
        assert abs(found.spearman_given_frequency) < 0.07
        # agreement beyond frequency stays
        beyond = compare_preferences(first + 2 * noise[2], second + 2 * noise[2], counts, resamplings=10)
        assert beyond.spearman_given_frequency > 0.5


class TestShuffledWithin:
    def test_it_is_the_mean_over_permutations(self):
        x, y, _ = normal(12, n=60, rho=0.5)
        strata = np.arange(60) // 10
        x, y = x + strata, y + 0.5 * strata
        random, found = np.random.default_rng(0), []
        for _ in range(4000):
            shuffled = y.copy()
            for s in range(6):
                shuffled[strata == s] = random.permutation(y[strata == s])
            found.append(np.corrcoef(x, shuffled)[0, 1])
        assert shuffled_within(x, y, strata) == pytest.approx(np.mean(found), abs=4 * np.std(found) / 60)
        # the control: without the strata chance has nothing in common
        assert np.mean(found) > 0.2
        assert abs(shuffled_within(x, y, np.zeros(60, dtype=int))) < 1e-12

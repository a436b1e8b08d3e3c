"""Means over seeds against scipy, and what no closed form says by counting."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binomtest

from lmdyn.analysis.statistics.mean_over_seeds import BoundedMean, Bounds, mean_over_seeds

X = [0.3, 0.1, 0.25, 0.4, 0.2]


def test_without_text_it_is_students():
    found = mean_over_seeds(X)
    oracle = stats.ttest_1samp(X, 0.1)
    assert found.interval(0.9) == pytest.approx(tuple(oracle.confidence_interval(0.9)))
    assert found.p_above(0.1) == pytest.approx(oracle.pvalue / 2)
    assert found.p_below(0.1) == pytest.approx(1 - oracle.pvalue / 2)
    assert found.df == 4
    assert found.text_interval() == (found.mean, found.mean)


def test_text_is_not_divided_by_the_number_of_seeds():
    """The sum of variances is that of Welch's test of two samples, whose degrees of freedom are known."""
    a, b = np.array(X), np.random.default_rng(0).normal(size=12)
    error = float(stats.sem(b))
    found = mean_over_seeds(X, [error] * 5, [11] * 5)
    welch = stats.ttest_ind(a, b, equal_var=False)
    assert found.df == pytest.approx(welch.df)
    assert found.error == pytest.approx(math.hypot(stats.sem(a), stats.sem(b)))
    low, high = found.interval()
    half = stats.t.ppf(0.975, welch.df) * found.error
    assert (low, high) == pytest.approx((a.mean() - half, a.mean() + half))
    assert mean_over_seeds(X, [0.3, 0.4, 0.0, 0.0, 0.0]).text_error == pytest.approx(math.sqrt(0.25 / 5))


def test_never_narrower_than_seeds_alone():
    """Three seeds: Satterthwaite's degrees of freedom go from 2 to 6, and the interval would shrink."""
    seeds, both = mean_over_seeds([0.1, 0.2, 0.3]), mean_over_seeds([0.1, 0.2, 0.3], [0.05] * 3)
    shrunk = stats.t.ppf(0.975, both.df) * both.error
    assert shrunk < seeds.interval()[1] - seeds.mean  # the control: that is what would happen
    assert both.interval() == seeds.interval()
    assert both.p_above(0) == seeds.p_above(0)


@pytest.mark.parametrize("n", [2, 5, 6, 20])
def test_equal_values_are_judged_by_the_sign_test(n):
    """Five equal seeds do not decide, six do; the control is one that differs, by however little."""
    found = mean_over_seeds([0.1] * n)
    sign = stats.binomtest(n, n, alternative="greater").pvalue
    assert found.p_above(0) == found.p_below(0.2) == pytest.approx(sign)
    assert (found.p_below(0), found.p_above(0.2), found.p_above(0.1)) == (1, 1, 1)
    assert (found.p_above(-math.inf), found.p_below(math.inf), found.p_above(math.inf)) == (0, 0, 1)
    ends = (0.1, 0.1) if sign <= 0.025 else (-math.inf, math.inf)
    assert found.interval() == found.seeds_interval() == pytest.approx(ends)
    assert found.interval(1 - 2 * sign) == pytest.approx((0.1, 0.1))
    assert Bounds([0.1] * n, [0.1] * n).interval() == found.interval()
    almost = mean_over_seeds([0.1] * (n - 1) + [0.1 + 1e-9])
    assert almost.interval() == pytest.approx((0.1, 0.1), abs=1e-7)


def test_equal_values_keep_their_error_over_texts():
    text = 0.2 * stats.t.ppf(0.975, 9)
    few, enough = (mean_over_seeds([0.1] * n, [0.2] * n, [9] * n) for n in (5, 6))
    assert few.text_interval() == enough.interval() == pytest.approx((0.1 - text, 0.1 + text))
    assert few.interval() == (-math.inf, math.inf)
    assert enough.p_above(0.0) == pytest.approx(stats.t.sf(0.5, 9))
    assert enough.p_above(-2.0) == 2**-6  # text alone would say 3e-6


def test_equal_bounds_are_not_equal_values():
    """Values between the same two bounds are not known to agree: the widest interval of any of them."""
    found = Bounds([1.0] * 5, [2.0] * 5)
    every = [mean_over_seeds(v) for v in product((1.0, 2.0), repeat=5) if len(set(v)) > 1]
    ends = [one.interval() for one in every]
    assert found.interval() == (min(e[0] for e in ends), max(e[1] for e in ends))
    assert found.interval()[0] < 1 < 2 < found.interval()[1]


def test_bounds_are_the_worst_of_all_values_between_them():
    rng = np.random.default_rng(1)
    low = rng.normal(size=4)
    high = low + np.array([0.0, 0.5, 1.0, 0.2])
    found = Bounds(low.tolist(), high.tolist())
    every = [
        stats.ttest_1samp(v, 0.0)
        for v in product(*(np.linspace(a, b, 3) for a, b in zip(low, high, strict=True)))
    ]
    ends = [t.confidence_interval(0.95) for t in every]
    assert found.interval() == pytest.approx((min(e.low for e in ends), max(e.high for e in ends)))
    one_sided = [stats.t.sf(t.statistic, 3) for t in every]
    assert found.p_above(0.0) == pytest.approx(max(one_sided))
    assert found.p_below(0.0) == pytest.approx(1 - min(one_sided))
    exact = Bounds(X, X)
    assert exact.interval() == mean_over_seeds(X).interval()
    assert exact.p_above(0.1) == mean_over_seeds(X).p_above(0.1)


def test_without_an_upper_bound():
    some = Bounds([1.0, 2.0, 3.0], [1.0, 2.0, math.inf])
    assert some.interval() == (-math.inf, math.inf)
    assert some.p_above(-100) == 0.25  # the sign test of three
    assert some.p_below(100) == 1
    seven = Bounds([1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 3.0], [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, math.inf])
    truncated = mean_over_seeds([1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 3.0])
    assert seven.interval() == (truncated.interval()[0], math.inf)
    assert seven.p_above(-100) == 2**-6
    assert (seven.p_above(-math.inf), seven.p_below(math.inf)) == (0, 0)
    mirrored = Bounds([-math.inf, -3.0, *[-1.0] * 5], [-3.0, -3.0, *[-1.0] * 5])
    assert mirrored.interval()[0] == -math.inf
    assert mirrored.p_below(100) == 2**-6
    nothing = Bounds([-math.inf, 1.0], [math.inf, 1.0])
    assert nothing.interval() == (-math.inf, math.inf)
    assert nothing.p_above(0) == nothing.p_below(0) == 1


def test_of_many_censored_seeds_the_interval_is_wider_than_of_any_values(monkeypatch):
    random = np.random.default_rng(5)
    low = random.normal(size=14)
    high = low + random.uniform(0.1, 1.0, size=14)
    found = Bounds(low.tolist(), high.tolist())
    for share in random.integers(0, 2, size=(200, 14)):
        values = np.where(share, low, high).tolist()
        inner = mean_over_seeds(values)
        a, b = inner.interval()
        assert found.interval()[0] < a
        assert found.interval()[1] > b
        assert found.p_above(-0.5) >= inner.p_above(-0.5)
    # next to that of all corners, where these can be had
    few = low[:8].tolist(), high[:8].tolist()
    exact = Bounds(*few).interval()
    monkeypatch.setattr("lmdyn.analysis.statistics.mean_over_seeds._MOST_CENSORED", 7)
    wider = Bounds(*few).interval()
    assert wider[0] <= exact[0] < exact[1] <= wider[1]
    assert wider[1] - wider[0] < 1.5 * (exact[1] - exact[0])
    never = Bounds([*low, 3.0], [*high, np.inf])
    assert never.interval()[0] > -np.inf
    assert never.interval()[1] == np.inf


# ---------------------------------------------------------------- values between two ends


@pytest.mark.parametrize(("k", "n"), [(0, 3), (0, 5), (0, 20), (1, 40), (3, 40), (20, 40), (70, 300)])
def test_zeros_and_ones_are_as_the_binomial_has_them(k, n):
    """Clopper and Pearson's interval of k of n, and the p-values of that many ones."""
    found = BoundedMean([1.0] * k + [0.0] * (n - k))
    mirrored = BoundedMean([0.0] * k + [1.0] * (n - k))
    exact = binomtest(k, n).proportion_ci(0.95, "exact")
    assert found.interval() == pytest.approx((exact.low, exact.high), abs=1e-9)
    assert mirrored.interval() == pytest.approx((1 - exact.high, 1 - exact.low), abs=1e-9)
    for share in (k / n + 0.05, k / n + 0.3):
        p = binomtest(k, n, share, alternative="less").pvalue
        assert found.p_below(share) == pytest.approx(p, abs=1e-14)
        assert mirrored.p_above(1 - share) == pytest.approx(p, abs=1e-14)
    assert (found.p_above(0.6), found.p_above(-0.1), found.p_above(-math.inf)) == (1.0, 0.0, 0.0)
    assert (mirrored.p_below(0.4), mirrored.p_below(1.5), mirrored.p_below(math.inf)) == (1.0, 0.0, 0.0)


def test_one_exception_among_many_widens_the_interval():
    """The control is Student's: no width without the exception, and less with it than is right without it."""
    none, one = [0.0] * 39, [0.0] * 38 + [0.25]
    right, wider = (BoundedMean(values).interval() for values in (none, one))
    assert right == pytest.approx((0, binomtest(0, 39).proportion_ci(0.95, "exact").high))
    assert wider[0] > 0
    assert wider[1] > right[1]
    assert mean_over_seeds(one).interval()[1] < right[1]


def test_bounds_of_other_values_are_quantiles_of_their_mean_by_spacings():
    """Drawn from the definition: as many uniform numbers cut the line, and the pieces are the weights."""
    random = np.random.default_rng(0)
    values = [0.0, 0.0, 0.0, 0.0, 0.1, 0.4, 0.7]
    cuts = np.sort(random.uniform(size=(200_000, len(values))), axis=1)
    pieces = np.diff(cuts, axis=1, prepend=0, append=1)
    means = pieces @ np.array([*values, 1.0])
    found = BoundedMean(values)
    assert found.interval()[1] == pytest.approx(np.quantile(means, 0.975), abs=4e-3)
    assert found.p_below(0.5) == pytest.approx((means >= 0.5).mean(), abs=4e-3)
    low = -BoundedMean([-v for v in values], -1.0, 0.0).interval()[1]
    assert found.interval()[0] == pytest.approx(low)
    assert found.p_above(low) == pytest.approx(found.p_below(found.interval()[1])) == pytest.approx(0.025)


def test_equal_values_within_the_range_leave_room_on_both_sides():
    half = BoundedMean([0.5] * 4, -1.0, 1.0)
    low, high = half.interval()
    rest = 1 - 0.025**0.25
    assert (low, high) == pytest.approx((0.5 - 1.5 * rest, 0.5 + 0.5 * rest))
    # at the end of the interval the p-value is what is left of the confidence
    assert half.p_above(low) == pytest.approx(0.025)
    assert half.p_below(high) == pytest.approx(0.025)


def test_values_between_bounds_have_the_ends_of_their_bounds():
    low, high = [0.0, 0.0, 0.0, 0.2], [0.0, 0.0, 0.3, 0.9]
    found = BoundedMean(low, highest=high)
    assert found.interval() == (BoundedMean(low).interval()[0], BoundedMean(high).interval()[1])
    text = BoundedMean(low, highest=high, text_error=0.1, text_df=9.0)
    half = 0.1 * stats.t.ppf(0.975, 9)
    assert text.text_interval() == pytest.approx((np.mean(low) - half, np.mean(high) + half))
    assert (found.p_above(0.01), found.p_below(0.9)) == (
        BoundedMean(low).p_above(0.01),
        BoundedMean(high).p_below(0.9),
    )


def test_an_undefined_error_over_texts_leaves_a_share_undefined():
    found = BoundedMean([0.9] * 30, text_error=math.nan)
    assert all(map(math.isnan, (*found.interval(), found.p_above(0.5), found.p_below(0.5))))
    with pytest.raises(ValueError, match="and inf, both finite"):
        BoundedMean([0.5, 0.7], 0.0, math.inf)


def test_a_mean_of_shares_keeps_its_error_over_texts():
    both = BoundedMean([0.9] * 30, text_error=0.2, text_df=9.0)
    text = 0.9 - 0.2 * stats.t.ppf(0.975, 9)
    # wider than of 30 equal seeds
    assert both.text_interval()[0] == both.interval()[0] == pytest.approx(text)
    assert both.seeds_interval()[0] > both.interval()[0]
    assert both.p_above(0.5) == pytest.approx(stats.t.sf(2.0, 9))
    for wrong in ([1.5] * 30, [0.2, -0.1], [0.5]):
        with pytest.raises(ValueError, match="expected at least two values between 0"):
            BoundedMean(wrong)


@pytest.mark.parametrize("n", [3, 5, 8])
def test_the_level_of_equal_values_is_exact(n):
    """No law on [0, 1] with mean b makes n seeds agree above it, at p ≤ α, more often than α; one does as often."""
    b, alpha = 0.3, 0.05
    places = np.linspace(0, 1, 21)
    decides = np.array([BoundedMean([v] * n).p_above(b) <= alpha for v in places])
    assert decides[-1]
    assert not decides[places <= b].any()
    random = np.random.default_rng(n)
    for law in random.dirichlet(np.full(len(places), 0.1), size=2000):
        law = law * min(1.0, b / (law @ places))  # what is left is at 0
        assert (law[decides] ** n).sum() <= alpha
    v = b / alpha ** (1 / n)  # all seeds at 0 or here
    assert (b / v) ** n == pytest.approx(BoundedMean([v] * n, high=2.0).p_above(b)) == pytest.approx(alpha)


@pytest.mark.parametrize("n", [20, 40])
def test_the_level_of_shares_that_are_mostly_none(n):
    """Nine in ten are 0, the others anywhere: the bounds miss their mean no more often than they may, Student's do."""
    random = np.random.default_rng(n)
    drawn = random.uniform(size=(400, n)) * (random.uniform(size=(400, n)) < 0.1)
    missed = [not ends[0] <= 0.05 <= ends[1] for ends in (BoundedMean(list(v)).interval() for v in drawn)]
    assert np.mean(missed) <= 0.05
    students = [mean_over_seeds(list(v)).interval() for v in drawn]
    assert np.mean([not ends[0] <= 0.05 <= ends[1] for ends in students]) > 0.1

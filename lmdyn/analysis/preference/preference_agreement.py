"""Agreement of two instances of a model in their towers' preferences, and the share that word frequency explains."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from lmdyn.analysis.statistics.bootstrap import basic_interval, draw_blocks
from lmdyn.analysis.statistics.correlation import (
    FloatArray,
    check_lengths,
    pearson,
    spearman,
    unit_values,
    weighted_pearson,
)

__all__ = ["Agreement", "compare_preferences", "shuffled_within"]

_ONE = 1 - 1e-12  # a larger correlation is 1 up to rounding; Fisher's z of this value is finite


@dataclass(frozen=True)
class Agreement:
    """Correlations of two preferences over types, with bootstrap intervals and controls.

    Each value is NaN if it is undefined: for fewer than 3 types, or a constant preference.

    Attributes:
        types: number of types compared.
        pearson: Pearson's correlation, in [−1, 1].
        pearson_low: lower end of its interval.
        pearson_high: upper end of its interval.
        spearman: Spearman's rank correlation, in [−1, 1].
        spearman_low: lower end of its interval.
        spearman_high: upper end of its interval.
        spearman_given_frequency: partial rank correlation, with the frequency rank held fixed.
        shuffled: mean of |Pearson's r| with the types of the second instance shuffled: the agreement by chance.
        shuffled_high: the ``confidence`` quantile of |r| with shuffled types.
    """

    types: int
    pearson: float
    pearson_low: float
    pearson_high: float
    spearman: float
    spearman_low: float
    spearman_high: float
    spearman_given_frequency: float
    shuffled: float
    shuffled_high: float


def compare_preferences(
    first: npt.NDArray[Any],
    second: npt.NDArray[Any],
    frequency: npt.NDArray[Any],
    *,
    top: int = 5000,
    resamplings: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Agreement:
    """Compute how far two instances agree in their preferences for the most frequent types (tables 2 and 4).

    Intervals are basic bootstrap intervals over types, on the scale of Fisher's z = artanh r, on which the spread of a
    correlation hardly depends on its value. Transformed back, they stay within [−1, 1], unlike plain basic intervals
    near 1. For Spearman's correlation, resampled types keep their ranks among all types; they are not ranked again.
    For bivariate normal values, this makes the interval narrower by 1 % (r = 0) to 6 % (r = 0.94). The intervals
    measure how the correlation varies over types, not over training runs.

    The partial correlation holds the frequency rank of the types fixed. Rank 1 is the most frequent type, and types of
    equal frequency share a rank.

    Args:
        first: (n,) preferences of one instance.
        second: (n,) preferences of the other instance for the same types. Types that are not finite in both are left
            out.
        frequency: (n,) counts of the types.
        top: number of the most frequent types to compare; of equally frequent ones, the first.
        resamplings: number of bootstrap resamplings and of shuffles; 0 for neither (NaN).
        confidence: confidence of the intervals, between 0 and 1.
        seed: seed of the resamplings.

    Raises:
        ValueError: if lengths differ, or if a frequency is not finite.

    Reference: He & Toyoizumi 2022, sections 5.1 and 8.1; Fisher 1921; Davison & Hinkley 1997, equation 5.6.

    Example:
        >>> first, counts = np.array([0.1, 0.4, -0.2, 0.3, 9.0]), np.array([50, 40, 30, 20, 10])
        >>> found = compare_preferences(first, -first, counts, top=4)
        >>> found.types, round(found.pearson, 6), round(found.spearman, 6)
        (4, -1.0, -1.0)
    """
    check_lengths(first, second, frequency)
    rarity = -frequency.astype(np.float64)
    if not np.isfinite(rarity).all():
        raise ValueError("a frequency is not finite: pass the count of each type, 0 for an absent type")
    finite = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    kept = finite[np.argsort(rarity[finite], kind="stable")[:top]]
    x, y = (unit_values(v[kept].astype(np.float64)) for v in (first, second))
    rarity = rarity[kept]
    n, nan = len(kept), math.nan
    if n < 3:
        return Agreement(n, *[nan] * 9)
    weights = draw_blocks(n, resamplings, seed).astype(np.float64)
    x_ranks = scipy.stats.rankdata(x)
    y_ranks = scipy.stats.rankdata(y)
    r, rho = pearson(x, y), spearman(x, y)
    # a separate stream: the shuffles do not depend on the draws. They do not change means and variances
    random = np.random.default_rng([seed, 1])
    u = x - x.mean()
    v = y - y.mean()
    norms = np.linalg.norm(u) * np.linalg.norm(v) if np.isfinite(r) else nan
    chance = np.abs([u @ random.permutation(v) for _ in range(resamplings)]) / norms
    return Agreement(
        n,
        r,
        *_interval(r, weighted_pearson(x, y, weights), confidence),
        rho,
        *_interval(rho, weighted_pearson(x_ranks, y_ranks, weights), confidence),
        spearman(x, y, [rarity]),
        float(chance.mean()) if resamplings else nan,
        float(np.quantile(chance, confidence)) if resamplings else nan,
    )


def shuffled_within(first: npt.NDArray[Any], second: npt.NDArray[Any], strata: npt.NDArray[Any]) -> float:
    """Compute the mean Pearson correlation over all permutations of the second preference within strata.

    Such a permutation keeps only what two preferences have in common because each depends on the variable of the
    strata (a word's frequency, its part of speech). A permutation does not change means and variances, so the mean
    over all of them has a closed form: Σₛ nₛ (x̄ₛ − x̄)(ȳₛ − ȳ) / (n σₓ σᵧ), the covariance of the strata's means over
    the deviations of the types.

    Args:
        first: (n,) preferences of one instance.
        second: (n,) preferences of the other instance for the same types.
        strata: (n,) integers: the stratum of each type.

    Returns:
        A number from -1 to 1; NaN for fewer than 3 types, or if a preference is constant or not finite.

    Raises:
        ValueError: if lengths differ.

    Reference: Good 2005, "Permutation, parametric and bootstrap tests", section 3.6 (restricted permutations).

    Example:
        >>> x, y = np.array([1.0, 2.0, 5.0, 6.0]), np.array([2.0, 1.0, 6.0, 5.0])
        >>> round(shuffled_within(x, y, np.array([0, 0, 1, 1])), 4), shuffled_within(x, y, np.zeros(4, dtype=int))
        (0.9412, 0.0)
    """
    check_lengths(first, second, strata)
    if math.isnan(pearson(first, second)):
        return math.nan
    x, y = (unit_values(v.astype(np.float64)) for v in (first, second))
    x, y = x - x.mean(), y - y.mean()
    _, at, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    sums = [np.bincount(at, weights=v) for v in (x, y)]
    return float((sums[0] * sums[1] / sizes).sum() / np.sqrt((x @ x) * (y @ y)))


def _interval(value: float, resampled: FloatArray, confidence: float) -> tuple[float, float]:
    """Return the basic bootstrap interval of a correlation, by Fisher's z; (value, value) for ±1 and NaN."""
    if not abs(value) < _ONE:
        return value, value
    z = np.arctanh(np.clip(resampled[np.isfinite(resampled)], -_ONE, _ONE))
    low, high = basic_interval(np.arctanh(value), z, confidence)
    return float(np.tanh(low)), float(np.tanh(high))

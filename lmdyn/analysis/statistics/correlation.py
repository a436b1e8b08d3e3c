"""Pearson's and Spearman's correlation, weighted and partial; Somers' D."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from lmdyn.analysis.statistics.rank_blocks import RankCorrelations

__all__ = ["check_lengths", "pearson", "somers_d", "spearman", "unit_values", "weighted_pearson"]

FloatArray = npt.NDArray[np.float64]


def pearson(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> float:
    """Compute Pearson's correlation of x and y.

    Args:
        x: (n,) values.
        y: (n,) values.

    Returns:
        A number from -1 to 1; NaN for fewer than 3 values, or if x or y is constant (up to rounding) or not finite.

    Raises:
        ValueError: if the numbers of values differ.

    Example:
        >>> round(pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])), 6)
        1.0
    """
    check_lengths(x, y)
    if len(x) < 3 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return np.nan
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(weighted_pearson(x, y, np.ones((1, len(x))))[0])


def weighted_pearson(x: FloatArray, y: FloatArray, weights: FloatArray) -> FloatArray:
    """Compute Pearson's correlation of weighted values, for each row of weights, by one matrix product.

    Args:
        x: (n,) finite values.
        y: (n,) finite values.
        weights: (r, n) how often each value counts, such as in the resamplings of a bootstrap.

    Returns:
        Array of shape (r,), from -1 to 1; NaN if the weighted values of x or y are constant (up to rounding) or none,
        and if a value is not finite or its square overflows.

    Raises:
        ValueError: if the numbers of values differ.

    Example:
        >>> x, y = np.array([1.0, 2.0, 3.0, 9.0]), np.array([3.0, 2.0, 1.0, 9.0])
        >>> weighted_pearson(x, y, np.array([[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])).round(6).tolist()
        [-1.0, 1.0]
    """
    check_lengths(x, y)
    if not (len(x) and np.isfinite(x).all() and np.isfinite(y).all()):
        return np.full(len(weights), np.nan)
    # about the mean of all, to which the mean of a resampling is near: no precision is lost
    x, y = unit_values(x), unit_values(y)
    u, v = x - x.mean(), y - y.mean()
    with np.errstate(over="ignore", invalid="ignore"):
        means = weights @ np.stack([u, v, u * u, v * v, u * v], axis=1) / weights.sum(1, keepdims=True)
        variances = means[:, 2:4] - means[:, :2] ** 2
        # a constant side is constant up to rounding errors of its mean, or of the difference
        raw = np.array([x @ x, y @ y]) / len(x)
        variances[variances <= np.maximum(1e-12 * means[:, 2:4], 1e-24 * raw)] = np.nan
        r = (means[:, 4] - means[:, 0] * means[:, 1]) / np.sqrt(variances.prod(1))
    return np.asarray(np.clip(r, -1, 1))


def spearman(x: npt.NDArray[Any], y: npt.NDArray[Any], given: Sequence[npt.NDArray[Any]] = ()) -> float:
    """Compute Spearman's rank correlation of x and y, partial if other variables are given.

    The partial correlation is Pearson's correlation of the residuals of the ranks of x and y after a linear regression
    on the ranks of the given variables (Conover & Iman 1981).

    Args:
        x: (n,) values.
        y: (n,) values.
        given: variables to hold fixed, each (n,).

    Returns:
        A number from -1 to 1; NaN for fewer than 3 values, if x or y is constant or determined by the given variables,
        and if a value, also of the given variables, is not finite.

    Raises:
        ValueError: if the numbers of values differ.

    Example:
        >>> x = np.arange(6.0)
        >>> round(spearman(x, x**3), 6)
        1.0
    """
    check_lengths(x, y, *given)
    columns = [x, y, *given]
    found = RankCorrelations(columns, np.zeros(len(x))).of(0, 1, range(2, len(columns)))
    return found.value


def unit_values(values: FloatArray) -> FloatArray:
    """Scale values as :func:`~lmdyn.analysis.statistics.precision.unit_size` does: exactly, with normal squares.

    Example:
        >>> unit_values(np.array([3.0, -8.0])).tolist()
        [0.1875, -0.5]
    """
    if not len(values):
        return values
    return np.asarray(np.ldexp(values, -np.frexp(np.abs(values).max())[1]))


def check_lengths(*rows: npt.NDArray[Any]) -> None:
    """Raise an error unless all arrays are of one shape (n,)."""
    if any(row.shape != rows[0].shape or row.ndim != 1 for row in rows):
        raise ValueError(f"expected arrays of one shape (n,), got {', '.join(str(r.shape) for r in rows)}")


def somers_d(given: npt.NDArray[Any], found: npt.NDArray[Any]) -> float:
    """Compute Somers' D of ``found`` with respect to ``given``: the agreement of an order with a given one.

    Among the pairs that differ in ``given``, it is the share that is ordered alike in ``found`` minus the share that
    is ordered in reverse. Pairs that are equal in ``found`` count as neither. Without equal values, it is Kendall's τ.

    Args:
        given: (n,) values.
        found: (n,) values, may be infinite.

    Returns:
        A number from -1 to 1; NaN if ``given`` is constant, or if a value is NaN.

    Raises:
        ValueError: if the numbers of values differ.

    Reference: Somers 1962, "A new asymmetric measure of association for ordinal variables".

    Example:
        >>> somers_d(np.array([1, 1, 2, 3]), np.array([5.0, 4.0, 6.0, np.inf]))  # the first two are not ordered
        1.0
        >>> somers_d(np.array([1, 2, 3]), np.array([1.0, 3.0, 2.0])).__round__(6)
        0.333333
    """
    if given.shape != found.shape or given.ndim != 1:
        raise ValueError(f"expected given and found of one shape (n,), got {given.shape} and {found.shape}")
    if np.isnan(np.array([given, found], np.float64)).any():
        return np.nan
    return float(scipy.stats.somersd(given, found).statistic)

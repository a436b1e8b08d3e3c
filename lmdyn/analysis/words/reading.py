"""Reading times: how much better surprisal predicts them than length, frequency and position alone."""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

__all__ = ["ReadingFit", "reading_fit"]

Numbers = npt.NDArray[np.float64]

_WIDEST = 15.0
"""Bound of |log| of the ratio of variances between and within groups."""


@dataclass(frozen=True)
class ReadingFit:
    """What surprisal adds to a baseline that predicts reading times.

    Attributes:
        partial_r2: (R² − R₀²) / (1 − R₀²), 0 to 1, by least squares: of the variance that the baseline leaves.
        chance: mean of ``partial_r2`` for a predictor that is noise.
        delta_log_likelihood: log-likelihood with surprisal less that without, in nats per observation, at least 0: of
            models with a random intercept for each group, or of least squares without groups.
        slope: time per unit of surprisal, by least squares.
        slope_error: its standard error, which takes the observations as independent.
        observations: number of times that were used.
    """

    partial_r2: float
    chance: float
    delta_log_likelihood: float
    slope: float
    slope_error: float
    observations: int


def reading_fit(
    times: npt.ArrayLike,
    surprisal: npt.ArrayLike,
    baseline: npt.ArrayLike,
    groups: npt.ArrayLike | None = None,
) -> ReadingFit:
    """Compare predictions of reading times with and without surprisal.

    The baseline has an intercept, its predictors, and the products of each two of them; the other model has surprisal
    in addition. Rows in which a number is not finite are left out of both.

    Args:
        times: (n,) reading times.
        surprisal: (n,) surprisal of the words, in any unit.
        baseline: (n, k) predictors, such as length and log frequency.
        groups: (n,) readers or texts, each with a random intercept; None for none.

    Returns:
        The comparison; ``slope`` is NaN if the baseline determines surprisal, which then adds nothing.

    Raises:
        ValueError: for unequal lengths, or too few rows, or times that are all equal.

    Reference: partial R²: the BabyLM protocol; likelihood: Goodkind & Bicknell 2018; of random intercepts: Laird &
        Ware 1982, by maximum likelihood.

    Example:
        >>> x, length = np.arange(12.0) % 5, np.arange(12.0) % 3
        >>> fit = reading_fit(200 + 10 * length + 7 * x + np.cos(np.arange(12)), x, length[:, None])
        >>> round(fit.slope), fit.partial_r2 > 0.99
        (7, True)
    """
    y, x, rows = (np.asarray(of, np.float64) for of in (times, surprisal, baseline))
    if not (y.ndim == x.ndim == 1 and rows.ndim == 2 and len(y) == len(x) == len(rows)):
        raise ValueError(
            f"expected times (n,), surprisal (n,) and baseline (n, k), got {y.shape}, {x.shape} and {rows.shape}"
        )
    kept = np.isfinite(y) & np.isfinite(x) & np.isfinite(rows).all(1)
    y, x = y[kept], x[kept]
    basis = _basis(rows[kept]) if len(y) else np.zeros((0, 1))
    degrees = len(y) - basis.shape[1] - 1
    if degrees < 1 or np.ptp(y) == 0:
        raise ValueError(
            f"expected different times of more than {basis.shape[1] + 1} words with all predictors, got {len(y)} words "
            f"with {len(set(y.tolist()))} different times"
        )
    rest_y, rest_x = (of - basis @ (basis.T @ of) for of in (y, x))
    own = float(rest_x @ rest_x)
    if own <= 1e-20 * max(1.0, float(x @ x)):
        return ReadingFit(0.0, 1 / (degrees + 1), 0.0, math.nan, math.nan, len(y))
    slope = float(rest_x @ rest_y) / own
    left = float(((rest_y - slope * rest_x) ** 2).sum())
    before = float(rest_y @ rest_y)
    numbers = np.zeros(len(y), np.int64)
    if groups is not None:
        numbers = np.unique(np.asarray(groups)[kept], return_inverse=True)[1]
    more = np.column_stack([basis, rest_x / math.sqrt(own)])
    gain = _log_likelihood(more, y, numbers) - _log_likelihood(basis, y, numbers)
    return ReadingFit(
        partial_r2=1 - left / before if before else 0.0,
        chance=1 / (degrees + 1),
        delta_log_likelihood=gain / len(y),
        slope=slope,
        slope_error=math.sqrt(left / degrees / own),
        observations=len(y),
    )


def _basis(predictors: Numbers) -> Numbers:
    """Return orthonormal columns that span an intercept, the predictors and the products of each two of them."""
    spread = predictors.std(0)
    scaled = (predictors - predictors.mean(0)) / np.where(spread > 0, spread, 1)
    products = [scaled[:, i] * scaled[:, j] for i, j in combinations(range(scaled.shape[1]), 2)]
    columns = np.column_stack([np.ones(len(scaled)), scaled, *products])
    return np.asarray(scipy.linalg.orth(columns, 1e-10))


def _log_likelihood(basis: Numbers, y: Numbers, groups: npt.NDArray[np.int64]) -> float:
    """Return the largest log-likelihood, in nats, of a linear model with a random intercept for each group.

    Times are normal with the covariance σ²(1 + ρ·same group): for a ratio ρ, everything is known by sums of groups.
    """
    n, sizes = len(y), np.bincount(groups)
    rows = np.column_stack([basis, y - y.mean()])
    sums = np.zeros((len(sizes), rows.shape[1]))
    np.add.at(sums, groups, rows)
    products = rows.T @ rows

    def deviance(ratio: float) -> float:
        inner = products - sums.T @ (sums * (ratio / (1 + ratio * sizes))[:, None])
        solved = np.linalg.lstsq(inner[:-1, :-1], inner[:-1, -1], rcond=None)[0]
        left = inner[-1, -1] - inner[-1, :-1] @ solved
        return float(n * np.log(max(left, 1e-300) / n) + np.log1p(ratio * sizes).sum())

    least = deviance(0.0)
    if len(sizes) > 1:
        found: Any = scipy.optimize.minimize_scalar(
            lambda log: deviance(math.exp(log)), bounds=(-_WIDEST, _WIDEST)
        )
        least = min(least, float(found.fun))
    return -0.5 * (n * (1 + math.log(2 * math.pi)) + least)

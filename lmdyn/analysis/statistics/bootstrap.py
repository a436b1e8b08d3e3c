"""Efron's bootstrap over blocks of samples, from statistics of each block."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["basic_interval", "draw_blocks"]


def draw_blocks(blocks: int, resamplings: int, seed: int) -> npt.NDArray[np.int64]:
    """Return how often each block is drawn in each resampling, (resamplings, blocks); rows add up to ``blocks``.

    Example:
        >>> draw_blocks(5, 2, seed=0).sum(1).tolist()
        [5, 5]
    """
    return np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), size=resamplings)


def basic_interval(
    value: float | npt.NDArray[Any], resampled: Sequence[float] | npt.NDArray[Any], confidence: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Compute the basic bootstrap interval [2θ − q_high, 2θ − q_low], with q the quantiles of the resampled values.

    This subtracts the bias of resampling itself: for example, fewer different sentences have higher correlations.

    Args:
        value: (…) θ of the whole sample.
        resampled: (resamplings, …) values; no values, or a NaN among them, give NaN.
        confidence: share of resampled values between the quantiles.

    Reference: Davison & Hinkley 1997, equation 5.6.

    Example:
        >>> [round(float(end), 2) for end in basic_interval(0.5, [0.5, 0.6, 0.7], 0.9)]
        [0.31, 0.49]
    """
    values = np.asarray(resampled, np.float64)
    if len(values) == 0:
        return np.full(np.shape(value), np.nan), np.full(np.shape(value), np.nan)
    tail = (1 - confidence) / 2
    with np.errstate(invalid="ignore"):  # for infinite values
        ends = 2 * np.asarray(value, np.float64) - np.quantile(values, [1 - tail, tail], axis=0)
    return np.asarray(ends[0]), np.asarray(ends[1])

"""The bootstrap of Efron over blocks of samples, from what is known of each block."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["basic_interval", "draw_blocks"]


def draw_blocks(blocks: int, resamplings: int, seed: int) -> npt.NDArray[np.int64]:
    """How often each block is drawn in each resampling, (resamplings, blocks); rows add up to ``blocks``.

    Example:
        >>> draw_blocks(5, 2, seed=0).sum(1).tolist()
        [5, 5]
    """
    return np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), size=resamplings)


def basic_interval(
    value: float | npt.NDArray[Any], resampled: Sequence[float] | npt.NDArray[Any], confidence: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The basic bootstrap interval [2θ − q_high, 2θ − q_low], q being quantiles of the resampled values.

    What resampling itself adds is taken off: fewer different sentences correlate better, for example.

    Args:
        value: (…) θ of the whole sample.
        resampled: (resamplings, …) values; none of them gives NaN, and so does a NaN among them.
        confidence: share of resampled values between the quantiles.

    Reference: Davison & Hinkley 1997, equation 5.6.

    Example:
        >>> [round(float(end), 2) for end in basic_interval(0.5, [0.5, 0.6, 0.7], 0.9)]
        [0.31, 0.49]
    """
    values = np.asarray(resampled, dtype=np.float64)
    if len(values) == 0:
        return np.full(np.shape(value), np.nan), np.full(np.shape(value), np.nan)
    tail = (1 - confidence) / 2
    with np.errstate(invalid="ignore"):  # between infinite values
        ends = 2 * np.asarray(value, dtype=np.float64) - np.quantile(values, [1 - tail, tail], axis=0)
    return np.asarray(ends[0]), np.asarray(ends[1])

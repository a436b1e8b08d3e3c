"""The delete-one-block jackknife: bias and standard error of any statistic from its values without each block."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Jackknifed", "jackknife", "pseudo_values"]

FloatArray = npt.NDArray[np.float64]


class Jackknifed(NamedTuple):
    """A statistic corrected by the jackknife; arrays have the shape of the statistic.

    Attributes:
        value: statistic minus the estimated bias.
        error: standard error over blocks.
        df: degrees of freedom of the error, blocks - 1.
        bias: estimated bias that was subtracted.
    """

    value: FloatArray
    error: FloatArray
    df: int
    bias: FloatArray


def jackknife(
    whole: float | npt.NDArray[Any],
    left_out: Sequence[float] | npt.NDArray[Any],
    sizes: Sequence[int] | npt.NDArray[Any] | None = None,
) -> Jackknifed:
    """Compute bias correction and standard error of a smooth statistic of a sample of independent blocks.

    For g blocks with m_j of n observations each, and h_j = n / m_j, the pseudo-values are τ_j = h_j θ − (h_j − 1)
    θ_(j), the corrected value is θ_J = g θ − Σ_j (1 − m_j / n) θ_(j), and the variance is 1/g Σ_j (τ_j − θ_J)² / (h_j
    − 1). With equal blocks these are Tukey's: θ_J is the mean of the τ_j, and the variance theirs over g. The bias of
    order 1/n is subtracted, which suits canonical correlations: small samples increase them, and resampled rows
    increase them again. It is not suitable for statistics that are not smooth, such as a median or a number of kept
    directions.

    Args:
        whole: (…) the statistic θ of all blocks.
        left_out: (g, …) the statistic θ_(j) without block j.
        sizes: (g,) number of observations in each block; equal by default.

    Returns:
        The statistics; NaN if a value is NaN or infinite. ``df`` is g - 1. A t interval is ``value ± t(df) · error``.

    Raises:
        ValueError: if there are fewer than two blocks, if a block has no observations, or if the number of sizes is
            wrong.

    Reference: Efron & Tibshirani 1993, chapter 11; blocks of unequal size: Busing, Meijer & van der Leeden 1999,
        "Delete-m jackknife for unequal m", equations 4 and 8.

    Example:
        >>> x = np.array([1.0, 2.0, 6.0])
        >>> biased = lambda values: values.var()  # divided by n
        >>> found = jackknife(biased(x), [biased(np.delete(x, i)) for i in range(3)])
        >>> float(found.value.round(6)), float(x.var(ddof=1).round(6)), found.df  # the bias is removed exactly
        (7.0, 7.0, 2)
    """
    theta = np.asarray(whole, np.float64)
    without = np.asarray(left_out, np.float64)
    blocks = len(without) if without.ndim else 0
    if blocks < 2 or without.shape[1:] != theta.shape:
        raise ValueError(
            f"left_out has shape {without.shape}: expected (blocks, …) with at least two blocks and, for each block, "
            f"the shape {theta.shape} of whole"
        )
    m = np.ones(blocks) if sizes is None else np.asarray(sizes, np.float64)
    if m.shape != (blocks,) or (m <= 0).any():
        raise ValueError(
            f"expected {blocks} sizes of blocks, all above 0, got {', '.join(f'{size:g}' for size in m.flat)}"
        )
    m = m.reshape(-1, *[1] * theta.ndim)
    share = m / m.sum()
    known = np.isfinite(theta) & np.isfinite(without).all(0)
    theta = np.where(known, theta, np.nan)
    without = np.where(known, without, np.nan)
    value = blocks * theta - ((1 - share) * without).sum(0)
    pseudo = theta / share - (1 / share - 1) * without
    variance = ((pseudo - value) ** 2 / (1 / share - 1)).mean(0)
    return Jackknifed(value, np.sqrt(variance), blocks - 1, theta - value)


def pseudo_values(whole: float, left_out: npt.NDArray[Any]) -> FloatArray:
    """Compute Tukey's pseudo-values nθ − (n − 1)θ₍ᵢ₎ of a statistic of n independent units.

    For a mean, they are the values themselves. For a mean over pairs of units, with each unit in several pairs, they
    are nearly independent, their mean is the statistic, and Student's t over them gives its interval.

    Args:
        whole: the statistic θ of all units.
        left_out: (n,) the statistic θ₍ᵢ₎ without each unit.

    Raises:
        ValueError: if there are fewer than two units.

    Reference: Tukey 1958; Arvesen 1969, "Jackknifing U-statistics".

    Example:
        >>> x = np.array([1.0, 2.0, 6.0])
        >>> pseudo_values(x.mean(), np.array([np.delete(x, i).mean() for i in range(3)])).round(6).tolist()
        [1.0, 2.0, 6.0]
    """
    without = np.asarray(left_out, np.float64)
    if without.ndim != 1 or len(without) < 2:
        raise ValueError(f"expected left_out of shape (n,) with n >= 2, got shape {without.shape}")
    n = len(without)
    return n * whole - (n - 1) * without

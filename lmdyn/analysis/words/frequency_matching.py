"""Samples of words of two classes, matched for average frequency (Saphra & Lopez 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["MatchedSamples", "match_frequency"]


@dataclass(frozen=True)
class MatchedSamples:
    """Two samples of words with similar average frequency: see :func:`match_frequency`.

    Attributes:
        first: (size,) indices into the first list of frequencies.
        second: (size,) indices into the second.
        means: average frequency of each sample.
    """

    first: Int[Tensor, "size"]
    second: Int[Tensor, "size"]
    means: tuple[float, float]


def match_frequency(
    first: Float[Tensor, "n"] | Int[Tensor, "n"],
    second: Float[Tensor, "m"] | Int[Tensor, "m"],
    *,
    size: int = 120,
    tolerance: float = 0.05,
) -> MatchedSamples:
    """Select ``size`` words from each of two classes, adjacent in frequency, with similar average frequency.

    The two ranges with the closest averages are selected; of equally close ranges, the most frequent ones.

    Args:
        first: (n,) frequencies of the words of one class.
        second: (m,) frequencies of the words of the other class.
        size: number of words in each sample; 120 as published.
        tolerance: largest |ln(mean₁ / mean₂)| that counts as similar (0.05: about 5 %).

    Raises:
        ValueError: if no such ranges exist (the message names the largest size that can be matched), or if frequencies
            are negative, NaN or infinite.

    Reference: Saphra & Lopez 2019, section 3.

    Example:
        >>> match_frequency(torch.tensor([9.0, 5.0, 4.0]), torch.tensor([99.0, 5.0, 4.0, 1.0]), size=2).second
        tensor([1, 2])
    """
    for name, frequency in (("first", first), ("second", second)):
        if not bool((frequency >= 0).all() & frequency.isfinite().all()):
            raise ValueError(
                f"a frequency of the {name} class is NaN, infinite or below 0: leave out such words"
            )
    orders = [np.argsort(-f.double().numpy(), kind="stable") for f in (first, second)]
    ranked = [f.double().numpy()[order] for f, order in zip((first, second), orders, strict=True)]
    found = _closest_ranges(ranked, size)
    if found is None or found[0] > tolerance:
        sizes = (s for s in range(size - 1, 0, -1) if (f := _closest_ranges(ranked, s)) and f[0] <= tolerance)
        raise ValueError(
            f"lmdyn found no ranges of {size} words with mean frequencies within {100 * tolerance:.3g} % of each other "
            f"among {len(ranked[0])} and {len(ranked[1])} words. The largest size with a match is {next(sizes, 0)}. "
            "Lower the sample size, raise the tolerance, lower the least count, or use a larger corpus"
        )
    _, i, j = found
    return MatchedSamples(
        torch.from_numpy(orders[0][i : i + size].copy()),
        torch.from_numpy(orders[1][j : j + size].copy()),
        (float(ranked[0][i : i + size].mean()), float(ranked[1][j : j + size].mean())),
    )


def _closest_ranges(ranked: Sequence[NDArray[np.float64]], size: int) -> tuple[float, int, int] | None:
    """Return the smallest |ln ratio| of the averages of a range from each list, and where the ranges begin."""
    if size < 1 or min(map(len, ranked)) < size:
        return None
    sums = [np.concatenate([[0.0], np.cumsum(r)]) for r in ranked]
    with np.errstate(divide="ignore"):  # words of frequency 0
        # in descending order, because frequencies are
        logs = [np.log((s[size:] - s[:-size]) / size) for s in sums]
    # for each range of the first list, the nearest averages in the second
    right = np.searchsorted(-logs[1], -logs[0])
    candidates = np.stack([right - 1, right]).clip(0, len(logs[1]) - 1)
    with np.errstate(invalid="ignore"):
        gaps = np.abs(logs[0] - logs[1][candidates])
    gaps = np.where(np.isnan(gaps), np.inf, gaps)  # two ranges of frequency 0 have no ratio
    gap = gaps.min(0)
    i = int(gap.argmin())  # the first of equal gaps: the most frequent
    return float(gap[i]), i, int(candidates[gaps[:, i].argmin(), i])

"""How precise a number over seeds is: its half-width, and how many seeds would decide."""

import math
from typing import NamedTuple

import scipy

from lmdyn.analysis.statistics.mean_over_seeds import MeanOverSeeds

__all__ = ["MOST_SEEDS", "Precision", "seeds_needed"]

MOST_SEEDS = 1000
"""More seeds than this count as more than can be trained."""


class Precision(NamedTuple):
    """The precision of an undecided number.

    Attributes:
        half_width: half of the width of the deciding interval, in the number's units.
        matters: the smallest difference that matters: from the number without an effect to the bound; None if unknown.
        seeds: number of seeds that would decide; ``inf`` if no number of seeds does.
    """

    half_width: float
    matters: float | None
    seeds: float

    def __str__(self) -> str:
        against = f", the smallest difference that matters {self.matters:.3g}" if self.matters else ""
        if math.isinf(self.seeds):
            return f"half-width {self.half_width:.3g}{against}; no number of seeds decides: the texts alone do not"
        more = f"more than {MOST_SEEDS:,}" if self.seeds > MOST_SEEDS else f"{self.seeds:.0f}"
        return f"half-width {self.half_width:.3g}{against}; {more} seeds would decide if the mean stays"


def seeds_needed(mean: MeanOverSeeds, bound: float, confidence: float = 0.95) -> float:
    """Return the number of seeds from which on the interval for other seeds and texts does not contain a bound.

    The mean and the error over texts stay; the standard deviation over seeds is the upper end of its one-sided 80 %
    interval, s √((n − 1) / χ²), with χ² the lower 20 % point for n − 1 degrees of freedom.

    Args:
        mean: the mean over seeds so far.
        bound: the bound of the region, on the scale of the mean.
        confidence: confidence of the interval.

    Returns:
        The number; ``MOST_SEEDS + 1`` if it is larger than that; infinity if the interval over texts alone contains
        the bound, since then no number of seeds decides.

    Example:
        >>> from lmdyn.analysis.statistics.mean_over_seeds import mean_over_seeds
        >>> seeds_needed(mean_over_seeds([0.1, 0.2, 0.3]), 0.0), seeds_needed(mean_over_seeds([0.1, 0.2], [1, 1]), 0.0)
        (7, inf)
    """
    low, high = mean.text_interval(confidence)
    if low <= bound <= high:
        return math.inf
    n = mean.seeds_df + 1
    spread = mean.seeds_error * math.sqrt(n * mean.seeds_df / scipy.special.chdtri(mean.seeds_df, 0.8))

    def decide(seeds: int) -> bool:
        later = mean._replace(seeds_error=spread / math.sqrt(seeds), seeds_df=seeds - 1.0)
        low, high = later.interval(confidence)
        return not low <= bound <= high

    return next((k for k in range(int(n) + 1, MOST_SEEDS + 1) if decide(k)), MOST_SEEDS + 1)

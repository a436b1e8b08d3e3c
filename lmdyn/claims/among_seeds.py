"""Numbers of the runs of all seeds at once, such as a mean over pairs of models: each seed's is its pseudo-value."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lmdyn.claims.numbers import Estimate, Number
from lmdyn.claims.runs import NotMeasured, ObservedRun, SeedPair

__all__ = ["FEWEST_MODELS", "AmongSeeds"]

FEWEST_MODELS = 3
"""Models, of as many seeds, below which there are too few pairs to leave one model out."""


@dataclass(frozen=True)
class AmongSeeds(Number):
    """A statistic of the models of all seeds together, in which each model plays a part in several terms.

    Pairs of models that share one are not independent: models are resampled, not pairs. A seed's number is the
    pseudo-value nθ − (n − 1)θ₍ᵢ₎ of the jackknife, θ₍ᵢ₎ being the statistic without it. Of a mean over pairs the mean
    of these is that mean, and their interval the jackknife's; a single one may lie beyond the statistic's range.

    Subclasses are frozen dataclasses with :meth:`read`, :meth:`table` and :meth:`statistic`.

    Reference: Arvesen 1969, "Jackknifing U-statistics", section 2.
    """

    @abstractmethod
    def read(self, runs: Sequence[ObservedRun]) -> Any:
        """What is needed of the runs of one seed.

        Raises:
            NotMeasured: they lack it.
        """

    @abstractmethod
    def table(self, found: Sequence[Any]) -> Any:
        """What is computed once of all that was read, such as a matrix over pairs of seeds."""

    @abstractmethod
    def statistic(self, table: Any, kept: "np.ndarray[Any, np.dtype[np.int64]]") -> float:
        """θ of some of the seeds, by their places; NaN where it is undefined."""

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """None: one seed's runs do not tell.

        Raises:
            NotMeasured: always.
        """
        raise NotMeasured("it is a number of several seeds at once, and was asked of the runs of one")

    def of_seeds(
        self, groups: Mapping[SeedPair, Sequence[ObservedRun]]
    ) -> "dict[SeedPair, Estimate | NotMeasured]":
        """The pseudo-value of each seed that has what is read."""
        from lmdyn.analysis.statistics.jackknife import pseudo_values

        found: dict[SeedPair, Any] = {}
        answer: dict[SeedPair, Estimate | NotMeasured] = {}
        for seed, runs in groups.items():
            try:
                found[seed] = self.read(runs)
            except NotMeasured as error:
                answer[seed] = error
        if len(found) < FEWEST_MODELS:
            few = NotMeasured(
                f"{len(found)} models have it: {FEWEST_MODELS} or more are compared, each with each"
            )
            answer |= dict.fromkeys(found, few)
            return {seed: answer[seed] for seed in groups}
        table, every = self.table(list(found.values())), np.arange(len(found))
        whole = self.statistic(table, every)
        without = np.array([self.statistic(table, np.delete(every, i)) for i in every])
        values = pseudo_values(whole, without)
        answer |= {seed: Estimate(float(v)) for seed, v in zip(found, values, strict=True)}
        return {seed: answer[seed] for seed in groups}

    def curve(self, runs: Sequence[ObservedRun]) -> pd.DataFrame | None:
        """None: one seed has no curve of it."""
        return None

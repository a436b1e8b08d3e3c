"""Numbers of the runs of all seeds together, such as a mean over pairs of models: a pseudo-value for each seed."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lmdyn.claims.numbers import Estimate, Number, Scale
from lmdyn.claims.rows import Rows
from lmdyn.runs.observed_run import NotMeasured, ObservedRun, SeedPair

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FEWEST_MODELS", "AmongSeeds"]

FEWEST_MODELS = 3
"""Minimum number of models, each of another seed: fewer have too few pairs to leave one model out."""


@dataclass(frozen=True)
class AmongSeeds(Number):
    """A statistic of the models of all seeds together, in which each model enters several terms.

    Pairs that share a model are not independent: models are resampled, not pairs. A seed's number is the
    pseudo-value nθ − (n − 1)θ₍ᵢ₎ of the jackknife, with θ₍ᵢ₎ the statistic without this seed. For a mean over pairs,
    the mean of the pseudo-values is that mean, and their interval is the jackknife's; a single one may lie outside the
    statistic's range, unless the jackknife is computed on its ``scale``, as Fisher's z for a correlation.

    Subclasses are frozen dataclasses with :meth:`read`, :meth:`table` and :meth:`statistic`.

    Reference: Arvesen 1969, "Jackknifing U-statistics", section 2.
    """

    @abstractmethod
    def read(self, runs: Sequence[ObservedRun]) -> Any:
        """Return what the statistic requires from the runs of one seed.

        Raises:
            NotMeasured: if the runs lack it.
        """

    @abstractmethod
    def table(self, found: Sequence[Any]) -> Any:
        """Return what is computed once from all values of :meth:`read`, such as a matrix over pairs of seeds."""

    @abstractmethod
    def statistic(self, table: Any, kept: "np.ndarray[Any, np.dtype[np.int64]]") -> float:
        """Return θ of some of the seeds, given by their positions; NaN if it is undefined."""

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Raise: one seed's runs do not determine the number.

        Raises:
            NotMeasured: always.
        """
        raise NotMeasured(f"{type(self).__name__} compares several seeds, but `of` reads one: use `of_seeds`")

    def of_seeds(
        self, groups: Mapping[SeedPair, Sequence[ObservedRun]]
    ) -> "dict[SeedPair, Estimate | NotMeasured]":
        """Return the pseudo-value of each seed that has what is read."""
        from lmdyn.analysis.statistics.jackknife import pseudo_values
        from lmdyn.analysis.statistics.scales import from_scale, to_scale

        found: dict[SeedPair, Any] = {}
        answer: dict[SeedPair, Estimate | NotMeasured] = {}
        for seed, runs in groups.items():
            try:
                found[seed] = self.read(runs)
            except NotMeasured as error:
                answer[seed] = error
        if len(found) < FEWEST_MODELS:
            few = NotMeasured(
                f"{len(found)} models have this number: a comparison of pairs requires {FEWEST_MODELS} models"
            )
            answer |= dict.fromkeys(found, few)
            return {seed: answer[seed] for seed in groups}
        table, every = self.table(list(found.values())), np.arange(len(found))
        whole = self.statistic(table, every)
        without = np.array([self.statistic(table, np.delete(every, i)) for i in every])
        scaled = [to_scale(value, self.scale) for value in (whole, *without)]
        values = [from_scale(v, self.scale) for v in pseudo_values(scaled[0], np.array(scaled[1:]))]
        answer |= {seed: Estimate(float(v)) for seed, v in zip(found, values, strict=True)}
        return {seed: answer[seed] for seed in groups}


@dataclass(frozen=True)
class AtEqualSteps(AmongSeeds):
    """Correlation of two curves over seeds at equal steps: the mean of Pearson's r over the steps from ``since`` on.

    Both curves change with training, and so are correlated over steps whatever they measure. At one step, only what
    differs between the models is left.

    Attributes:
        a: rows of one curve.
        b: rows of the other.
        since: first step; at step 0 models have not learned.
    """

    scale: ClassVar[Scale] = "fisher"
    no_effect: ClassVar[float | None] = 0.0

    a: Rows
    b: Rows
    since: int = 1

    def read(self, runs: Sequence[ObservedRun]) -> "pd.DataFrame":
        """Return both curves by step."""
        a, b = (rows.table(runs).set_index("step")["value"].astype(float) for rows in (self.a, self.b))
        return a.to_frame("a").join(b.rename("b"), how="inner")

    def table(self, found: Sequence["pd.DataFrame"]) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return (2, n, steps) of the steps that all models have."""
        steps = sorted(set.intersection(*(set(each.index) for each in found)))
        kept = [step for step in steps if step >= self.since]
        return np.array([[each.loc[kept, side] for each in found] for side in ("a", "b")])

    def statistic(self, table: Any, kept: "np.ndarray[Any, np.dtype[np.int64]]") -> float:
        """Return the mean over steps; NaN without a step."""
        from lmdyn.analysis.statistics.correlation import pearson

        r = [pearson(a, b) for a, b in zip(table[0, kept].T, table[1, kept].T, strict=True)]
        return float(np.mean(r)) if r else float("nan")

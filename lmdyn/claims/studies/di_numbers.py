"""Numbers of a run that the study of interdependence needs: means over training, values when a rule is learned."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmdyn.claims.numbers import Estimate, Number
from lmdyn.claims.rows import Rows
from lmdyn.runs.observed_run import NotMeasured, ObservedRun

__all__ = ["LogRatioOfMeans", "WhenReached"]


@dataclass(frozen=True)
class LogRatioOfMeans(Number):
    """ln of the mean of a over observations, minus that of b, for the runs of one seed.

    The error over texts of each mean is that of the observation with the largest relative error: observations
    of one text vary together, so their mean is known no better than one of them.

    Attributes:
        a: rows of positive values.
        b: rows of positive values, at the same steps.
        until: a fraction of training; later observations do not count.
        first: whether the untrained model counts.
    """

    no_effect: ClassVar[float | None] = 0.0

    a: Rows
    b: Rows
    until: float = 1.0
    first: bool = False

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the logarithm of the ratio; NaN if a mean is not positive.

        Raises:
            NotMeasured: if there is no observation until then.
        """
        value, variance = 0.0, 0.0
        for rows, sign in ((self.a, 1.0), (self.b, -1.0)):
            table = rows.table(runs)
            last = table["step"].max()
            table = table[table["step"].le(self.until * last) & (table["step"].gt(0) | self.first)]
            if table.empty:
                raise NotMeasured(f"{rows.observer} observed no step > 0 until {self.until:g} of training")
            mean = float(table["value"].mean())
            if not mean > 0:
                return Estimate(math.nan)
            value += sign * math.log(mean)
            variance += float((table["error"] / mean).max(skipna=False)) ** 2
        return Estimate(value, None if math.isnan(variance) else math.sqrt(variance), df=self.a.df)


@dataclass(frozen=True)
class WhenReached(Number):
    """The value of some rows at the first observation at which other rows have reached a level.

    Attributes:
        rows: rows of the value.
        reaching: rows that must reach the level, at the same steps.
        level: the level.
    """

    rows: Rows
    reaching: Rows
    level: float

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the value with its error over texts.

        Raises:
            NotMeasured: if the level is not reached.
        """
        other = self.reaching.table(runs)
        beyond = other.loc[other["value"].ge(self.level), "step"]
        if beyond.empty:
            raise NotMeasured(
                f"{self.reaching.quantity} of {self.reaching.observer} does not reach {self.level:g}: train longer"
            )
        table = self.rows.table(runs).set_index("step")
        if beyond.iloc[0] not in table.index:
            step, by = beyond.iloc[0], self.reaching.observer
            raise NotMeasured(f"{self.rows.observer} did not observe step {step}, which {by} observed")
        value, error = (float(table.loc[beyond.iloc[0], column]) for column in ("value", "error"))
        return Estimate(value, None if math.isnan(error) else error, df=self.rows.df)

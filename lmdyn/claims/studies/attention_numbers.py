"""Numbers of a run that the study of attention needs: when a curve is half way."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lmdyn.claims.numbers import Estimate, Number, Reaches
from lmdyn.claims.rows import Rows
from lmdyn.claims.runs import ObservedRun

__all__ = ["HalfWay"]


@dataclass(frozen=True)
class HalfWay(Number):
    """When a curve has gone half of the way from its first value, for good: log10 of the updates, between observations.

    Curves that begin and end at other heights are comparable so.

    Attributes:
        rows: of which rows.
        end: where the way ends; by default at the last value.
    """

    rows: Rows
    end: float | None = None

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """The bounds of log10 of the updates; NaN of a curve that is no way."""
        values = self.rows.table(runs)["value"]
        first, last = float(values.iloc[0]), float(values.iloc[-1]) if self.end is None else self.end
        if math.isnan(first + last) or first == last:
            return Estimate(math.nan)
        return Reaches(self.rows, (first + last) / 2, falling=last < first, stays=True).of(runs)

"""Numbers about a whole course: cumulated shares, a fall before the largest rise, rises along a line."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from lmdyn.claims.numbers import Estimate, Number
from lmdyn.claims.rows import Rows
from lmdyn.runs.observed_run import NotMeasured, ObservedRun

Piece = Literal["before", "rise"]


@dataclass(frozen=True)
class Cumulated(Rows):
    """Sums of a quantity of intervals, such as a loss change allocation, up to each step; 0 at the first observation.

    The first observation has no interval before it, and no row. If a later one is missing, or if an interval does not
    begin at the observation before it, the sums would be those of other intervals: they are NaN from there on.

    Attributes:
        groups: values of the column ``group`` over which to sum; empty for the rows as they are.
        updates: quantity of the same observer with the number of updates of each interval.
    """

    groups: tuple[str, ...] = ()
    updates: str = "updates"

    def names(self) -> tuple[str, ...]:
        """Return the quantity, and that of the intervals."""
        return (*super().names(), f"{self.observer}/{self.updates}")

    def _table(self, runs: Sequence[ObservedRun]) -> pd.DataFrame:
        """Return the sums by step; see :meth:`Rows.table`."""
        run, folder = self.locate(runs)
        whole = run.read(folder)
        steps = np.unique(whole["step"].to_numpy(dtype="int64"))
        rows = self.frame(runs)
        rows = rows[rows["quantity"].eq(self.quantity)].astype({"value": "float64"})
        if self.groups:
            of_groups = [rows[rows["group"].eq(group)] for group in dict.fromkeys(self.groups)]
            # one row of each group and step: those of other divisions would be added to the sum
            rows = pd.concat([self._single(of, self.quantity) for of in of_groups])
            if rows.empty:
                raise NotMeasured(f"{self.observer} has no rows of the groups {', '.join(self.groups)}")
            values = rows.groupby("step")["value"].agg(lambda v: v.sum(skipna=False))
        else:
            values = self._single(rows, self.quantity).set_index("step")["value"]
        values = values.reindex(steps)
        if len(values) < 2:
            raise NotMeasured(f"{folder} of {run.name} has only one observation: expected two or more")
        length = whole[whole["quantity"].eq(self.updates)].drop_duplicates("step").set_index("step")["value"]
        joined = length.reindex(steps[1:]).to_numpy(dtype="float64") == np.diff(steps)
        values = values.where(np.concatenate([[True], joined]))
        values.iloc[0] = 0.0
        return pd.DataFrame(
            {"step": steps, "tokens": None, "value": np.cumsum(values.to_numpy()), "error": math.nan}
        )

    def between(self) -> None:
        """Return None: sums have no range."""


@dataclass(frozen=True)
class Ratio(Number):
    """a / b, such as the share of a layer in all; errors over texts are unknown.

    Attributes:
        a: numerator.
        b: denominator.
    """

    a: Number
    b: Number

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the ratio; NaN if the denominator is 0."""
        a, b = self.a.of(runs).value, self.b.of(runs).value
        return Estimate(a / b if b else math.nan)


@dataclass(frozen=True)
class LargestRise(Number):
    """The largest rise of a course, and the fall before it, in logs.

    The largest rise leads from a step a to a later step b such that ln x(b) / x(a) is largest. ``before`` is
    ln x(a) / x(first), and ``rise`` ln x(b) / x(a). ``rise`` is at least 0, ``before`` at most 0 for a curve that is
    smallest at a; selection biases both away from 0 for a noisy curve.

    Attributes:
        rows: the rows, of positive values.
        piece: ``before`` or ``rise``.
    """

    rows: Rows
    piece: Piece = "rise"

    def __post_init__(self) -> None:
        if self.piece not in get_args(Piece):
            raise ValueError(f"piece must be 'before' or 'rise', got {self.piece!r}")

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the log ratio of the piece; NaN if a value is not positive."""
        values = self.rows.table(runs)["value"].to_numpy(dtype="float64")
        if not (values > 0).all():
            return Estimate(math.nan)
        logs = np.log(values)
        lowest = np.minimum.accumulate(logs)
        b = int(np.argmax(logs - lowest))
        a = int(np.argmin(logs[: b + 1]))
        return Estimate(float(logs[a] - logs[0] if self.piece == "before" else logs[b] - logs[a]))


@dataclass(frozen=True)
class RiseOverChord(Rows):
    """The highest rise of the loss inside a line above the straight line between its ends, by step, in nats.

    max over 0 < α < 1 of L(α) − [(1 − α) L(0) + α L(1)], which is below 0 if the loss lies below the straight line
    throughout. :func:`~lmdyn.analysis.loss_barrier` also counts the ends, and is 0 there: in seeds that all have no
    barrier it says nothing about how far they are from one.

    ``quantity`` is ``line_loss`` of ``Landscape``, and ``where`` selects a reference and an order of units. The ends of
    the interval over text are ``rise_low`` and ``rise_high``, which earlier runs lack.
    """

    def _table(self, runs: Sequence[ObservedRun]) -> pd.DataFrame:
        """Return the rise by step; see :meth:`Rows.table`."""
        from lmdyn.analysis.landscape.barrier import rise_over_chord

        selected = self.frame(runs)
        rises = {step: rise_over_chord(*line) for step, line in _lines(self, selected).items()}
        found = pd.DataFrame({"step": list(rises), "value": [float(rise) for rise in rises.values()]})
        found.insert(1, "tokens", None)
        return self._with_errors(found, selected)

    def between(self) -> None:
        """Return None: a rise has no range."""


@dataclass(frozen=True)
class RiseAlongLine(Number):
    """The largest rise of the loss along a line between two networks, at the last step; below 0 if it only falls.

    This is max over i < j of L(α_j) − L(α_i), in nats: of a loss that falls all the way, the smallest fall from one
    position to the next. A barrier is counted from the straight line between the losses at both ends instead, and a
    loss that falls slowly at first has one without any rise.

    Attributes:
        rows: ``line_loss`` of ``Landscape``, of one reference and one order of units.
    """

    revision = 1
    rows: Rows

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the rise, in nats; NaN if a loss is NaN."""
        lines = _lines(self.rows, self.rows.frame(runs))
        losses = lines[max(lines)][1]
        return Estimate(float((losses[1:] - np.minimum.accumulate(losses)[:-1]).max()))


def _lines(rows: Rows, found: pd.DataFrame) -> "dict[int, tuple[list[float], np.ndarray[Any, Any]]]":
    """Return positions and losses of the line of each step."""
    found = found[found["quantity"].eq(rows.quantity)].astype({"value": "float64"})
    found = found.assign(alpha=found["alpha"].astype(float)).sort_values("alpha")
    if found.duplicated(["step", "alpha"]).any():
        raise ValueError(f"{rows.observer} has several lines at one step: set reference and units in `where`")
    lines = {}
    for step in found["step"].unique().tolist():
        line = found[found["step"].eq(step)]
        lines[int(step)] = line["alpha"].to_list(), line["value"].to_numpy()
    return lines

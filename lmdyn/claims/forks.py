"""Numbers of forks: runs that continue from one checkpoint with settings that differ only in the learning rate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from lmdyn.claims.numbers import At, Estimate, Number
from lmdyn.claims.rows import Rows
from lmdyn.runs.observed_run import NotMeasured, ObservedRun, differences

__all__ = ["ForkEffect", "RateAtFork", "SinceFork", "at_rate"]

_OF_RATE = ("forked.rate", "lr")
"""Names, or ends of names, of conditions in which two forks with different rates may differ."""


def at_rate(rows: Rows, rate: float) -> Rows:
    """Return the rows of the fork whose learning rate is this multiple of that of its run.

    Example:
        >>> at_rate(Rows("Sparsity", "rho_gradient"), 0.25).run
        (('forked.rate', 0.25),)
    """
    return replace(rows, run=(*rows.run, ("forked.rate", float(rate))))


@dataclass(frozen=True)
class ForkEffect(Number):
    """The effect of a learning rate: the last value of one fork minus (``log``: log of the ratio to) that of another.

    Both start with the same weights, optimizer state, random states and position in the same data. This is therefore
    the difference of their changes since the fork, paired by seed. Errors over texts are added as if they were
    independent, which is conservative on one text.

    Attributes:
        rows: rows of the fork, see :func:`at_rate`.
        against: the same rows of the other fork.
        log: whether to compute ln(a / b).
    """

    no_effect: ClassVar[float | None] = 0.0

    rows: Rows
    against: Rows
    log: bool = False

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the effect.

        Raises:
            NotMeasured: if there are no such forks, the forks differ in more than the rate (the message says in what),
                or their last observations are of different steps.
        """
        sides = [self.rows, self.against]
        several = [rows.locate(runs)[0] for rows in sides]
        if more := [d for d in differences(several) if not _is_of_rate(d.partition(":")[0])]:
            raise NotMeasured(
                f"{' and '.join(run.name for run in several)} differ in more than the learning rate: {'; '.join(more)}"
            )
        ends = [int(rows.table(runs)["step"].iloc[-1]) for rows in sides]
        if ends[0] != ends[1]:
            raise NotMeasured(
                f"{several[0].name} ends at step {ends[0]}, but {several[1].name} at {ends[1]}: expected equal steps"
            )
        a, b = (At(rows).of(runs) for rows in sides)
        return _compared(a, b, log=self.log)


@dataclass(frozen=True)
class SinceFork(Number):
    """The change since a fork: its last value minus (``log``: log of the ratio to) that at its start."""

    no_effect: ClassVar[float | None] = 0.0

    rows: Rows
    log: bool = False

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the change since the fork.

        Raises:
            NotMeasured: if there is no such fork, or it was not observed at its start.
        """
        began = int(self.rows.locate(runs)[0].condition["forked.step"])
        return _compared(At(self.rows).of(runs), At(self.rows, began).of(runs), log=self.log)


@dataclass(frozen=True)
class RateAtFork(Number):
    """The learning rate at the start of a fork, as a share of the configured one: 1 if it was not reduced before.

    Attributes:
        rows: rows of the observed learning rate of a fork.
        configured: name of the configured rate in the run's condition.
    """

    rows: Rows
    configured: str = "model.optimizer.lr"

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the share.

        Raises:
            NotMeasured: if there is no such fork, or its condition has no rate.
        """
        run, _ = self.rows.locate(runs)
        rate = run.condition.get(self.configured)
        if not isinstance(rate, (int, float)) or not rate > 0:
            raise NotMeasured(f"{run.name} has no number above 0 as {self.configured} in its configuration")
        return Estimate(At(self.rows, int(run.condition["forked.step"])).of(runs).value / float(rate))


def _is_of_rate(name: str) -> bool:
    return any(name == one or name.endswith(f".{one}") for one in _OF_RATE)


def _compared(a: Estimate, b: Estimate, *, log: bool) -> Estimate:
    if log and not (a.value > 0 and b.value > 0):
        return Estimate(math.nan)
    scales = (a.value, b.value) if log else (1.0, 1.0)
    value = math.log(a.value / b.value) if log else a.value - b.value
    if a.error is None or b.error is None:
        return Estimate(value)
    return Estimate(value, math.hypot(a.error / scales[0], b.error / scales[1]), df=a.df)

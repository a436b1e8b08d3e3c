"""Numbers of forks: runs that went on from one checkpoint under settings that differ in the learning rate alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmdyn.claims.numbers import At, Estimate, Number
from lmdyn.claims.rows import Rows
from lmdyn.claims.runs import NotMeasured, ObservedRun, differences

__all__ = ["ForkEffect", "RateAtFork", "SinceFork", "at_rate"]

_OF_RATE = ("forked.rate", "lr")
"""What the conditions of two forks at different rates may differ in: names, or ends of names."""


def at_rate(rows: Rows, rate: float) -> Rows:
    """The rows of the fork whose learning rate is this multiple of that of its run.

    Example:
        >>> at_rate(Rows("Sparsity", "rho_gradient"), 0.25).run
        (('forked.rate', 0.25),)
    """
    return replace(rows, run=(*rows.run, ("forked.rate", float(rate))))


@dataclass(frozen=True)
class ForkEffect(Number):
    """What a learning rate does: the last value of one fork less (``log``: the logarithm of the ratio to) another's.

    Both begin with the same weights, state of the optimizer, random states and place in the same data, so this is the
    difference of their changes since the fork, paired by seed. Errors over texts are added as if they were independent;
    on one text that is wide.

    Attributes:
        rows: of the fork, see :func:`at_rate`.
        against: the same rows of the other one.
        log: take ln(a / b).
    """

    rows: Rows
    against: Rows
    log: bool = False

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """The effect.

        Raises:
            NotMeasured: no such forks; forks that differ in more than the rate, which the message names; or whose last
                observations are of different steps.
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
                f"{several[0].name} is observed until step {ends[0]} and {several[1].name} until {ends[1]}"
            )
        a, b = (At(rows).of(runs) for rows in sides)
        return _compared(a, b, log=self.log)


@dataclass(frozen=True)
class SinceFork(Number):
    """How far a fork has come: its last value less (``log``: the logarithm of the ratio to) that where it began."""

    rows: Rows
    log: bool = False

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """The change since the fork.

        Raises:
            NotMeasured: no such fork, or it was not observed where it began.
        """
        began = int(self.rows.locate(runs)[0].condition["forked.step"])
        return _compared(At(self.rows).of(runs), At(self.rows, began).of(runs), log=self.log)


@dataclass(frozen=True)
class RateAtFork(Number):
    """The learning rate where a fork began, as a share of the configured one: 1 where it was never reduced before.

    Attributes:
        rows: those of the observed learning rate, of a fork.
        configured: name in the run's condition of the rate that it was configured with.
    """

    rows: Rows
    configured: str = "model.optimizer.lr"

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """The share.

        Raises:
            NotMeasured: no such fork, or its condition does not name a rate.
        """
        run, _ = self.rows.locate(runs)
        rate = run.condition.get(self.configured)
        if not isinstance(rate, (int, float)) or not rate > 0:
            raise NotMeasured(f"{run.name} names no {self.configured} in its configuration")
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

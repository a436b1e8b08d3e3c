"""The number of a run that a claim is about, as data: the rows of an observer, and what is computed from them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, cast

from lmdyn.claims.rows import Pairs, Rows, Source, is_of_condition, parts_of, range_by_name
from lmdyn.runs.observed_run import NotMeasured, ObservedRun, SeedPair, differences

Scale = Literal["plain", "fisher", "logit", "log"]
"""The scale on which seeds are averaged: Fisher's z for correlations, logits for shares, logarithms for ratios."""


@dataclass(frozen=True)
class Estimate:
    """The number of one run, or of the runs of one seed.

    Attributes:
        value: the estimate; if censored, the middle of its bounds, or the finite one of them.
        error: standard error over texts (this model, another text); None if unknown.
        low: if censored, the lower bound; default: the value.
        high: if censored, the upper bound; infinite if the level was not reached.
        df: degrees of freedom of the error; None for many.

    Example:
        >>> Estimate(0.5, 0.1).censored, Estimate(2.5, low=2.0, high=3.0).censored
        (False, True)
    """

    value: float
    error: float | None = None
    low: float = math.nan
    high: float = math.nan
    df: float | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            if math.isnan(getattr(self, name)):
                object.__setattr__(self, name, self.value)
        if self.low > self.high or (self.error is not None and self.error < 0):
            raise ValueError(
                f"Estimate has low {self.low}, high {self.high}, error {self.error}: expected low <= high, error >= 0"
            )

    @property
    def censored(self) -> bool:
        """Whether only bounds are known."""
        return self.low < self.high


@dataclass(frozen=True)
class Number(ABC):
    """One number of the runs of one seed. Subclasses are frozen dataclasses of texts, numbers, tuples and each other.

    A study's file may define its own numbers: implement ``of`` with :class:`Rows`, whose :meth:`Rows.frame` returns
    any rows of an observer. A claim's fingerprint covers the fields but not the code: raise ``revision`` if the code
    computes something else. ``no_effect`` is the number where there is no effect, such as 0 of a difference;
    ``scale`` is that of means, unless the claim's part names one.
    """

    revision: ClassVar[int] = 0
    scale: ClassVar[Scale] = "plain"
    no_effect: ClassVar[float | None] = None

    @abstractmethod
    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the number of the runs of one seed.

        Raises:
            NotMeasured: if no run has the data from which it is computed.
            ValueError: if several observers, runs or rows match.
        """

    def of_seeds(
        self, groups: Mapping[SeedPair, Sequence[ObservedRun]]
    ) -> "dict[SeedPair, Estimate | NotMeasured]":
        """Return the number of each seed, or what it lacks; see :class:`~lmdyn.claims.among_seeds.AmongSeeds`."""
        found: dict[SeedPair, Estimate | NotMeasured] = {}
        for seed, runs in groups.items():
            try:
                found[seed] = self.of(runs)
            except NotMeasured as error:
                found[seed] = error
        return found

    def between(self) -> tuple[float, float] | None:
        """Return the smallest and the largest possible value if they exist, e.g. 0 and 1 for a share."""
        return None

    def null(self) -> float | None:
        """Return the number without an effect: ``no_effect``, or 0 in a symmetric range, as of correlations.

        What contains the largest or smallest of several numbers has none, since selection gives it a sign.
        """
        found: list[Any] = [self]
        for number in found:
            if isinstance(number, _Extreme):
                return None
            fields_of = [v if isinstance(v, tuple) else (v,) for v in vars(number).values()]
            found += [part for values in fields_of for part in values if isinstance(part, Number)]
        ends = self.between()
        return 0.0 if self.no_effect is None and ends is not None and ends[0] == -ends[1] else self.no_effect

    def reads(self) -> frozenset[str]:
        """Return the ``Observer/quantity`` names from which it is computed."""
        return frozenset(name for part in parts_of(self) for name in part.names())


@dataclass(frozen=True)
class At(Number):
    """The value at a step.

    Attributes:
        rows: the rows.
        step: the ``last`` observation or the ``first``; a whole number for exactly this step (0: the untrained model);
            a fraction of training between 0 and 1, whose nearest observation must be at most a tenth of training away.
    """

    rows: Rows
    step: str | int | float = "last"

    def __post_init__(self) -> None:
        number = isinstance(self.step, (int, float)) and not isinstance(self.step, bool)
        if not (self.step in ("first", "last") or (number and cast(float, self.step) >= 0)):
            raise ValueError(f"step is {self.step!r}: expected 'first', 'last', a step or a fraction ≤ 1")
        if isinstance(self.step, float) and self.step > 1:
            raise ValueError(f"step is {self.step!r}: expected a fraction ≤ 1, or a whole number")

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the value with its error over texts, if the rows have one."""
        table = self.rows.table(runs)
        at = self.position(table["step"].to_list())
        value, error = float(table["value"].iloc[at]), float(table["error"].iloc[at])
        return Estimate(value, None if math.isnan(error) else error, df=self.rows.df)

    def between(self) -> tuple[float, float] | None:
        """Return the ends of the quantity's range."""
        return self.rows.between()

    def position(self, steps: list[int]) -> int:
        """Return the position of the step among observed ones, in order.

        Raises:
            NotMeasured: if it was not observed.
        """
        told = str(steps)[1:-1]
        if self.step == "first":
            return 0
        if self.step == "last":
            return len(steps) - 1
        if isinstance(self.step, int):
            if self.step not in steps:
                raise NotMeasured(f"{self.rows.observer} did not observe step {self.step}, only {told}")
            return steps.index(self.step)
        wanted = cast(float, self.step) * steps[-1]
        nearest = min(range(len(steps)), key=lambda i: abs(steps[i] - wanted))
        if abs(steps[nearest] - wanted) > 0.1 * steps[-1]:
            raise NotMeasured(
                f"{self.rows.observer} observed no step near {wanted:g} (within a tenth of training), only {told}"
            )
        return nearest


@dataclass(frozen=True)
class Difference(Number):
    """``a - b`` for the runs of one seed: paired by seed, which cancels what they have in common.

    Errors over texts are added as if they were independent, which is conservative on one text, where both vary alike.
    """

    no_effect: ClassVar[float | None] = 0.0

    a: Number
    b: Number

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the difference; if one is censored, within the differences of the bounds."""
        return self._minus(self.a.of(runs), self.b.of(runs))

    def of_seeds(
        self, groups: Mapping[SeedPair, Sequence[ObservedRun]]
    ) -> "dict[SeedPair, Estimate | NotMeasured]":
        """Return the difference of each seed, also if both numbers are of several seeds together."""
        a = self.a.of_seeds(groups)
        b = self.b.of_seeds({s: runs for s, runs in groups.items() if not isinstance(a[s], NotMeasured)})
        return {
            seed: one if isinstance(one, NotMeasured) else other if isinstance(other := b[seed], NotMeasured)
            else self._minus(one, other)
            for seed, one in a.items()
        }  # fmt: skip

    @staticmethod
    def _minus(a: Estimate, b: Estimate) -> Estimate:
        error, df = _combined([a, b], [1.0, 1.0])
        low, high = a.low - b.high, a.high - b.low
        low, high = (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)
        return Estimate(_middle(low, high, a.value - b.value), error, low, high, df)

    def between(self) -> tuple[float, float] | None:
        """Return the differences of the ends, if both have them."""
        a, b = self.a.between(), self.b.between()
        return None if a is None or b is None else (a[0] - b[1], a[1] - b[0])


@dataclass(frozen=True)
class Change(Number):
    """The value at ``until`` minus that at ``since``, see :class:`At`; errors as in :class:`Difference`."""

    no_effect: ClassVar[float | None] = 0.0

    rows: Rows
    since: str | int | float = "first"
    until: str | int | float = "last"

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the change.

        Raises:
            NotMeasured: if there is only one observation.
        """
        steps = self.rows.table(runs)["step"].to_list()
        a, b = self._ends()
        if a.position(steps) == b.position(steps):
            raise NotMeasured(
                f"{self.rows.observer} observed only one step between {self.since} and {self.until}: expected two"
            )
        return Difference(a, b).of(runs)

    def between(self) -> tuple[float, float] | None:
        """Return the differences of the ends of the quantity's range."""
        return Difference(*self._ends()).between()

    def _ends(self) -> tuple[At, At]:
        return At(self.rows, self.until), At(self.rows, self.since)


@dataclass(frozen=True)
class _Several(Number):
    numbers: tuple[Number, ...]

    def __post_init__(self) -> None:
        if not self.numbers or not all(isinstance(n, Number) for n in self.numbers):
            got = ", ".join(type(n).__name__ for n in self.numbers) or "none"
            raise ValueError(f"{type(self).__name__}: expected one or more Number objects, got {got}")

    def between(self) -> tuple[float, float] | None:
        """Return the outermost ends, if all have them."""
        ends = [end for n in self.numbers if (end := n.between()) is not None]
        return (min(e[0] for e in ends), max(e[1] for e in ends)) if len(ends) == len(self.numbers) else None

    def null(self) -> float | None:
        """Return what all numbers have without an effect."""
        found = {n.null() for n in self.numbers}
        return found.pop() if len(found) == 1 else None


class _Extreme(_Several):
    def null(self) -> None:
        """Return None; see :meth:`Number.null`."""

    def _extreme(self, runs: Sequence[ObservedRun], choose: Callable[..., Any]) -> Estimate:
        """Return the number that ``max`` or ``min`` selects, with its own error, between the extremes of the bounds."""
        found = [n.of(runs) for n in self.numbers]
        best: Estimate = choose(found, key=lambda e: e.value)
        low, high = choose(e.low for e in found), choose(e.high for e in found)
        return Estimate(best.value, best.error, low, high, best.df)


@dataclass(frozen=True)
class Mean(_Several):
    """The mean of several numbers; errors are added as if they were independent."""

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the mean, within the means of the bounds."""
        found = [n.of(runs) for n in self.numbers]
        share = 1 / len(found)
        error, df = _combined(found, [share] * len(found))
        low, high = math.fsum(e.low for e in found) * share, math.fsum(e.high for e in found) * share
        return Estimate(_middle(low, high, math.fsum(e.value for e in found) * share), error, low, high, df)


@dataclass(frozen=True)
class Largest(_Extreme):
    """The largest of several numbers, with its own error; for noisy numbers, selection biases it upwards."""

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the largest number."""
        return self._extreme(runs, max)


@dataclass(frozen=True)
class Smallest(_Extreme):
    """The smallest of several numbers, with its own error; for noisy numbers, selection biases it downwards."""

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the smallest number."""
        return self._extreme(runs, min)


@dataclass(frozen=True)
class Reaches(Number):
    """When a curve reaches a level: the decimal logarithm of the number of updates, between two observations.

    If the level is reached at the observation of step b but not at the previous one, of step a, it took from a + 1 to b
    updates. If it is not reached at the end, it takes more updates than were observed. If it is reached at step 0, it
    takes none: at most 1, for the logarithm.

    Attributes:
        rows: the rows.
        level: the level.
        share_of_last: instead of ``level``, this share of the last value.
        falling: whether the curve must fall to the level; default: it must rise to it.
        stays: whether the curve must stay beyond the level until the end; default: the first time counts.
        since: count updates from this step; earlier observations are not read.
    """

    rows: Rows
    level: float | None = None
    share_of_last: float | None = None
    falling: bool = False
    stays: bool = False
    since: int = 0

    def __post_init__(self) -> None:
        if (self.level is None) == (self.share_of_last is None):
            raise ValueError("Reaches: expected exactly one of the options `level` and `share_of_last`")

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the bounds of log10 of the updates; the value is their middle."""
        table = self.rows.table(runs)
        table = table[table["step"] >= self.since]
        steps, values = (table["step"] - self.since).to_list(), table["value"].to_list()
        level = self.level if self.level is not None else cast(float, self.share_of_last) * values[-1]
        beyond = [v <= level if self.falling else v >= level for v in values]
        if math.isnan(level) or any(map(math.isnan, values)):
            return Estimate(math.nan)
        if self.stays:
            first = len(beyond) - next((i for i, b in enumerate(reversed(beyond)) if not b), len(beyond))
        else:
            first = next((i for i, b in enumerate(beyond) if b), len(beyond))
        if first == len(steps):
            low = math.log10(steps[-1] + 1)
            return Estimate(low, low=low, high=math.inf)
        low = -math.inf if first == 0 else math.log10(steps[first - 1] + 1)
        high = math.log10(max(steps[first], 1))
        return Estimate(_middle(low, high, high), low=low, high=high)


@dataclass(frozen=True)
class Tested(Number, Source):
    """A metric in ``test.json``, written by ``lmdyn test`` for the test split, such as the accuracy of a tagger.

    Attributes:
        metric: name of the metric.
        run: selects one of the seed's runs, as in :class:`Rows`.
    """

    __test__: ClassVar[bool] = False  # tells pytest that this is not a test
    metric: str
    run: Pairs = ()

    def names(self) -> tuple[str, ...]:
        """Return ``test/<metric>``."""
        return (f"test/{self.metric}",)

    def locate(self, runs: Sequence[ObservedRun]) -> tuple[ObservedRun, str]:
        """Return the run that was tested.

        Raises:
            NotMeasured: if no run was tested.
            ValueError: if several runs were tested.
        """
        found = [
            run
            for run in runs
            if self.metric in run.tested and (not self.run or is_of_condition(self.run, run, None))
        ]
        told = f" with {', '.join(f'{k}: {v!r}' for k, v in self.run)}" if self.run else ""
        if not found:
            raise NotMeasured(f"no run{told} has {self.metric!r} in a test.json: run `lmdyn test`")
        if len(found) > 1:
            raise ValueError(
                f"several runs{told} have {self.metric!r} in a test.json: {', '.join(r.name for r in found)} "
                f"({'; '.join(differences(found)) or 'their conditions are equal'}); set `run`"
            )
        return found[0], "test"

    def between(self) -> tuple[float, float] | None:
        """Return 0 and 1 for an accuracy."""
        return range_by_name(self.metric)

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the metric; its error over texts is unknown."""
        return Estimate(float(self.locate(runs)[0].tested[self.metric]))


def untrained(number: Any) -> Any:
    """Return a number with the value at step 0 wherever it has that of the last observation.

    Example:
        >>> loss = Rows("LearningCurves", "loss")
        >>> untrained(Difference(At(loss), At(loss, 100))) == Difference(At(loss, 0), At(loss, 100))
        True
    """
    if isinstance(number, At):
        return replace(number, step=0) if number.step == "last" else number
    if isinstance(number, tuple):
        return tuple(map(untrained, number))
    if isinstance(number, Number):
        return replace(number, **{f.name: untrained(getattr(number, f.name)) for f in fields(number)})
    return number


# ------------------------------------------------------------------------------------------ what they share


def _middle(low: float, high: float, value: float) -> float:
    if low == high:
        return value
    finite = [end for end in (low, high) if math.isfinite(end)]
    return math.fsum(finite) / len(finite) if finite else value


def _combined(estimates: Sequence[Estimate], weights: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the error of a weighted sum of independent estimates, with Satterthwaite's degrees of freedom."""
    if any(e.error is None for e in estimates):
        return None, None
    variances = [(w * cast(float, e.error)) ** 2 for w, e in zip(weights, estimates, strict=True)]
    total = math.fsum(variances)
    spread = math.fsum(v**2 / e.df for v, e in zip(variances, estimates, strict=True) if e.df)
    return math.sqrt(total), total**2 / spread if spread else None

"""Numbers about when and in which order something is learned, about forgetting, and about several layers or groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations, product
from typing import ClassVar, Literal, get_args

import numpy as np
import pandas as pd

from lmdyn.claims.numbers import At, Difference, Estimate, Mean, Number, Reaches
from lmdyn.claims.rows import Rows
from lmdyn.runs.observed_run import NotMeasured, ObservedRun

Rule = Literal["half", "area", "largest"]
Kind = Literal["signs", "signs_by_chance", "ranks"]

LEAST = 0.01
"""A group with a smaller share correct at the last step was not learned: its relative curve would be noise."""


@dataclass(frozen=True)
class Over(Rows):
    """The mean or the maximum of several rows per step: over all sites, or over the values of a group column.

    Attributes:
        over: ``site``, or a group column such as ``head``.
        how: ``mean``, or ``max``; NaN if one of the values is NaN.

    Example:
        >>> sorted(Over("EdgeProbe", "f1", where=(("task", "pos"),)).names())
        ['EdgeProbe/f1']
    """

    over: str = "site"
    how: Literal["mean", "max"] = "mean"

    def __post_init__(self) -> None:
        if self.over == "site" and self.site:
            raise ValueError(f"over='site' reads all sites: omit site={self.site!r}, or set another `over`")

    def _table(self, runs: Sequence[ObservedRun]) -> pd.DataFrame:
        """Return one value per step; see :meth:`Rows.table`."""
        found = self.frame(runs).astype({"value": "float64"})
        if self.over not in found:
            raise NotMeasured(f"{self.observer} has no column {self.over!r}, only {', '.join(found.columns)}")
        if found.duplicated(["step", self.over]).any():
            raise ValueError(
                f"{self.observer} has several rows of {self.quantity!r} per step and {self.over}: extend `where`"
            )
        steps = found.groupby("step")
        values = steps["value"].agg(lambda v: getattr(np, self.how)(v.to_numpy()))
        table = pd.DataFrame({"step": values.index, "value": values.to_numpy(), "error": math.nan})
        table.insert(1, "tokens", steps["tokens"].first().to_numpy() if "tokens" in found else None)
        return table

    def frame(self, runs: Sequence[ObservedRun], *quantities: str) -> pd.DataFrame:
        """Return the rows; over sites, those of all sites. See :meth:`Rows.frame`."""
        if self.over != "site":
            return super().frame(runs, *quantities)
        run, folder = self.locate(runs)
        found = run.read(folder, quantities={self.quantity, *quantities})
        found = found[self.in_groups(found, f"{folder} of {run.name}")]
        if found.empty:
            told = "".join(f", {c} = {v!r}" for c, v in self.where)
            raise NotMeasured(f"{folder} of {run.name} holds no rows of {self.quantity!r}{told}")
        return found


@dataclass(frozen=True)
class HalfWay(Number):
    """When a curve has permanently covered half of its change: log10 of the updates, bounded by observations.

    This compares curves that begin and end at different heights.

    Attributes:
        rows: the rows.
        end: end of the change; default: the last value.
    """

    rows: Rows
    end: float | None = None

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the bounds of log10 of the updates; NaN if the curve does not change."""
        values = self.rows.table(runs)["value"]
        first, last = float(values.iloc[0]), float(values.iloc[-1]) if self.end is None else self.end
        if math.isnan(first + last) or first == last:
            return Estimate(math.nan)
        return Reaches(self.rows, (first + last) / 2, falling=last < first, stays=True).of(runs)


@dataclass(frozen=True)
class LearnedAt(Number):
    """log10 of 1 + the step at which an accuracy first reaches half of its last value, interpolated.

    See :func:`~lmdyn.analysis.words.learning_order.learning_order`. Observations are too sparse to resolve the
    differences between many groups by bounds, as in :class:`HalfWay`.

    Attributes:
        rows: the rows.
        from_first: whether to use half of the change from the first value instead.
    """

    rows: Rows
    from_first: bool = False

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the time; NaN if it was not learned."""
        table = self.rows.table(runs)
        values = table["value"].to_numpy(dtype="float64")
        if self.from_first:
            values = (values - values[0]) * np.sign(values[-1] - values[0])
        (time,) = _times(table["step"].to_numpy(dtype="int64"), values[:, None])
        return Estimate(math.log10(1 + time) if math.isfinite(time) else math.nan)


@dataclass(frozen=True)
class OrderAgreement(Number):
    """Rank correlation of the order in which groups are learned with a given one: Somers' D, from −1 to 1.

    Among the pairs of groups that the given order distinguishes, the share learned in this order minus the share
    learned in the reversed one: 1 for the same order, 0 on average for a random one. Groups that were not learned come
    after all others, at one time; pairs with equal times count as neither.

    Rules for when a group is learned: ``half``, its accuracy first reaches half of its last value
    (:func:`~lmdyn.analysis.words.learning_order.learning_order`); ``area``, a group is the earlier, the larger the
    average over log(1 + step) of its accuracy divided by the last one is; ``largest``, a group is the earlier, the
    larger its value at the last step is: for numbers of words, the order expected from frequency alone.

    Attributes:
        rows: rows of all groups.
        groups: groups in order, earliest first; groups in one position are not ordered.
        rule: one of these rules.
        column: column with the names of the groups.
    """

    rows: Rows
    groups: tuple[tuple[str, ...], ...]
    rule: Rule = "half"
    column: str = "group"

    def __post_init__(self) -> None:
        names = [name for together in self.groups for name in together]
        if len(self.groups) < 2 or len(set(names)) != len(names) or not all(self.groups):
            got = "; ".join(map(", ".join, self.groups))
            raise ValueError(f"groups are {got!r}: expected two or more tuples of groups, each group once")
        if self.rule not in get_args(Rule):
            raise ValueError(f"rule must be 'half', 'area' or 'largest', got {self.rule!r}")

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the correlation; NaN if fewer than two groups were learned.

        Raises:
            NotMeasured: if a group was not observed.
        """
        from lmdyn.analysis.statistics.correlation import somers_d

        names = [name for together in self.groups for name in together]
        places = [place for place, together in enumerate(self.groups) for _ in together]
        times = _group_times(self.rows, self.column, names, self.rule, runs)
        if np.isfinite(times).sum() < 2:
            return Estimate(math.nan)
        return Estimate(somers_d(np.array(places, dtype="float64"), times))

    def between(self) -> tuple[float, float] | None:
        """Return -1 and 1."""
        return -1.0, 1.0


@dataclass(frozen=True)
class MeanDelay(OrderAgreement):
    """How much later than the groups before it a group is learned: mean difference of log10(1 + step) over pairs.

    The pairs are those that the given order distinguishes, later minus earlier: above 0 in the given order. Of few
    pairs, a rank correlation has few values, and often its largest in every seed. Groups that are not learned count as
    learned at the last observation.
    """

    no_effect: ClassVar[float | None] = 0.0

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the mean; NaN if fewer than two groups were learned.

        Raises:
            NotMeasured: if a group was not observed.
        """
        names = [name for together in self.groups for name in together]
        times = _group_times(self.rows, self.column, names, "half", runs)
        if np.isfinite(times).sum() < 2:
            return Estimate(math.nan)
        last = self.rows.frame(runs)["step"].max()
        at = dict(zip(names, np.log10(1 + np.minimum(times, last)), strict=True))
        pairs = [(a, b) for early, late in combinations(self.groups, 2) for a, b in product(early, late)]
        return Estimate(float(np.mean([at[b] - at[a] for a, b in pairs])))

    def between(self) -> None:
        """Return None: it has no ends."""


@dataclass(frozen=True)
class SameOrder(Number):
    """Rank correlation (Somers' D) of the order of some groups with their order in other rows, e.g. of other words.

    Attributes:
        rows: rows of all groups.
        as_in: rows with the given order.
        groups: names of the groups.
        column: column with their names.
    """

    rows: Rows
    as_in: Rows
    groups: tuple[str, ...]
    column: str = "group"

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the correlation; NaN if fewer than two groups were learned in either."""
        from lmdyn.analysis.statistics.correlation import somers_d

        times, given = (
            _group_times(r, self.column, self.groups, "half", runs) for r in (self.rows, self.as_in)
        )
        if min(np.isfinite(times).sum(), np.isfinite(given).sum()) < 2:
            return Estimate(math.nan)
        return Estimate(somers_d(given, times))

    def between(self) -> tuple[float, float]:
        """Return -1 and 1."""
        return -1.0, 1.0


@dataclass(frozen=True)
class Agreement(Number):
    """Agreement at one step of two measurements of the same cells: each site crossed with each group, or each matrix.

    Cells that are 0 in both, such as frozen matrices, are left out, and so are applications of a shared layer
    (``block@0``), which add up to its site. ``signs`` is the share of cells that have the same sign in both.
    ``signs_by_chance`` is what is expected if the signs of either were dealt to the cells at random: 1 if all cells
    have one sign. ``ranks`` is Spearman's rank correlation.

    Attributes:
        rows: rows of one measurement; those of all sites are read, and those without a site or a group are left out.
        other: those of the other.
        step: the step, as in :class:`At`.
        kind: ``signs``, ``signs_by_chance`` or ``ranks``.
        column: column with the names of the groups, or of the matrices.
    """

    rows: Rows
    other: Rows
    step: str | int | float = "last"
    kind: Kind = "signs"
    column: str = "group"

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be 'signs', 'signs_by_chance' or 'ranks', got {self.kind!r}")
        if {type(self.rows), type(self.other)} != {Rows}:
            raise ValueError("rows and other of Agreement must be Rows, not a subclass such as Over")
        if self.rows.site or self.other.site:
            raise ValueError("Agreement reads all sites: remove `site` from `rows` and `other`")

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the agreement; NaN if a cell is NaN, and for ranks if all cells of a measurement are equal.

        Raises:
            NotMeasured: if the step was not observed, or if the two have different cells or, at the last one, steps.
        """
        (step, a), (other, b) = (self._cells(rows, runs) for rows in (self.rows, self.other))
        if step != other:
            raise NotMeasured(
                f"{self.rows.described()} observed step {step}, but {self.other.described()} step {other}"
            )
        if not a.index.equals(b.index):
            differ = sorted(map("/".join, a.index.symmetric_difference(b.index)))
            raise NotMeasured(f"only one of the two {self.rows.observer} results has {', '.join(differ[:8])}")
        there = ~(a.eq(0) & b.eq(0))
        a, b = a[there], b[there]
        if a.empty or a.isna().any() or b.isna().any():
            return Estimate(math.nan)
        if self.kind == "ranks":
            from lmdyn.analysis.statistics.correlation import spearman

            return Estimate(spearman(a.to_numpy(), b.to_numpy()))
        signs = [np.sign(values.to_numpy()) for values in (a, b)]
        if self.kind == "signs":
            return Estimate(float((signs[0] == signs[1]).mean()))
        return Estimate(
            math.fsum(float((signs[0] == sign).mean() * (signs[1] == sign).mean()) for sign in (-1, 0, 1))
        )

    def between(self) -> tuple[float, float]:
        """Return 0 and 1 for signs, and -1 and 1 for ranks."""
        return (-1.0 if self.kind == "ranks" else 0.0), 1.0

    def _cells(self, rows: Rows, runs: Sequence[ObservedRun]) -> "tuple[int, pd.Series[float]]":
        found = Over(**{f.name: getattr(rows, f.name) for f in fields(Rows)}).frame(runs)
        steps = sorted(found["step"].unique().tolist())
        step = steps[At(rows, self.step).position(steps)]
        if self.column not in found:
            raise NotMeasured(
                f"{rows.observer} has no column {self.column!r}, only {', '.join(found.columns)}"
            )
        sites, names = (found[name].fillna("").astype(str) for name in ("site", self.column))
        found = found[found["step"].eq(step) & sites.ne("") & ~sites.str.contains("@") & names.ne("")]
        if found.empty:
            raise NotMeasured(f"{rows.observer} has no {rows.quantity!r} by {self.column} at step {step}")
        cells = found.astype({"value": "float64"}).set_index(["site", self.column])["value"].sort_index()
        if not cells.index.is_unique:
            raise ValueError(
                f"{rows.observer} has several rows of {rows.quantity!r} per site and {self.column}: extend `where`"
            )
        return int(step), cells


@dataclass(frozen=True)
class WindowMean(Number):
    """The mean of the observations in a window of training; errors over texts as in :class:`~lmdyn.claims.Mean`.

    Attributes:
        rows: the rows.
        since: start of the window, as a fraction of training.
        until: its end; both are inclusive.
    """

    rows: Rows
    since: float
    until: float

    def __post_init__(self) -> None:
        if not 0 <= self.since < self.until <= 1:
            raise ValueError(f"expected 0 <= since < until <= 1, got {self.since} and {self.until}")

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the mean.

        Raises:
            NotMeasured: if there is no observation in the window.
        """
        steps = self.rows.table(runs)["step"].to_list()
        first, last = self.since * steps[-1], self.until * steps[-1]
        inside = tuple(At(self.rows, int(step)) for step in steps if first <= step <= last)
        if not inside:
            raise NotMeasured(
                f"{self.rows.observer} observed no step from {first:g} to {last:g}, only {str(steps)[1:-1]}"
            )
        return Mean(inside).of(runs)

    def between(self) -> tuple[float, float] | None:
        """Return the ends of the quantity's range."""
        return self.rows.between()


@dataclass(frozen=True)
class FromPeak(Number):
    """The mean of the last tenth of training minus that of the window in which the peak is said to be.

    The window is declared, not found: the difference is then 0 on average for a curve that does not change, however
    noisy, and above 0 for one that still rises. (The last value minus the *largest* is −1.87 standard deviations on
    average for 20 observations of noise, and exactly 0 for all curves that still rise.)

    Attributes:
        rows: the rows.
        since: start of the window, as a fraction of training.
        until: its end.
    """

    no_effect: ClassVar[float | None] = 0.0

    revision = 1
    rows: Rows
    since: float
    until: float

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the difference; NaN if a value is NaN."""
        return self._difference().of(runs)

    def between(self) -> tuple[float, float] | None:
        """Return the differences of the ends of the quantity's range."""
        return self._difference().between()

    def _difference(self) -> Difference:
        return Difference(WindowMean(self.rows, 0.9, 1.0), WindowMean(self.rows, self.since, self.until))


@dataclass(frozen=True)
class LostShare(Number):
    """Among the facts that were known at some observation, the share that is not known at the last.

    Attributes:
        rows: ``hit`` of single facts, 1 or 0.
        at_random: whether to return the share expected if the known facts were drawn again at random each time.
        column: column with the names of the facts.
    """

    rows: Rows
    at_random: bool = False
    column: str = "fact"

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the share; NaN if no fact was ever known."""
        hits = self.rows.frame(runs)
        hits = hits[hits["quantity"].eq(self.rows.quantity)]
        keys = [c for c in ("relation", self.column) if c in hits]
        known = hits.pivot_table(index=keys, columns="step", values="value", aggfunc="max").to_numpy() > 0
        ever = float(known.any(1).sum())
        if self.at_random:  # expected number of facts that are drawn at least once
            ever = len(known) * (1 - float(np.prod(1 - known.mean(0))))
        return Estimate(1 - float(known[:, -1].sum()) / ever if ever else math.nan)

    def between(self) -> tuple[float, float]:
        """Return 0 and 1."""
        return 0.0, 1.0


# ------------------------------------------------------------------------------------------ what they share


def _times(
    steps: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    values: "np.ndarray[tuple[int, int], np.dtype[np.float64]]",
) -> list[float]:
    import torch

    from lmdyn.analysis.words.learning_order import learning_order

    return [
        float(t)
        for t in learning_order(torch.from_numpy(steps.copy()), torch.from_numpy(values.copy()), least=LEAST)
    ]


def _group_times(
    rows: Rows, column: str, names: Sequence[str], rule: Rule, runs: Sequence[ObservedRun]
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return when each group is learned, in any unit in which smaller is earlier; infinite if it is not."""
    found = rows.frame(runs)
    found = found[found["quantity"].eq(rows.quantity)]
    table = found.pivot_table(index="step", columns=column, values="value", dropna=False)
    if missing := [name for name in names if name not in table]:
        raise NotMeasured(
            f"{rows.observer} has no rows of {rows.quantity!r} for {column} {', '.join(missing)}"
        )
    table = table[list(names)].astype("float64")
    last = table.iloc[-1].to_numpy()
    if rule == "largest":
        return np.where(np.isnan(last), math.inf, -last)
    steps = table.index.to_numpy(dtype="int64")
    if rule == "half":
        times = np.array(_times(steps, table.to_numpy()))
    else:
        place = np.log1p(steps.astype("float64"))
        share = table.to_numpy() / np.where(last > LEAST, last, math.nan)
        times = -np.trapezoid(share, place, axis=0) / (place[-1] - place[0])
    return np.where(np.isnan(times), math.inf, times)

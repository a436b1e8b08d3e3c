"""Phases of runs: change points of each curve, and the order of their first ones over seeds."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from lmdyn.analysis.phases.change_points import UnsuitableCurveError, change_points
from lmdyn.analysis.statistics.mean_over_seeds import MeanOverSeeds, mean_over_seeds
from lmdyn.cli.phases.curves import curves_of, one_of_each_seed
from lmdyn.cli.studies.run_folders import find_runs

__all__ = [
    "Curves",
    "find_phases",
    "not_tested",
    "order_of_phases",
    "order_rows",
    "phases_of",
    "print_phases",
    "read_curves",
    "write_phases",
]

log = logging.getLogger(__name__)

MOST_CURVES = 400
"""Maximum number of curves without --select: about a minute."""

Curves = Mapping[str, Mapping[str, "pd.Series[float]"]]
"""Curves of runs: values by step, by run and name."""


@dataclass(frozen=True)
class Position:
    """Where a curve changes first, over runs.

    Attributes:
        curve: name of the curve.
        runs: number of runs in which it has a change point.
        all_runs: number of runs that have the curve.
        place: mean of log10 of the first change point over runs, with its variance; None if a run has none.
        before: mean difference to the curve before it in the order, in decades, paired by run; None for the first.
    """

    curve: str
    runs: int
    all_runs: int
    place: MeanOverSeeds | None
    before: MeanOverSeeds | None


def find_phases(
    runs: Sequence[Path],
    select: Sequence[str] = (),
    *,
    most: int = 2,
    level: float = 0.05,
    resamplings: int = 199,
) -> pd.DataFrame:
    """Find the change points of all curves of runs.

    Args:
        runs: run folders, folders of runs, or records.
        select: patterns of curves, see :func:`~lmdyn.cli.phases.curves.curves_of`.
        most: see :func:`~lmdyn.analysis.phases.change_points.change_points`; also the others.
        level: largest p-value of a change point.
        resamplings: number of resampled curves.

    Returns:
        See :func:`phases_of`.

    Raises:
        ValueError: for too many curves without ``select``, or a pattern that fits none.
        FileNotFoundError: for a folder without observations.
    """
    return phases_of(read_curves(runs, select), most=most, level=level, resamplings=resamplings)


def read_curves(runs: Sequence[Path], select: Sequence[str] = ()) -> Curves:
    """Read the curves of runs, one of each seed and condition: copies, which are left out, are said in the log.

    Args:
        runs: run folders, folders of runs, or records.
        select: patterns of curves, see :func:`~lmdyn.cli.phases.curves.curves_of`.

    Raises:
        ValueError: for too many curves without ``select``, or a pattern that fits none.
        FileNotFoundError: for a folder without observations.
    """
    kept, said = one_of_each_seed(find_runs(runs))
    for sentence in said:
        log.warning("%s", sentence)
    curves = {run.name: curves_of(run, select) for run in kept}
    number = sum(len(of) for of in curves.values())
    if not select and number > MOST_CURVES:
        observers = sorted({name.split("/")[0] for of in curves.values() for name in of})
        raise ValueError(
            f"{number:,} curves, at most {MOST_CURVES} are tested without --select: choose some, such as --select "
            f"'{observers[0]}/*'; observers: {', '.join(observers)}"
        )
    return curves


def phases_of(curves: Curves, *, most: int = 2, level: float = 0.05, resamplings: int = 199) -> pd.DataFrame:
    """Find the change points of curves of runs.

    Args:
        curves: see :func:`read_curves`.
        most: see :func:`~lmdyn.analysis.phases.change_points.change_points`; also the others.
        level: largest p-value of a change point.
        resamplings: number of resampled curves.

    Returns:
        A row for each change point, and one without ``at`` for each smooth curve or one that was not tested: columns
        ``run, curve, phase`` (``change``, ``smooth`` or ``not tested``), ``number`` (from 1), ``at``, ``low``, ``high``
        (steps), ``slope_before``, ``slope_after`` (units of the curve by decade), ``p_value``, ``correlation`` (of the
        noise, from one observation to the next), ``why`` (not tested).
    """
    rows = [
        {"run": run, "curve": name, **row}
        for run, of in curves.items()
        for name, curve in of.items()
        for row in _rows(curve, most, level, resamplings)
    ]
    columns = [
        "run",
        "curve",
        "phase",
        "number",
        "at",
        "low",
        "high",
        "slope_before",
        "slope_after",
        "p_value",
        "correlation",
        "why",
    ]
    table = pd.DataFrame(rows, columns=columns)
    numbers = ["at", "low", "high", "p_value", "correlation"]
    return table.astype({"number": "Int64", **dict.fromkeys(numbers, float)})


def _rows(curve: "pd.Series[float]", most: int, level: float, resamplings: int) -> list[dict[str, object]]:
    try:
        found = change_points(
            curve.index.to_numpy(), curve.to_numpy(), most=most, level=level, resamplings=resamplings
        )
    except UnsuitableCurveError as error:
        return [{"phase": "not tested", "why": str(error)}]
    if found.smooth:
        return [{"phase": "smooth", "p_value": found.p_value, "correlation": found.correlation}]
    return [
        {
            "phase": "change", "number": i + 1, "at": at, "low": found.low[i], "high": found.high[i],
            "slope_before": found.slopes[i], "slope_after": found.slopes[i + 1], "p_value": found.p_value,
            "correlation": found.correlation,
        }
        for i, at in enumerate(found.steps)
    ]  # fmt: skip


def order_of_phases(phases: pd.DataFrame) -> list[Position]:
    """Order curves by their first change points: mean over runs of log10 of the step, with paired differences.

    Only curves that change in all runs that have them have a place: a mean over some of the runs would depend on which
    ones do. A run in which a curve could not be tested is one in which it does not change.

    Args:
        phases: table of :func:`find_phases`.

    Returns:
        Curves in the order of their first change, then those without a place, by name.

    Example:
        >>> rows = [("a", "x", 10), ("a", "y", 100), ("b", "x", 10), ("b", "y", 200)]
        >>> phases = pd.DataFrame(rows, columns=["run", "curve", "at"]).assign(phase="change", number=1)
        >>> [(p.curve, p.runs, round(p.place.mean, 2)) for p in order_of_phases(phases)]
        [('x', 2, 1.0), ('y', 2, 2.15)]
    """
    first = phases[(phases["phase"] == "change") & (phases["number"] == 1)]
    places = first.set_index(["curve", "run"])["at"].astype(float).map(np.log10)
    names = phases.loc[phases["phase"] != "not tested", "curve"].unique()
    # a run in which a curve could not be tested has no change point to average: it counts
    tested = phases[phases["curve"].isin(names)].groupby("curve")["run"].nunique()
    found: list[Position] = []
    by_curve = {name: places[name] for name in tested.index if name in places.index.get_level_values(0)}
    complete = [name for name, at in by_curve.items() if len(at) == tested[name]]
    complete.sort(key=lambda name: (float(by_curve[name].mean()), name))
    for i, name in enumerate(complete):
        at, difference = by_curve[name], None
        if i:
            pairs = (at - by_curve[complete[i - 1]]).dropna()
            difference = mean_over_seeds(pairs.tolist()) if len(pairs) > 1 else None
        place = (
            mean_over_seeds(at.tolist()) if len(at) > 1 else MeanOverSeeds(float(at.iloc[0]), float("nan"), 0)
        )
        found.append(Position(name, len(at), int(tested[name]), place, difference))
    rest = sorted(set(tested.index) - set(complete))
    return found + [
        Position(name, len(by_curve.get(name, ())), int(tested[name]), None, None) for name in rest
    ]


def print_phases(phases: pd.DataFrame, level: float) -> None:
    """Print the curves in the order of their first change points, and what could not be tested."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = 140
    head, rows, smooth = order_rows(phases)
    table = Table(box=None, padding=(0, 2))
    for column in head:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    if rows:
        console.print(table)
    tested = phases[phases["phase"] != "not tested"]
    curves = tested.groupby(["run", "curve"]).ngroups
    named = f": {', '.join(smooth)}" if smooth else ""
    console.print(f"in {len(smooth)} curve{'s' * (len(smooth) != 1)}, no bend was found in any run{named}")
    console.print(f"counted by run, {curves} curves {by_chance(phases, level)}")
    for why, rows_left in not_tested(phases).items():
        console.print(f"{len(rows_left)} not tested: {why}")


def by_chance(phases: pd.DataFrame, level: float) -> str:
    """Return how many of the tested curves would change by chance, in words, and what their noise is like."""
    tested = phases[phases["phase"] != "not tested"].drop_duplicates(["run", "curve"])
    expected = f"tested at a level of {level:g}: about {level * len(tested):.1f} would change by chance"
    if tested.empty:
        return expected
    return (
        f"{expected}, more where neighbouring observations share much of their noise (estimated correlation, median of "
        f"the curves: {tested['correlation'].median():.1f})"
    )


def order_rows(phases: pd.DataFrame) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the head and the rows of a table of the curves that change, in their order, and the smooth curves."""
    runs = phases["run"].nunique()
    head = ["curve", "first change (step)", "95 % interval" if runs > 1 else "interval"]
    if runs > 1:
        head.append("later than the one above (decades)")
    found = order_of_phases(phases)
    rows = [_cells(position, phases, runs) for position in found if position.runs]
    return head, rows, [position.curve for position in found if not position.runs]


def not_tested(phases: pd.DataFrame) -> dict[str, list[tuple[str, str]]]:
    """Return runs and curves that could not be tested, by the reason of the first of each kind."""
    left = phases[phases["phase"] == "not tested"]
    kinds = left["why"].astype(str).str.replace(r", got .*", "", regex=True)
    return {
        str(rows["why"].iloc[0]): list(zip(rows["run"], rows["curve"], strict=True))
        for _, rows in left.groupby(kinds, sort=False)
    }


def _cells(position: Position, phases: pd.DataFrame, runs: int) -> list[str]:
    if position.place is None:
        return [
            position.curve,
            f"in {position.runs} of {position.all_runs} runs",
            "",
            *([""] if runs > 1 else []),
        ]
    at = f"{10**position.place.mean:,.0f}"
    if runs == 1:
        rows = phases[(phases["curve"] == position.curve) & (phases["number"] == 1)]
        return [position.curve, at, f"{rows['low'].iloc[0]:,.0f} to {rows['high'].iloc[0]:,.0f}"]
    later = ""
    if position.before is not None:
        low, high = position.before.interval()
        later = f"{position.before.mean:.2f} [{low:.2f}, {high:.2f}]"
    if position.runs < 2:
        return [position.curve, at, "one run", later]
    ends = [10**end for end in position.place.interval()]
    return [position.curve, at, f"{ends[0]:,.0f} to {ends[1]:,.0f}", later]


def write_phases(phases: pd.DataFrame, path: Path) -> None:
    """Write the table as parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    phases.to_parquet(path, index=False)
    log.info("change points: %s", path)

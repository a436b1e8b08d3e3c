"""Phases of runs: change points of each curve, and the order of their first ones over seeds."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lmdyn.analysis.phases.change_points import UnsuitableCurveError, change_points
from lmdyn.analysis.statistics.mean_over_seeds import MeanOverSeeds, mean_over_seeds
from lmdyn.claims.phases.curves import curves_of, one_of_each_seed
from lmdyn.claims.profiles import find_runs

log = logging.getLogger(__name__)

MOST_CURVES = 400
"""Maximum number of curves without --select: about a minute."""

Curves = Mapping[str, Mapping[str, "pd.Series[float]"]]
"""Curves of runs: values by step, by run and name."""

_TEST = ["p_value", "correlation", "why"]
_COLUMNS = ["run", "curve", "phase", "number", "at", "low", "high", "slope_before", "slope_after", *_TEST]


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
    place: MeanOverSeeds | None = None
    before: MeanOverSeeds | None = None


def read_curves(runs: Sequence[Path], select: Sequence[str] = ()) -> Curves:
    """Read the curves of runs, one of each seed and condition: copies, which are left out, are said in the log.

    Args:
        runs: run folders, folders of runs, or records.
        select: patterns of curves, see :func:`~lmdyn.claims.phases.curves.curves_of`.

    Raises:
        ValueError: for too many curves without ``select``, or a pattern that fits none.
        FileNotFoundError: for a folder without observations.
    """
    kept, warnings = one_of_each_seed(find_runs(runs))
    for warning in warnings:
        log.warning("%s", warning)
    curves = {run.name: curves_of(run, select) for run in kept}
    number = sum(len(of) for of in curves.values())
    if not select and number > MOST_CURVES:
        observers = sorted({name.split("/")[0] for of in curves.values() for name in of})
        raise ValueError(
            f"the runs have {number:,} curves, but without --select lmdyn tests at most {MOST_CURVES}: choose curves, "
            f"such as --select '{observers[0]}/*'. The observers are {', '.join(observers)}"
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
    numbers = ["at", "low", "high", "p_value", "correlation"]
    table = pd.DataFrame(rows, columns=_COLUMNS)
    return table.astype({"number": "Int64", **dict.fromkeys(numbers, float)})


def _rows(curve: "pd.Series[float]", most: int, level: float, resamplings: int) -> list[dict[str, object]]:
    steps, values = curve.index.to_numpy(), curve.to_numpy()
    try:
        found = change_points(steps, values, most=most, level=level, resamplings=resamplings)
    except UnsuitableCurveError as error:
        return [{"phase": "not tested", "why": str(error)}]
    test: dict[str, object] = {"p_value": found.p_value, "correlation": found.correlation}
    if found.smooth:
        return [{"phase": "smooth", **test}]
    points = zip(found.steps, found.low, found.high, found.slopes[:-1], found.slopes[1:], strict=True)
    names = ("at", "low", "high", "slope_before", "slope_after")
    return [
        {"phase": "change", "number": i, **dict(zip(names, point, strict=True)), **test}
        for i, point in enumerate(points, 1)
    ]


def order_of_phases(phases: pd.DataFrame) -> list[Position]:
    """Order curves by their first change points: mean over runs of log10 of the step, with paired differences.

    Only curves that change in all runs that have them have a place: a mean over some of the runs would depend on which
    ones do. A run in which a curve could not be tested is one in which it does not change.

    Args:
        phases: table of :func:`phases_of`.

    Returns:
        Curves in the order of their first change, then those without a place, by name.

    Example:
        >>> rows = [("a", "x", 10), ("a", "y", 100), ("b", "x", 10), ("b", "y", 200)]
        >>> phases = pd.DataFrame(rows, columns=["run", "curve", "at"]).assign(phase="change", number=1)
        >>> [(p.curve, p.runs, round(p.place.mean, 2)) for p in order_of_phases(phases)]
        [('x', 2, 1.0), ('y', 2, 2.15)]
    """
    first = phases[(phases["phase"] == "change") & (phases["number"] == 1)]
    first = first.assign(place=np.log10(first["at"].astype(float)))
    places = first.pivot_table(index="run", columns="curve", values="place")
    tested = phases.loc[phases["phase"] != "not tested", "curve"].unique()
    # a run in which a curve could not be tested has no change point to average: it counts
    runs = phases[phases["curve"].isin(tested)].groupby("curve")["run"].nunique()
    changes = places.count().reindex(runs.index, fill_value=0)
    complete = sorted(runs.index[changes == runs], key=lambda name: (places[name].mean(), name))
    found = []
    for i, name in enumerate(complete):
        pairs = (places[name] - places[complete[i - 1]]).dropna() if i else places[name][:0]
        before = mean_over_seeds(pairs.tolist()) if len(pairs) > 1 else None
        at = places[name].dropna().tolist()
        place = mean_over_seeds(at) if len(at) > 1 else MeanOverSeeds(at[0], float("nan"), 0)
        found.append(Position(name, len(at), int(runs[name]), place, before))
    rest = sorted(set(runs.index) - set(complete))
    return found + [Position(name, int(changes[name]), int(runs[name])) for name in rest]


def order_table(phases: pd.DataFrame) -> pd.DataFrame:
    """Return the curves that change in some run, in their order, with intervals of 95 % over runs, or of the only run.

    Columns ``curve``, ``changes in`` (runs), ``first change`` (step) with ``low`` and ``high``, and ``later`` than the
    curve above (decades) with ``from`` and ``to``; missing where a run has no change, or for one run.
    """
    rows = []
    one_run = len(phases["run"].unique()) == 1
    for position in (p for p in order_of_phases(phases) if p.runs):
        row: dict[str, Any] = {
            "curve": position.curve,
            "changes in": f"{position.runs} of {position.all_runs} runs",
        }
        at, ends = position.place, (np.nan, np.nan)
        if at is not None and one_run:
            own = phases[(phases["curve"] == position.curve) & (phases["number"] == 1)]
            ends = own["low"].iloc[0], own["high"].iloc[0]
        elif at is not None and position.runs > 1:
            ends = 10 ** at.interval()[0], 10 ** at.interval()[1]
        row |= dict(zip(("first change", "low", "high"), (10**at.mean if at else np.nan, *ends), strict=True))
        later = (position.before.mean, *position.before.interval()) if position.before else [np.nan] * 3
        rows.append(row | dict(zip(("later", "from", "to"), later, strict=True)))
    table = pd.DataFrame(
        rows, columns=["curve", "changes in", "first change", "low", "high", "later", "from", "to"]
    )
    return table.replace([np.inf, -np.inf], np.nan)  # few runs that all change at one step have no interval


def not_tested(phases: pd.DataFrame) -> dict[str, list[str]]:
    """Return curves, with their runs, that could not be tested, by the reason of the first of each kind."""
    left = phases[phases["phase"] == "not tested"]
    kinds = left["why"].astype(str).str.replace(r", got .*", "", regex=True)
    return {
        str(rows["why"].iloc[0]): [
            f"{curve} ({run})" for run, curve in zip(rows["run"], rows["curve"], strict=True)
        ]
        for _, rows in left.groupby(kinds, sort=False)
    }


def tested_words(phases: pd.DataFrame, level: float) -> list[str]:
    """Return sentences about how many curves were tested, how many would change by chance, and which have no bend."""
    tested = phases[phases["phase"] != "not tested"].drop_duplicates(["run", "curve"])
    said = [
        f"lmdyn tested {len(tested)} curves of single runs at a level of {level:g}: about {level * len(tested):.1f} "
        "curves would change by chance"
    ]
    if len(tested):
        said[0] += (
            ", more where neighbouring observations share much of their noise (estimated correlation, median of the "
            f"curves: {tested['correlation'].median():.1f})"
        )
    if smooth := [position.curve for position in order_of_phases(phases) if not position.runs]:
        said.append(f"lmdyn found no bend in any run: {', '.join(smooth)}")
    return said

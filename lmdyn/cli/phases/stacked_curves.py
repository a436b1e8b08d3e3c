"""Curves above each other on one axis of steps, with their change points."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.analysis.statistics.mean_over_seeds import mean_over_seeds
from lmdyn.callbacks.observing.figures import COLOURS, in_style, new_figure, portions
from lmdyn.cli.phases.phases import Curves, order_of_phases

__all__ = ["MOST_DRAWN", "order_to_draw", "stacked_curves"]

MOST_DRAWN = 48
"""Maximum number of curves that are drawn, in figures of at most 12."""

_A_FIGURE = 12
_CHANGE, _BAND = COLOURS["vermilion"], COLOURS["orange"]


def order_to_draw(phases: pd.DataFrame) -> list[str]:
    """Return curves by first change; then those that change in some runs, smooth ones, and those not tested."""
    positions = order_of_phases(phases)
    ordered = [p.curve for p in positions if p.place is not None]
    ordered += [p.curve for p in positions if p.place is None and p.runs]
    ordered += [p.curve for p in positions if not p.runs]
    return ordered + sorted(set(phases["curve"]) - set(ordered))


@in_style
def stacked_curves(curves: Curves, phases: pd.DataFrame) -> dict[str, Figure]:
    """Draw curves above each other on one axis, log10 of the step, with lines at change points and their intervals.

    Of several runs, thin lines are runs and the thick one is their mean, over the steps that all have. A line and a
    band are then the mean of the change points over runs and its interval for another seed, if all runs change; short
    ticks are the change points of each run.

    Args:
        curves: values by step, by run and name.
        phases: table of :func:`~lmdyn.cli.phases.phases.find_phases`.

    Returns:
        Figures of at most 12 curves by name, of the first :data:`MOST_DRAWN` in the order of :func:`order_to_draw`;
        none without curves.
    """
    order = order_to_draw(phases)[:MOST_DRAWN]
    if not order:
        return {}
    steps = [
        step for of in curves.values() for curve in of.values() for step in (curve.index[0], curve.index[-1])
    ]
    parts = portions(order, _A_FIGURE)
    return {
        "curves" if len(parts) == 1 else f"curves_{i}": _figure(
            part, curves, phases, (min(steps), max(steps))
        )
        for i, part in enumerate(parts, 1)
    }


def _figure(names: Sequence[str], curves: Curves, phases: pd.DataFrame, ends: tuple[float, float]) -> Figure:
    figure, grid = new_figure(9.0, 0.6 + 0.95 * len(names), nrows=len(names), squeeze=False, sharex=True)
    for axes, name in zip(grid[:, 0], names, strict=True):
        rows = phases[phases["curve"] == name]
        _draw(axes, {run: of[name] for run, of in curves.items() if name in of})
        _mark(axes, rows)
        axes.set_title(name, fontsize=8.5, loc="left", pad=3)
        axes.set_title(_note(rows), fontsize=8, loc="right", pad=3, color="0.35")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=3))
    last = grid[-1, 0]
    last.set_xscale("log")
    low, high = np.log10(ends[0]), np.log10(ends[1])
    room = 0.02 * max(high - low, 0.1)
    last.set_xlim(10 ** (low - room), 10 ** (high + room))
    last.set_xlabel("training step (optimizer updates)")
    return figure


def _draw(axes: Axes, runs: dict[str, "pd.Series[float]"]) -> None:
    blue: dict[str, Any] = {"color": COLOURS["blue"]}
    if len(runs) == 1:
        (curve,) = runs.values()
        axes.plot(curve.index.to_numpy(), curve.to_numpy(), marker=".", ms=3, **blue)
        return
    for curve in runs.values():
        axes.plot(curve.index.to_numpy(), curve.to_numpy(), lw=0.6, alpha=0.4, **blue)
    mean = pd.DataFrame(runs).dropna().mean(axis=1)
    axes.plot(mean.index.to_numpy(), mean.to_numpy(), lw=1.8, **blue)


def _mark(axes: Axes, rows: pd.DataFrame) -> None:
    """Mark change points: of one run with their intervals, of several by their mean where all runs have one."""
    changes = rows[rows["phase"] == "change"]
    runs = rows["run"].nunique()
    for _, of in changes.groupby("number"):
        if runs == 1:
            place, ends = float(of["at"].iloc[0]), (float(of["low"].iloc[0]), float(of["high"].iloc[0]))
        elif len(of) == runs:
            found = mean_over_seeds(np.log10(of["at"].to_numpy(dtype=float)).tolist())
            low, high = found.interval()
            place, ends = 10**found.mean, (10**low, 10**high)
        else:
            continue
        axes.axvspan(*ends, color=_BAND, alpha=0.25, lw=0)
        axes.axvline(place, color=_CHANGE, lw=1.4)
    if runs > 1 and len(changes):
        at = changes["at"].to_numpy(dtype=float)
        axes.plot(at, np.full(len(at), 0.05), ls="", marker="|", ms=7, color=_CHANGE,
                  transform=axes.get_xaxis_transform(), clip_on=False)  # fmt: skip


def _note(rows: pd.DataFrame) -> str:
    runs = rows["run"].nunique()
    counts = rows.drop_duplicates("run")["phase"].value_counts()
    words = {"change": "changes", "smooth": "no bend found", "not tested": "not tested"}
    if len(counts) == 1:
        phase = str(counts.index[0])
        return f"changes in all {runs} runs" if phase == "change" and runs > 1 else words[phase]
    return (
        ", ".join(f"{words[name]} in {counts[name]}" for name in words if name in counts) + f" of {runs} runs"
    )

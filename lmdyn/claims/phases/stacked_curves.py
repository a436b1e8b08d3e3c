"""Curves above each other on one axis of steps, with their change points."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from lmdyn.analysis.statistics.mean_over_seeds import mean_over_seeds
from lmdyn.callbacks.observing.figures import COLOURS, in_style, new_figure, portions
from lmdyn.claims.phases.phases import Curves, order_of_phases

__all__ = ["MOST_DRAWN", "order_to_draw", "stacked_curves"]

MOST_DRAWN = 48
"""Maximum number of curves that are drawn, in figures of at most 12."""


def order_to_draw(phases: DataFrame) -> list[str]:
    """Return curves by first change; then those that change in some runs, smooth ones, and those not tested."""
    positions = sorted(
        order_of_phases(phases), key=lambda p: 0 if p.place is not None else 1 if p.runs else 2
    )
    ordered = [p.curve for p in positions]
    return ordered + sorted(set(phases["curve"]) - set(ordered))


@in_style
def stacked_curves(curves: Curves, phases: DataFrame) -> dict[str, Figure]:
    """Draw curves above each other on one axis, log10 of the step, with lines at change points and their intervals.

    Of several runs, thin lines are runs and the thick one is their mean, over the steps that all have. A line and a
    band are then the mean of the change points over runs and its interval for another seed, if all runs change; short
    ticks are the change points of each run.

    Args:
        curves: values by step, by run and name.
        phases: table of :func:`~lmdyn.claims.phases.phases.phases_of`.

    Returns:
        Figures of at most 12 curves by name, of the first :data:`MOST_DRAWN` in the order of :func:`order_to_draw`;
        none without curves.
    """
    order = order_to_draw(phases)[:MOST_DRAWN]
    return {
        f"curves_{i}": _figure(part, curves, phases) for i, part in enumerate(portions(order, 12), 1) if part
    }


def _figure(names: Sequence[str], curves: Curves, phases: DataFrame) -> Figure:
    figure, grid = new_figure(9.0, 0.6 + 0.95 * len(names), nrows=len(names), squeeze=False, sharex=True)
    for axes, name in zip(grid[:, 0], names, strict=True):
        rows = phases[phases["curve"] == name]
        runs = DataFrame({run: of[name] for run, of in curves.items() if name in of})
        for run in runs:
            axes.plot(
                runs[run].dropna(), lw=0.8, marker="." if runs.shape[1] == 1 else "", color=COLOURS["sky"]
            )
        if runs.shape[1] > 1:
            axes.plot(runs.dropna().mean(axis=1), lw=1.8, color=COLOURS["blue"])
        _mark(axes, rows)
        kinds = rows.drop_duplicates("run")["phase"].value_counts()
        axes.set_title(name, fontsize=8.5, loc="left", pad=3)
        axes.set_title(", ".join(f"{kind}: {n}" for kind, n in kinds.items()), fontsize=8, loc="right", pad=3)
    grid[-1, 0].set_xscale("log")
    grid[-1, 0].set_xlabel("training step (optimizer updates)")
    return figure


def _mark(axes: Axes, rows: DataFrame) -> None:
    """Mark change points: of one run with their intervals, of several by their mean where all runs have one."""
    changes = rows[rows["phase"] == "change"]
    runs = rows["run"].nunique()
    for _, of in changes.groupby("number"):
        if runs == 1:
            place, ends = float(of["at"].iloc[0]), of[["low", "high"]].iloc[0].to_numpy(float)
        elif len(of) == runs:
            found = mean_over_seeds(np.log10(of["at"].to_numpy(dtype=float)).tolist())
            place, ends = 10**found.mean, 10 ** np.array(found.interval())
        else:
            continue
        if np.isfinite(ends).all():  # few runs that all change at one step have no interval
            axes.axvspan(*ends, color=COLOURS["orange"], alpha=0.25, lw=0)
        axes.axvline(place, color=COLOURS["vermilion"], lw=1.4)
    if runs > 1:
        low = axes.get_ylim()[0]
        axes.plot(
            changes["at"], np.full(len(changes), low), ls="", marker="|", ms=7, color=COLOURS["vermilion"]
        )

"""Figures of downstream scores over the steps of pretraining."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmdyn.callbacks.observing.figures import line_style, named_runs, new_figure, outer_legend, set_step_axis

__all__ = ["downstream_figures"]


def downstream_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Scores by task and their average, of one run or of several (a column ``run``); see the observer."""
    several = "run" in observations
    observations = named_runs(observations)
    figures = {}
    if observations["quantity"].eq("score").any():
        figures["tasks"] = _tasks_of_runs(observations) if several else _tasks(observations)
    if observations["quantity"].eq("average").any():
        figures["average"] = _averages(observations, several)
    return figures


def _tasks(observations: pd.DataFrame) -> Figure:
    """All tasks in one panel, as in figures 5b and 12 of the publication."""
    figure, ax = new_figure(8.2, 4.6)
    scores, baselines = (observations[observations["quantity"].eq(q)] for q in ("score", "baseline"))
    for i, task in enumerate(scores["task"].unique()):
        style = line_style(i)
        _line(ax, scores[scores["task"].eq(task)], task, style)
        of_task = baselines[baselines["task"].eq(task)]["value"]
        if len(of_task):
            ax.axhline(float(of_task.iloc[-1]), color=style["color"], lw=0.8, ls=":", alpha=0.7, zorder=0)
    _legend_of_marks(ax)
    ax.set_ylabel("score on the development set")
    ax.set_title("fine-tuned from each step", fontsize=10, loc="left")
    set_step_axis(ax, list(scores["step"]))
    outer_legend(ax)
    return figure


def _tasks_of_runs(observations: pd.DataFrame) -> Figure:
    """A panel for each task, a line for each run."""
    scores, baselines = (observations[observations["quantity"].eq(q)] for q in ("score", "baseline"))
    tasks, runs = list(scores["task"].unique()), list(observations["run"].unique())
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure, axes = new_figure(3.6 * columns + 2.0, 2.9 * rows, nrows=rows, ncols=columns, squeeze=False)
    for ax, task in zip(axes.flat, tasks, strict=False):
        here = scores[scores["task"].eq(task)]
        for i, run in enumerate(runs):
            _line(ax, here[here["run"].eq(run)], run, line_style(i))
        of_task = baselines[baselines["task"].eq(task)]["value"]
        for value in of_task.unique():  # one, unless the runs' data differ
            ax.axhline(float(value), color="0.4", lw=0.8, ls=":", zorder=0)
        ax.set_title(task, fontsize=10, loc="left")
        set_step_axis(ax, list(here["step"]))
    for ax in axes.flat[len(tasks) :]:
        ax.set_axis_off()
    for ax in axes[:, 0]:
        ax.set_ylabel("score on the development set", fontsize=9)
    _legend_of_marks(axes[0, -1])
    outer_legend(axes[0, -1], of=list(axes.flat))
    return figure


def _averages(observations: pd.DataFrame, several: bool) -> Figure:
    """A panel for each set of tasks that is averaged over, in it a line for each run (figure 13c)."""
    rows = observations[observations["quantity"].eq("average")]
    baselines = observations[observations["quantity"].eq("average_baseline")]
    sets = list(rows["task"].unique())
    runs = list(rows["run"].unique())
    figure, axes = new_figure(6.4 + 2.0 * several, 3.6 * len(sets) + 0.4, nrows=len(sets), squeeze=False)
    for ax, tasks in zip(axes[:, 0], sets, strict=True):
        here = rows[rows["task"].eq(tasks)]
        for i, run in enumerate(runs):
            _line(ax, here[here["run"].eq(run)], run if several else "average", line_style(i))
        values = baselines[baselines["task"].eq(tasks)]["value"]
        for value in values.unique():
            ax.axhline(float(value), color="0.4", lw=0.8, ls=":", zorder=0)
        _legend_of_marks(ax)
        ax.set_ylabel("mean score")
        names = tasks.split("+")
        ax.set_title(f"mean of {_folded(names)}", fontsize=9, loc="left")
        set_step_axis(ax, list(here["step"]))
        outer_legend(ax)
    return figure


def _line(ax: Axes, rows: pd.DataFrame, label: str, style: Mapping[str, str]) -> None:
    """Scores over steps, and a cross at the best."""
    rows = rows.sort_values("step")
    if not len(rows):
        return
    steps, values, colour = rows["step"].to_numpy(), rows["value"].to_numpy(), style["color"]
    # marks at the ends of the axis are whole: not clipped
    ax.plot(steps, values, color=colour, ls=style["ls"], marker=".", ms=4, lw=1.3, label=label, clip_on=False)
    if not np.isnan(values).all():
        i = int(np.nanargmax(values))
        ax.plot([steps[i]], [values[i]], ls="", marker="x", ms=8, mew=1.8, color=colour, clip_on=False)


def _legend_of_marks(ax: Axes) -> None:
    ax.plot([], [], ls="", marker="x", ms=7, mew=1.6, color="0.3", label="best")
    ax.plot([], [], ls=":", lw=0.8, color="0.4", label="baseline")


def _folded(names: Sequence[str]) -> str:
    lines = [", ".join(names[i : i + 6]) for i in range(0, len(names), 6)]
    return ",\n".join(lines)

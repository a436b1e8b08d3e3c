"""Figures of downstream scores over the steps of pretraining."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import select

__all__ = ["downstream_figures"]


@fig.in_style
def downstream_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw scores by task and their average, for one run or several (a column ``run``); see the observer."""
    several = "run" in observations
    observations = fig.named_runs(observations)
    figures = {}
    if observations["quantity"].eq("score").any():
        figures["tasks"] = _tasks_of_runs(observations) if several else _tasks(observations)
    if observations["quantity"].eq("average").any():
        figures["average"] = _averages(observations, several)
    return figures


def _tasks(observations: pd.DataFrame) -> Figure:
    """Draw all tasks in one panel, as in figures 5b and 12 of the publication."""
    figure, ax = fig.new_figure(8.2, 4.6)
    scores = select(observations, quantity="score")
    for i, task in enumerate(scores["task"].unique()):
        style = fig.line_style(i)
        _line(
            ax,
            select(scores, task=task),
            select(observations, quantity="score_error", task=task),
            task,
            style,
        )
        for value in select(observations, quantity="baseline", task=task)["value"].tolist()[-1:]:
            ax.axhline(value, color=style["color"], lw=0.8, ls=":", alpha=0.7, zorder=0)
    _legend_of_marks(ax)
    ax.set_ylabel("score on the development set")
    ax.set_title("fine-tuned from each step")
    fig.set_step_axis(ax, scores["step"])
    fig.outer_legend(ax)
    return figure


def _tasks_of_runs(observations: pd.DataFrame) -> Figure:
    """Draw a panel for each task, a line for each run."""
    scores = select(observations, quantity="score")
    tasks = list(scores["task"].unique())
    panels = fig.new_panels(len(tasks), 3.6, 2.9, margin=(2.0, 0))
    for ax, task in zip(panels, tasks, strict=True):
        _runs(ax, observations, ("score", "baseline"), task, list(observations["run"].unique()))
        ax.set_title(task)
    panels.set_ylabel("score on the development set")
    _legend_of_marks(panels.grid[0, -1])
    panels.legend(of_all=True)
    return panels.figure


def _runs(
    ax: Axes, observations: pd.DataFrame, quantities: tuple[str, str], task: str, runs: Sequence[str]
) -> None:
    """Draw a line for each run, and the baselines: one, unless the runs' data differ."""
    scores, baselines = (select(observations, quantity=q, task=task) for q in quantities)
    errors = select(observations, quantity=f"{quantities[0]}_error", task=task)
    for i, run in enumerate(runs):
        _line(ax, select(scores, run=run), select(errors, run=run), run, fig.line_style(i))
    for value in baselines["value"].unique():
        ax.axhline(float(value), color="0.4", lw=0.8, ls=":", zorder=0)
    fig.set_step_axis(ax, scores["step"])


def _averages(observations: pd.DataFrame, several: bool) -> Figure:
    """Draw a panel for each averaged set of tasks, with a line for each run (figure 13c)."""
    rows = select(observations, quantity="average")
    if not several:
        observations, rows = (table.assign(run="average") for table in (observations, rows))
    sets = list(rows["task"].unique())
    panels = fig.new_panels(len(sets), 6.4 + 2.0 * several, 3.6, most=1, margin=(0, 0.4))
    for ax, tasks in zip(panels, sets, strict=True):
        _runs(ax, observations, ("average", "average_baseline"), tasks, list(rows["run"].unique()))
        _legend_of_marks(ax)
        ax.set_ylabel("mean score")
        ax.set_title(f"mean of {_folded(tasks.split('+'))}")
        fig.outer_legend(ax)
    return panels.figure


def _line(ax: Axes, rows: pd.DataFrame, errors: pd.DataFrame, label: str, style: Mapping[str, str]) -> None:
    """Draw scores over steps with two standard errors; the highest is not marked, since it may be noise."""
    rows = rows.sort_values("step")
    if not len(rows):
        return
    steps, values, colour = rows["step"].to_numpy(), rows["value"].to_numpy(), style["color"]
    # marks at the ends of the axis are not clipped
    ax.plot(steps, values, color=colour, ls=style["ls"], marker=".", ms=4, lw=1.3, label=label, clip_on=False)
    error = errors.set_index("step")["value"].reindex(steps).to_numpy(dtype="float64")
    if not np.isnan(error).all():
        ax.errorbar(
            steps, values, 2 * error, fmt="none", ecolor=colour, elinewidth=0.8, alpha=0.6, clip_on=False
        )


def _legend_of_marks(ax: Axes) -> None:
    ax.plot([], [], ls=":", lw=0.8, color="0.4", label="baseline")


def _folded(names: Sequence[str]) -> str:
    lines = [", ".join(names[i : i + 6]) for i in range(0, len(names), 6)]
    return ",\n".join(lines)

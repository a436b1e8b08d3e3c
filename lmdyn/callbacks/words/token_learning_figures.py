"""Figures 1, 7, 8 and 9 of Chiang, Huang & Lee 2020: accuracy relative to that of the last observation."""

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from lmdyn.analysis.words.learning_order import learning_order, rescaled
from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import select, wide

__all__ = ["half_steps", "rescaled_figures"]

LEAST = 0.01
"""Groups whose last accuracy is at most this were not learned: rescaling by almost 0 would amplify noise."""


@fig.in_style
def rescaled_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw ``<quantity>_by_<grouping>``: a line for each group, in the order in which they are learned.

    Labels have the step at which half of the last accuracy is reached.
    """
    figures = {}
    observations = observations[observations["value"].notna()]
    for quantity in ("reconstruction", "prediction"):
        rows = select(observations, quantity=quantity)
        for by in (by for by in rows["by"].unique() if by and len(set(rows["step"])) > 1):
            half = half_steps(rows, quantity, by)
            figures[f"{quantity}_by_{by}"] = _draw(wide(select(rows, by=by), "group"), half, quantity, by)
    return figures


def half_steps(observations: pd.DataFrame, quantity: str, by: str) -> "pd.Series[float]":
    """Return the step at which each group reaches half of its last accuracy, in increasing order.

    Groups that were not learned have NaN and come last.

    Args:
        observations: observations of ``TokenLearning``, of one run.
        quantity: ``reconstruction`` or ``prediction``.
        by: a grouping; empty for all words.
    """
    table = wide(select(observations, quantity=quantity, by=by), "group", sort=False)
    steps = torch.from_numpy(table.index.to_numpy(dtype="int64").copy())
    reached = learning_order(steps, torch.from_numpy(table.to_numpy(dtype="float64").copy()), least=LEAST)
    return pd.Series(reached.numpy(), index=table.columns).sort_values(kind="stable", na_position="last")


def _draw(table: pd.DataFrame, half: "pd.Series[float]", quantity: str, by: str) -> Figure:
    values = torch.from_numpy(table[half.index].to_numpy(dtype="float64").copy())
    values[:, values[-1] <= LEAST] = torch.nan
    parts = fig.portions(range(len(half)))
    panels = fig.new_panels(len(parts), 6.0, 3.4, most=1, margin=(2.0, 0.2), sharex=True)
    for ax, part in zip(panels, parts, strict=True):
        for style, i in enumerate(part):
            at = "not learned" if np.isnan(half.iloc[i]) else f"{half.iloc[i]:,.3g}"
            line = rescaled(values)[:, i]
            ax.plot(table.index, line, marker=".", label=f"{half.index[i]} ({at})", **fig.line_style(style))
        if half.iloc[part].isna().all():
            ax.set_yticks([])
            fig.say_why_empty(
                ax,
                f"the model learned no group: at the last step,\nat most {LEAST:.0%} of a group's words are right",
            )
        else:  # values that end near 0 can be many times that by chance
            fig.from_zero(ax, min(1.5, ax.get_ylim()[1]))
            ax.axhline(0.5, color="0.6", lw=0.8, ls=":", zorder=0)
        ax.set_ylabel("accuracy / accuracy at the last step")
        fig.set_step_axis(ax, list(table.index))
        fig.outer_legend(ax, title="(step of half the last accuracy)")
    panels.grid[0, 0].set_title(f"{quantity}, by {by.replace('_', ' ')}")
    return panels.figure

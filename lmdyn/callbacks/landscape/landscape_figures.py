"""Figures of losses along lines and in planes of weight space."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import last_step, select

__all__ = ["landscape_figures"]


@fig.in_style
def landscape_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw lines and barriers, and the plane of the last step that has one.

    Args:
        observations: observations of ``Landscape``.

    Returns:
        ``lines``: loss along the lines of the last step, and the barriers over steps; ``plane``: the loss in the plane,
        with the course of training if it is the plane of the course.
    """
    figures = {}
    barriers = select(observations, quantity="barrier")
    if len(barriers):
        figures["lines"] = _lines(observations, barriers)
    plane = select(observations, quantity="plane_loss")
    if len(plane):
        figures["plane"] = _plane(observations, last_step(plane))
    return figures


def _name(rows: pd.DataFrame) -> "pd.Series[Any]":
    units = rows["units"].astype(str)
    return (
        rows["reference"]
        .astype(str)
        .where(units != "matched", rows["reference"].astype(str) + ", matched units")
    )


def _lines(observations: pd.DataFrame, barriers: pd.DataFrame) -> Figure:
    panels = fig.new_panels(2, 5.0, 3.4, most=2, margin=(2.0, 0))
    first, second = panels
    losses = last_step(select(observations, quantity="line_loss"))
    barriers = barriers.assign(line=_name(barriers))
    losses = losses.assign(line=_name(losses), alpha=losses["alpha"].astype(str).astype(float))
    names = list(dict.fromkeys(barriers["line"]))[: 3 * len(fig.COLOURS)]
    looks = fig.line_styles(names)
    fig.draw_lines(first, losses, "line", looks, x="alpha")
    first.set_xlabel("position α, from the reference (0) to the model (1)")
    first.set_ylabel("loss (nats per token)")
    first.set_title(f"step {int(losses['step'].iloc[0]):,}" if len(losses) else "")
    ends = {
        end: select(observations, quantity=f"barrier_{end}").assign(line=lambda rows: _name(rows))
        for end in ("low", "high")
    }
    for name, look in looks.items():
        low, high = (
            rows[rows["line"] == name].set_index("step")["value"].sort_index() for rows in ends.values()
        )
        if len(low):
            fig.draw_band(second, low.index, low, high.reindex(low.index), color=look["color"], alpha=0.2)
    fig.draw_lines(second, barriers, "line", looks)
    fig.set_step_axis(second, barriers["step"], rates=observations)
    second.set_ylabel("barrier (nats per token)")
    fig.from_zero(second)
    fig.outer_legend(second)
    return panels.figure


def _plane(observations: pd.DataFrame, plane: pd.DataFrame) -> Figure:
    """Draw the loss in the plane as a heat map with contours, and the course of training in it."""
    figure, ax = fig.new_figure(5.6, 4.4)
    plane = plane.assign(x=plane["x"].astype(str).astype(float), y=plane["y"].astype(str).astype(float))
    x, y = (np.unique(plane[name]) for name in ("x", "y"))
    values = np.full((len(y), len(x)), np.nan)
    values[np.searchsorted(y, plane["y"]), np.searchsorted(x, plane["x"])] = plane["value"]
    step = int(plane["step"].iloc[0])
    course = select(observations, quantity="course_position")
    course = course[course["step"] == step]
    if not np.isfinite(values).any():
        fig.say_why_empty(ax, "no loss is finite")
        return figure
    image = ax.pcolormesh(
        x, y, np.ma.masked_invalid(values), cmap="viridis_r", shading="nearest", rasterized=True
    )
    ax.grid(visible=False)
    if np.isfinite(values).all() and values.max() > values.min():
        ax.contour(x, y, values, levels=8, colors="k", linewidths=0.4, alpha=0.6)
    figure.colorbar(image, ax=ax, label="loss (nats per token)")
    if len(course):
        _course(ax, course)
        shares = select(observations, quantity="explained_variance")
        explained = dict(shares.loc[shares["step"] == step, ["direction", "value"]].to_numpy().tolist())
        for label, number in ((ax.set_xlabel, 1), (ax.set_ylabel, 2)):
            label(f"direction {number} of the course ({explained.get(number, np.nan):.0%} of variance)")
    else:
        ax.plot(0, 0, "o", color="k", ms=4)
        ax.set_xlabel("first direction (norms of the weights)")
        ax.set_ylabel("second direction (norms of the weights)")
    ax.set_title(f"step {step:,}")
    return figure


def _course(ax: Axes, course: pd.DataFrame) -> None:
    at = course.pivot_table(index="at", columns="direction", values="value").sort_index()
    xs, ys = at[1].to_numpy(dtype=float), at[2].to_numpy(dtype=float)
    ax.plot(xs, ys, "-o", color="k", lw=1.0, ms=3)
    labels = [(xs[i], ys[i], f"{int(at.index[i]):,}", "k") for i in fig.spread_out(range(len(xs)), 6)]
    fig.label_points(ax, labels)

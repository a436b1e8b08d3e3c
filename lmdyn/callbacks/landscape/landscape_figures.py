"""Figures of losses along lines and in planes of weight space."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import last_step, select, wide

__all__ = ["landscape_figures"]


@fig.in_style
def landscape_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw the loss along lines and in the plane, at the last step that has finite ones.

    Args:
        observations: observations of ``Landscape``.

    Returns:
        ``lines`` (Goodfellow, Vinyals & Saxe 2015, figure 1); ``plane``, with the course of training if it is the plane
        of the course (Li et al. 2018, figures 5 and 9).
    """
    figures = {}
    for name, draw in (("lines", _lines), ("plane", _plane)):
        rows = select(observations, quantity=f"{name.removesuffix('s')}_loss")
        there = last_step(rows[np.isfinite(rows["value"])])
        if len(there):
            figures[name] = draw(observations[observations["step"].isin(there["step"])])
    return figures


def _lines(observations: pd.DataFrame) -> Figure:
    losses = select(observations, quantity="line_loss")
    names = losses["reference"].astype(str) + losses["units"].map(
        {"own": "", "matched": ", matched units"}
    ).astype(str)
    losses = losses.assign(line=names, alpha=losses["alpha"].astype(str).astype(float))
    figure, ax = fig.new_figure(6.4, 3.4)
    fig.draw_lines(ax, losses, "line", fig.line_styles(names.unique()), x="alpha")
    ax.set_xlabel("position α, from the reference (0) to the model (1)")
    ax.set_ylabel("loss (nats per token)")
    ax.set_title(f"step {losses['step'].iloc[0]:,}")
    fig.outer_legend(ax)
    return figure


def _plane(observations: pd.DataFrame) -> Figure:
    """Draw the loss as a heat map with contours, the model, and the course of training."""
    losses = select(observations, quantity="plane_loss")
    grid = wide(losses.assign(**{axis: losses[axis].astype(str).astype(float) for axis in "xy"}), "x", "y")
    values = np.ma.masked_invalid(grid.to_numpy())
    figure, ax = fig.new_figure(5.6, 4.4)
    image = ax.pcolormesh(
        grid.columns, grid.index, values, cmap="viridis_r", shading="nearest", rasterized=True
    )
    ax.grid(visible=False)
    if values.max() > values.min():
        ax.contour(grid.columns, grid.index, values, levels=8, colors="k", linewidths=0.4, alpha=0.6)
    figure.colorbar(image, ax=ax, label="loss (nats per token)")
    course = wide(select(observations, quantity="course_position"), "direction", "at")
    if len(course):
        ax.plot(course[1], course[2], "-o", color="k", lw=1.0, ms=3)
    ax.plot(0, 0, "o", color="k", ms=4)
    shares = select(observations, quantity="explained_variance").set_index("direction")["value"]
    for label, number in ((ax.set_xlabel, 1), (ax.set_ylabel, 2)):
        of_course = f"direction {number} of the course ({shares.get(number, np.nan):.0%} of variance)"
        label(of_course if len(course) else f"direction {number} (norms of the weights)")
    ax.set_title(f"step {losses['step'].iloc[0]:,}")
    return figure

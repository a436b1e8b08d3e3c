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
        ``lines`` (Goodfellow, Vinyals & Saxe 2015, figure 1); ``plane`` (Li et al. 2018, figure 5).
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
    """Draw the loss as a heat map with contours, and the model."""
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
    ax.plot(0, 0, "o", color="k", ms=4)
    ax.set_xlabel("first direction")
    ax.set_ylabel("second direction")
    ax.set_title(f"step {losses['step'].iloc[0]:,}")
    return figure

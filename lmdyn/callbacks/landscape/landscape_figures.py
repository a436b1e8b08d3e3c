"""Figures of losses along lines and in planes of weight space."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.panels import standard_figures
from lmdyn.runs.schema import Quantity, last_step, select, wide

__all__ = ["landscape_figures"]

_LINES = Quantity(
    "line_loss",
    "",
    "nats",
    low=0.0,
    panel="lines",
    over="alpha",
    lines="line",
    short="loss from the reference (0) to the model (1)",
)


@fig.in_style
def landscape_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw the loss along lines and in the plane, at the last step that has finite ones.

    Args:
        observations: observations of ``Landscape``.

    Returns:
        ``lines`` (Goodfellow, Vinyals & Saxe 2015, figure 1); ``plane`` (Li et al. 2018, figure 5).
    """
    losses = select(observations, quantity="line_loss")
    units = losses["units"].map({"own": "", "matched": ", matched units"})
    losses = losses.assign(
        line=losses["reference"].astype(str) + units.astype(str),
        alpha=losses["alpha"].astype(str).replace("", "nan"),
    )
    losses = losses.astype({"alpha": float}).drop(columns=["reference", "units"])
    figures = standard_figures(losses, [_LINES])
    plane = select(observations, quantity="plane_loss")
    plane = last_step(plane[np.isfinite(plane["value"])])
    return figures | ({"plane": _plane(plane)} if len(plane) else {})


def _plane(losses: pd.DataFrame) -> Figure:
    """Draw the loss as a heat map with contours, and the model."""
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

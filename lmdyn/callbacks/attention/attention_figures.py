"""Figures of attention: maps of all heads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from lmdyn.analysis.inspection.transformer import layer_number
from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import last_step, select, wide

__all__ = ["map_figures"]

_SCALE = LogNorm(1e-3, 1, clip=True)  # for all maps: the same at each step


@fig.in_style
def map_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw the finite maps of all heads at the last step; nothing if there are none."""
    last = last_step(_finite(observations))
    maps = select(last, quantity="map")
    return {"maps": _maps(maps, _in_order(list(maps["site"].unique())))} if len(maps) else {}


def _finite(observations: pd.DataFrame) -> pd.DataFrame:
    """Return observations without those of a diverged model."""
    finite: pd.DataFrame = observations[np.isfinite(observations["value"])]
    return finite


def _in_order(sites: Sequence[str]) -> list[str]:
    """Sort sites by the number of their layer; keep the order of the table if they have other names."""
    named = [site for site in sites if site]
    try:
        return sorted(named, key=layer_number)
    except ValueError:
        return named


def _map(ax: Axes, rows: pd.DataFrame) -> Any:
    """Draw the map of one head, query by key."""
    return fig.show_image(ax, _square(rows), norm=_SCALE, cmap="magma")


def _square(rows: pd.DataFrame) -> "np.ndarray[Any, Any]":
    return wide(rows, "key", "query").to_numpy(dtype=float)


def _maps(last: pd.DataFrame, sites: Sequence[str]) -> Figure:
    """Draw the maps of all heads at one step, on one logarithmic scale."""
    rows = select(last, quantity="map")
    heads, size = (int(rows[c].max()) + 1 for c in ("head", "query"))
    across = len(sites) > heads  # layers from left to right if there are more layers than heads
    names = [fig.site_label(site) for site in sites], [f"head {head}" for head in range(heads)]
    down, right = names[::-1] if across else names
    step = size + max(1, size // 10)  # white between two maps
    whole = np.full((len(down) * step, len(right) * step), np.nan)
    places: Any = rows.groupby(["site", "head"], sort=False)
    for (site, head), one in places:
        line, column = (head, sites.index(site)) if across else (sites.index(site), head)
        square = _square(one)
        whole[line * step :, column * step :][: len(square), : square.shape[1]] = square
    figure, ax = fig.new_figure(len(right) + 1.8, len(down) + 1.0)
    image = fig.show_image(ax, whole[: size - step, : size - step], norm=_SCALE, cmap="magma")
    for axis, labels in ((ax.xaxis, right), (ax.yaxis, down)):
        axis.set_ticks(np.arange(len(labels)) * step + (size - 1) / 2, labels, fontsize=8)
        axis.set_tick_params(length=0)
    ax.xaxis.tick_top()
    ax.spines[:].set_visible(False)
    _colour_bar(ax, image)
    figure.suptitle(
        f"mean attention at step {int(last['step'].iloc[0]):,}: query positions 0–{size - 1} "
        "downwards, key positions to the right",
        wrap=True,
    )  # fmt: skip
    return figure


def _colour_bar(axes: Any, image: Any) -> None:
    image.figure.colorbar(image, ax=axes, label="mean attention weight", extend="min", shrink=0.9, aspect=30)

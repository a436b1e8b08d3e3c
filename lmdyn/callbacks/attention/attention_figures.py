"""Figures of attention: maps of all heads, and an animation of heads during training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from lmdyn.analysis.inspection.transformer import layer_number
from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import last_step, select, wide

__all__ = ["diagonal_animation", "map_figures"]

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


@fig.in_style
def diagonal_animation(observations: pd.DataFrame) -> Sequence[Figure]:
    """Draw one frame per step: in the first, a middle and the last layer, the head whose diagonal score rises most."""
    observations = _finite(observations)
    rows = select(observations, quantity="diagonal")
    sites = _in_order(list(rows["site"].unique()))
    chosen: list[tuple[str, int]] = []
    for site in dict.fromkeys(sites[i] for i in (0, len(sites) // 2, len(sites) - 1) if sites):
        of = wide(select(rows, site=site), "head")
        rise = (of.iloc[-1] - of.iloc[0]).to_numpy(dtype=float)
        if not np.isnan(rise).all():
            chosen.append((site, int(of.columns[int(np.nanargmax(rise))])))
    maps = {}
    for step in sorted(observations["step"].unique()):
        now = select(observations, quantity="map", step=step)
        squares = [select(now, site=site, head=head) for site, head in chosen]
        if squares and not any(
            square.empty for square in squares
        ):  # during training, only the newest maps are read
            maps[int(step)] = squares
    return _DiagonalFrames(maps, chosen) if maps else []


class _DiagonalFrames(Sequence[Figure]):
    """Frames that are states of one figure, since creating axes and ticks takes most of the time; drawn on access.

    Args:
        maps: for each step the map of each head.
        heads: sites and numbers of the heads.
    """

    def __init__(self, maps: Mapping[int, Sequence[pd.DataFrame]], heads: Sequence[tuple[str, int]]) -> None:
        self._maps = list(maps.items())
        self._panels = panels = fig.new_panels(len(heads), 2.9, 3.6, margin=(1, 0.3))
        self._images = []
        for ax, square, (site, head) in zip(panels, self._maps[0][1], heads, strict=True):
            self._images.append(_map(ax, square))
            ax.set_title(f"{fig.site_label(site)}, head {head}", loc="center")
            ax.set_xlabel("key position")
        panels.set_ylabel("query position")
        _colour_bar(panels.grid, self._images[-1])

    def __len__(self) -> int:
        return len(self._maps)

    def __getitem__(self, i: Any) -> Any:
        step, squares = self._maps[i]
        for image, square in zip(self._images, squares, strict=True):
            image.set_data(_square(square))
        self._panels.figure.suptitle(
            f"step {step:,}: in the first, a middle and the last layer,\nthe head whose diagonal score rises most"
        )
        return self._panels.figure

"""Figures of attention: scores by layer over steps, scores and maps of all heads, and heads during training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from lmdyn.analysis.inspection.transformer import layer_number
from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import last_step, select, wide

__all__ = ["attention_figures", "diagonal_animation"]

_LABELS = {
    "entropy": "entropy (nats)",
    "diagonal": "weight on previous and\nfollowing token",
    "itself": "weight on the token itself",
    "vertical": "weight on special tokens",
    "block": "weight within the segment,\nless its share of tokens",
}
_SCALE = LogNorm(1e-3, 1, clip=True)  # for all maps: the same at each step


@fig.in_style
def attention_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw all figures of the finite observations, none if there are none; for the maps the last step suffices."""
    observations = _finite(observations)
    if observations.empty:
        return {}
    sites = _in_order(list(observations["site"].unique()))
    scores = [name for name in _LABELS if observations["quantity"].eq(name).any()]
    last = last_step(observations)
    figures = {
        "by_layer": _by_layer(observations, sites, scores),
        "heads": _heads(last, sites, [name for name in scores if last["quantity"].eq(name).any()]),
    }
    if last["quantity"].eq("map").any():
        figures["maps"] = _maps(last, sites)
    return figures


def _finite(observations: pd.DataFrame) -> pd.DataFrame:
    """Return scores and maps without those of a diverged model."""
    return select(observations[np.isfinite(observations["value"])], quantity=[*_LABELS, "map"])


def _in_order(sites: Sequence[str]) -> list[str]:
    """Sort sites by the number of their layer; keep the order of the table if they have other names."""
    named = [site for site in sites if site]
    try:
        return sorted(named, key=layer_number)
    except ValueError:
        return named


def _by_layer(observations: pd.DataFrame, sites: Sequence[str], scores: Sequence[str]) -> Figure:
    """Draw the mean over the heads of each layer, over steps."""
    panels = fig.new_panels(len(scores), 3.3, 2.9, margin=(1.4, 0))
    for ax, score in zip(panels, scores, strict=True):
        rows = select(observations, quantity=score)
        means = rows.groupby(["site", "step"], observed=True)["value"].mean().reset_index()
        fig.draw_lines(ax, means, "site", fig.site_styles(sites), label=fig.site_label)
        ax.set_title(_LABELS[score])
        fig.set_step_axis(ax, observations["step"])
    panels.legend(title="mean over heads")
    return panels.figure


def _heads(last: pd.DataFrame, sites: Sequence[str], scores: Sequence[str]) -> Figure:
    """Draw each score of all heads at one step."""
    rows = select(last, quantity=scores)
    heads = int(rows["head"].max()) + 1
    panels = fig.new_panels(
        len(scores), 1.7 + 0.2 * heads, 0.9 + 0.2 * len(sites), margin=(1, 0.5), sharey=True
    )
    for ax, score in zip(panels, scores, strict=True):
        fig.show_heads(ax, select(rows, quantity=score), sites)
        ax.set_title(_LABELS[score])
    panels.figure.suptitle(f"all heads at step {int(last['step'].iloc[0]):,}")
    return panels.figure


def _map(ax: Axes, rows: pd.DataFrame) -> Any:
    """Draw the map of one head, query by key."""
    return fig.show_image(ax, _square(rows), norm=_SCALE, cmap="magma")


def _square(rows: pd.DataFrame) -> "np.ndarray[Any, Any]":
    return wide(rows, "key", "query").to_numpy(dtype=float)


def _maps(last: pd.DataFrame, sites: Sequence[str]) -> Figure:
    """Draw the maps of all heads at one step, on one logarithmic scale."""
    rows = select(last, quantity="map")
    heads = int(rows["head"].max()) + 1
    across = len(sites) > heads  # layers from left to right if there are more layers than heads
    lines, columns = (heads, len(sites)) if across else (len(sites), heads)
    panels = fig.new_panels(lines * columns, 1, 1, most=columns, margin=(1.8, 1.0))
    grid = panels.grid.T if across else panels.grid
    for i, site in enumerate(sites):
        for head, ax in enumerate(grid[i]):
            ax.set(xticks=[], yticks=[])
            of_head = select(rows, site=site, head=head)
            if len(of_head):
                image = _map(ax, of_head)
            if head == 0:
                (ax.set_title if across else ax.set_ylabel)(fig.site_label(site), fontsize=8, loc="center")
            if i == 0:
                (ax.set_ylabel if across else ax.set_title)(f"head {head}", fontsize=8, loc="center")
    _colour_bar(panels, image)
    panels.figure.suptitle(
        f"mean attention at step {int(last['step'].iloc[0]):,}: query positions 0–{int(rows['query'].max())} "
        "downwards, key positions to the right",
        wrap=True,
    )  # fmt: skip
    return panels.figure


def _colour_bar(panels: fig.Panels, image: Any) -> None:
    panels.figure.colorbar(
        image, ax=panels.grid, label="mean attention weight", extend="min", shrink=0.9, aspect=30
    )


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
        self._panels = panels = fig.new_panels(len(heads), 2.9, 3.6, margin=(1, 0))
        self._images = []
        for ax, square, (site, head) in zip(panels, self._maps[0][1], heads, strict=True):
            self._images.append(_map(ax, square))
            ax.set_title(f"{fig.site_label(site)}, head {head}", loc="center")
            ax.set_xlabel("key position")
        panels.set_ylabel("query position")
        _colour_bar(panels, self._images[-1])

    def __len__(self) -> int:
        return len(self._maps)

    def __getitem__(self, i: Any) -> Any:
        step, squares = self._maps[i]
        for image, square in zip(self._images, squares, strict=True):
            image.set_data(_square(square))
        self._panels.figure.suptitle(
            f"step {step:,}: in the first, a middle and the last layer, the head whose diagonal score rises most",
        )
        return self._panels.figure

"""Figures of attention: scores by layer over steps, scores and maps of all heads, and heads over training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.analysis.inspection.transformer import layer_number
from lmdyn.callbacks.observing.figures import new_figure, outer_legend, set_step_axis, site_label

__all__ = ["attention_figures", "diagonal_animation"]

_LABELS = {
    "entropy": "entropy (nats)",
    "diagonal": "weight on previous and\nfollowing token",
    "itself": "weight on the token itself",
    "vertical": "weight on special tokens",
    "block": "weight within the segment,\nless its share of tokens",
}
_SCALE = LogNorm(1e-3, 1, clip=True)  # of all maps: the same at each step


def attention_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """All figures of the finite observations, none without; of the maps the last step's are enough."""
    observations = _finite(observations)
    if observations.empty:
        return {}
    sites = _in_order(list(observations["site"].unique()))
    scores = [name for name in _LABELS if observations["quantity"].eq(name).any()]
    last = observations[observations["step"].eq(observations["step"].max())]
    figures = {
        "by_layer": _by_layer(observations, sites, scores),
        "heads": _heads(last, sites, [name for name in scores if last["quantity"].eq(name).any()]),
    }
    if last["quantity"].eq("map").any():
        figures["maps"] = _maps(last, sites)
    return figures


def _finite(observations: pd.DataFrame) -> pd.DataFrame:
    """Scores and maps without those of a diverged model."""
    ours = observations["quantity"].isin([*_LABELS, "map"])
    finite = np.isfinite(observations["value"].to_numpy(dtype=float))
    kept: pd.DataFrame = observations[ours & finite]
    return kept


def _in_order(sites: Sequence[str]) -> list[str]:
    """Sites by the number of their layer; in the order of the table where they have names of their own."""
    named = [site for site in sites if site]
    try:
        return sorted(named, key=layer_number)
    except ValueError:
        return named


def _by_layer(observations: pd.DataFrame, sites: Sequence[str], scores: Sequence[str]) -> Figure:
    """Mean over the heads of each layer, over steps."""
    columns = min(3, len(scores))
    lines = -(-len(scores) // columns)
    figure, axes = new_figure(3.3 * columns + 1.4, 2.9 * lines, nrows=lines, ncols=columns, squeeze=False)
    means = observations[observations["quantity"].isin(scores)].pivot_table(
        index="step", columns=["quantity", "site"], values="value", aggfunc="mean", observed=True
    )
    for ax, score in zip(axes.flat, scores, strict=False):
        for i, site in enumerate(sites):
            if (score, site) in means.columns:
                line = means[score, site].dropna()
                colour = colormaps["viridis"](i / max(1, len(sites) - 1) * 0.92)
                ax.plot(line.index, line, marker=".", ms=3, lw=1.1, color=colour, label=site_label(site))
        ax.set_ylabel(_LABELS[score], fontsize=9)
        set_step_axis(ax, sorted(observations["step"].unique()))
    for ax in axes.flat[len(scores) :]:
        ax.set_axis_off()
    outer_legend(axes[0, -1], title="mean over heads", fontsize=7)
    return figure


def _heads(last: pd.DataFrame, sites: Sequence[str], scores: Sequence[str]) -> Figure:
    """Each score of all heads at one step."""
    rows = last[last["quantity"].isin(scores)]
    heads = int(rows["head"].max()) + 1
    columns = min(3, len(scores))
    lines = -(-len(scores) // columns)
    figure, axes = new_figure(
        (1.7 + 0.2 * heads) * columns + 1, (0.9 + 0.2 * len(sites)) * lines + 0.5,
        nrows=lines, ncols=columns, squeeze=False, sharey=True,
    )  # fmt: skip
    for ax, score in zip(axes.flat, scores, strict=False):
        values = np.full((len(sites), heads), np.nan)
        of = rows[rows["quantity"].eq(score)]
        for site, head, value in of[["site", "head", "value"]].itertuples(index=False):
            values[sites.index(site), int(head)] = value
        image = ax.imshow(values, aspect="auto", cmap="viridis")
        ax.set_title(_LABELS[score], fontsize=9, loc="left")
        ax.set_xlabel("head", fontsize=9)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        ax.set_yticks(range(len(sites)), [site_label(site) for site in sites], fontsize=7)
        figure.colorbar(image, ax=ax)
    for ax in axes.flat[len(scores) :]:
        ax.set_axis_off()
    figure.suptitle(f"all heads at step {int(last['step'].iloc[0]):,}", fontsize=10)
    return figure


def _square(rows: pd.DataFrame) -> npt.NDArray[np.float64]:
    """The map of one head: query by key."""
    query, key = (rows[c].to_numpy(dtype=int) for c in ("query", "key"))
    square = np.full((query.max() + 1, key.max() + 1), np.nan)
    square[query, key] = rows["value"]
    return square


def _maps(last: pd.DataFrame, sites: Sequence[str]) -> Figure:
    """Maps of all heads at one step, on one logarithmic scale."""
    rows = last[last["quantity"].eq("map")]
    squares = {
        (site, head): _square(of[of["head"].eq(head)])
        for site, of in ((site, rows[rows["site"].eq(site)]) for site in sites)
        for head in of["head"].unique().tolist()
    }
    heads = max(head for _, head in squares) + 1
    across = len(sites) > heads  # layers to the right where they are more than the heads
    lines, columns = (heads, len(sites)) if across else (len(sites), heads)
    figure, axes = new_figure(1.8 + columns, 1.0 + lines, nrows=lines, ncols=columns, squeeze=False)
    for i, site in enumerate(sites):
        for head in range(heads):
            ax = axes[head, i] if across else axes[i, head]
            ax.set_xticks([])
            ax.set_yticks([])
            if (site, head) in squares:
                image = ax.imshow(squares[site, head], norm=_SCALE, cmap="magma", interpolation="nearest")
            if head == 0:
                (ax.set_title if across else ax.set_ylabel)(site_label(site), fontsize=7)
            if i == 0:
                (ax.set_ylabel if across else ax.set_title)(f"head {head}", fontsize=7)
    _colour_bar(figure, image, axes)
    last_position = max(square.shape[0] for square in squares.values()) - 1
    figure.suptitle(
        f"mean attention at step {int(last['step'].iloc[0]):,}: query positions 0–{last_position} downwards, "
        "key positions to the right",
        fontsize=9, wrap=True,
    )  # fmt: skip
    return figure


def _colour_bar(figure: Figure, image: Any, axes: Any) -> None:
    figure.colorbar(image, ax=axes, label="mean attention weight", extend="min", shrink=0.9, aspect=30)


def diagonal_animation(observations: pd.DataFrame) -> list[Figure]:
    """One frame a step: in the first, a middle and the last layer the head whose diagonal score rises most."""
    observations = _finite(observations)
    steps = sorted(observations["step"].unique())
    rows = observations[observations["quantity"].eq("diagonal")]
    sites = _in_order(list(rows["site"].unique()))
    chosen: list[tuple[str, int]] = []
    for site in dict.fromkeys(sites[i] for i in (0, len(sites) // 2, len(sites) - 1) if sites):
        of = (
            rows[rows["site"].eq(site)].pivot_table(index="step", columns="head", values="value").sort_index()
        )
        rise = (of.iloc[-1] - of.iloc[0]).to_numpy(dtype=float)
        if not np.isnan(rise).all():
            chosen.append((site, int(of.columns[int(np.nanargmax(rise))])))
    maps = observations[observations["quantity"].eq("map")]
    frames = []
    for step in steps:
        now = maps[maps["step"].eq(step)]
        squares = [now[now["site"].eq(site) & now["head"].eq(head)] for site, head in chosen]
        if not squares or any(square.empty for square in squares):
            continue  # live, only the newest maps are read
        figure, axes = new_figure(2.9 * len(chosen) + 1, 3.6, ncols=len(chosen), squeeze=False)
        for ax, square, (site, head) in zip(axes[0], squares, chosen, strict=True):
            image = ax.imshow(_square(square), norm=_SCALE, cmap="magma", interpolation="nearest")
            ax.set_title(f"{site_label(site)}, head {head}", fontsize=9)
            ax.set_xlabel("key position", fontsize=8)
            ax.tick_params(labelsize=7)
        axes[0, 0].set_ylabel("query position", fontsize=8)
        _colour_bar(figure, image, axes)
        figure.suptitle(
            f"step {int(step):,}: in the first, a middle and the last layer, the head whose diagonal score rises most",
            fontsize=9,
        )  # fmt: skip
        frames.append(figure)
    return frames

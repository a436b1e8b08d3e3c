"""The figures of Saphra & Lopez 2020, section 3, from observations."""

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.callbacks.observing.figures import (
    line_style,
    mark_rate_drops,
    new_figure,
    outer_legend,
    set_step_axis,
)

__all__ = ["interdependence_figures"]

_CLASS_COLORS = {"open": "C0", "closed": "C3", "mixed": "0.55"}
_SPACES = {"hidden": "hidden state", "logits": "logits"}


def interdependence_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """DI by sequential distance (figure 3), by syntactic distance (figure 4), and over training."""
    observations = observations[observations["value"].notna()]
    if not _sites(observations):  # no stratum has enough pairs, or no value is finite
        return {}
    figures = {"by_distance": _by_distance(observations)}
    for site in _sites(observations):
        last = observations[
            observations["site"].eq(site) & observations["step"].eq(observations["step"].max())
        ]
        if (last["quantity"].eq("di") & last["syntactic"].notna()).any():
            figures[f"by_syntactic_distance_{site}"] = _by_syntactic(last, site)
    if len(observations["step"].unique()) > 1:
        figures["over_training"] = _over_training(observations)
    return figures


def _sites(observations: pd.DataFrame) -> list[str]:
    there = set(observations["site"])
    return [site for site in _SPACES if site in there]


def _whole(observations: pd.DataFrame, site: str) -> pd.DataFrame:
    """Means over all classes and syntactic distances: a column for each quantity."""
    rows = observations[
        observations["site"].eq(site)
        & observations["syntactic"].isna()
        & observations["pos_class"].isna()
        & observations["quantity"].isin(["di", "di_low", "di_high"])
    ]
    return _wide(rows, ["step", "distance"])


def _wide(rows: pd.DataFrame, index: list[str]) -> pd.DataFrame:
    """A row for each mean, with the ends of its interval where it has one."""
    table = rows.pivot_table(index=index, columns="quantity", values="value", observed=True)
    return table.reindex(columns=["di", "di_low", "di_high"]).dropna(subset="di").reset_index()


def _band(ax: Axes, rows: pd.DataFrame, x: str, color: object, label: str) -> None:
    x_values = rows[x].to_numpy(dtype=float)
    ax.plot(x_values, rows["di"], marker=".", ms=5, lw=1.3, color=color, label=label)
    ax.fill_between(x_values, rows["di_low"], rows["di_high"], color=color, alpha=0.18, lw=0)


def _by_distance(observations: pd.DataFrame) -> Figure:
    sites = _sites(observations)
    figure, axes = new_figure(4.4 * len(sites) + 1.2, 3.8, ncols=len(sites), squeeze=False)
    steps = sorted(observations["step"].unique())
    chosen = [
        steps[i] for i in sorted(set(np.linspace(0, len(steps) - 1, min(6, len(steps))).round().astype(int)))
    ]
    colors = matplotlib.colormaps["viridis"](np.linspace(0.9, 0, len(chosen)))
    for ax, site in zip(axes.flat, sites, strict=True):
        rows = _whole(observations, site)
        for step, color in zip(chosen, colors, strict=True):
            _band(ax, rows[rows["step"].eq(step)].sort_values("distance"), "distance", color, f"{step:,}")
        ax.set_title(_SPACES[site], fontsize=10, loc="left")
        ax.set_xlabel("sequential distance (words)")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("mean interdependence (DI), 95 % interval")
    outer_legend(axes[0, -1], title="training step")
    return figure


def _by_syntactic(last: pd.DataFrame, site: str) -> Figure:
    rows = last[last["syntactic"].notna() & last["quantity"].isin(["di", "di_low", "di_high"])]
    table = _wide(
        rows.assign(pos_class=rows["pos_class"].fillna("all")), ["distance", "syntactic", "pos_class"]
    )
    distances = sorted(table["distance"].unique())
    columns = min(4, len(distances))
    lines = -(-len(distances) // columns)
    figure, axes = new_figure(3.0 * columns + 1.2, 2.8 * lines, nrows=lines, ncols=columns, squeeze=False)
    for ax, distance in zip(axes.flat, distances, strict=False):
        here = table[table["distance"].eq(distance)].sort_values("syntactic")
        for name, color in (*_CLASS_COLORS.items(), ("all", "0.0")):
            line = here[here["pos_class"].eq(name)]
            if len(line):
                _band(ax, line, "syntactic", color, name)
                ax.lines[-1].set_linestyle(":" if name == "all" else "-")
        ax.set_title(f"{distance} word{'s' if distance > 1 else ''} apart", fontsize=9, loc="left")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.tick_params(labelsize=8)
    for ax in axes.flat[len(distances) :]:
        ax.set_axis_off()
    for ax in axes[-1]:
        ax.set_xlabel("syntactic distance (edges)", fontsize=9)
    for ax in axes[:, 0]:
        ax.set_ylabel(f"mean DI ({_SPACES[site]})", fontsize=9)
    outer_legend(axes[0, -1], of=list(axes.flat), title="word classes")
    return figure


def _over_training(observations: pd.DataFrame) -> Figure:
    sites = _sites(observations)
    figure, axes = new_figure(4.6 * len(sites) + 1.2, 3.8, ncols=len(sites), squeeze=False)
    for ax, site in zip(axes.flat, sites, strict=True):
        rows = _whole(observations, site).sort_values("step")
        for i, distance in enumerate(sorted(rows["distance"].unique())):
            line = rows[rows["distance"].eq(distance)]
            ax.plot(line["step"], line["di"], marker=".", ms=4, lw=1.2, label=str(distance), **line_style(i))
        ax.set_title(_SPACES[site], fontsize=10, loc="left")
        mark_rate_drops(ax, observations)
        set_step_axis(ax, list(rows["step"]))
    axes[0, 0].set_ylabel("mean interdependence (DI)")
    outer_legend(axes[0, -1], title="words apart")
    return figure

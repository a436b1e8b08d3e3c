"""Figures 2A, 4A and 4C of Inoue et al. 2022: one example sentence under iteration of the encoder."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from lmdyn.callbacks.dynamics.encoder_dynamics_tables import curve, curves
from lmdyn.callbacks.observing.figures import (
    COLOURS,
    PlainTextFigure,
    in_style,
    outer_legend,
    site_styles,
)

__all__ = ["TIME", "attractor_figure", "perturbation_figure", "positive", "synchronization_figure"]

TIME = "t (steps of the map)"
"""Axis label of the map's own time, which is not a training step. If layers differ, a step is a layer."""

_SINCE = "t since synchronization (steps of the map)"
_MAPS = 11  # attention maps that fit next to each other: every 50 of 500 steps


@in_style
def synchronization_figure(
    last: Mapping[str, pd.DataFrame], titles: Mapping[str, str], threshold: float
) -> Figure | None:
    """Draw figure 2A: token vectors synchronize; with attention maps and the deviation D(t), on one time axis.

    Args:
        last: rows of one observation by run.
        titles: titles by run.
        threshold: threshold of D, below which tokens count as synchronized.

    Returns:
        The figure, a part for each run that has token vectors; None if none has.
    """
    there = {run: rows for run, rows in last.items() if len(curves(rows, "first_element", "token"))}
    return _parts(there, titles, 9.4, 6.0, lambda part, rows: _synchronization(part, rows, threshold))


def _synchronization(part: SubFigure, rows: pd.DataFrame, threshold: float) -> None:
    elements = curves(rows, "first_element", "token")
    example, mean = curve(rows, "example_deviation"), curve(rows, "deviation")
    maps = curves(rows.assign(pair=_pairs(rows)), "attention", "pair")
    drawn = np.concatenate([elements.index, example.index, maps.index]).astype(int)
    half = _half_a_map(maps.index, int(drawn.max()))
    heights = [height for height, of in ((2.0, elements), (1.15, maps), (1.6, example)) if len(of)]
    panels = list(part.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
    ax = panels.pop(0)
    looks = site_styles(list(elements))
    for token, look in looks.items():
        ax.plot(elements.index, elements[token], lw=1, label=f"token {token}", **look)
    ax.set_ylabel("first element of\nthe token vectors")
    outer_legend(ax)
    if len(maps):
        _attention(panels.pop(0), maps, half)
    if len(example):
        _deviations(panels.pop(0), example, mean, threshold)
    axes = part.axes
    for ax in axes:
        ax.set_xlim(-half, drawn.max() + half)
        ax.set_xlabel(TIME if ax is axes[-1] else "")


def positive(values: "pd.Series[float]") -> "pd.Series[float]":
    """Replace 0 by NaN, a gap on a logarithmic axis."""
    return values.where(values > 0)


def _pairs(rows: pd.DataFrame) -> "pd.Series[Any]":
    """Return query and key as one number that sorts as the flattened attention map."""
    keys = int(rows["key"].max()) + 1 if rows["key"].notna().any() else 1
    return rows["token"] * keys + rows["key"]


def _half_a_map(times: pd.Index, last: int) -> float:
    """Return half the time between two maps."""
    if len(times) == 0:
        return 0.0
    kept = times[:: _every(len(times))]
    return float(np.diff(kept).min() / 2) if len(kept) > 1 else max(last, 1) / 20


def _every(n: int) -> int:
    return -(-n // _MAPS)


def _attention(ax: Axes, maps: pd.DataFrame, half: float) -> None:
    """Draw each map at its own time."""
    side = round(np.sqrt(maps.shape[1]))
    highest = float(np.nanmax(maps.to_numpy()))
    ax.set(ylim=(0, 1), yticks=[], ylabel="attention\nprobability")
    ax.spines[:].set_visible(False)
    ax.tick_params(bottom=False, labelbottom=False)
    shown = maps.iloc[:: _every(len(maps))]
    for t, values in zip(shown.index, shown.to_numpy(), strict=True):
        inset = ax.inset_axes((t - 0.9 * half, 0, 1.8 * half, 0.86), transform=ax.get_xaxis_transform())
        image = inset.imshow(values.reshape(side, side), vmin=0, vmax=highest, cmap="viridis")
        inset.set_title(f"t = {t}", loc="center", fontsize=8, pad=2)
        inset.set(xticks=[], yticks=[])
    bar = ax.inset_axes((1.02, 0.05, 0.012, 0.8))
    ax.figure.colorbar(image, cax=bar)
    bar.set_title("rows: queries\ncolumns: keys", fontsize=8, loc="left", pad=4)


def _deviations(ax: Axes, example: "pd.Series[float]", mean: "pd.Series[float]", threshold: float) -> None:
    if len(mean):
        ax.plot(mean.index, positive(mean), color="0.6", lw=1.2, label="mean of sentences")
    ax.plot(example.index, positive(example), color=COLOURS["blue"], lw=1.6, label="this sentence")
    ax.axhline(threshold, color="0.3", lw=0.9, ls="--", label=f"threshold {threshold:g}")
    below = example.index[example < threshold]
    if len(below):
        ax.axvline(
            below[0], color=COLOURS["vermilion"], lw=0.9, ls=":", label=f"synchronized\nat t = {below[0]}"
        )
    ax.set_yscale("log")
    ax.set_ylabel("deviation D(t)")
    outer_legend(ax)


@in_style
def perturbation_figure(last: Mapping[str, pd.DataFrame], titles: Mapping[str, str]) -> Figure | None:
    """Draw figure 4A: a trajectory and a perturbed one, of synchronized tokens, and their distance below.

    Args and return value as in :func:`synchronization_figure`.
    """
    there = {run: rows for run, rows in last.items() if len(curves(rows, "trajectory", "kind"))}
    return _parts(there, titles, 8.6, 4.0, _perturbation)


def _perturbation(part: SubFigure, rows: pd.DataFrame) -> None:
    trajectories = curves(rows, "trajectory", "kind")
    difference = curve(rows, "trajectory_difference")
    axes = part.subplots(2 if len(difference) else 1, 1, squeeze=False, sharex=True)[:, 0]
    looks: dict[str, dict[str, Any]] = {
        "original": {"color": COLOURS["blue"]},
        "perturbed": {"color": COLOURS["vermilion"], "ls": "--"},
    }
    for kind, look in looks.items():
        if kind in trajectories:
            axes[0].plot(trajectories.index, trajectories[kind], lw=1, label=kind, **look)
    axes[0].set_ylabel("first element of\nthe token vector")
    outer_legend(axes[0])
    if len(difference):
        axes[1].plot(difference.index, positive(difference), color="0.2", lw=1.2)
        axes[1].set_yscale("log")
        axes[1].set_ylabel("norm of the difference\nof the two states")
    axes[-1].set_xlabel(_SINCE)
    axes[-1].set_xlim(trajectories.index.min(), max(trajectories.index.max(), trajectories.index.min() + 1))


@in_style
def attractor_figure(last: Mapping[str, pd.DataFrame], titles: Mapping[str, str]) -> Figure | None:
    """Draw figure 4C: the trajectory of synchronized tokens in its first principal components, by time.

    Args and return value as in :func:`synchronization_figure`.
    """
    components = {run: curves(rows, "principal_component", "component") for run, rows in last.items()}
    there = {run: rows for run, rows in last.items() if components[run].shape[1] > 1}
    return _parts(there, titles, 9.4, 3.9, _attractor)


def _attractor(part: SubFigure, rows: pd.DataFrame) -> None:
    components = curves(rows, "principal_component", "component")
    first, *others = list(components)[:3]
    axes = part.subplots(1, 2, squeeze=False)[0]
    for ax in axes[len(others) :]:
        ax.set_axis_off()
    for ax, other in zip(axes, others, strict=False):
        points = ax.scatter(
            components[first],
            components[other],
            c=components.index,
            s=5,
            lw=0,
            cmap="viridis",
            rasterized=True,
        )
        ax.set_xlabel(f"principal component {first}")
        ax.set_ylabel(f"principal component {other}")
    part.colorbar(points, ax=list(axes[: len(others)])).set_label(_SINCE)


def _parts(
    runs: Mapping[str, pd.DataFrame], titles: Mapping[str, str], width: float, height: float, draw: Any
) -> Figure | None:
    """Draw a part for each run below each other, with its title, by ``draw(part, rows)``."""
    if not runs:
        return None
    figure = PlainTextFigure(width, height * len(runs))
    parts: Iterable[SubFigure] = figure.subfigures(len(runs), 1, squeeze=False)[:, 0]
    for part, (run, rows) in zip(parts, runs.items(), strict=True):
        part.suptitle(titles[run], x=0.01, ha="left")
        draw(part, rows)
    return figure

"""Figures of a training map: held-out likelihood, states and transitions, paths of seeds, curves by state."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from lmdyn.analysis.statistics.mean_over_seeds import mean_over_seeds
from lmdyn.callbacks.observing.figures import COLOURS, in_style, new_figure, new_panels, shades
from lmdyn.cli.phases.seed_map import SeedMap

__all__ = ["MOST_PANELS", "map_figures"]

MOST_PANELS = 12
"""Maximum number of measures that are drawn by state."""

_LEAST_SHARE = 0.05
_APART = 0.13  # of the axis: labels of states that are closer stand below and above them in turn
_STEP = "training step (optimizer updates)"


@in_style
def map_figures(one: SeedMap) -> dict[str, Figure]:
    """Draw a training map; without states only the likelihoods of numbers of states.

    Args:
        one: the map.

    Returns:
        Figures by name: ``held_out_likelihood``, ``map``, ``paths``, ``curves_by_state``.
    """
    drawn = {"held_out_likelihood": _held_out(one)}
    if one.found.states > 1:
        drawn |= {"map": _map(one), "paths": _paths(one), "curves_by_state": _curves(one)}
    return drawn


def _colours(one: SeedMap) -> list[Any]:
    return [look["color"] for look in shades(range(one.found.states)).values()]


def _held_out(one: SeedMap) -> Figure:
    figure, axes = new_figure(6.5, 3.8)
    for found, colour, label in (
        (one.found, COLOURS["blue"], "these curves"), (one.smooth, COLOURS["orange"], "smooth, monotone counterparts"),
    ):  # fmt: skip
        means = [mean_over_seeds(seeds.tolist()) for seeds in found.held_out]
        ends = np.array([m.interval() for m in means])
        at = np.array(found.numbers)
        axes.plot(at, [m.mean for m in means], marker="o", color=colour, label=label)
        axes.fill_between(at, *ends.T, color=colour, alpha=0.2, lw=0)
        axes.plot(
            [found.states], [means[found.states - 1].mean], marker="o", ms=13, mfc="none", mec=colour, ls=""
        )
    axes.set_xticks(one.found.numbers)
    axes.set_xlabel("number of states (circles: chosen)")
    axes.set_ylabel("log-likelihood of held-out seeds\nper observation (nats)")
    axes.legend(loc="lower right")
    return figure


def _lanes(one: SeedMap) -> list[float]:
    """Return heights: states that all seeds visit in the middle, others with those of the same seeds, or apart."""
    visited = one.found.first_entries() >= 0
    votes = np.zeros(len(one.runs))  # of each seed: its states above minus those below
    heights, side = [], 1.0
    for there in visited.T:
        if there.all():
            heights.append(0.0)
            continue
        balance = votes[there].sum()
        side = float(np.sign(balance)) if balance else side
        heights.append(side)
        votes[there] += side
        side = -side
    return heights


def _map(one: SeedMap) -> Figure:
    figure, axes = new_figure(9.0, 4.2)
    counts, seeds = one.found.seeds_with_transition(), len(one.runs)
    at, heights, colours = np.log10(one.entries), _lanes(one), _colours(one)
    at = np.where(np.isfinite(at), at, np.log10(one.steps[-1]))
    width = max(np.log10(one.steps[-1] / one.steps[0]), 0.1)
    for i in range(1, len(at)):  # states that begin together stand side by side
        at[i] = max(at[i], at[i - 1] + 0.07 * width) if heights[i] == heights[i - 1] else at[i]
    for a, b in zip(*np.nonzero(counts), strict=True):
        share = counts[a, b] / seeds
        if share < _LEAST_SHARE:
            continue
        back = b < a
        bend = 0.0 if abs(b - a) == 1 and not back and heights[a] == heights[b] else 0.35 if back else -0.3
        if heights[a] != heights[b] and not back:
            bend = 0.0
        axes.add_patch(
            FancyArrowPatch(
                (at[a], heights[a]), (at[b], heights[b]), arrowstyle="-|>", mutation_scale=12, lw=0.6 + 3 * share,
                connectionstyle=f"arc3,rad={bend}", shrinkA=19, shrinkB=19, color="0.55" if back else "0.3",
                ls=":" if back else "-", zorder=1,
            )
        )  # fmt: skip
        if counts[a, b] < seeds:
            x, y = (at[a] + at[b]) / 2, (heights[a] + heights[b]) / 2
            span = (at[b] - at[a]) / width
            axes.text(x, y - bend * span * 2.2, f"{counts[a, b]}", fontsize=8, ha="center", va="center",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8}, zorder=2)  # fmt: skip
    below = True
    for k, (x, y) in enumerate(zip(at, heights, strict=True)):
        near = k > 0 and y == heights[k - 1] and x - at[k - 1] < _APART * width
        below = not below if near else True
        axes.plot([x], [y], marker="o", ms=26, color=colours[k], mec="0.2", ls="", zorder=3)
        axes.text(x, y, str(k + 1), color="white" if k < 0.7 * len(at) else "black", ha="center", va="center",
                  fontsize=11, fontweight="bold", zorder=4)  # fmt: skip
        some = f"\n{one.visits[k]} of {seeds} seeds" if one.visits[k] < seeds else ""
        axes.annotate(
            f"step {one.entries[k]:,.0f}{some}", (x, y), (0, -19 if below else 19), textcoords="offset points",
            ha="center", va="top" if below else "bottom", fontsize=7.5,
        )  # fmt: skip
    axes.set_ylim(-1.9, 1.9)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    axes.set_xlim(at.min() - 0.08 * width, at.max() + 0.1 * width)
    ticks = [t for t in range(-1, 12) if at.min() - 0.05 * width <= t <= at.max() + 0.05 * width]
    axes.set_xticks(ticks, [f"{10.0**t:,.0f}" for t in ticks])
    axes.set_xlabel(
        f"{_STEP} of first entry, mean over seeds; all {seeds} seeds enter states without a number of them"
    )
    return figure


def _paths(one: SeedMap) -> Figure:
    found = one.found
    first = found.first_entries()
    routes = {order: i for i, (order, _) in enumerate(found.routes())}
    own = [tuple(dict.fromkeys(path.tolist())) for path in found.paths]
    order = sorted(range(len(own)), key=lambda i: (routes[own[i]], *first[i].tolist()))
    figure, axes = new_figure(9.0, 1.2 + 0.17 * len(order))
    _on_log_steps(axes, one)
    edges = _edges(one.steps)
    for row, i in enumerate(order):
        for k in range(found.states):
            there = found.paths[i] == k
            axes.barh(
                np.full(there.sum(), row), (edges[1:] - edges[:-1])[there], left=edges[:-1][there], height=0.9,
                color=_colours(one)[k], label=f"state {k + 1}" if not row else None, lw=0,
            )  # fmt: skip
    axes.set_yticks(range(len(order)), [one.runs[i] for i in order], fontsize=6.5)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_xlim(edges[0], edges[-1])
    axes.grid(visible=False)
    _legend(axes, one)
    return figure


def _edges(steps: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return the borders of the steps' bars, halfway in log10."""
    x = np.log10(steps)
    middle = (x[1:] + x[:-1]) / 2
    return np.asarray(10 ** np.concatenate([[2 * x[0] - middle[0]], middle, [2 * x[-1] - middle[-1]]]))


def _curves(one: SeedMap) -> Figure:
    names = one.measures[:MOST_PANELS]
    panels = new_panels(len(names), 3.7, 2.4, sharex=True)
    for i, axes in enumerate(panels):
        for k in range(one.found.states):
            seeds, at = np.nonzero(one.found.paths == k)
            axes.plot(
                one.steps[at], one.values[seeds, at, i], ls="", marker=".", ms=3.5, color=_colours(one)[k]
            )
        axes.set_title(_folded(names[i]), fontsize=8)
        _on_log_steps(axes, one)
    panels.figure.supxlabel(_STEP, fontsize=9.5)
    for axes in panels:
        axes.set_xlabel("")
    _legend(panels.grid[0, -1], one)
    return panels.figure


def _folded(name: str, most: int = 34) -> str:
    """Return a name in lines of at most about this length, broken at slashes."""
    lines = [""]
    for part in name.split("/"):
        if len(lines[-1]) + len(part) > most and lines[-1]:
            lines.append("")
        lines[-1] += f"{part}/"
    return "\n".join(lines).rstrip("/")


def _on_log_steps(axes: Axes, one: SeedMap) -> None:
    axes.set_xscale("log")
    axes.set_xlabel(_STEP)
    axes.set_xlim(one.steps[0] / 1.1, one.steps[-1] * 1.1)


def _legend(axes: Axes, one: SeedMap) -> None:
    marks = [
        axes.plot([], [], ls="", marker="s", ms=8, color=colour, label=f"state {k + 1}")[0]
        for k, colour in enumerate(_colours(one))
    ]
    axes.legend(handles=marks, loc="center left", bbox_to_anchor=(1.0, 0.5))

"""Figures of a training map: states and transitions, and the path of each seed (Hu et al. 2023, figure 2)."""

from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from lmdyn.callbacks.observing.figures import in_style, new_figure, shades
from lmdyn.claims.phases.seed_map import SeedMap

__all__ = ["map_figures"]

_LEAST_SHARE = 0.05
_STEP = "training step (optimizer updates)"


@in_style
def map_figures(one: SeedMap) -> dict[str, Figure]:
    """Draw a training map: figures ``map`` and ``paths``; none for a single state."""
    return {"map": _map(one), "paths": _paths(one)} if one.found.states > 1 else {}


def _colours(one: SeedMap) -> list[Any]:
    return [look["color"] for look in shades(range(one.found.states)).values()]


def _heights(one: SeedMap) -> list[float]:
    """Return heights: states that all seeds visit in the middle, others above and below it in turn."""
    sides = cycle((1.0, -1.0))
    return [0.0 if visits == len(one.runs) else next(sides) for visits in one.visits]


def _map(one: SeedMap) -> Figure:
    """Draw states at the mean step of their first entry, and transitions, as wide as the share of seeds with them."""
    figure, axes = new_figure(9.0, 4.2)
    counts, seeds = one.found.seeds_with_transition(), len(one.runs)
    entries = [entry if np.isfinite(entry) else one.steps[-1] for entry in one.entries]
    places = list(zip(np.log10(entries), _heights(one), strict=True))
    for a, b in zip(*np.nonzero(counts >= _LEAST_SHARE * seeds), strict=True):
        straight = b == a + 1 or (b > a and places[a][1] != places[b][1])
        axes.add_patch(
            FancyArrowPatch(
                places[a],
                places[b],
                arrowstyle="-|>",
                mutation_scale=12,
                connectionstyle=f"arc3,rad={0 if straight else 0.35 if b < a else -0.3}",
                lw=0.6 + 3 * counts[a, b] / seeds,
                ls=":" if b < a else "-",
                shrinkA=19,
                shrinkB=19,
                color="0.4",
            )
        )
    for k, ((x, y), colour) in enumerate(zip(places, _colours(one), strict=True)):
        axes.plot([x], [y], marker="o", ms=26, color=colour, mec="0.2", ls="")
        axes.text(x, y, str(k + 1), ha="center", va="center", fontweight="bold", color="0.6")
        words = f"step {entries[k]:,.0f}\n{one.visits[k]} of {seeds} seeds"
        offset = (0, 19 if k % 2 else -19)
        axes.annotate(words, (x, y), offset, textcoords="offset points", ha="center", fontsize=7.5,
                      va="bottom" if k % 2 else "top")  # fmt: skip
    axes.set_ylim(-1.9, 1.9)
    axes.set_yticks([])
    axes.margins(x=0.1)
    axes.set_xlabel(f"log10 of the {_STEP} of first entry, mean over seeds")
    return figure


def _paths(one: SeedMap) -> Figure:
    """Draw the state of each seed at each step; seeds with the same order of states are neighbours."""
    own = [tuple(dict.fromkeys(path.tolist())) for path in one.found.paths]
    first = one.found.first_entries().tolist()
    order = sorted(range(len(own)), key=lambda i: (own[i], first[i]))
    figure, axes = new_figure(9.0, 1.2 + 0.17 * len(order))
    for k, colour in enumerate(_colours(one)):
        seeds, steps = np.nonzero(one.found.paths[order] == k)
        axes.plot(one.steps[steps], seeds, ls="", marker="s", ms=6, color=colour, label=f"state {k + 1}")
    axes.set_yticks(range(len(order)), [one.runs[i] for i in order], fontsize=6.5)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(_STEP)
    figure.legend(loc="outside lower center", ncols=6)
    return figure

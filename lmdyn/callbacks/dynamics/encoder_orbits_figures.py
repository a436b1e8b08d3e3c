"""Kinds of orbits, and duration of their chaos: for several runs, or one run over training."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from lmdyn.analysis.orbits.orbit_kind import KINDS
from lmdyn.callbacks.dynamics.encoder_dynamics_tables import curve
from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import select

__all__ = ["orbits_figure"]

_COLOURS = dict(
    zip(
        KINDS,
        (fig.COLOURS["vermilion"], fig.COLOURS["blue"], fig.COLOURS["green"], fig.COLOURS["purple"], "0.85"),
        strict=True,
    )
)


@fig.in_style
def orbits_figure(shown: Mapping[str, tuple[pd.DataFrame, str]], horizon: int) -> Figure | None:
    """Draw shares of sentences by kind, the share whose chaos persists, and the 0–1 test; None without the first.

    Args:
        shown: for each label, the rows of one observation and the colour of its curve.
        horizon: steps up to which transients were followed; 0 if unknown.
    """
    shares = {
        label: select(rows, quantity="orbit_share").set_index("kind")["value"]
        for label, (rows, _) in shown.items()
    }
    shares = {label: of for label, of in shares.items() if of.notna().any()}
    if not shares:
        return None
    second = {label: select(shown[label][0], quantity="sentence_zero_one") for label in shares}
    second = {label: of for label, of in second.items() if len(of)}
    n = 3 if second else 2
    grid = fig.new_panels(n, 5.4, max(2.6, 1.2 + 0.32 * len(shares)), most=n, margin=(0, 0.8))
    left, right, *rest = grid
    if second:
        _second_opinion(rest[0], {label: (of, shown[label][1]) for label, of in second.items()})
    lines = {label: curve(shown[label][0], "survival") for label in shares}
    horizon = max([horizon, 1, *(int(line.index.max()) for line in lines.values() if len(line))])
    _shares(left, shares)
    for label in shares:
        colour, line = shown[label][1], lines[label]
        if len(line):
            times, values = [*line.index, horizon], [*line, line.iloc[-1]]
            right.step(times, values, where="post", color=colour, lw=1.4, label=label)
    right.set_ylim(-0.02, 1.02)
    right.set_xlim(0, horizon)
    right.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    right.set_xlabel("steps of the map")
    right.set_ylabel("sentences whose chaos lasts longer")
    handles, labels = left.get_legend_handles_labels()
    left.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=3, fontsize=8)
    if len(shares) > 1:
        right.legend(loc="upper right")
    return grid.figure


def _second_opinion(ax: Axes, shown: Mapping[str, tuple[pd.DataFrame, str]]) -> None:
    """Draw K against T: a line for each sentence."""
    for rows, colour in shown.values():
        for _, of in rows.groupby("sentence"):
            of = of.sort_values("t")
            ax.plot(
                of["t"].to_numpy(int),
                of["value"].to_numpy(float),
                "-o",
                ms=3,
                lw=0.8,
                alpha=0.6,
                color=colour,
            )
    low = min(float(rows["value"].min()) for rows, _ in shown.values())
    ax.set_ylim(min(-0.2, low - 0.1), 1.1)
    ax.margins(x=0.05)
    for level in (0, 1):
        ax.axhline(level, color="0.7", lw=0.8, zorder=0)
    ax.set_xlabel("steps looked at")
    ax.set_ylabel("K of the 0–1 test, each sentence\n(0: regular, 1: chaotic)")


def _shares(ax: Axes, shares: "Mapping[str, pd.Series[float]]") -> None:
    """Draw a bar for each, with its kinds from the left."""
    at = np.arange(len(shares))[::-1]
    begin = np.zeros(len(shares))
    for kind in KINDS:
        values = np.array([float(of.get(kind, 0.0)) for of in shares.values()])
        ax.barh(at, values, left=begin, color=_COLOURS[kind], edgecolor="white", lw=0.5, label=kind)
        begin += values
    ax.set_yticks(at, list(shares))
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_xlabel("share of sentences")

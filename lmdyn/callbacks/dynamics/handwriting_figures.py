"""Figure 3C of Inoue et al. 2022: the map of windows, and the letters."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from pandas import DataFrame

from lmdyn.callbacks.dynamics.encoder_dynamics_figures import last_steps
from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import select, wide

__all__ = ["handwriting_figures"]


@fig.in_style
def handwriting_figures(observations: DataFrame) -> dict[str, Figure]:
    """Draw map and letters at the last step, of each run."""
    runs = last_steps(observations)
    figures = {}
    if any(rows.loc[rows["quantity"].eq("nmse"), "value"].gt(0).any() for rows in runs.values()):
        figures["nmse"] = _maps(runs)
    if any(rows["quantity"].eq("path").any() for rows in runs.values()):
        figures["letters"] = _letters(runs)
    return figures


def _maps(runs: Mapping[str, DataFrame]) -> Figure:
    """Draw the left of figure 3C, with one scale for all, which ends at 1, a pen at rest, unless many are worse."""
    panels = fig.new_panels(len(runs), 4.4, 4.2, most=len(runs), margin=(0.9, 0), sharey=True)
    tables = [wide(select(rows, quantity="nmse"), "start", "length") for rows in runs.values()]
    values = np.concatenate([t.to_numpy().ravel() for t in tables])
    values = values[values > 0]
    scale = LogNorm(min(values.min(), 0.9), max(1.0, np.quantile(values, 0.95)))
    for ax, table, (label, rows) in zip(panels, tables, runs.items(), strict=True):
        x = table.columns.to_numpy(int)
        y = table.index.to_numpy(int)
        image = ax.pcolormesh(x, y, table.to_numpy(), norm=scale, cmap="viridis", rasterized=True)
        best = (select(rows, quantity=f"best_{name}") for name in ("start", "length", "nmse"))
        start, length, nmse = (of["value"].mean() for of in best)  # NaN if there is none
        ax.plot(start, length, "k*", ms=12, mfc="white", clip_on=False)
        ax.set_title(f"{label}\nbest: {nmse:.3g} at t₀ = {start:.0f}, ΔT = {length:.0f}")
        ax.set_xlabel("t₀, start of the window (steps)")
    panels.set_ylabel("ΔT, length of the window (steps)")
    panels.figure.colorbar(image, ax=list(panels), label="NMSE (1: a pen at rest)", extend="max")
    return panels.figure


def _letters(runs: Mapping[str, DataFrame]) -> Figure:
    """Draw the right of figure 3C: a row for each run, a panel for each letter, with a thin grey target."""
    drawn = pd.concat(runs.values())
    letters = drawn.loc[drawn["quantity"].eq("target_path"), "letter"].astype(str).unique()
    number, most = len(runs) * len(letters), len(letters)
    panels = fig.new_panels(number, 2.8, 3.2, most=most, margin=(0.6, 0))
    for line, (label, rows) in zip(panels.grid, runs.items(), strict=True):
        for ax, letter in zip(line, letters, strict=True):
            for quantity, look in (("path", {}), ("target_path", {"color": "0.5", "lw": 0.8, "zorder": 0})):
                paths = select(rows, letter=letter, quantity=quantity)
                for _, path in paths.fillna({"sentence": 0}).groupby("sentence", sort=False):
                    points = wide(path, "axis", "k")
                    ax.plot(points["x"], points["y"], **look)
            ax.set_title(f"“{letter}”")
            ax.set_aspect("equal", adjustable="datalim")
            ax.set_xlabel("x (letter heights)")
        line[0].set_ylabel(f"{label}\ny (letter heights)")
    return panels.figure

"""Figure 3C of Inoue et al. 2022: the map of windows, and the letters."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from pandas import DataFrame

from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import last_step, select, wide

__all__ = ["handwriting_figures"]


@fig.in_style
def handwriting_figures(observations: DataFrame) -> dict[str, Figure]:
    """Draw map and letters at the last step, of each run."""
    observations = fig.named_runs(observations)
    runs = list(observations["run"].unique())
    last = [last_step(select(observations, run=run)) for run in runs]
    figures = {}
    if any(rows.loc[rows["quantity"].eq("nmse"), "value"].gt(0).any() for rows in last):
        figures["nmse"] = _maps(last, runs)
    if any(rows["quantity"].eq("path").any() for rows in last):
        figures["letters"] = _letters(last, runs)
    return figures


def _title(rows: DataFrame, run: str, several: bool) -> str:
    return fig.of_run(run, f"step {int(rows['step'].max())}", several)


def _maps(last: Sequence[DataFrame], runs: Sequence[str]) -> Figure:
    """Draw the left of figure 3C, with one scale for all, which ends at 1, a pen at rest, unless many are worse."""
    panels = fig.new_panels(len(runs), 4.4, 4.2, most=len(runs), margin=(0.9, 0), sharey=True)
    tables = [wide(select(rows, quantity="nmse"), "start", "length") for rows in last]
    values = np.concatenate([t.to_numpy().ravel() for t in tables])
    values = values[values > 0]
    low = min(float(values.min()), 0.9)
    top = max(1.0, float(np.quantile(values, 0.95)))
    for ax, table, rows, run in zip(panels, tables, last, runs, strict=True):
        x, y = table.columns.to_numpy(int), table.index.to_numpy(int)
        image = ax.pcolormesh(x, y, table.to_numpy(), norm=LogNorm(low, top), cmap="viridis", rasterized=True)
        best = {q: select(rows, quantity=f"best_{q}")["value"] for q in ("start", "length", "nmse")}
        if all(len(v) and v.notna().all() for v in best.values()):
            start, length, nmse = (float(v.iloc[0]) for v in best.values())
            best_at = f"best: {nmse:.3g} at t₀ = {start:.0f}, ΔT = {length:.0f}"
            ax.plot(start, length, "k*", ms=12, mfc="white", clip_on=False, label=best_at)
            ax.legend(loc="upper right", frameon=True)
        ax.set_title(_title(rows, run, len(runs) > 1))
        ax.set_xlabel("t₀, start of the window (steps)")
    panels.set_ylabel("ΔT, length of the window (steps)")
    above = bool(len(values)) and float(values.max()) > top
    extend = "max" if above else "neither"
    panels.figure.colorbar(image, ax=list(panels), label="NMSE (1: a pen at rest)", extend=extend)
    return panels.figure


def _letters(last: Sequence[DataFrame], runs: Sequence[str]) -> Figure:
    """Draw the right of figure 3C: a row for each run, a panel for each letter, with a thin grey target."""
    letters = list(dict.fromkeys(last[0].loc[last[0]["letter"].notna(), "letter"].astype(str)))
    panels = fig.new_panels(
        len(runs) * len(letters),
        2.8,
        3.2,
        most=len(letters),
        margin=(0.6, 0),
        fixed=True,
    )
    for line, rows, run in zip(panels.grid, last, runs, strict=True):
        for ax, letter in zip(line, letters, strict=True):
            here = select(rows, letter=letter)
            paths = select(here, quantity="path").astype({"sentence": int})
            for i, (_, path) in enumerate(paths.groupby("sentence", sort=False)):
                ax.plot(*_points(path), color=fig.line_style(i)["color"], lw=1.2)
            target = select(here, quantity="target_path")
            if len(target):
                ax.plot(*_points(target), color="0.5", lw=0.8, zorder=0)
                window = f"t₀ = {int(target['start'].iloc[0])}, ΔT = {int(target['length'].iloc[0])}"
                ax.set_title(f"“{letter}”, {window}")
            ax.set_aspect("equal", adjustable="datalim")
            ax.set_xlabel("x (letter heights)")
        line[0].set_ylabel(f"{_title(rows, run, len(runs) > 1)}\ny (letter heights)")
    return panels.figure


def _points(path: DataFrame) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    x, y = (select(path, axis=axis).sort_values("k")["value"].to_numpy() for axis in "xy")
    return x, y

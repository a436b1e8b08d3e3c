"""Figures of handwriting: the map of windows, the letters, and the best window over training steps."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from lmdyn.callbacks.observing.figures import line_style, named_runs, new_figure, outer_legend, set_step_axis

__all__ = ["handwriting_figures"]


def handwriting_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Map and letters at the last step (of each run), and NMSE over steps; see the observer."""
    observations = named_runs(observations)
    runs = list(observations["run"].unique())
    last = [observations[observations["run"].eq(run)] for run in runs]
    last = [rows[rows["step"].eq(rows["step"].max())] for rows in last]
    figures = {}
    if any(rows.loc[rows["quantity"].eq("nmse"), "value"].gt(0).any() for rows in last):
        figures["nmse"] = _maps(last, runs)
    if any(rows["quantity"].eq("path").any() for rows in last):
        figures["letters"] = _letters(last, runs)
    if observations["quantity"].eq("best_nmse").any():
        figures["best"] = _best(observations, runs)
    return figures


def _title(rows: pd.DataFrame, run: str, several: bool) -> str:
    step = f"step {int(rows['step'].max())}"
    return f"{run}, {step}" if several else step


def _maps(last: Sequence[pd.DataFrame], runs: Sequence[str]) -> Figure:
    """As the left of figure 3C, one scale for all, which ends at 1, a pen at rest, unless many windows are worse."""
    figure, axes = new_figure(4.4 * len(runs) + 0.9, 4.2, ncols=len(runs), squeeze=False, sharey=True)
    tables = []
    for rows in last:
        here = rows[rows["quantity"].eq("nmse")].astype({"start": int, "length": int})
        tables.append(here.set_index(["length", "start"])["value"].unstack())  # noqa: PD010 (no aggregation)
    values = np.concatenate([t.to_numpy().ravel() for t in tables])
    values = values[values > 0]
    low = min(float(values.min()), 0.9)
    top = max(1.0, float(np.quantile(values, 0.95)))
    for ax, table, rows, run in zip(axes[0], tables, last, runs, strict=True):
        edges = (np.append(a, a[-1] + 1) - 0.5 for a in (table.columns.to_numpy(), table.index.to_numpy()))
        image = ax.pcolormesh(
            *edges, table.to_numpy(), norm=LogNorm(low, top), cmap="viridis", rasterized=True
        )
        best = {q: rows.loc[rows["quantity"].eq(f"best_{q}"), "value"] for q in ("start", "length", "nmse")}
        if all(len(v) and v.notna().all() for v in best.values()):
            start, length, nmse = (float(v.iloc[0]) for v in best.values())
            ax.plot(
                [start], [length], ls="", marker="*", ms=12, mfc="white", mec="black", clip_on=False,
                label=f"best: {nmse:.3g} at t₀ = {start:.0f}, ΔT = {length:.0f}",
            )  # fmt: skip
            ax.legend(fontsize=8, loc="upper right")
        ax.set_title(_title(rows, run, len(runs) > 1), fontsize=10, loc="left")
        ax.set_xlabel("t₀, start of the window (steps)")
    axes[0, 0].set_ylabel("ΔT, length of the window (steps)")
    above = bool(len(values)) and float(values.max()) > top
    figure.colorbar(
        image, ax=list(axes[0]), label="NMSE (1: a pen at rest)", extend="max" if above else "neither"
    )
    return figure


def _letters(last: Sequence[pd.DataFrame], runs: Sequence[str]) -> Figure:
    """As the right of figure 3C: a row for each run, a panel for each letter, the target thin and grey."""
    letters = list(dict.fromkeys(last[0].loc[last[0]["letter"].notna(), "letter"].astype(str)))
    figure, axes = new_figure(
        2.8 * len(letters) + 0.6, 3.2 * len(runs), nrows=len(runs), ncols=len(letters), squeeze=False
    )
    for line, rows, run in zip(axes, last, runs, strict=True):
        for ax, letter in zip(line, letters, strict=True):
            here = rows[rows["letter"].eq(letter)]
            paths = here[here["quantity"].eq("path")].astype({"sentence": int})
            for i, (_, path) in enumerate(paths.groupby("sentence", sort=False)):
                ax.plot(*_points(path), color=line_style(i)["color"], lw=1.2)
            target = here[here["quantity"].eq("target_path")]
            if len(target):
                ax.plot(*_points(target), color="0.5", lw=0.8, zorder=0)
                window = f"t₀ = {int(target['start'].iloc[0])}, ΔT = {int(target['length'].iloc[0])}"
                ax.set_title(f"“{letter}”, {window}", fontsize=9, loc="left")
            ax.set_aspect("equal", adjustable="datalim")
            ax.tick_params(labelsize=7)
            ax.set_xlabel("x (letter heights)", fontsize=8)
        line[0].set_ylabel(f"{_title(rows, run, len(runs) > 1)}\ny (letter heights)", fontsize=8)
    return figure


def _points(path: pd.DataFrame) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    x, y = (path[path["axis"].eq(axis)].sort_values("k")["value"].to_numpy() for axis in "xy")
    return x, y


def _best(observations: pd.DataFrame, runs: Sequence[str]) -> Figure:
    """Least NMSE of all windows, and that of the published window dashed, over training steps."""
    figure, ax = new_figure(7.4, 3.8)
    for i, run in enumerate(runs):
        for quantity, label, ls in (
            ("best_nmse", "best window", "-"),
            ("published_window_nmse", "t₀ = 7, ΔT = 28", "--"),
        ):
            rows = observations[observations["run"].eq(run) & observations["quantity"].eq(quantity)]
            if len(rows):
                rows = rows.sort_values("step")
                name = f"{run}, {label}" if len(runs) > 1 else label
                ax.plot(
                    rows["step"], rows["value"], ls=ls, color=line_style(i)["color"], marker=".", ms=5, lw=1.3,
                    label=name, clip_on=False,
                )  # fmt: skip
    ax.set_yscale("log")
    ax.set_ylabel("NMSE (1: a pen at rest)")
    set_step_axis(ax, list(observations["step"]))
    outer_legend(ax)
    return figure

"""Figures of predictions from the states of an encoder: over t, as published, and over training."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.callbacks.observing.figures import (
    in_style,
    line_style,
    named_runs,
    new_figure,
    new_panels,
    outer_legend,
    set_step_axis,
)
from lmdyn.callbacks.observing.schema import select

__all__ = ["depth_performance_figures"]

_HOW = {
    "fixed": ("the model's decoder", "-"),
    "retrained": ("decoder retrained for each t", "--"),
    "frozen": ("frozen encoder", "-"),
    "fine_tuned": ("fine-tuned encoder", "--"),
}
_FLOORS = {
    "retrained": ("floor: retrained at t = 0", (0, (1, 1))),
    "most_frequent": ("floor: the most frequent token", (0, (1, 4))),
}
_ACCURACY = "accuracy of masked tokens"
_FIGURES = {  # quantity, where, and label by name
    "masked_tokens": ("accuracy", None, f"{_ACCURACY},\nall that are predicted"),
    "mask_positions": ("accuracy", "mask", f"{_ACCURACY},\nwhere the mask is shown"),
    "similarity": ("pearson", None, "sentence similarity: Pearson's r"),
}


@in_style
def depth_performance_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw accuracy and Pearson's correlation over t and over training, for one run or several (a column ``run``).

    Args:
        observations: observations of ``DepthPerformance``.

    Returns: ``masked_tokens`` (figure 3A), ``mask_positions`` for those that show the mask token, each with its
        baselines, and, if there is a task, ``similarity`` (3B), for the last step of each run, and in pale colours for
        its first; ``over_training`` for more than one step, at the model's depth and at the best t.
    """
    observations = named_runs(observations)
    if "where" not in observations:  # in files without this column
        observations = observations.assign(where=None)
    figures = {}
    present = []
    for name, (quantity, where, label) in _FIGURES.items():
        rows = _of(observations, where)
        if select(rows, quantity=quantity)["value"].notna().any():
            figures[name] = _over_time(rows, quantity, label)
            present.append(name)
    if figures and len(observations["step"].unique()) > 1:
        figures["over_training"] = _over_training(observations, present)
    return figures


def _of(observations: pd.DataFrame, where: str | None) -> pd.DataFrame:
    """Return the rows of some positions, and those of the model."""
    rows = observations["where"]
    chosen = rows.isna() if where is None else rows.eq(where)
    return observations[chosen | observations["quantity"].eq("depth")]


def _over_time(observations: pd.DataFrame, quantity: str, label: str) -> Figure:
    figure, ax = new_figure(8.4, 4.2)
    runs = list(observations["run"].unique())
    depths = set()
    for run in runs:
        rows = select(observations, run=run)
        steps = sorted(rows["step"].unique())
        depths.add(_depth(rows))
        for step in sorted({steps[0], steps[-1]}):
            last = step == steps[-1]
            for how, curve in select(rows, quantity=quantity, step=step).groupby("how", sort=False):
                name, dashes = _HOW[str(how)]
                curve = curve.sort_values("t")
                ax.plot(
                    curve["t"].astype(int), curve["value"], ls=dashes, marker=".", ms=5, lw=1.4, clip_on=False,
                    color=_colour(runs, run, str(how)), alpha=1.0 if last else 0.35,
                    label=_label(runs, name, "" if len(steps) == 1 else f", step {step:,}"),
                )  # fmt: skip
        if quantity == "accuracy":
            for how, value in select(rows, quantity="floor", step=steps[-1])[["how", "value"]].itertuples(
                index=False
            ):
                name, dots = _FLOORS[how]
                ax.axhline(
                    value, color="0.4" if len(runs) == 1 else _colour(runs, run, "fixed"), lw=1.0, ls=dots, zorder=0,
                    label=_label(runs, name),
                )  # fmt: skip
    for i, depth in enumerate(sorted(depths)):
        ax.axvline(depth, color="0.5", lw=0.9, ls=":", zorder=0, label=None if i else "the model's depth")
    if len(runs) > 1:
        _name_looks(ax, observations, runs, quantity)
    ax.set_xlabel("time t (applications of the layer)")
    ax.set_ylabel(label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    outer_legend(ax)
    return figure


def _label(runs: Sequence[str], name: str, ending: str = "") -> str:
    return f"{name}{ending}" if len(runs) == 1 else "_nolegend_"


def _name_looks(ax: Axes, observations: pd.DataFrame, runs: Sequence[str], quantity: str) -> None:
    """Add legend entries for several runs: one for each colour, and one for each line style."""
    for run in runs:
        ax.plot([], [], color=_colour(runs, run, "fixed"), label=run)
    for how in select(observations, quantity=quantity)["how"].unique():
        name, dashes = _HOW[str(how)]
        ax.plot([], [], color="0.4", ls=dashes, label=name)
    if observations.groupby("run")["step"].nunique().max() > 1:
        ax.plot([], [], color="0.4", alpha=0.35, label="pale: at the first step")
    if quantity == "accuracy":
        for name, dots in _FLOORS.values():
            ax.plot([], [], color="0.4", lw=1.0, ls=dots, label=name)


def _over_training(observations: pd.DataFrame, present: Sequence[str]) -> Figure:
    """Draw a panel for each figure: solid at the depth, dotted at the best t, thin and grey the baseline."""
    panels = new_panels(len(present), 8.4, 3.2, most=1, margin=(0, 0.4))
    runs = list(observations["run"].unique())
    for ax, name in zip(panels, present, strict=True):
        quantity, where, label = _FIGURES[name]
        _panel(ax, _of(observations, where), quantity, label, runs)
        outer_legend(ax)
    return panels.figure


def _panel(ax: Axes, observations: pd.DataFrame, quantity: str, label: str, runs: Sequence[str]) -> None:
    rows = select(observations, quantity=quantity)
    if quantity == "accuracy":
        floors = select(observations, quantity="floor", how="retrained")
        for i, (_, floor) in enumerate(floors.groupby("run", sort=False)):
            floor = floor.sort_values("step")
            ax.plot(
                floor["step"], floor["value"], color="0.4", lw=1.0, ls=_FLOORS["retrained"][1], zorder=0,
                label=None if i else _FLOORS["retrained"][0],
            )  # fmt: skip
    for run, how in rows[["run", "how"]].drop_duplicates().itertuples(index=False):
        of_how = select(rows, run=run, how=how)
        depth = _depth(select(observations, run=run))
        curves = {
            "t = depth": (select(of_how, t=depth).set_index("step")["value"], "-"),
            "best t": (of_how.groupby("step")["value"].max(), ":"),
        }
        for where, (curve, dashes) in curves.items():
            if curve.notna().any():
                curve = curve.sort_index()
                ax.plot(
                    curve.index, curve, ls=dashes, marker="." if dashes == "-" else "x", ms=5, lw=1.4, clip_on=False,
                    color=_colour(runs, run, how, both=True),
                    label=", ".join([run] * (len(runs) > 1) + [_HOW[how][0], where]),
                )  # fmt: skip
    ax.set_ylabel(label)
    set_step_axis(ax, rows["step"])


def _depth(rows: pd.DataFrame) -> int:
    return int(select(rows, quantity="depth")["value"].iloc[-1])


def _colour(runs: Sequence[str], run: str, how: str, *, both: bool = False) -> str:
    """Return a colour for each run; for a single run, for each decoder; with ``both``, for each pair of them."""
    second = list(_HOW).index(how) % 2
    if len(runs) == 1:
        return str(line_style(second)["color"])
    return str(line_style(2 * runs.index(run) + second if both else runs.index(run))["color"])

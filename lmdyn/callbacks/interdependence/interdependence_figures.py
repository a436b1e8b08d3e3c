"""Figures 3 and 4 of Saphra & Lopez 2020: interdependence by distance in the sentence and in its tree."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import select, wide

__all__ = ["interdependence_figures"]

_CLASS_STYLES = {
    "open": {"color": fig.COLOURS["blue"]},
    "closed": {"color": fig.COLOURS["vermilion"]},
    "mixed": {"color": "0.55"},
    "all": {"color": "0.0", "ls": ":"},
}
_SPACES = {"hidden": "hidden state", "logits": "logits"}


@fig.in_style
def interdependence_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw DI by sequential distance (figure 3), and by syntactic distance and word class at the last step (figure 4).

    The first has a line for each of some steps, or, for several runs (column ``run``), for each run at its last step.
    """
    means = _means(observations)
    if means.empty:  # no stratum has enough pairs, or no value is finite
        return {}
    last = means[means["step"].eq(means.groupby("run")["step"].transform("max"))]
    several = len(means["run"].unique()) > 1
    figures = {"by_distance": _by_distance(last, "run") if several else _by_distance(means, "step")}
    for (run, site), rows in last[last["syntactic"].gt(0)].groupby(["run", "site"], sort=False):
        figure = _by_syntactic(rows, _SPACES[str(site)])
        if several:
            figure.suptitle(str(run))
        suffix = f"_{run}".replace("/", "_") if several else ""
        figures[f"by_syntactic_distance_{site}{suffix}"] = figure
    return figures


def _means(observations: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each mean, with the ends of its interval; ``syntactic`` is 0 if it is over all distances."""
    named = fig.named_runs(observations)
    drawn = set(named.loc[named["quantity"].eq("sampling_error"), "run"])
    if len(drawn) < named["run"].nunique():  # numbers of both backends cannot be compared
        named["run"] = named["run"].map(lambda run: f"{run}, shapley" if run in drawn else run)
    rows = select(named, quantity=["di", "di_low", "di_high"])
    rows = rows.assign(
        syntactic=rows["syntactic"].astype(float).fillna(0),
        pos_class=rows["pos_class"].astype(object).fillna("all"),
    )
    keys = ["run", "step", "site", "distance", "syntactic", "pos_class"]
    table = wide(rows, "quantity", keys).reindex(columns=["di", "di_low", "di_high"])
    return table.dropna(subset="di").rename(columns={"di": "value"}).reset_index()


def _bands(ax: Axes, rows: pd.DataFrame, by: str, looks: Mapping[Any, Mapping[str, Any]], x: str) -> None:
    """Draw a line for each value of ``by`` with its interval."""
    label = "{:,}".format if by == "step" else str
    fig.draw_lines(ax, rows, by, looks, x=x, label=label, ms=5, lw=1.3)
    for name, look in looks.items():
        of = select(rows, **{by: name}).sort_values(x)
        at, low, high = (of[column].to_numpy(dtype=float) for column in (x, "di_low", "di_high"))
        fig.draw_band(ax, at, low, high, color=look["color"], alpha=0.18)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _by_distance(means: pd.DataFrame, by: str) -> Figure:
    rows = select(means, syntactic=0, pos_class="all")
    sites = [site for site in _SPACES if site in set(rows["site"])]
    panels = fig.new_panels(len(sites), 4.4, 3.8, margin=(1.2, 0))
    names = list(rows[by].unique())
    looks = fig.line_styles(names) if by == "run" else fig.shades(fig.spread_out(names, 6), 0.9, 0.0)
    for ax, site in zip(panels, sites, strict=True):
        _bands(ax, select(rows, site=site), by, looks, "distance")
        ax.set_title(_SPACES[site])
        ax.set_xlabel("sequential distance (words)")
        fig.from_zero(ax)
    panels.set_ylabel("mean interdependence (DI), 95 % interval")
    panels.legend(of_all=True, title="training step" if by == "step" else None)
    return panels.figure


def _by_syntactic(rows: pd.DataFrame, space: str) -> Figure:
    distances = sorted(rows["distance"].unique())
    panels = fig.new_panels(len(distances), 3.0, 2.8, most=4, margin=(1.2, 0))
    for ax, distance in zip(panels, distances, strict=True):
        _bands(ax, select(rows, distance=distance), "pos_class", _CLASS_STYLES, "syntactic")
        ax.set_title(f"{distance:.0f} word{'s' if distance > 1 else ''} apart")
    for ax in panels.grid[-1]:
        ax.set_xlabel("syntactic distance (edges)")
    panels.set_ylabel(f"mean DI ({space})")
    panels.legend(of_all=True, title="word classes")
    return panels.figure

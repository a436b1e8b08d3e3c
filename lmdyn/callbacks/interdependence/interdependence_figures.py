"""The figures of Saphra & Lopez 2020, section 3, from observations."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import last_step, select, wide

__all__ = ["interdependence_figures"]

_CLASS_COLORS = {"open": "C0", "closed": "C3", "mixed": "0.55", "all": "0.0"}
_SPACES = {"hidden": "hidden state", "logits": "logits"}


def interdependence_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """DI by sequential distance (figure 3), by syntactic distance (figure 4), and over training."""
    observations = observations[observations["value"].notna()]
    if not _sites(observations):  # no stratum has enough pairs, or no value is finite
        return {}
    figures = {"by_distance": _by_distance(observations)}
    for site in _sites(observations):
        last = select(last_step(observations), site=site)
        if select(last, quantity="di")["syntactic"].notna().any():
            figures[f"by_syntactic_distance_{site}"] = _by_syntactic(last, site)
    if len(observations["step"].unique()) > 1:
        figures["over_training"] = _over_training(observations)
    return figures


def _sites(observations: pd.DataFrame) -> list[str]:
    there = set(observations["site"])
    return [site for site in _SPACES if site in there]


def _whole(observations: pd.DataFrame, site: str) -> pd.DataFrame:
    """Means over all classes and syntactic distances: a column for each quantity."""
    return _means(select(observations, site=site, syntactic=None, pos_class=None), ["step", "distance"])


def _means(rows: pd.DataFrame, index: list[str]) -> pd.DataFrame:
    """A row for each mean (``value``), with the ends of its interval where it has one."""
    table = wide(select(rows, quantity=["di", "di_low", "di_high"]), "quantity", index)
    table = table.reindex(columns=["di", "di_low", "di_high"]).dropna(subset="di")
    return table.rename(columns={"di": "value"}).reset_index()


def _bands(ax: Axes, rows: pd.DataFrame, by: str, looks: dict[Any, dict[str, Any]], x: str) -> None:
    """A line for each value of ``by`` on its interval."""
    fig.draw_lines(
        ax, rows, by, looks, x=x, label=lambda name: f"{name:,}" if by == "step" else name, ms=5, lw=1.3
    )
    for name, look in looks.items():
        of = select(rows, **{by: name}).sort_values(x)
        at, low, high = (of[column].to_numpy(dtype=float) for column in (x, "di_low", "di_high"))
        ax.fill_between(at, low, high, color=look["color"], alpha=0.18, lw=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _site_panels(sites: list[str], width: float) -> fig.Panels:
    """A panel for each space."""
    panels = fig.new_panels(len(sites), width, 3.8, margin=(1.2, 0))
    for ax, site in zip(panels, sites, strict=True):
        ax.set_title(_SPACES[site], fontsize=10, loc="left")
    return panels


def _by_distance(observations: pd.DataFrame) -> Figure:
    sites = _sites(observations)
    panels = _site_panels(sites, 4.4)
    steps = fig.spread_out(sorted(observations["step"].unique()), 6)
    looks = fig.shades(steps, first=0.9, last=0.0)
    for ax, site in zip(panels, sites, strict=True):
        _bands(ax, _whole(observations, site), "step", looks, "distance")
        ax.set_xlabel("sequential distance (words)")
        ax.set_ylim(bottom=0)
    panels.set_ylabel("mean interdependence (DI), 95 % interval")
    panels.legend(title="training step")
    return panels.figure


def _by_syntactic(last: pd.DataFrame, site: str) -> Figure:
    rows = last[last["syntactic"].notna()]
    table = _means(
        rows.assign(pos_class=rows["pos_class"].fillna("all")), ["distance", "syntactic", "pos_class"]
    )
    distances = sorted(table["distance"].unique())
    panels = fig.new_panels(len(distances), 3.0, 2.8, most=4, margin=(1.2, 0))
    looks = {
        name: {"color": color, "ls": ":" if name == "all" else "-"} for name, color in _CLASS_COLORS.items()
    }
    for ax, distance in zip(panels, distances, strict=True):
        _bands(ax, select(table, distance=distance), "pos_class", looks, "syntactic")
        ax.set_title(f"{distance} word{'s' if distance > 1 else ''} apart", fontsize=9, loc="left")
        ax.tick_params(labelsize=8)
    for ax in panels.grid[-1]:
        ax.set_xlabel("syntactic distance (edges)", fontsize=9)
    panels.set_ylabel(f"mean DI ({_SPACES[site]})", fontsize=9)
    panels.legend(of_all=True, title="word classes")
    return panels.figure


def _over_training(observations: pd.DataFrame) -> Figure:
    sites = _sites(observations)
    panels = _site_panels(sites, 4.6)
    for ax, site in zip(panels, sites, strict=True):
        rows = _whole(observations, site)
        fig.draw_lines(ax, rows, "distance", fig.line_styles(sorted(rows["distance"].unique())), ms=4, lw=1.2)
        fig.set_step_axis(ax, rows["step"], rates=observations)
    panels.set_ylabel("mean interdependence (DI)")
    panels.legend(title="words apart")
    return panels.figure

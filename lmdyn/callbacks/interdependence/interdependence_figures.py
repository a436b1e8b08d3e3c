"""Figures of Saphra & Lopez 2020, section 3, from observations."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import last_step, select, wide

__all__ = ["beside_figures", "interdependence_figures"]

_CLASS_COLORS = {
    "open": fig.COLOURS["blue"],
    "closed": fig.COLOURS["vermilion"],
    "mixed": "0.55",
    "all": "0.0",
}
_SPACES = {"hidden": "hidden state", "logits": "logits"}
_MEAN_DI = "mean interdependence (DI)"


@fig.in_style
def interdependence_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw DI by sequential distance (figure 3), by syntactic distance (figure 4), and over training.

    For several runs (column ``run``) the first and the last have a line for each run, at its last observation, and the
    second is drawn for each run.
    """
    observations = observations[observations["value"].notna()]
    if not _sites(observations):  # no stratum has enough pairs, or no value is finite
        return {}
    if "run" in observations and len(observations["run"].unique()) > 1:
        return _of_several(_named_lines(observations))
    figures = {"by_distance": _by_distance(observations)}
    figures |= _all_syntactic(observations)
    if len(observations["step"].unique()) > 1:
        figures["over_training"] = _over_training(observations)
    return figures


@fig.in_style
def beside_figures(own: pd.DataFrame, other: pd.DataFrame | None) -> dict[str, Figure]:
    """Draw DI by both backends in one figure, if ``own`` has the backend shapley and ``other`` the decomposition."""
    if other is None or not _is_shapley(own) or _is_shapley(other):
        return {}
    both = pd.concat([_named_lines(part, backend=True) for part in (other, own)], ignore_index=True)
    both = both[both["value"].notna()]
    if not _sites(both):
        return {}
    return {f"backends_{name}": figure for name, figure in _comparison(both).items()}


def _is_shapley(rows: pd.DataFrame) -> bool:
    return bool(rows["quantity"].eq("sampling_error").any())


def _named_lines(observations: pd.DataFrame, backend: bool = False) -> pd.DataFrame:
    """Add the column ``line``: the short name of the run, and its backend if runs differ in it, or if requested."""
    named = fig.named_runs(observations)
    shapley = {run for run, rows in named.groupby("run") if _is_shapley(rows)}
    kinds = named["run"].map(lambda run: "shapley" if run in shapley else "decomposition")
    told = backend or len(kinds.unique()) > 1
    single = "run" not in observations
    line = kinds if single and told else named["run"].str.cat(kinds, sep=", ") if told else named["run"]
    return named.assign(line=line)


def _of_several(named: pd.DataFrame) -> dict[str, Figure]:
    figures = _comparison(named)
    for run, rows in named.groupby("run", sort=False):
        suffix = f"_{run}".replace("/", "_")
        figures |= {f"{name}{suffix}": figure for name, figure in _all_syntactic(rows, str(run)).items()}
    return figures


def _comparison(named: pd.DataFrame) -> dict[str, Figure]:
    """Draw a line for each ``line``: by distance, at its last observation, and over training at some distances."""
    sites = _sites(named)
    looks = fig.line_styles(dict.fromkeys(named["line"]))
    last = named[named["step"].eq(named.groupby("line")["step"].transform("max"))]
    panels = _site_panels(sites, 4.4)
    for ax, site in zip(panels, sites, strict=True):
        _bands(ax, _whole(last, site, "line"), "line", looks, "distance")
        ax.set_xlabel("sequential distance (words)")
        fig.from_zero(ax)
    panels.set_ylabel(f"{_MEAN_DI}, 95 % interval")
    panels.legend(of_all=True)
    figures = {"by_distance": panels.figure}
    if named.groupby("line")["step"].nunique().max() > 1:
        figures["over_training"] = _lines_over_training(named, sites, looks)
    return figures


def _lines_over_training(named: pd.DataFrame, sites: list[str], looks: dict[Any, dict[str, Any]]) -> Figure:
    """Draw a row of panels for each space, at up to three distances."""
    distances = fig.spread_out(
        sorted(select(named, quantity="di")["distance"].dropna().astype(int).unique()), 3
    )
    panels = fig.new_panels(len(sites) * len(distances), 3.4, 3.0, most=len(distances), margin=(1.6, 0))
    places = [(site, distance) for site in sites for distance in distances]
    for ax, (site, distance) in zip(panels, places, strict=True):
        rows = select(_whole(named, site, "line"), distance=distance)
        fig.draw_lines(ax, rows, "line", looks, ms=4, lw=1.2)
        ax.set_title(f"{_SPACES[site]}, {distance:.0f} word{'s' if distance > 1 else ''} apart", loc="left")
        if len(rows):
            fig.set_step_axis(ax, rows["step"])
        ax.set_xlabel("training step" if site == sites[-1] else "")
        fig.from_zero(ax)
    panels.set_ylabel(_MEAN_DI)
    panels.legend(of_all=True)
    return panels.figure


def _all_syntactic(observations: pd.DataFrame, run: str | None = None) -> dict[str, Figure]:
    figures = {}
    for site in _sites(observations):
        last = select(last_step(observations), site=site)
        if select(last, quantity="di")["syntactic"].notna().any():
            figures[f"by_syntactic_distance_{site}"] = _by_syntactic(last, site, run)
    return figures


def _sites(observations: pd.DataFrame) -> list[str]:
    there = set(observations["site"])
    return [site for site in _SPACES if site in there]


def _whole(observations: pd.DataFrame, site: str, *by: str) -> pd.DataFrame:
    """Return means over all classes and syntactic distances: a column for each quantity."""
    return _means(select(observations, site=site, syntactic=None, pos_class=None), ["step", "distance", *by])


def _means(rows: pd.DataFrame, index: list[str]) -> pd.DataFrame:
    """Return a row for each mean (``value``), with the ends of its interval if it has one."""
    table = wide(select(rows, quantity=["di", "di_low", "di_high"]), "quantity", index)
    table = table.reindex(columns=["di", "di_low", "di_high"]).dropna(subset="di")
    return table.rename(columns={"di": "value"}).reset_index()


def _bands(ax: Axes, rows: pd.DataFrame, by: str, looks: dict[Any, dict[str, Any]], x: str) -> None:
    """Draw a line for each value of ``by`` with its interval."""
    fig.draw_lines(
        ax, rows, by, looks, x=x, label=lambda name: f"{name:,}" if by == "step" else name, ms=5, lw=1.3
    )
    for name, look in looks.items():
        of = select(rows, **{by: name}).sort_values(x)
        at, low, high = (of[column].to_numpy(dtype=float) for column in (x, "di_low", "di_high"))
        fig.draw_band(ax, at, low, high, color=look["color"], alpha=0.18)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _site_panels(sites: list[str], width: float) -> fig.Panels:
    """Create a panel for each space."""
    panels = fig.new_panels(len(sites), width, 3.8, margin=(1.2, 0))
    for ax, site in zip(panels, sites, strict=True):
        ax.set_title(_SPACES[site])
    return panels


def _by_distance(observations: pd.DataFrame) -> Figure:
    sites = _sites(observations)
    panels = _site_panels(sites, 4.4)
    steps = fig.spread_out(sorted(observations["step"].unique()), 6)
    looks = fig.shades(steps, first=0.9, last=0.0)
    for ax, site in zip(panels, sites, strict=True):
        _bands(ax, _whole(observations, site), "step", looks, "distance")
        ax.set_xlabel("sequential distance (words)")
        fig.from_zero(ax)
    panels.set_ylabel(f"{_MEAN_DI}, 95 % interval")
    panels.legend(title="training step")
    return panels.figure


def _by_syntactic(last: pd.DataFrame, site: str, run: str | None = None) -> Figure:
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
        ax.set_title(f"{distance:.0f} word{'s' if distance > 1 else ''} apart")
    for ax in panels.grid[-1]:
        ax.set_xlabel("syntactic distance (edges)")
    panels.set_ylabel(f"mean DI ({_SPACES[site]})")
    panels.legend(of_all=True, title="word classes")
    if run is not None:
        panels.figure.suptitle(run)
    return panels.figure


def _by_distance_looks(rows: pd.DataFrame) -> dict[Any, dict[str, Any]]:
    """Return distinct colours for few distances, for many from dark (near) to bright (far)."""
    distances = sorted(rows["distance"].astype(int).unique())
    return fig.line_styles(distances) if len(distances) <= fig.MOST_LINES else fig.shades(distances)


def _over_training(observations: pd.DataFrame) -> Figure:
    sites = _sites(observations)
    panels = _site_panels(sites, 4.6)
    for ax, site in zip(panels, sites, strict=True):
        rows = _whole(observations, site)
        fig.draw_lines(ax, rows, "distance", _by_distance_looks(rows))
        fig.set_step_axis(ax, rows["step"], rates=observations)
    panels.set_ylabel(_MEAN_DI)
    panels.legend(title="words apart")
    return panels.figure

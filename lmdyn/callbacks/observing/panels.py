"""Standard figures of an observer, from what its quantities declare: lines over steps, bands, heat maps of heads."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.drawing.words import value_words
from lmdyn.runs.schema import Quantity, declared, group_columns, is_number_column, last_step, select, wide

_WIDE = 100  # the largest over the median magnitude, from which an axis is logarithmic
_MOST_PANELS = 12


@dataclass(frozen=True)
class _Facet:
    """What a panel shows: a quantity at a place, with a line for each of some values of a column."""

    name: str
    quantity: Quantity
    place: Mapping[str, Any]
    by: str
    lines: Sequence[str]
    shown: Sequence[str] = ()

    @property
    def title(self) -> str:
        return ", ".join([self.quantity.short or self.name.replace("_", " "), *self.shown])

    @property
    def x(self) -> str:
        """Column of the horizontal axis."""
        return self.quantity.over or "step"

    def rows(self, observations: DataFrame, end: str = "") -> DataFrame:
        """Return its values; with an end such as ``_error``, those of the quantity of this name."""
        rows = select(observations, quantity=f"{self.name}{end}", **self.place)
        if self.x == "step":
            return rows
        others = [c for c in group_columns(rows) if is_number_column(rows[c]) and c not in (self.x, self.by)]
        rows = rows[rows[self.x].notna() & rows[others].isna().all(axis=1)]
        return rows if self.by == "step" else last_step(rows)


@fig.in_style
def standard_figures(
    observations: DataFrame, recorded: Sequence[Quantity], sites: Sequence[str] = ()
) -> dict[str, Figure]:
    """Draw a figure for each ``panel`` that quantities declare: a line for each site over steps, in one panel each.

    A group column with several values has a panel for each of them; a numbered one, such as ``head``, is averaged, with
    a heat map of the last step. Errors and ends of intervals are bands; the floor of a quantity is dotted. A quantity
    ``over`` a column of numbers has this as its horizontal axis, and a line for each step.

    Args:
        observations: all observations so far; for several runs with a column ``run``.
        recorded: the quantities.
        sites: sites in the order of the model.

    Returns:
        Figures by the names of the panels; none for a panel without finite values.
    """
    observations = observations.assign(value=observations["value"].where(np.isfinite(observations["value"])))
    observations = fig.named_runs(observations) if "run" in observations else observations
    finite = observations.dropna(subset="value")
    known = {str(found): declared(recorded, found) for found in finite["quantity"].unique()}
    figures: dict[str, Figure] = {}
    for name in dict.fromkeys(q.panel for q in recorded if q.panel):
        drawn = {
            found: q
            for q in recorded
            if q.panel == name
            for found, declares in known.items()
            if declares and replace(declares, name=q.name) == q
        }
        if drawn:
            over = {found: q for found, q in drawn.items() if q.over}
            values = [f"{found}{end}" for found in drawn for end in ("", "_error", "_low", "_high")]
            floors = [q.floor for q in drawn.values() if q.floor]
            # the rows that the panels show: a table may have many thousands of others
            rows = select(observations, quantity=[*values, *floors, "learning_rate"])
            # selecting among names in arrow takes several times as long
            rows = rows.astype({c: object for c in rows if isinstance(rows[c].dtype, pd.StringDtype)})
            figures |= _figures_of(rows, over or drawn, name, sites)
    return figures


def _figures_of(
    observations: DataFrame, drawn: Mapping[str, Quantity], name: str, sites: Sequence[str]
) -> dict[str, Figure]:
    finite = observations.dropna(subset="value")
    rows = pd.concat([select(finite, quantity=name, **dict(q.where)) for name, q in drawn.items()])
    over = any(q.over for q in drawn.values())
    values = {c: list(rows[c].dropna().unique()) for c in ("site", *group_columns(rows))}
    text = [c for c, found in values.items() if not is_number_column(rows[c]) and len(found) > 1]
    default = "step" if over else text[0] if text else "site"
    lines = next((q.lines for q in drawn.values() if q.lines in values), default)
    text = [c for c in text if c not in ({q.lines for q in drawn.values()} if over else {lines})]
    names = _ordered(sites, values["site"]) if lines == "site" else values.get(lines, ())
    facets: list[_Facet] = []
    for chosen in product(*(values[c] for c in text)):
        for quantity, of in drawn.items():
            place = {**dict(of.where), **dict(zip(text, chosen, strict=True))}
            words = tuple(
                filter(None, (value_words(c, v) for c, v in zip(text, chosen, strict=True) if str(v)))
            )
            facet = _Facet(quantity, of, place, (of.lines or "step") if over else lines, names, words)
            held = facet.rows(rows)
            if over and len(held):
                known = sorted(held[facet.by].dropna().unique())
                facets.append(replace(facet, lines=fig.spread_out(known, fig.MOST_LINES)))
            elif lines != "site" and len(held):  # at most as many as colours distinguish
                there = set(held[lines])
                parts = fig.portions([line for line in names if line in there])
                facets += [replace(facet, lines=part) for part in parts]
            elif len(held):
                facets.append(facet)
    parts = fig.portions(facets, _MOST_PANELS) if facets else []
    return {name if not i else f"{name}_{i + 1}": _figure(observations, part) for i, part in enumerate(parts)}


def _figure(observations: DataFrame, facets: Sequence[_Facet]) -> Figure:
    finite = observations.dropna(subset="value")
    maps = [facet for facet in facets if _numbered(facet.rows(finite)) == "head"]
    of_sites = facets[0].by == "site"
    width, most, margin = (3.6, 3, 1.5) if of_sites else (4.9, 2, 0.0)
    panels = fig.new_panels(len(facets) + len(maps), width, 2.7, most=most, margin=(margin, 0))
    for ax, facet in zip(panels, facets, strict=False):
        _draw(ax, observations, finite, facet)
    for ax, facet in zip([*panels][len(facets) :], maps, strict=True):
        last = last_step(facet.rows(finite))
        sites = _ordered(facet.lines, list(last["site"].unique()))
        fig.show_heads(ax, last, sites, label=facet.quantity.unit)
        ax.set_title(f"{facet.title},\nstep {last['step'].iloc[0]:,}", fontsize=9, y=1)
    alike = len(facets) - panels.grid.shape[1] if facets[0].x == "step" else 0
    for ax in [*panels][: max(0, alike)]:
        ax.set_xlabel("")
        ax.tick_params(labelbottom=False)  # the same below
    if of_sites or len({tuple(facet.lines) for facet in facets}) == 1:
        replace(panels, number=len(facets)).legend()
    else:  # other lines in panels, in the same colours: one legend for equal ones below each other
        one_column = panels.grid.shape[1] == 1
        for _, run in groupby(enumerate(facets), lambda at: tuple(at[1].lines) if one_column else at[0]):
            axes = [panels.grid.flat[i] for i, _ in run]
            fig.outer_legend(axes[-1], of=axes)
    return panels.figure


def _draw(ax: Axes, observations: DataFrame, finite: DataFrame, facet: _Facet) -> None:
    """Draw lines with gaps at NaN, their bands and floor; means over a column of numbers."""
    x = facet.x
    rows = facet.rows(observations)
    rows = rows[rows[facet.by].isin(rows[facet.by][rows["value"].notna()])]
    many_sites = facet.by == "site" and len(facet.lines) > fig.MOST_LINES
    ordered = many_sites or (x != "step" and is_number_column(rows[facet.by]))
    looks = fig.shades(facet.lines) if ordered else fig.line_styles(facet.lines)
    numbered = None if x != "step" else _numbered(rows.drop(columns=facet.by))
    means = rows.groupby([facet.by, x], observed=True, sort=False)["value"].mean().reset_index()
    if numbered is None:  # else of one head, beside a mean
        _draw_bands(ax, finite, facet, looks)
    of_none = "all" if len(looks) > 1 else ""  # of the row without a site
    words = partial(value_words, facet.by, by=facet.place.get("by") or "")
    label = words if x == "step" else f"{facet.by} {{}}".format
    fig.draw_lines(ax, means, facet.by, looks, x=x, label=lambda name: label(name) or of_none)
    for i, course in enumerate(_floors(finite, facet.quantity, facet.place)):
        if x == "step":
            said = str(course["quantity"].iloc[0]).replace("_", " ")
            ax.plot(course["step"], course["value"], color="0.4", ls=":", label=None if i else said)
        else:
            ax.axhline(course["value"].iloc[-1], color="0.4", ls=":")
    title = facet.title if numbered is None else f"{facet.title},\nmean over {numbered}"
    # the search for what is above takes a tenth of the time: it can only be the power of ten of the axis
    power = not 2e-4 < means["value"].abs().max() < 1e5
    ax.set_title(title, fontsize=9, y=1, pad=16 if power else None)
    ax.set_ylabel(facet.quantity.unit)
    _scale(ax, facet.quantity, rows["value"])
    if x == "step":
        fig.set_step_axis(ax, observations["step"])  # the same for all panels
    else:
        ax.set_xlabel(x)


def _numbered(rows: DataFrame) -> str | None:
    """Return the first column of numbers that distinguishes rows."""
    return next((c for c in group_columns(rows) if is_number_column(rows[c]) and rows[c].notna().any()), None)


def _draw_bands(ax: Axes, finite: DataFrame, facet: _Facet, looks: Mapping[Any, Any]) -> None:
    """Draw intervals, or two standard errors to both sides, within the quantity's range."""
    of = facet.quantity
    ends = {end: facet.rows(finite, end) for end in ("_error", "_low", "_high")}
    if not any(map(len, ends.values())):
        return
    tables = facet.rows(finite), *ends.values()
    middle, error, low, high = (wide(rows, facet.by, facet.x) for rows in tables)
    for name, look in looks.items():
        if name in low and name in high:
            steps = low[name].dropna().index  # a line may have fewer steps than others
            both = low[name][steps].to_numpy(), high[name].reindex(steps).to_numpy()
        elif name in error:
            steps = error[name].dropna().index
            mean = middle[name].reindex(steps)
            width = 2 * error[name][steps]
            both = (mean - width).to_numpy(), (mean + width).to_numpy()
        else:
            continue
        below, above = (np.clip(end, of.low, of.high) for end in both)
        fig.draw_band(ax, steps, below, above, color=look["color"], alpha=0.2)


def _floors(finite: DataFrame, of: Quantity, place: Mapping[str, Any]) -> list[DataFrame]:
    """Return the courses of what a quantity is compared with, at its place where they have one."""
    if not of.floor:
        return []
    rows = select(finite, quantity=of.floor)
    for column, value in place.items():
        at = select(rows, **{column: value})
        rows = at if len(at) else rows
    places = ["site", *group_columns(rows)]
    each = rows.sort_values("step").groupby(places, observed=True, dropna=False, sort=False)
    return [course for _, course in each]


def _scale(ax: Axes, quantity: Quantity, values: "pd.Series[float]") -> None:
    magnitudes = values[values != 0].abs()
    low = quantity.low
    high = quantity.high
    bounded = low is not None and high is not None
    if not bounded and magnitudes.max() > _WIDE * magnitudes.median():
        if values.min() > 0:
            ax.set_yscale("log")
        else:
            ax.set_yscale("symlog", linthresh=10.0 ** math.floor(math.log10(magnitudes.median())))
    elif low is not None and high is not None and values.min() == values.max():
        room = 0.03 * (high - low)
        ax.set_ylim(low - room, high + room)
    elif low is not None and low >= 0:
        fig.from_zero(ax)
    elif values.min() < 0 < values.max():
        fig.zero_line(ax)


def _ordered(sites: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return the sites of the table in the order of the model; ``name@i`` follows ``name``."""
    first = [name for site in sites for name in there if name.split("@")[0] == site]
    return first + [name for name in there if name not in first]

"""Common parts of the observers' figures."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmdyn.callbacks.observing.drawing.bands_and_labels import draw_band, label_points
from lmdyn.callbacks.observing.drawing.plain_text_figure import PlainTextFigure, lay_out
from lmdyn.callbacks.observing.drawing.step_axis import set_step_axis
from lmdyn.callbacks.observing.drawing.style import COLOURS, in_style
from lmdyn.callbacks.observing.drawing.words import site_label
from lmdyn.runs.schema import wide

__all__ = [
    "COLOURS",
    "MOST_LINES",
    "MOST_STEPS",
    "Panels",
    "PlainTextFigure",
    "draw_band",
    "draw_lines",
    "from_zero",
    "in_style",
    "label_points",
    "lay_out",
    "line_style",
    "line_styles",
    "named_runs",
    "new_figure",
    "new_panels",
    "of_run",
    "outer_legend",
    "pixels",
    "portions",
    "say_why_empty",
    "set_step_axis",
    "shades",
    "short_names",
    "show_heads",
    "show_image",
    "site_label",
    "spread_out",
    "zero_line",
]

MOST_STEPS = 300
"""Maximum number of observations that a figure shows."""

MOST_LINES = len(COLOURS)
"""Maximum number of lines in one panel that colours distinguish; more are split by :func:`portions` into panels."""

_MOST_NAMES = 12  # in a column of a legend with two columns
_LONG_NAME = 24  # letters; a legend with such a name has one column
_MOST_TICKS = 5  # intervals of a vertical axis: each tick takes as long as several lines
_WIDEST = 11.5  # inches of a grid of panels: in wider ones, letters are too small in a report
_MOST_DOTS = 200  # per line: more look like a thicker line, and increase the time and size of an SVG


@in_style
def new_figure(width: float = 7.0, height: float = 4.2, **subplots: Any) -> tuple[Figure, Any]:
    """Create a figure without pyplot's global state, and its axes. Its texts are not parsed as mathematics."""
    figure = PlainTextFigure(width, height)
    return figure, figure.subplots(**subplots)


@dataclass(frozen=True)
class Panels:
    """A grid of panels; iteration yields the used ones, row by row."""

    figure: Figure
    grid: Any
    number: int

    def __iter__(self) -> Iterator[Axes]:
        return iter(list(self.grid.flat[: self.number]))

    def set_ylabel(self, label: str, **text: Any) -> None:
        """Label the first panel of each row."""
        for ax in self.grid[:, 0]:
            ax.set_ylabel(label, **text)

    def legend(self, **legend: Any) -> None:
        """Add one :func:`outer_legend` for the lines of all panels, beside the top right one."""
        outer_legend(self.grid[0, -1], of=list(self), **legend)


@in_style
def new_panels(
    number: int,
    width: float,
    height: float,
    *,
    most: int = 3,
    margin: tuple[float, float] = (0.0, 0.0),
    **subplots: Any,
) -> Panels:
    """Create a figure of ``number`` panels in rows of ``most``; unused positions stay empty.

    Args:
        number: number of panels; with none, the figure says that there are no values.
        width: width of each, inches; less if the whole would be too wide for a report.
        height: height of each, inches.
        most: panels per row.
        margin: added to the width and to the height of the whole, for legends.
        **subplots: see :meth:`matplotlib.figure.Figure.subplots`.
    """
    columns = max(1, min(most, number))
    rows = max(1, -(-number // columns))
    width = min(width, (_WIDEST - margin[0]) / columns)
    figure = PlainTextFigure(width * columns + margin[0], height * rows + margin[1])
    grid = figure.subplots(rows, columns, squeeze=False, **subplots)
    for ax in grid.flat[:number]:
        ax.yaxis.get_major_locator().set_params(nbins=_MOST_TICKS)
    for ax in grid.flat[number:]:
        ax.set_axis_off()
    if number == 0:
        say_why_empty(grid[0, 0], "no values")
    return Panels(figure, grid, number)


def from_zero(axes: Axes, top: float | None = None) -> None:
    """Let the vertical axis begin at 0, with space for marks there; call it after drawing.

    Args:
        axes: axes with this vertical axis.
        top: its end, above all that is drawn by default; marks there are also complete.
    """
    high = 1.03 * top if top is not None else axes.get_ylim()[1]
    if top is None:
        highest = max(ax.dataLim.y1 for ax in axes.get_shared_y_axes().get_siblings(axes))
        high = max(high, 1.03 * highest) if highest > 0 else 1.0
    axes.set_ylim(-0.03 * high, high)


def say_why_empty(axes: Axes, why: str) -> None:
    """Write into an empty panel why it is empty."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color="0.4")


def show_image(axes: Axes, values: Any, **image: Any) -> Any:
    """Call ``imshow`` without grid lines, with a frame."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    return axes.imshow(values, **image)


def show_heads(axes: Axes, rows: DataFrame, sites: Sequence[str], label: str = "") -> None:
    """Draw the values of all heads at one step: a line for each site, a column for each head, with a colour bar.

    Args:
        axes: axes to draw in.
        rows: one value for each ``site`` and ``head``.
        sites: sites, from top to bottom.
        label: label of the colour bar.
    """
    heads = range(int(rows["head"].max()) + 1)
    values = wide(rows, "head", "site").reindex(index=list(sites), columns=heads).to_numpy(dtype=float)
    drawn = show_image(axes, values, aspect="auto", cmap="viridis")
    axes.set_xlabel("head")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.set_yticks(range(len(sites)), [site_label(site) for site in sites], fontsize=8)
    axes.figure.colorbar(drawn, ax=axes, label=label)


@in_style
def outer_legend(axes: Axes, of: Sequence[Axes] = (), title: str | None = None) -> None:
    """Add a legend to the right of ``axes``: each line of ``of`` (default: ``axes`` itself) once, by its label."""
    entries = {str(handle.get_label()): handle for panel in of or (axes,) for handle in _labelled(panel)}
    longest = max(map(len, entries), default=0)
    if not entries:
        return
    most = _MOST_NAMES if longest < _LONG_NAME else 2 * _MOST_NAMES
    axes.legend(
        entries.values(), entries.keys(), title=title, ncols=-(-len(entries) // most),
        loc="center left", bbox_to_anchor=(1.0, 0.5),
    )  # fmt: skip


def _labelled(axes: Axes) -> Iterator[Any]:
    """Yield labelled artists, including labels with a leading underscore, which matplotlib's own search omits."""
    drawn = (a for a in axes.get_children() if isinstance(a, Line2D | Patch | Collection))
    for artist in (*drawn, *axes.containers):
        if not re.fullmatch(r"|_nolegend_|_(child|container)\d+", str(artist.get_label() or "")):
            yield artist


def line_style(i: int) -> dict[str, Any]:
    """Return colour and dashes of the i-th of many lines: eight colours, then dashed, then dotted."""
    return {"color": list(COLOURS.values())[i % len(COLOURS)], "ls": ("-", "--", ":")[i // len(COLOURS) % 3]}


def line_styles(names: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    """Return the :func:`line_style` of each of many lines, in their order."""
    return {name: line_style(i) for i, name in enumerate(names)}


def portions(names: Sequence[Any], most: int = MOST_LINES) -> list[list[Any]]:
    """Split names in their order into parts of about equal sizes, at most ``most`` each.

    Example:
        >>> portions(list("abcdefghij"), 4)
        [['a', 'b', 'c', 'd'], ['e', 'f', 'g'], ['h', 'i', 'j']]
    """
    number = max(1, -(-len(names) // most))
    return [list(part) for part in np.array_split(np.array([*names], dtype=object), number)]


def shades(names: Sequence[Any]) -> dict[Any, dict[str, Any]]:
    """Return a colour for each name of an ordered series, from dark to light."""
    colours = mpl.colormaps["viridis"](np.linspace(0, 0.9, len(names)))
    return {name: {"color": colour} for name, colour in zip(names, colours, strict=True)}


def draw_lines(
    axes: Axes,
    rows: DataFrame,
    by: str,
    looks: Mapping[Any, Mapping[str, Any]],
    *,
    x: str = "step",
    label: Callable[[Any], str] = str,
    **common: Any,
) -> None:
    """Draw a line for each value of the column ``by``, over ``x``, with dots if they can be distinguished.

    Args:
        axes: axes to draw in.
        rows: table with the columns ``by``, ``x`` and ``value``, in any order.
        by: column that distinguishes lines.
        looks: values to draw if they occur, in this order, with the style of each line.
        x: column of the horizontal axis.
        label: function that returns the legend label of a value of ``by``, if its style has no ``label``.
        **common: style of all lines.
    """
    lines = dict(iter(rows.sort_values(x).groupby(by, observed=True, sort=False)))
    for name, look in looks.items():
        if (line := lines.get(name)) is not None:
            drawn = {"marker": ".", "label": label(name), **common, **look}
            if len(line) > _MOST_DOTS:
                drawn["marker"] = ""
            axes.plot(line[x].to_numpy(dtype=float), line["value"].to_numpy(dtype=float), **drawn)


def zero_line(axes: Axes) -> None:
    """Draw a thin horizontal line at 0."""
    axes.axhline(0, color="0.4", lw=0.8, zorder=1)


def spread_out(items: Sequence[Any], most: int) -> list[Any]:
    """Choose at most ``most`` of a series, from the first to the last and evenly spaced in between.

    Example:
        >>> spread_out(range(0, 100, 10), 4)
        [0, 30, 60, 90]
    """
    places = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[i] for i in np.unique(places)]


def short_names(runs: Sequence[str]) -> dict[str, str]:
    """Return the names of runs in figures and tables: the last parts of their paths, as many as make them unique.

    Example:
        >>> short_names(["runs/a/gpt", "runs/b/gpt"])
        {'runs/a/gpt': 'a/gpt', 'runs/b/gpt': 'b/gpt'}
    """
    parts = {run: PurePath(run).parts for run in runs}
    names = {run: run for run in runs}
    for length in range(1, max(map(len, parts.values()), default=0) + 1):
        names = {run: "/".join(p[-length:]) for run, p in parts.items()}
        if len(set(names.values())) == len(names):
            break
    return names


def named_runs(observations: DataFrame) -> DataFrame:
    """Shorten the names (:func:`short_names`) in the column ``run``, or add ``this run`` if there is none.

    Example:
        >>> named_runs(DataFrame({"run": ["runs/a/gpt", "runs/a/bert"]}))["run"].tolist()
        ['gpt', 'bert']
        >>> named_runs(DataFrame({"step": [0]}))["run"].tolist()
        ['this run']
    """
    if "run" not in observations:
        return observations.assign(run="this run")
    runs = observations["run"].astype(str)
    return observations.assign(run=runs.map(short_names(list(runs.unique()))))


def of_run(run: str, name: str, several: bool) -> str:
    """Return the label of a line, with the name of its run if there are several."""
    return f"{run}, {name}" if several else name


def pixels(figure: Figure) -> np.ndarray[Any, Any]:
    """Render a figure once, as (height, width, 3) bytes."""
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        if not axis.get_label_text():
            axis.set_label_coords(0, 0)  # else the boxes of all ticks decide where nothing is written
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()

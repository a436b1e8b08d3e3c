"""What the observers' figures have in common."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import Collection
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import Formatter, LogFormatterMathtext, MaxNLocator

from lmdyn.analysis.inspection.transformer import layer_number
from lmdyn.callbacks.observing.drawing.bands_and_labels import draw_band, error_band, label_points
from lmdyn.callbacks.observing.drawing.plain_text_figure import (
    Around,
    PlainTextFigure,
    UnicodePowers,
    lay_out,
)

__all__ = [
    "MOST_STEPS",
    "Panels",
    "PlainTextFigure",
    "cell_values",
    "draw_band",
    "draw_lines",
    "error_band",
    "label_points",
    "lay_out",
    "line_style",
    "line_styles",
    "mark_rate_drops",
    "named_runs",
    "new_figure",
    "new_panels",
    "of_run",
    "outer_legend",
    "pixels",
    "set_step_axis",
    "shades",
    "short_names",
    "site_label",
    "spread_out",
    "zero_line",
]

MOST_STEPS = 300
"""Observations of very many that are drawn: as many as a figure has room for."""

_MOST_DROPS = 50  # of a learning rate; more are lines side by side
_MOST_DOTS = 200  # of a line: more of them are a thicker line, and most of the time and size of an SVG


def new_figure(width: float = 7.0, height: float = 4.2, **subplots: Any) -> tuple[Figure, Any]:
    """A figure without pyplot's global state, and its axes. No text in it is parsed as mathematics."""
    figure = PlainTextFigure(width, height)
    return figure, figure.subplots(**subplots)


@dataclass(frozen=True)
class Panels:
    """A grid of panels; iteration gives those that are in use, row by row."""

    figure: Figure
    grid: Any
    number: int

    def __iter__(self) -> Iterator[Axes]:
        return iter(list(self.grid.flat[: self.number]))

    def set_ylabel(self, label: str, **text: Any) -> None:
        """Label the first panel of each row."""
        for ax in self.grid[:, 0]:
            ax.set_ylabel(label, **text)

    def legend(self, *, of_all: bool = False, **legend: Any) -> None:
        """One :func:`outer_legend`, of the top right panel's lines, or of those of all."""
        outer_legend(self.grid[0, -1], of=list(self) if of_all else (), **legend)


def new_panels(
    number: int,
    width: float,
    height: float,
    *,
    most: int = 3,
    margin: tuple[float, float] = (0.0, 0.0),
    within: SubFigure | None = None,
    **subplots: Any,
) -> Panels:
    """A figure of ``number`` panels in rows of ``most``; places that are left over stay empty.

    Args:
        number: of panels.
        width: of each, inches.
        height: of each, inches.
        most: panels in a row.
        margin: added to the width and to the height of the whole, for legends.
        within: draw there, and make no figure of its own.
        **subplots: see :meth:`matplotlib.figure.Figure.subplots`.
    """
    columns = min(most, number)
    rows = -(-number // columns)
    place = within or PlainTextFigure(width * columns + margin[0], height * rows + margin[1])
    grid = place.subplots(rows, columns, squeeze=False, **subplots)
    for ax in grid.flat[number:]:
        ax.set_axis_off()
    return Panels(place.figure, grid, number)


def set_step_axis(axes: Axes, steps: Iterable[int], rates: pd.DataFrame | None = None) -> None:
    """Label and limit the axis of training steps; logarithmic (0 included) where observations are spaced so.

    Args:
        axes: whose x axis it is.
        steps: that are drawn, in any order.
        rates: observations whose drops of the learning rate are marked, see :func:`mark_rate_drops`, and whose
            ``tokens`` stand below the steps.
    """
    if rates is not None:
        mark_rate_drops(axes, rates)
    axes.set_xlabel("training step (optimizer updates)")
    different = sorted(set(steps))
    if len(different) == 1:
        axes.set_xticks(different)
        axes.set_xlim(different[0] - 1, different[0] + 1)
        _show_points(axes)
    elif different:
        early = sum(step < different[-1] / 10 for step in different)
        if early > max(3, len(different) / 3):
            axes.set_xscale("symlog", linthresh=max(1, different[1]), linscale=0.3)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set_xlim(different[0], different[-1])
    if rates is not None and "tokens" in rates:
        known = rates[["step", "tokens"]].dropna().drop_duplicates("step").sort_values("step")
        if len(known) >= min(2, len(different)) > 0 and known["tokens"].iloc[-1] > 0:
            axes.set_xlabel("training step (optimizer updates)\nand tokens seen")
            axes.xaxis.set_major_formatter(_AndTokens(axes.xaxis.get_major_formatter(), known))


def _show_points(axes: Axes) -> None:
    """Let lines of one point be seen: large dots, whole on the frame too, of another form where lines are dashed."""
    for line in axes.lines:
        if np.size(line.get_xdata()) == 1:
            marker = {"--": "s", ":": "^", "-.": "D"}.get(str(line.get_linestyle()), "o")
            line.set(marker=marker, markersize=max(6.0, line.get_markersize()), clip_on=False)


class _AndTokens(Around):
    """What a formatter writes, and below it how many tokens had been seen at this step."""

    def __init__(self, formatter: Formatter, known: pd.DataFrame) -> None:
        super().__init__(
            UnicodePowers(formatter) if isinstance(formatter, LogFormatterMathtext) else formatter
        )
        self._steps, self._tokens = (known[c].to_numpy(dtype=float) for c in ("step", "tokens"))

    def __call__(self, x: float, pos: int | None = None) -> str:
        tokens = float(np.interp(x, self._steps, self._tokens))
        return f"{self._formatter(x, pos)}\n{_short_number(tokens)}"


def _short_number(x: float) -> str:
    """Three digits and a unit: 950, 1.4k, 227M, 1.34G."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= 0.9995 * unit:
            return f"{x / unit:.3g}{name}"
    return f"{x:.3g}"


def outer_legend(axes: Axes, of: Sequence[Axes] = (), title: str | None = None, fontsize: float = 8) -> None:
    """A legend to the right of ``axes``: each line of ``of`` (of ``axes`` itself by default) once, by its label."""
    entries = {str(handle.get_label()): handle for panel in of or (axes,) for handle in _labelled(panel)}
    axes.legend(
        entries.values(), entries.keys(), title=title, frameon=False, fontsize=fontsize, title_fontsize=fontsize,
        loc="center left", bbox_to_anchor=(1.0, 0.5),
    )  # fmt: skip


def _labelled(axes: Axes) -> Iterator[Any]:
    """What was given a label, also one that begins with an underscore, which matplotlib's own search leaves out."""
    drawn = (a for a in axes.get_children() if isinstance(a, (Line2D, Patch, Collection)))
    for artist in (*drawn, *axes.containers):
        if not re.fullmatch(r"|_nolegend_|_(child|container)\d+", str(artist.get_label() or "")):
            yield artist


def site_label(site: str) -> str:
    """What figures call a site: layers by their number from 1, also those that share one module.

    Example:
        >>> site_label("layer@0"), site_label("layer3"), site_label("embedding")
        ('layer 1', 'layer 3', 'embedding')
    """
    return f"layer {layer_number(site)}" if re.fullmatch(r"layer@?\d+", site) else site


def line_style(i: int) -> dict[str, Any]:
    """Colour and dashes of the i-th of many lines: ten colours, then dashed, then dotted."""
    return {"color": f"C{i % 10}", "ls": ("-", "--", ":")[i // 10 % 3]}


def line_styles(names: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    """The :func:`line_style` of each of many lines, in their order."""
    return {name: line_style(i) for i, name in enumerate(names)}


def shades(names: Sequence[Any], first: float = 0.0, last: float = 0.9) -> dict[Any, dict[str, Any]]:
    """A colour for each of an ordered series; ``first`` and ``last`` are brightnesses from 0 to 1."""
    colours = mpl.colormaps["viridis"](np.linspace(first, last, len(names)))
    return {name: {"color": colour} for name, colour in zip(names, colours, strict=True)}


def draw_lines(
    axes: Axes,
    rows: pd.DataFrame,
    by: str,
    looks: Mapping[Any, Mapping[str, Any]],
    *,
    x: str = "step",
    label: Callable[[Any], str] = str,
    **common: Any,
) -> None:
    """A line for each value of the column ``by``, over ``x``, with dots where they can be told apart.

    Args:
        axes: where.
        rows: with the columns ``by``, ``x`` and ``value``, in any order.
        by: column that tells lines apart.
        looks: its values that are drawn where there are any, in this order, with what is special to each line.
        x: column of the horizontal axis.
        label: what the legend calls a value of ``by``, where its look has no ``label``.
        **common: to all lines.
    """
    rows = rows.sort_values(x)
    for name, look in looks.items():
        line = rows[rows[by].eq(name)]
        if len(line):
            drawn = {"marker": ".", "label": label(name), **common, **look}
            if len(line) > _MOST_DOTS:
                drawn["marker"] = ""
            axes.plot(line[x].to_numpy(dtype=float), line["value"].to_numpy(dtype=float), **drawn)


def zero_line(axes: Axes) -> None:
    """A thin horizontal line at 0."""
    axes.axhline(0, color="0.4", lw=0.8, zorder=0)


def cell_values(
    axes: Axes, matrix: "np.ndarray[Any, Any]", bright: Callable[[float], bool], fontsize: float
) -> None:
    """Write the finite values of a heat map into its cells, white where they are not ``bright``."""
    for (i, j), value in np.ndenumerate(matrix):
        if np.isfinite(value):
            text, colour = f"{round(value, 2) + 0.0:.2f}", "k" if bright(value) else "w"
            axes.text(j, i, text, ha="center", va="center", fontsize=fontsize, color=colour)


def spread_out(items: Sequence[Any], most: int) -> list[Any]:
    """At most ``most`` of a series, from the first to the last and evenly in between.

    Example:
        >>> spread_out(range(0, 100, 10), 4)
        [0, 30, 60, 90]
    """
    places = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[i] for i in np.unique(places)]


def mark_rate_drops(axes: Axes, observations: pd.DataFrame) -> None:
    """A vertical dashed line at each observation whose learning rate is below the one before, with one legend entry.

    None where the rate falls all the time after its height, as by a warmup and decay, or again and again.
    """
    rates = (
        observations[observations["quantity"] == "learning_rate"].drop_duplicates("step").sort_values("step")
    )
    values = rates["value"].reset_index(drop=True)
    if len(values) == 0 or (len(values) > 2 and (values[values.idxmax() :].diff().dropna() < 0).all()):
        return
    drops = rates["step"][rates["value"].diff() < 0]
    if len(drops) > _MOST_DROPS:
        return
    for i, step in enumerate(drops):
        axes.axvline(
            step, color="0.6", lw=0.8, ls="--", zorder=0, label=None if i else "learning rate reduced"
        )


def short_names(runs: Sequence[str]) -> dict[str, str]:
    """What figures and tables call runs: the last part of each one's path, or as many as tell all apart.

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


def named_runs(observations: pd.DataFrame) -> pd.DataFrame:
    """With short names (:func:`short_names`) in the column ``run``: ``this run`` where there is none.

    Example:
        >>> named_runs(pd.DataFrame({"run": ["runs/a/gpt", "runs/a/bert"]}))["run"].tolist()
        ['gpt', 'bert']
        >>> named_runs(pd.DataFrame({"step": [0]}))["run"].tolist()
        ['this run']
    """
    if "run" not in observations:
        return observations.assign(run="this run")
    runs = observations["run"].astype(str)
    return observations.assign(run=runs.map(short_names(list(runs.unique()))))


def of_run(run: str, name: str, several: bool) -> str:
    """A label of a line: with the name of its run, where there are several."""
    return f"{run}, {name}" if several else name


def pixels(figure: Figure) -> np.ndarray[Any, Any]:
    """A figure as (height, width, 3) bytes, drawn once, at its own resolution."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()

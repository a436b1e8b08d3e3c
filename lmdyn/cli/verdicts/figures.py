"""Figures of claims: what each seed measured over training, and its number against the region of the claim."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from lmdyn.callbacks.observing.figures import (
    MOST_LINES,
    PlainTextFigure,
    in_style,
    line_styles,
    set_step_axis,
)

__all__ = ["Curve", "ForestRow", "claims_figure", "token_axis"]

_ROW = 0.32  # inches of a row of numbers,
_LINE = 0.14  # and of each line of its label
_LABEL, _WIDE, _AXIS = 30, 72, 56  # characters in a line; of labels that have the place of the curves, too
_MOST_LINES = 3  # of the words below an axis; the page has all of them
_MOST_CURVES = 40  # in a panel: of more, each is the mean of its seeds
_MANY_SEEDS = 12  # that are not listed one by one
_REGION = "#d9ead9"
_FLOOR = "#b0413e"
_PRINTED = "0.45"


@dataclass(frozen=True)
class Curve:
    """What a seed measured over training: columns ``step``, ``tokens`` (may be missing) and ``value``."""

    seed: str
    table: pd.DataFrame


@dataclass(frozen=True)
class ForestRow:
    """One number of one claim, of all seeds.

    Attributes:
        label: what the row is called.
        axis: rows of one axis and one quantity share a panel.
        quantity: what the curves show.
        low: of the region in which the claim is true.
        high: of the region.
        points: of each seed the value, and its lower and upper bound where it is censored.
        interval: of the mean, of other seeds and other texts.
        mean: of the seeds.
        floor: the number's floor, NaN without one.
        published: value and interval of the publication, NaN without one.
        curves: what is drawn on the left.
        says: what the number is, in the claim's words; on the axis of a panel whose rows all say the same.
        seeds: the seed of each of the points, as the figure names it.
    """

    label: str
    axis: str
    quantity: str
    low: float
    high: float
    points: Sequence[tuple[float, float, float]]
    interval: tuple[float, float] = (math.nan, math.nan)
    mean: float = math.nan
    floor: float = math.nan
    published: tuple[float, float, float] = (math.nan, math.nan, math.nan)
    curves: Sequence[Curve] = ()
    says: str = ""
    seeds: Sequence[str] = ()


@in_style
def claims_figure(title: str, rows: Sequence[ForestRow]) -> Figure:
    """Curves over training on the left, and on the right each number with its region, seeds, interval and floor.

    Args:
        title: of the figure.
        rows: one for each number; those of one ``axis`` share a pair of panels.
    """
    axes_of: dict[str, list[ForestRow]] = {}
    for row in rows:
        axis = row.axis if row.quantity in row.axis else f"{row.axis} of {row.quantity}"
        axes_of.setdefault(axis, []).append(row)
    curves = [any(len(curve.table) for row in group for curve in row.curves) for group in axes_of.values()]
    wide = not any(curves)
    heights = [
        _height(group, wide=wide, least=2.3 if drawn else 0.0)
        for group, drawn in zip(axes_of.values(), curves, strict=True)
    ]
    figure = PlainTextFigure(10.5, sum(heights) + 1.0)
    told = _seeds_told(rows)
    figure.suptitle(title + (f"\n{told}" if told else ""), x=0.01, ha="left")
    ratios = (1.0,) if wide else (1.0, 1.15)
    grid = figure.add_gridspec(len(heights), len(ratios), height_ratios=heights, width_ratios=ratios)
    for i, (axis, group) in enumerate(axes_of.items()):
        styles = list(line_styles(range(len(group))).values())
        if curves[i]:
            _draw_curves(figure.add_subplot(grid[i, 0]), group, styles)
        _draw_rows(figure.add_subplot(grid[i, -1]), axis, group, styles, wide=wide)
    entries = {str(h.get_label()): h for ax in figure.axes for h in ax.get_legend_handles_labels()[0]}
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=4)
    return figure


def _seeds_told(rows: Sequence[ForestRow]) -> str:
    """Which seeds there are."""
    seeds = sorted({seed for row in rows for seed in row.seeds}, key=_by_number)
    if len(seeds) > _MANY_SEEDS:
        return f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" if seeds else ""


def _by_number(seed: str) -> list[int]:
    return [int(part) if part.isdigit() else -1 for part in seed.split("/")]


def _label(row: ForestRow, *, wide: bool) -> str:
    """With the number of seeds."""
    return fill(f"{row.label} (n\u00a0=\u00a0{len(row.points)})", _WIDE if wide else _LABEL)


def _height(rows: Sequence[ForestRow], *, wide: bool, least: float) -> float:
    """Inches of a panel, with its axis."""
    lines = sum(_label(row, wide=wide).count("\n") + 1 for row in rows)
    if wide:
        return _ROW * len(rows) + _LINE * (lines - len(rows)) + 0.7
    return max(least, _ROW * len(rows) + _LINE * lines + 1.3)


def _draw_curves(ax: Axes, rows: Sequence[ForestRow], styles: Sequence[dict[str, Any]]) -> None:
    """All seeds, or of many rows the mean of each, a colour for each row; what several rows share is drawn once."""
    lines = sum(len(row.curves) for row in rows)
    many = len(rows) > MOST_LINES or lines > _MOST_CURVES
    crowded = not many and lines > 2 * MOST_LINES
    drawn: set[tuple[str, bytes]] = set()
    steps: set[int] = set()
    whole: list[pd.DataFrame] = []
    for row, style in zip(rows, styles, strict=True):
        for curve in _mean(row.curves) if many else row.curves:
            table = curve.table.sort_values("step")
            key = (curve.seed, table[["step", "value"]].to_numpy(dtype=float).tobytes())
            if key in drawn or not len(table):
                continue
            drawn.add(key)
            steps |= {int(step) for step in table["step"]}
            whole.append(table)
            ax.plot(
                table["step"].to_numpy(dtype=float), table["value"].to_numpy(dtype=float),
                marker="" if crowded else ".", lw=1.0, **style,
            )  # fmt: skip
    ax.set_ylabel(f"{rows[0].quantity}{', mean of seeds' * many}")
    set_step_axis(ax, steps)
    token_axis(ax, pd.concat(whole, ignore_index=True))


def _mean(curves: Sequence[Curve]) -> list[Curve]:
    """The mean of the seeds at the steps that all have."""
    whole = pd.concat([curve.table for curve in curves], ignore_index=True) if curves else pd.DataFrame()
    if whole.empty:
        return []
    steps = whole.groupby("step")
    means = steps[["tokens", "value"]].mean()[steps.size().eq(len(curves))]
    return [Curve("mean", means.reset_index())]


def token_axis(ax: Axes, observed: pd.DataFrame) -> None:
    """A second axis above: tokens, where they are known and grow with the updates at one rate in all runs."""
    known = observed[observed["step"].gt(0) & observed["tokens"].notna()]
    if known.empty:
        return
    rates = known["tokens"].to_numpy(dtype=float) / known["step"].to_numpy(dtype=float)
    rate = float(np.median(rates))
    if not np.allclose(rates, rate, rtol=0.05):
        return
    low, high = ax.get_xlim()
    place = ax.xaxis.get_transform().transform(np.array([low, high, *ax.get_xticks()]))
    shares = (place[2:] - place[0]) / (place[1] - place[0])
    ticks: list[tuple[float, float]] = []
    for share, step in zip(shares, ax.get_xticks(), strict=True):
        if -1e-6 <= share <= 1 + 1e-6 and (not ticks or share - ticks[-1][0] > 0.09):
            ticks.append((float(share), float(step)))
    above = ax.twiny()  # matplotlib's secondary axis does not follow a symlog scale
    above.set_xlim(0, 1)
    above.set_xticks([share for share, _ in ticks], [short_number(step * rate) for _, step in ticks])
    above.set_xlabel("training tokens")
    above.grid(visible=False)


def short_number(value: float) -> str:
    """A number of tokens.

    Example:
        >>> short_number(0), short_number(350), short_number(1_390_000), short_number(25_000)
        ('0', '350', '1.4 M', '25 k')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.2g} {unit}" if abs(value) < 100 * size else f"{value / size:.0f} {unit}"
    return f"{value:.0f}"


def _draw_rows(
    ax: Axes, axis: str, rows: Sequence[ForestRow], styles: Sequence[dict[str, Any]], *, wide: bool
) -> None:
    """The numbers, a row each from above: region, seeds, mean with its interval, floor, what was published."""
    low, high = _limits(rows)
    for i, (row, style) in enumerate(zip(rows, styles, strict=True)):
        left, right = max(row.low, low), min(row.high, high)
        ax.add_patch(
            Rectangle(
                (left, i - 0.42), max(right - left, 0), 0.84, color=_REGION, lw=0, zorder=0, label="the claim is true"
            )
        )  # fmt: skip
        offsets = np.linspace(-0.16, 0.16, len(row.points)) if len(row.points) > 1 else [0.0]
        for (value, lower, upper), offset in zip(row.points, offsets, strict=True):
            label = "one seed (its height has no meaning)"
            ax.plot(value, i + offset, "o", ms=4, mfc="none", mec=style["color"], label=label, zorder=3)
            if lower != upper:
                ends = [max(lower, low), min(upper, high)]
                ax.plot(
                    ends, [i + offset] * 2, ls=":", lw=1, color=style["color"], label="one seed, censored"
                )
        if not math.isnan(row.interval[0]):
            ends = [max(row.interval[0], low), min(row.interval[1], high)]
            ax.plot(
                ends, [i + 0.28] * 2, "-", lw=2, color="0.15", label="95 % interval of the mean", zorder=4
            )
        if not math.isnan(row.mean):
            ax.plot(row.mean, i + 0.28, "D", ms=4, color="0.15", label="mean of the seeds", zorder=5)
        if not math.isnan(row.floor):
            ax.plot(
                [row.floor] * 2, [i - 0.42, i + 0.42], "--", lw=1.2, color=_FLOOR, label="floor", zorder=2
            )
        value, lower, upper = row.published
        if not math.isnan(value):
            ax.plot(value, i - 0.3, "*", ms=8, color=_PRINTED, label="published", zorder=3)
            ax.plot([max(lower, low), min(upper, high)], [i - 0.3] * 2, "-", lw=1, color=_PRINTED, zorder=3)
    ax.set_xlim(low, high)
    ax.set_ylim(len(rows) - 0.45, -0.55)
    ax.set_yticks(range(len(rows)), [_label(row, wide=wide) for row in rows])
    ax.grid(visible=False, axis="y")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6))
    says = {row.says for row in rows}
    words = rows[0].says if len(says) == 1 and rows[0].says else f"number of a run: {axis}"
    ax.set_xlabel(fill(words, _AXIS, max_lines=_MOST_LINES, placeholder=" …"))


def _limits(rows: Sequence[ForestRow]) -> tuple[float, float]:
    """Of all that is drawn, with a margin; a bound of a half-line is among it."""
    drawn = [
        value
        for row in rows
        for value in (
            *(v for point in row.points for v in point), *row.interval, row.floor, *row.published, row.low, row.high
        )
        if math.isfinite(value)
    ]  # fmt: skip
    if not drawn:
        return 0.0, 1.0
    low, high = min(drawn), max(drawn)
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 0.1
    return low - margin, high + margin

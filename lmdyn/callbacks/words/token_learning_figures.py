"""Figures of Chiang, Huang & Lee 2020, section 3 and appendix C, from observations."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmdyn.analysis.words.learning_order import learning_order, rescaled
from lmdyn.callbacks.observing.figures import (
    Panels,
    from_zero,
    in_style,
    line_style,
    line_styles,
    new_figure,
    new_panels,
    outer_legend,
    portions,
    say_why_empty,
    set_step_axis,
)
from lmdyn.callbacks.observing.schema import select, wide

__all__ = ["half_steps", "token_learning_figures"]

_GROUPED_BY = {
    "pos": "part of speech", "upos": "Universal POS", "verb_form": "verb form", "rank": "frequency rank of the token",
}  # fmt: skip
LEAST = 0.01
"""Groups whose last accuracy is at most this were not learned: rescaling by almost 0 would amplify noise."""

_TITLES = {"reconstruction": "reconstruction of unmasked words", "prediction": "prediction of masked words"}
_COUNTS = {"reconstruction": "words", "prediction": "masked_words"}
_LONG = {
    "VB": "base form (VB)",
    "VBD": "past tense (VBD)",
    "VBG": "gerund or present participle (VBG)",
    "VBN": "past participle (VBN)",
    "VBZ": "3rd person singular present (VBZ)",
    "VBP": "other present (VBP)",
    "proper_noun": "proper noun",
}


@in_style
def token_learning_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw accuracy, and accuracy relative to the last, over steps (figures 1, 7, 8 and 9); the order of learning.

    Returns:
        ``overall``; ``<quantity>_by_<grouping>``; ``order_by_<grouping>`` if there are two or more steps.
    """
    rows = select(observations, quantity=[*_TITLES, *_COUNTS.values()]).dropna(subset="value")
    if not _quantities(rows):
        return {}
    figures = {"overall": _overall(rows)}
    for by in [b for b in _GROUPED_BY if rows["by"].eq(b).any()]:
        for quantity in _quantities(rows):
            figures[f"{quantity}_by_{by}"] = _by_group(rows, quantity, by)
        if len(set(rows["step"])) > 1:
            figures[f"order_by_{by}"] = _order(rows, by)
    return figures


def half_steps(
    observations: pd.DataFrame, quantity: str, by: str, least: float = LEAST
) -> "pd.Series[float]":
    """Return the step at which each group reaches half of its last accuracy, in increasing order.

    Groups that were not learned have NaN and come last.

    Args:
        observations: observations of ``TokenLearning``, of one run.
        quantity: ``reconstruction`` or ``prediction``.
        by: a grouping; empty for all words.
        least: see :func:`~lmdyn.analysis.words.learning_order.learning_order`.
    """
    return _half_steps(_wide(observations, quantity, by), least)


def _quantities(rows: pd.DataFrame) -> list[str]:
    there = set(rows["quantity"])
    return [quantity for quantity in _TITLES if quantity in there]


def _wide(rows: pd.DataFrame, quantity: str, by: str) -> pd.DataFrame:
    """Return steps × groups, groups in the order of the table."""
    rows = select(rows, quantity=quantity, by=by)
    return wide(rows, "group").reindex(columns=list(dict.fromkeys(rows["group"].astype(str))))


def _half_steps(table: pd.DataFrame, least: float = LEAST) -> "pd.Series[float]":
    steps = torch.from_numpy(table.index.to_numpy(dtype="int64").copy())
    reached = learning_order(steps, torch.from_numpy(table.to_numpy(dtype="float64").copy()), least=least)
    return pd.Series(reached.numpy(), index=table.columns).sort_values(kind="stable", na_position="last")


def _rescaled(table: pd.DataFrame) -> pd.DataFrame:
    values = torch.from_numpy(table.to_numpy(dtype="float64").copy())
    values[:, values[-1] <= LEAST] = torch.nan
    return pd.DataFrame(rescaled(values).numpy(), index=table.index, columns=table.columns)


def _step(value: float) -> str:
    return "not learned" if np.isnan(value) else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _axes(several: bool, lines: int = 1, height: float = 3.2) -> Panels:
    """Create axes: accuracy on the left and, for several steps, rescaled on the right; a row per part of the groups."""
    across = 1 + several
    return new_panels(lines * across, 4.2, height, most=across, margin=(3.0, 0.3), sharex=True, sharey="col")


def _lines(
    axes: Sequence[Axes], table: pd.DataFrame, labels: dict[str, str], styles: dict[str, dict[str, Any]]
) -> None:
    """Draw accuracy on the left, rescaled on the right; in the order of ``labels``."""
    for ax, values in zip(axes, (table, _rescaled(table)), strict=False):
        for group, label in labels.items():
            line = values[group].dropna()
            ax.plot(line.index, line, marker=".", label=label, **styles[group])


def _finish(axes: Sequence[Axes], steps: Sequence[int]) -> None:
    for ax, label in zip(
        axes, ("accuracy (share of words)", "accuracy / accuracy at the last step"), strict=False
    ):
        ax.set_ylabel(label)
        set_step_axis(ax, steps)
    from_zero(axes[0])
    axes[0].set_ylim(top=max(0.02, axes[0].get_ylim()[1]))
    for ax in axes[1:]:
        if not any(np.size(line.get_xdata()) for line in ax.lines):
            say_why_empty(ax, f"not drawn: at the last step\nat most {LEAST:.0%} of the words are right")
            continue
        from_zero(ax, min(1.5, ax.get_ylim()[1]))  # values that end near 0 can be many times that by chance
        ax.axhline(0.5, color="0.6", lw=0.8, ls=":", zorder=0)


def _overall(rows: pd.DataFrame) -> Figure:
    steps = sorted(set(rows["step"]))
    panels = _axes(len(steps) > 1, height=3.4)
    axes = list(panels)
    for i, quantity in enumerate(_quantities(rows)):
        table = _wide(rows, quantity, "")
        half = float(_half_steps(table).iloc[0])
        label = f"{quantity} ({_step(half)})" if len(steps) > 1 else quantity
        _lines(axes, table, {"": label}, {"": line_style(i)})
    _finish(axes, steps)
    axes[0].set_title("all words")
    outer_legend(axes[-1], of=axes, title=_legend_title(len(steps)))
    return panels.figure


def _legend_title(steps: int) -> str | None:
    return "(step of half the last accuracy)" if steps > 1 else None


def _by_group(rows: pd.DataFrame, quantity: str, by: str) -> Figure:
    table = _wide(rows, quantity, by)
    several = len(table) > 1
    half = _half_steps(table)
    words = _last_words(rows, quantity, by)
    parts = portions(list(table.columns))
    panels = _axes(several, len(parts))
    for axes, part in zip(panels.grid, parts, strict=True):
        labels = {}
        for group, value in half[part].sort_values(kind="stable", na_position="last").items():
            group = str(group)
            told = [_step(value)] * several + ([f"n = {words[group]:,.0f}"] if group in words else [])
            labels[group] = _LONG.get(group, group) + (f" ({', '.join(told)})" if told else "")
        _lines(axes, table, labels, line_styles(part))
        _finish(axes, list(table.index))
        outer_legend(axes[-1], of=list(axes), title=_legend_title(len(table)))
        if axes is not panels.grid[-1]:
            for ax in axes:
                ax.set_xlabel("")
    panels.grid[0, 0].set_title(f"{_TITLES[quantity]}, by {_GROUPED_BY[by]}")
    return panels.figure


def _last_words(rows: pd.DataFrame, quantity: str, by: str) -> "pd.Series[float]":
    """Return the number of observed words in each group, if it is recorded."""
    counted = select(rows, quantity=_COUNTS[quantity], by=by)
    return counted.drop_duplicates("group", keep="last").set_index("group")["value"]


def _order(rows: pd.DataFrame, by: str) -> Figure:
    """Draw the step of half the last accuracy: a row for each group, a mark for each quantity."""
    halves = {quantity: _half_steps(_wide(rows, quantity, by)) for quantity in _quantities(rows)}
    first = next(iter(halves.values()))
    groups = list(dict.fromkeys([*first.index, *(g for half in halves.values() for g in half.index)]))
    figure, ax = new_figure(6.4, 1.4 + 0.27 * len(groups))
    for i, (quantity, half) in enumerate(halves.items()):
        known = half.dropna()
        if len(known):
            at = [groups.index(g) for g in known.index]
            ax.plot(known, at, "os"[i], ms=6, color=line_style(i)["color"], label=quantity)
    ax.set_yticks(range(len(groups)), [_LONG.get(str(g), str(g)) for g in groups])
    ax.set_ylim(len(groups) - 0.5, -0.5)
    set_step_axis(ax, sorted(set(rows["step"])))
    if not len(ax.lines):
        say_why_empty(
            ax, f"no group was learned: at the last step\nat most {LEAST:.0%} of the words of each are right"
        )
    ax.set_xlabel("training step at which half of the last accuracy is reached")
    ax.set_title(f"order of learning, by {_GROUPED_BY[by]}")
    outer_legend(ax)
    return figure

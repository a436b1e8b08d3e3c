"""Figures of loss and accuracy over training: for all words, and by each grouping."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import last_step, select

__all__ = ["loss_figures"]

_LABELS = {"loss": "loss (nats per token)", "accuracy": "accuracy"}
_TITLES = {"rank": "frequency rank of the target word", "upos": "Universal POS of the target word"}


@fig.in_style
def loss_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw loss, and accuracy by each grouping, over steps.

    Args:
        observations: observations of ``LearningCurves``.

    Returns: ``loss_accuracy`` for all words; ``by_<grouping>``, with more than eight groups in several pairs of panels,
        in the order of the last loss.
    """
    figures = {"loss_accuracy": _overall(observations)}
    for by in [b for b in observations["by"].dropna().unique() if b]:
        rows = select(observations, by=by)
        loss = select(rows, quantity="loss")
        names = list(loss["group"].unique())  # in one order and colour in both panels
        if by == "rank":
            looks = fig.line_styles(names) if len(names) <= fig.MOST_LINES else fig.shades(names)
            portions = [names]
        else:
            last = last_step(loss).set_index("group")["value"]
            portions = fig.portions(list(last.reindex(names).sort_values().index))
            looks = {name: style for part in portions for name, style in fig.line_styles(part).items()}
        title = _TITLES.get(by, f"{by} of the target word")
        figures[f"by_{by}"] = _by_group(observations, rows, portions, looks, title)
    return figures


def _overall(observations: pd.DataFrame) -> Figure:
    rows = select(observations, by="")
    panels = fig.new_panels(2, 4.2, 3.4)
    for ax, quantity in zip(panels, _LABELS, strict=True):
        look = {"color": fig.COLOURS["blue"], "label": "_nolegend_"}
        fig.draw_lines(ax, rows, "quantity", {quantity: look})
        _finish(ax, observations, select(rows, quantity=quantity), quantity)
        if ax.get_legend_handles_labels()[0]:
            ax.legend()
    return panels.figure


def _by_group(
    observations: pd.DataFrame,
    rows: pd.DataFrame,
    portions: Sequence[Sequence[str]],
    looks: Mapping[str, Mapping[str, Any]],
    title: str,
) -> Figure:
    """Draw loss and accuracy next to each other for few groups; otherwise, a row of panels for each portion of them."""
    panels = fig.new_panels(2 * len(portions), 4.6, 3.2, most=2, margin=(1.4, 0), sharex=True, sharey="col")
    for line, names in zip(panels.grid, portions, strict=True):
        for ax, quantity in zip(line, _LABELS, strict=True):
            here = select(rows, quantity=quantity)
            fig.draw_lines(ax, here, "group", {name: looks[name] for name in names})
            _finish(ax, observations, here, quantity)
            if ax not in panels.grid[-1]:
                ax.set_xlabel("")
        fig.outer_legend(line[-1])
    panels.grid[0, 0].set_title(title)
    return panels.figure


def _finish(ax: Any, observations: pd.DataFrame, rows: pd.DataFrame, quantity: str) -> None:
    ax.set_ylabel(_LABELS[quantity])
    fig.set_step_axis(ax, rows["step"], rates=observations)
    if quantity == "accuracy" and len(rows):
        fig.from_zero(ax)

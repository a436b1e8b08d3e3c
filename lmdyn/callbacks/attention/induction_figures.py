"""Figures of induction: scores of heads over training and at its end, losses, and the effect of ablation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import last_step, select, wide

__all__ = ["induction_figures"]

_SCORES = {
    "prefix_matching": "prefix matching",
    "previous_token": "previous token",
    "duplicate_token": "duplicate token",
    "copying": "copying (eigenvalues)",
}
_BEST = 3  # heads with a line of their own
_LOSSES = ("second_minus_first", "late_minus_early")


@fig.in_style
def induction_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw the figures for which there are finite observations; none if there are none.

    Returns: ``heads_over_steps`` (scores of all heads, the best highlighted), ``heads`` (all scores at the last step),
        ``losses`` (differences of losses over steps), ``context`` (loss by tokens of context), ``ablation``.
    """
    observations = observations[np.isfinite(observations["value"])]
    figures = {}
    scores = [name for name in _SCORES if observations["quantity"].eq(name).any()]
    if scores:
        figures["heads_over_steps"] = _over_steps(observations, scores)
        figures["heads"] = _all_heads(observations, scores)
    if any(observations["quantity"].eq(name).any() for name in _LOSSES):
        figures["losses"] = _losses(observations)
    if observations["quantity"].eq("position_loss").any():
        figures["context"] = _by_context(observations)
    if observations["quantity"].isin(["second_loss_rise", "late_loss_rise"]).any():
        figures["ablation"] = _ablation(observations)
    return figures


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the name of each head."""
    names = [
        f"{fig.site_label(site)}, head {head}" for site, head in zip(rows["site"], rows["head"], strict=True)
    ]
    return rows.assign(name=names)


def _over_steps(observations: pd.DataFrame, scores: Sequence[str]) -> Figure:
    """Draw one panel for each score, a line for each head; those with the highest last score in colour."""
    panels = fig.new_panels(len(scores), 4.4, 3.0, most=2, margin=(0.4, 0))
    for ax, score in zip(panels, scores, strict=True):
        rows = _named(select(observations, quantity=score))
        last = last_step(rows).set_index("name")["value"].sort_values(ascending=False)
        best = list(last.index[:_BEST])
        others = [name for name in rows["name"].unique() if name not in best]
        grey = {"color": "0.75", "lw": 0.8, "marker": "", "label": "_nolegend_"}
        if len(rows["step"].unique()) < 2:  # a line of one point is none
            grey["marker"] = "."
        fig.draw_lines(ax, rows, "name", dict.fromkeys(others, grey))
        fig.draw_lines(ax, rows, "name", fig.line_styles(best), lw=1.6)
        floor = select(observations, quantity="uniform_attention")
        if score != "copying" and len(floor):
            ax.axhline(float(floor["value"].iloc[-1]), color="0.3", ls=":", lw=1.2, label="uniform attention")
        if score == "copying":
            fig.zero_line(ax)
            ax.set_ylim(-1.05, 1.05)
        else:
            fig.from_zero(ax, 1.0)
        ax.set_title(_SCORES[score])
        fig.set_step_axis(ax, observations["step"])
        ax.legend(loc="best", fontsize=7.5)
    return panels.figure


def _all_heads(observations: pd.DataFrame, scores: Sequence[str]) -> Figure:
    """Draw each score of all heads at the last step, layer by head."""
    last = last_step(select(observations, quantity=scores))
    sites = list(last["site"].unique())
    heads = int(last["head"].max()) + 1
    panels = fig.new_panels(
        len(scores), 2.0 + 0.22 * heads, 1.3 + 0.24 * len(sites), most=2, margin=(0.8, 0.5), sharey=True
    )
    for ax, score in zip(panels, scores, strict=True):
        limits: dict[str, Any] = {"vmin": 0, "vmax": 1}
        if score == "copying":
            limits = {"vmin": -1, "vmax": 1, "cmap": "RdBu_r"}
        fig.show_heads(ax, select(last, quantity=score), sites, **limits)
        ax.set_title(_SCORES[score])
    panels.figure.suptitle(f"all heads at step {int(last['step'].iloc[0]):,}")
    return panels.figure


def _losses(observations: pd.DataFrame) -> Figure:
    """Draw the losses on repeated tokens and in the text over steps, and their differences."""
    groups = (
        ("random tokens that repeat", {"first_loss": "first time", "second_loss": "second time"}),
        ("text", {"early_loss": "early in the row", "late_loss": "late in the row"}),
        ("differences", {"second_minus_first": "second − first", "late_minus_early": "late − early"}),
    )
    shown = [(title, names) for title, names in groups if observations["quantity"].isin(list(names)).any()]
    panels = fig.new_panels(len(shown), 3.7, 3.2)
    for ax, (title, names) in zip(panels, shown, strict=True):
        rows = select(observations, quantity=list(names))
        looks = {name: {**fig.line_style(i), "label": names[name]} for i, name in enumerate(names)}
        fig.draw_lines(ax, rows, "quantity", looks)
        _band(ax, observations, "second_minus_first", looks)
        ax.set_title(title)
        if title == "differences":
            fig.zero_line(ax)
        fig.set_step_axis(ax, observations["step"], rates=observations)
        ax.legend()
    panels.set_ylabel("loss (nats per token)")
    return panels.figure


def _band(ax: Axes, observations: pd.DataFrame, name: str, looks: dict[str, Any]) -> None:
    """Draw twice the standard error around a difference, in its panel."""
    if name not in looks:
        return
    both = wide(select(observations, quantity=[name, f"{name}_error"]), "quantity").dropna()
    if len(both.columns) == 2:
        middle, error = both[name], 2 * both[f"{name}_error"]
        ax.fill_between(
            both.index, middle - error, middle + error, color=looks[name]["color"], alpha=0.2, lw=0
        )


def _by_context(observations: pd.DataFrame) -> Figure:
    """Draw the loss by tokens of context, for some steps."""
    rows = select(observations, quantity="position_loss")
    titles = {"random": "random tokens that repeat", "probe": "text"}
    data = [name for name in titles if rows["data"].eq(name).any()]
    steps = fig.spread_out(sorted(rows["step"].unique()), 6)
    looks = fig.shades(steps)
    panels = fig.new_panels(len(data), 4.6, 3.2, margin=(1.2, 0))
    for ax, name in zip(panels, data, strict=True):
        here = select(rows, data=name)
        fig.draw_lines(
            ax, here, "step", looks, x="position", label=lambda step: f"{int(step):,}", marker="", lw=1.4
        )
        ax.set_title(titles[name])
        ax.set_xlabel("tokens of context")
        ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    panels.set_ylabel("loss of the next token (nats)")
    panels.legend(title="step", of_all=True)
    return panels.figure


def _ablation(observations: pd.DataFrame) -> Figure:
    """Draw the rise of losses by ablation of the best heads, and of each draw of others."""
    titles = {
        "second_loss_rise": "on the second of two\nrandom sequences",
        "late_loss_rise": "late in the text",
    }
    shown = [name for name in titles if observations["quantity"].eq(name).any()]
    panels = fig.new_panels(len(shown), 4.2, 3.2)
    for ax, name in zip(panels, shown, strict=True):
        rows = select(observations, quantity=name)
        random = select(rows, ablated="random")
        draws = [int(draw) for draw in random["draw"].dropna().unique()]
        look = {"color": "0.6", "lw": 1.0}
        for i, draw in enumerate(draws):
            label = "as many random heads" if not i else "_nolegend_"
            fig.draw_lines(ax, random, "draw", {draw: {**look, "label": label}})
        best = {**fig.line_style(1), "label": "best heads by prefix matching"}
        fig.draw_lines(ax, rows, "ablated", {"best": best}, lw=1.8)
        fig.zero_line(ax)
        ax.set_title(titles[name])
        fig.set_step_axis(ax, observations["step"])
        ax.legend()
    panels.set_ylabel("rise of the loss (nats)")
    return panels.figure

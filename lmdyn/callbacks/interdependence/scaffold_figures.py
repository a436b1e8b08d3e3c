"""Figures of Saphra & Lopez 2020, section 4, from observations of one or several runs."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import select

__all__ = ["scaffold_figures"]

_DOMAINS = {"in": "in domain: scaffolds of the training text", "out": "out of domain: random scaffolds"}
_DASHES = {"familiar": "--", "unfamiliar": "-"}
_LINE = ["length", "scaffold", "rules", "run"]
_P_CLOSE = "mean probability of ω"


@fig.in_style
def scaffold_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw figures 7 to 12: a colour for each length k of the scaffold, familiar ones dashed, unfamiliar ones solid."""
    rows = observations if "run" in observations else observations.assign(run="")
    last = rows[rows["step"].eq(rows.groupby(_LINE, observed=True)["step"].transform("max"))]
    figures = {
        name: _domains(rows, quantity, focus, label)
        for name, quantity, focus, label in (
            ("probability", "probability", "", _P_CLOSE),
            ("probability_open", "probability", "open", f"{_P_CLOSE}, α in focus"),
            ("interdependence", "di", "", "mean DI(α, scaffold)"),
        )
    }
    label, x = f"{_P_CLOSE} (last observation)", "words of the scaffold in focus, after α"
    figures["probability_prefix"] = _domains(last, "probability", "prefix", label, x)
    for focus, error in (("close", "of ω"), ("all", "of all words after α")):
        for quantity, what in (("gradient", "∂E/∂h"), ("cell_gradient", "dE/dc")):
            label = f"mean ‖{what}‖ (E: error {error})"
            figures[f"{quantity}_{focus}"] = _domains(rows, quantity, focus, label, "words after α (0: at α)")
    figures["probability_by_rules"] = _by_rules(last)
    return figures


def _domains(rows: pd.DataFrame, quantity: str, focus: str, label: str, of_words: str = "") -> Figure:
    """Draw a line for each run, over training, or by the number of words after α if their axis has a label.

    Over training, there are two standard errors to both sides if there are enough colours.
    """
    rows, errors = (select(rows, quantity=f"{quantity}{end}", focus=focus) for end in ("", "_error"))
    figure, axes = fig.new_figure(10.2, 3.8, ncols=2, sharey=True)
    for ax, (domain, title) in zip(axes, _DOMAINS.items(), strict=True):
        for name, look, run in _runs(select(rows, site=domain)):
            values = run.groupby("words" if of_words else "step")["value"].mean()
            ax.plot(values.index.astype(int), values, marker=".", label=name, **look)
            if not of_words and len(rows["run"].unique()) <= fig.MOST_LINES:
                own = select(errors, site=domain, run=run["run"].iloc[0])
                error = own.drop_duplicates("step").set_index("step")["value"].reindex(values.index)
                if error.notna().any():
                    fig.draw_band(
                        ax, values.index, *fig.error_band(values, error), color=look["color"], alpha=0.12
                    )
        if of_words:
            ax.set_xlabel(of_words)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        else:
            fig.set_step_axis(ax, rows["step"])
        ax.set_title(title)
    fig.from_zero(axes[0])  # of both panels, after drawing
    axes[0].set_ylabel(label)
    fig.outer_legend(axes[1])
    return figure


def _runs(rows: pd.DataFrame) -> list[tuple[str, dict[str, Any], pd.DataFrame]]:
    """Return the rows of each run, with the name and style of its line: thinner for rarer rules."""
    lengths, counts = (sorted(rows[column].unique()) for column in ("length", "rules"))
    found = []
    for (length, scaffold, rules, _), run in rows.groupby(_LINE, observed=True):
        look = {
            "color": fig.line_style(lengths.index(length))["color"],
            "ls": _DASHES[str(scaffold)],
            "lw": 1.3,
        }
        name = f"k = {length:.0f}, {scaffold}"
        if len(counts) > 1:
            name += f", n = {rules:,.0f}"
            look["lw"] = 0.5 + counts.index(rules) / (len(counts) - 1)
        found.append((name, look, run))
    return found


def _by_rules(last: pd.DataFrame) -> Figure:
    """Draw figure 11: probability of ω from α and from the scaffold, by n and k, at the last observation."""
    rows = select(last, quantity="probability", focus=["open", "scaffold"], site="in")
    rows = rows[rows["value"].gt(0)]  # for a logarithmic axis
    figure, axes = fig.new_figure(10.2, 3.8, ncols=2, sharey=True)
    counts = sorted(rows["rules"].unique())
    for ax, (focus, title) in zip(axes, {"open": "α", "scaffold": "scaffold"}.items(), strict=True):
        of_focus = select(rows, focus=focus).sort_values("length")
        for (rules, scaffold), line in of_focus.groupby(["rules", "scaffold"], observed=True):
            look = {"color": fig.line_style(counts.index(rules))["color"], "ls": _DASHES[str(scaffold)]}
            label = f"n = {rules:,.0f}, {scaffold}"
            ax.plot(line["length"].astype(int), line["value"], marker=".", label=label, **look)
        ax.set_title(f"{title} in focus, in domain")
        ax.set_xlabel("length k of the scaffold (words)")
        ax.set_xticks(sorted(rows["length"].astype(int).unique()))
        ax.set_yscale("log")
    axes[0].set_ylabel(f"{_P_CLOSE} (last observation)")
    fig.outer_legend(axes[1])
    return figure

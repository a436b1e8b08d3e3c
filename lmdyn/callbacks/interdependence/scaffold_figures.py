"""Figures of Saphra & Lopez 2020, section 4, from observations of one or several runs."""

from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.callbacks.observing.figures import (
    MOST_LINES,
    draw_band,
    error_band,
    from_zero,
    in_style,
    line_style,
    new_figure,
    outer_legend,
    set_step_axis,
)
from lmdyn.callbacks.observing.schema import select

__all__ = ["scaffold_figures"]

_DOMAINS = {"in": "in domain: scaffolds of the training text", "out": "out of domain: random scaffolds"}
_DASHES = {"familiar": "--", "unfamiliar": "-"}
_LINE = ["length", "scaffold", "rules", "run"]
_P_CLOSE = "mean probability of ω"


@in_style
def scaffold_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw figures 7 to 12: a colour for each length k of the scaffold, familiar ones dashed, unfamiliar ones solid."""
    drawn = ["probability", "di", "gradient", "cell_gradient"]
    rows = select(observations, quantity=[*drawn, "probability_error", "di_error"])
    if "run" not in rows:
        rows = rows.assign(run="")
    figures = {
        "probability": _curves(rows, "probability", "", _P_CLOSE),
        "probability_open": _curves(rows, "probability", "open", f"{_P_CLOSE}, α in focus"),
        "interdependence": _curves(rows, "di", "", "mean DI(α, scaffold)"),
    }
    prefix = _last(select(rows, quantity="probability", focus="prefix"))
    label, words = f"{_P_CLOSE} (last observation)", "words of the scaffold in focus, after α"
    figures["probability_prefix"] = _profiles(prefix, label, words)
    for focus, error in (("close", "of ω"), ("all", "of all words after α")):
        of = select(rows, quantity="gradient", focus=focus)
        label = f"mean ‖∂E/∂h‖ (E: error {error})"
        figures[f"gradient_{focus}"] = _profiles(of, label, "words after α (0: at α)")
        of = select(rows, quantity="cell_gradient", focus=focus)
        if len(of):  # missing in earlier observations
            label = f"mean ‖dE/dc‖ (E: error {error})"
            figures[f"cell_gradient_{focus}"] = _profiles(of, label, "words after α (0: at α)")
    figures["probability_by_rules"] = _by_rules(rows)
    return figures


def _panels(draw: Callable[[Axes, str], None], label: str) -> Figure:
    """Draw a panel for each domain."""
    figure, axes = new_figure(10.2, 3.8, ncols=2, sharey=True)
    for ax, (domain, title) in zip(axes, _DOMAINS.items(), strict=True):
        draw(ax, domain)
        ax.set_title(title)
    from_zero(axes[0])  # of both panels, after drawing
    axes[0].set_ylabel(label)
    outer_legend(axes[1])
    return figure


def _runs(rows: pd.DataFrame) -> list[tuple[str, dict[str, Any], pd.DataFrame]]:
    """Return the rows of each run, with the name and style of its line: thinner for rarer rules."""
    lengths = sorted(rows["length"].unique())
    counts = sorted(rows["rules"].unique())
    found = []
    for (length, scaffold, rules, _), run in rows.groupby(_LINE, observed=True):
        look = {"color": line_style(lengths.index(length))["color"], "ls": _DASHES[str(scaffold)]}
        thin = 0.5 + 1.0 * counts.index(rules) / max(1, len(counts) - 1)
        name = f"k = {length:.0f}, {scaffold}" + (f", n = {rules:,.0f}" if len(counts) > 1 else "")
        found.append((name, look | {"lw": thin if len(counts) > 1 else 1.3}, run))
    return found


def _curves(rows: pd.DataFrame, quantity: str, focus: str, label: str) -> Figure:
    """Draw a quantity over training, with two standard errors to both sides if there are enough colours."""
    every = select(rows, focus=focus).sort_values("step")
    rows, errors = (select(every, quantity=f"{quantity}{end}") for end in ("", "_error"))

    def draw(ax: Axes, domain: str) -> None:
        for name, look, run in _runs(select(rows, site=domain)):
            ax.plot(run["step"], run["value"], marker=".", label=name, **look)
            if rows["run"].nunique() <= MOST_LINES:
                own = select(errors, site=domain, run=run["run"].iloc[0])
                error = own.drop_duplicates("step").set_index("step")["value"].reindex(run["step"])
                if error.notna().any():
                    band = error_band(run["value"], error)
                    draw_band(ax, run["step"], *band, color=look["color"], alpha=0.12)
        set_step_axis(ax, rows["step"])

    return _panels(draw, label)


def _last(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the last observation of each line."""
    return rows[rows["step"].eq(rows.groupby(_LINE, observed=True)["step"].transform("max"))]


def _profiles(rows: pd.DataFrame, label: str, words: str) -> Figure:
    """Draw means by the number of words after α."""

    def draw(ax: Axes, domain: str) -> None:
        for name, look, run in _runs(select(rows, site=domain)):
            values = run.groupby("words")["value"].mean()
            ax.plot(values.index.astype(int), values, marker=".", label=name, **look)
        ax.set_xlabel(words)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))

    return _panels(draw, label)


def _by_rules(rows: pd.DataFrame) -> Figure:
    """Draw figure 11: probability of ω from α and from the scaffold, by n and k, at the last observation."""
    rows = select(_last(select(rows, quantity="probability", focus=["open", "scaffold"])), site="in")
    rows = rows[rows["value"].gt(0)]  # for a logarithmic axis
    figure, axes = new_figure(10.2, 3.8, ncols=2, sharey=True)
    counts = sorted(rows["rules"].unique())
    for ax, (focus, title) in zip(axes, {"open": "α", "scaffold": "scaffold"}.items(), strict=True):
        for (rules, scaffold), line in select(rows, focus=focus).groupby(
            ["rules", "scaffold"], observed=True
        ):
            line = line.sort_values("length")
            ax.plot(
                line["length"].astype(int), line["value"], marker=".", label=f"n = {rules:,.0f}, {scaffold}",
                color=line_style(counts.index(rules))["color"], ls=_DASHES[str(scaffold)],
            )  # fmt: skip
        ax.set_title(f"{title} in focus, in domain")
        ax.set_xlabel("length k of the scaffold (words)")
        ax.set_xticks(sorted(rows["length"].astype(int).unique()))
        ax.set_yscale("log")
    axes[0].set_ylabel(f"{_P_CLOSE} (last observation)")
    outer_legend(axes[1])
    return figure

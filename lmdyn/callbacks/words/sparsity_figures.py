"""Figures 2, 4 and 5 of Saphra & Lopez 2019 from observations."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lmdyn.callbacks.observing.figures import (
    COLOURS,
    in_style,
    label_points,
    new_figure,
    outer_legend,
    say_why_empty,
)
from lmdyn.callbacks.observing.panels import standard_figures
from lmdyn.runs.schema import Quantity, select, wide

__all__ = ["sparsity_figures"]

_RHO_BY_CLASS = Quantity(
    "rho_gradient",
    "",
    low=-1.0,
    high=1.0,
    panel="rho_by_pos_class",
    short="correlation ρ of gradients\nwith word frequency, by class",
    lines="pos_class",
    where=(("role", ("target",)), ("pos_class", ("open", "closed", "open_matched", "closed_matched", ""))),
)
_CLASS_COLORS = {"open": COLOURS["blue"], "closed": COLOURS["vermilion"], "": "0.7"}


@in_style
def sparsity_figures(observations: pd.DataFrame, frequency: str = "train") -> dict[str, Figure]:
    """Draw the publication's figures 2, 4 and 5, of the gradient at the site below the logits.

    Args:
        observations: stored observations of ``Sparsity``.
        frequency: source of the word counts, ``train`` or ``probe``.
    """
    by_word = observations["word"].notna()  # many more rows, of which only the required ones are copied
    curves = observations[~by_word]
    by_word &= observations["quantity"].eq("chi_gradient") & observations["role"].eq("target")
    shown = [s for s in observations["site"][by_word].unique() if s != "logits"]
    if not shown:
        return {}
    gradients = select(observations[by_word], site=shown[-1])
    curves = select(curves, site=["", shown[-1]])
    figures = {
        "chi_gradient_by_rank": _heat_map(curves, gradients, _frequencies(observations)),
        "chi_gradient_by_frequency": _scatter(curves, gradients, _frequencies(observations), frequency),
    }
    if len(select(curves, quantity="rho_gradient", pos_class=["open", "closed"])):
        figures |= standard_figures(curves, [_RHO_BY_CLASS])
    return figures


def _frequencies(observations: pd.DataFrame) -> "pd.Series[float]":
    """Return the training frequency of each word, most frequent first."""
    rows = select(observations, quantity="frequency").drop_duplicates("word")
    return rows.set_index("word")["value"].sort_values(ascending=False, kind="stable")


def _heat_map(curves: pd.DataFrame, rows: pd.DataFrame, frequencies: "pd.Series[float]") -> Figure:
    ranks = pd.Series(np.arange(1, len(frequencies) + 1), index=frequencies.index)
    edges = np.unique(np.geomspace(1, len(ranks) + 1, 61).round().astype(int))
    bins = np.searchsorted(edges, rows["word"].map(ranks).to_numpy(), side="right") - 1
    table = wide(rows.assign(bin=bins), "step", "bin").reindex(range(len(edges) - 1))
    figure, axes = new_figure(7.5, 4.8)
    mesh = axes.pcolormesh(
        np.arange(table.shape[1] + 1),
        edges,
        table.to_numpy(),
        cmap="viridis",
        rasterized=table.size > 5000,  # also in an SVG
    )
    axes.set_yscale("log")
    axes.set_ylabel("word frequency rank (most frequent at the bottom)")
    axes.set_xlabel("training step (optimizer updates), one column an observation")
    every = max(1, -(-table.shape[1] // 12))
    axes.set_xticks(np.arange(table.shape[1])[::every] + 0.5)
    axes.set_xticklabels([str(s) for s in table.columns[::every]], rotation=45, ha="right")
    axes.set_title(f"concentration χ of the gradient at {rows['site'].iloc[0]}, by target word")
    bar = figure.colorbar(mesh, ax=axes, label="mean χ = ‖v‖₂ / ‖v‖₁\n(dotted: uniform and Gaussian vectors)")
    for kind in ("uniform", "gaussian"):
        for value in select(curves, quantity=f"chi_{kind}")["value"].tail(1):
            bar.ax.axhline(float(value), color="w", lw=1.5, ls=":")
    return figure


def _scatter(
    curves: pd.DataFrame, gradients: pd.DataFrame, frequencies: "pd.Series[float]", frequency: str
) -> Figure:
    last = max(curves["step"].max(), gradients["step"].max())
    rows = select(gradients, step=last)
    rows = rows.assign(frequency=rows["word"].map(frequencies)).fillna({"pos_class": ""})
    rows = rows[(rows["frequency"] > 0) & rows["value"].notna()]
    figure, axes = new_figure(7.5, 4.6)
    for pos_class, label in (
        ("", "rare, or of several classes"),
        ("open", "open class"),
        ("closed", "closed class"),
    ):
        one = select(rows, pos_class=pos_class)
        color = _CLASS_COLORS[pos_class]
        if len(one):
            label = f"{label} (n = {len(one):,})"
            axes.scatter(one["frequency"], one["value"], s=9, color=color, label=label, lw=0, alpha=0.8)
    for kind, color in (("gaussian", "0.25"), ("uniform", "0.55")):
        label = f"{kind.capitalize()} vectors of as many units"
        for value in select(curves, quantity=f"chi_{kind}")["value"].tail(1):
            axes.axhline(value, color=color, lw=1, ls=":", label=label)
    if len(rows):
        axes.set_xscale("log")
    else:
        say_why_empty(axes, "not finite at this step")
    axes.set_xlabel(f"occurrences in the {'training data' if frequency == 'train' else 'probe set'}")
    axes.set_ylabel("mean χ = ‖v‖₂ / ‖v‖₁")
    axes.set_title(
        f"concentration of the gradient at {gradients['site'].iloc[0]} by target word, step {last:,}"
    )
    outer_legend(axes)
    rows = rows.sort_values("frequency", ascending=False, kind="stable")
    frequent = pd.concat([select(rows, pos_class=c).head(6) for c in ("open", "closed")])
    frequent = frequent.sort_values("frequency", ascending=False, kind="stable")
    columns = zip(*(frequent[c] for c in ("frequency", "value", "word", "pos_class")), strict=True)
    label_points(axes, [(float(x), float(y), str(word), _CLASS_COLORS[c]) for x, y, word, c in columns])
    return figure

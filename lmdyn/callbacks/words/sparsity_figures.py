"""The figures of Saphra & Lopez 2019, from observations."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmdyn.callbacks.observing.figures import (
    draw_band,
    draw_lines,
    error_band,
    label_points,
    new_figure,
    outer_legend,
    set_step_axis,
    shades,
)
from lmdyn.callbacks.observing.schema import last_step, select, wide

__all__ = ["sparsity_figures"]

_CLASS_COLORS = {"open": "C0", "closed": "C3", "": "0.7"}


def sparsity_figures(
    observations: pd.DataFrame, sites: list[str], frequency: str = "train"
) -> dict[str, Figure]:
    """The publication's figures 2, 3, 4 and 5, and the check of its section 4.

    Args:
        observations: what ``Sparsity`` has in its store.
        sites: display names in the order of the model, for colours and for the site of figures 2, 4 and 5: the
            one below the logits.
        frequency: where words were counted, ``train`` or ``probe``.
    """
    by_word = observations["word"].notna()  # of many more rows, of which no more than needed are copied
    curves = observations[~by_word]
    by_word &= observations["quantity"].eq("chi_gradient")
    figures = {"rho_by_site": _rho_by_site(curves, sites)}
    shown = [s for s in observations["site"][by_word].unique() if s != "logits"]
    if shown:
        site = shown[-1]
        gradients = observations[by_word & observations["site"].eq(site)]
        frequencies = _frequencies(observations)
        figures["chi_gradient_by_rank"] = _heat_map(curves, gradients, frequencies, site)
        figures["chi_gradient_by_frequency"] = _scatter(curves, gradients, frequencies, site, frequency)
        figures["rho_l1_gradient"] = _l1_check(curves, sites)
        if len(select(curves, quantity="rho_gradient", pos_class=["open", "closed"])):
            figures["rho_by_pos_class"] = _rho_by_class(curves, site)
        if len(select(curves, quantity="rho_gradient_error")):
            figures["rho_by_sample"] = _rho_by_sample(curves, site)
        if len(select(curves, quantity="chi_gradient_types")):
            figures["chi_gradient_types"] = _types(curves, site)
    return figures


def _curves(observations: pd.DataFrame, quantity: str, role: str = "target", **wanted: str) -> pd.DataFrame:
    return select(observations, quantity=quantity, role=role, word=None, **wanted)


def _draw_with_errors(
    axes: Axes,
    observations: pd.DataFrame,
    quantity: str,
    site: str,
    looks: Mapping[str, Mapping[str, Any]],
    scale: str = "plain",
) -> pd.DataFrame:
    """A line over steps for each sample of words, on two standard errors to both sides, taken on a scale."""
    rows, errors = (_curves(observations, f"{quantity}{end}", site=site) for end in ("", "_error"))
    draw_lines(axes, rows, "pos_class", looks, ms=4)
    for sample, look in looks.items():
        line = select(rows, pos_class=sample).set_index("step")["value"].sort_index()
        error = select(errors, pos_class=sample).set_index("step")["value"].reindex(line.index)
        if len(line):
            draw_band(axes, line.index, *error_band(line, error, scale), color=look["color"], alpha=0.12)
    return rows


def _references(axes: Axes, observations: pd.DataFrame, site: str) -> None:
    """Dotted lines at χ of vectors without structure."""
    for kind, color in (("gaussian", "0.25"), ("uniform", "0.55")):
        rows = select(observations, quantity=f"chi_{kind}", site=site)
        if len(rows):
            label = f"{kind.capitalize()} vectors of as many units"
            axes.axhline(float(rows["value"].iloc[-1]), color=color, lw=1, ls=":", label=label)


def _ordered(sites: list[str], there: list[str]) -> list[str]:
    first = [s for s in sites if s in there]
    return first + [s for s in there if s not in first]


def _rho_axes(axes: Axes, observations: pd.DataFrame, steps: Iterable[int]) -> None:
    axes.axhline(0, color="0.85", lw=0.8, zorder=0)
    set_step_axis(axes, steps, rates=observations)


def _rho_by_site(observations: pd.DataFrame, sites: list[str]) -> Figure:
    figure, panels = new_figure(10.5, 4.2, ncols=2, sharey=True)
    titles = {
        "target": "ρ←: with frequency of the target word",
        "input": "ρ→: with frequency of the input word",
    }
    color = {
        site: f"C{i % 10}" for i, site in enumerate(_ordered(sites, list(observations["site"].unique())))
    }
    for axes, (role, title) in zip(panels, titles.items(), strict=True):
        steps: list[int] = []
        for what, style in (("activation", "-"), ("gradient", "--"), ("attention entropy", ":")):
            rows = _curves(observations, f"rho_{what.replace(' ', '_')}", role, pos_class="")
            looks = {
                site: {"color": color[site], "label": f"{site}, {what}"}
                for site in _ordered(sites, list(rows["site"].unique()))
            }
            draw_lines(axes, rows, "site", looks, ls=style, ms=4)
            steps += list(rows["step"])
        axes.set_title(title, fontsize=10, loc="left")
        _rho_axes(axes, observations, steps)
    panels[0].set_ylabel("Pearson ρ(mean χ of a word, its frequency)")
    outer_legend(panels[1])
    return figure


def _rho_by_class(observations: pd.DataFrame, site: str) -> Figure:
    figure, axes = new_figure(7.5, 4.2)
    rows = _curves(observations, "rho_gradient", site=site)
    styles = {
        "open": ("C0", "-", "open classes"),
        "closed": ("C3", "-", "closed classes"),
        "open_matched": ("C0", ":", "open, matched in frequency"),
        "closed_matched": ("C3", ":", "closed, matched in frequency"),
        "": ("0.5", "--", "all words"),
    }
    looks = {name: dict(zip(("color", "ls", "label"), style, strict=True)) for name, style in styles.items()}
    draw_lines(axes, rows, "pos_class", looks, ms=4)
    axes.set_title(f"ρ← of the gradient at {site}, by part of speech", fontsize=10, loc="left")
    axes.set_ylabel("Pearson ρ(mean χ of a word, its frequency)")
    _rho_axes(axes, observations, rows["step"])
    outer_legend(axes)
    return figure


def _rho_by_sample(observations: pd.DataFrame, site: str) -> Figure:
    figure, axes = new_figure(7.5, 4.2)
    looks = {
        "": {"color": "C0", "label": "all words"},
        "no_top20": {"color": "C1", "label": "without the 20 most frequent"},
        "count100": {"color": "C2", "label": "of at least 100 occurrences"},
        "count100_no_top20": {"color": "C3", "label": "both"},
    }
    rows = _draw_with_errors(axes, observations, "rho_gradient", site, looks, "fisher")
    axes.set_title(
        f"ρ← of the gradient at {site}, by sample of words (2 standard errors over words, of Fisher's z)",
        fontsize=10,
        loc="left",
    )
    axes.set_ylabel("Pearson ρ(mean χ of a word, its frequency)")
    _rho_axes(axes, observations, rows["step"])
    outer_legend(axes)
    return figure


def _types(observations: pd.DataFrame, site: str) -> Figure:
    """χ by band of frequency over training, and by class and band at the end."""
    figure, (left, right) = new_figure(11, 4.2, ncols=2, sharey=True)
    rows = _curves(observations, "chi_gradient_types", site=site)
    there = set(rows["pos_class"])
    looks = shades([band for band in ("0-9", "10-99", "100-999", "1000+") if band in there])
    _draw_with_errors(left, observations, "chi_gradient_types", site, looks)
    _references(left, observations, site)
    title = (
        f"χ of the gradient at {site}: mean over target words\nby training occurrences (2 errors over text)"
    )
    left.set_title(title, fontsize=10, loc="left")
    left.set_ylabel("mean χ = ‖v‖₂ / ‖v‖₁")
    set_step_axis(left, rows["step"], rates=observations)
    left.legend(frameon=False, fontsize=7, ncols=2)
    last = last_step(observations)
    means, errors = (
        _curves(last, f"chi_gradient_types{end}", site=site).set_index("pos_class")["value"]
        for end in ("", "_error")
    )
    names = [name.removeprefix("closed_") for name in means.index if name.startswith("closed_")]
    shown = [name for name in names if f"open_{name}" in means.index]
    for shift, pos_class in ((-0.08, "open"), (0.08, "closed")):
        keys = [f"{pos_class}_{name}" for name in shown]
        x, y = np.arange(len(shown)) + shift, means[keys].to_numpy(dtype=float)
        error = 2 * errors.reindex(keys).to_numpy(dtype=float)
        color = _CLASS_COLORS[pos_class]
        right.errorbar(x, y, error, fmt="o", ms=4, color=color, label=f"{pos_class} classes")
    _references(right, observations, site)
    right.set_xticks(np.arange(len(shown)), shown)
    right.set_xlabel("training occurrences")
    right.set_title(f"by class at equal frequency, step {last['step'].max()}", fontsize=10, loc="left")
    outer_legend(right)
    return figure


def _l1_check(observations: pd.DataFrame, sites: list[str]) -> Figure:
    figure, axes = new_figure(7.5, 4.2)
    rows = _curves(observations, "rho_l1_gradient", pos_class="")
    ordered = _ordered(sites, list(rows["site"].unique()))
    draw_lines(axes, rows, "site", {site: {"color": f"C{i % 10}"} for i, site in enumerate(ordered)}, ms=4)
    axes.set_title(
        "Is the gradient's ‖·‖₁ anti-correlated with target frequency? (section 4)", fontsize=10, loc="left"
    )
    axes.set_ylabel("Pearson ρ(mean ‖gradient‖₁ of a word, its frequency)")
    _rho_axes(axes, observations, list(rows["step"]))
    outer_legend(axes)
    return figure


def _frequencies(observations: pd.DataFrame) -> "pd.Series[float]":
    """Training frequency of each word, most frequent first."""
    rows = select(observations, quantity="frequency").drop_duplicates("word")
    return rows.set_index("word")["value"].sort_values(ascending=False, kind="stable")


def _heat_map(
    observations: pd.DataFrame, gradients: pd.DataFrame, frequencies: "pd.Series[float]", site: str
) -> Figure:
    ranks = pd.Series(np.arange(1, len(frequencies) + 1), index=frequencies.index)
    rows = select(gradients, role="target")
    edges = np.unique(np.geomspace(1, len(ranks) + 1, 61).round().astype(int))
    bins = np.searchsorted(edges, rows["word"].map(ranks).to_numpy(), side="right") - 1
    table = wide(rows.assign(bin=bins), "step", "bin").reindex(range(len(edges) - 1))
    figure, axes = new_figure(7.5, 4.8)
    mesh = axes.pcolormesh(
        np.arange(table.shape[1] + 1), edges, table.to_numpy(), cmap="viridis",
        rasterized=table.size > 5000,  # of an SVG, too
    )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylabel("word frequency rank (most frequent at the bottom)")
    axes.set_xlabel("training step (optimizer updates), one column an observation")
    every = max(1, -(-table.shape[1] // 12))
    axes.set_xticks(np.arange(table.shape[1])[::every] + 0.5)
    axes.set_xticklabels([str(s) for s in table.columns[::every]], rotation=45, ha="right")
    axes.set_title(f"Concentration χ of the gradient at {site}, by target word", fontsize=10, loc="left")
    bar = figure.colorbar(mesh, ax=axes, label="mean χ = ‖v‖₂ / ‖v‖₁; dotted: uniform and Gaussian vectors")
    for kind in ("uniform", "gaussian"):
        for value in select(observations, quantity=f"chi_{kind}", site=site)["value"].tail(1):
            bar.ax.axhline(float(value), color="w", lw=1.5, ls=":")
    return figure


def _scatter(
    observations: pd.DataFrame,
    gradients: pd.DataFrame,
    frequencies: "pd.Series[float]",
    site: str,
    frequency: str,
) -> Figure:
    last = max(observations["step"].max(), gradients["step"].max())
    rows = select(gradients, step=last, role="target")
    rows = rows.assign(frequency=rows["word"].map(frequencies)).fillna({"pos_class": ""})
    rows = rows[rows["frequency"] > 0]
    figure, axes = new_figure(7.5, 4.6)
    for pos_class, label in (("", "other or ambiguous"), ("open", "open class"), ("closed", "closed class")):
        one, color = select(rows, pos_class=pos_class), _CLASS_COLORS[pos_class]
        if len(one):
            axes.scatter(one["frequency"], one["value"], s=9, color=color, label=label, lw=0, alpha=0.8)
    _references(axes, observations, site)
    axes.set_xscale("log")
    axes.set_xlabel(f"occurrences in the {'training data' if frequency == 'train' else 'probe set'}")
    axes.set_ylabel("mean χ = ‖v‖₂ / ‖v‖₁")
    axes.set_title(
        f"Concentration of the gradient at {site} by target word, step {last}", fontsize=10, loc="left"
    )
    outer_legend(axes)
    frequent = pd.concat([select(rows, pos_class=c).nlargest(6, "frequency") for c in ("open", "closed")])
    frequent = frequent.sort_values("frequency", ascending=False, kind="stable")
    columns = (frequent[c] for c in ("frequency", "value", "word", "pos_class"))
    label_points(
        axes, [(float(x), float(y), str(w), _CLASS_COLORS[c]) for x, y, w, c in zip(*columns, strict=True)]
    )
    return figure

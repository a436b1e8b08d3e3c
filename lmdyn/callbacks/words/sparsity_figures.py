"""Figures of Saphra & Lopez 2019 from observations."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmdyn.callbacks.observing.figures import (
    COLOURS,
    MOST_LINES,
    draw_band,
    draw_lines,
    error_band,
    in_style,
    label_points,
    new_figure,
    new_panels,
    outer_legend,
    set_step_axis,
    shades,
    site_styles,
    zero_line,
)
from lmdyn.callbacks.observing.schema import last_step, select, wide

__all__ = ["sparsity_figures"]

_RHO = "Pearson ρ(mean χ of a word, its frequency)"
_CLASS_COLORS = {"open": COLOURS["blue"], "closed": COLOURS["vermilion"], "": "0.7"}


@in_style
def sparsity_figures(
    observations: pd.DataFrame, sites: list[str], frequency: str = "train"
) -> dict[str, Figure]:
    """Draw the publication's figures 2, 3, 4 and 5, and the check of its section 4.

    Args:
        observations: stored observations of ``Sparsity``.
        sites: display names in the order of the model, for colours and for the site of figures 2, 4 and 5: the
            one below the logits.
        frequency: source of the word counts, ``train`` or ``probe``.
    """
    by_word = observations["word"].notna()  # many more rows, of which only the required ones are copied
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


def _sized(observations: pd.DataFrame, looks: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add to labels the number of words of each sample, for target words at the last step, if it is recorded."""
    words = last_step(_curves(observations, "words")).set_index("pos_class")["value"]
    return {
        sample: {**look, "label": f"{look.get('label', sample)} (n = {words[sample]:,.0f})"}
        if sample in words
        else {**look}
        for sample, look in looks.items()
    }


def _draw_with_errors(
    axes: Axes,
    observations: pd.DataFrame,
    quantity: str,
    looks: Mapping[str, Mapping[str, Any]],
    scale: str = "plain",
    *,
    by: str = "pos_class",
    role: str = "target",
    **wanted: str,
) -> pd.DataFrame:
    """Draw a line over steps for each value of ``by``, with two standard errors to both sides, on a scale."""
    rows, errors = (_curves(observations, f"{quantity}{end}", role, **wanted) for end in ("", "_error"))
    draw_lines(axes, rows, by, looks)
    for name, look in looks.items():
        line = select(rows, **{by: name}).set_index("step")["value"].sort_index()
        error = select(errors, **{by: name}).set_index("step")["value"].reindex(line.index)
        if error.notna().any():
            draw_band(axes, line.index, *error_band(line, error, scale), color=look["color"], alpha=0.12)
    return rows


def _references(axes: Axes, observations: pd.DataFrame, site: str) -> None:
    """Draw dotted lines at χ of vectors without structure."""
    for kind, color in (("gaussian", "0.25"), ("uniform", "0.55")):
        rows = select(observations, quantity=f"chi_{kind}", site=site)
        if len(rows):
            label = f"{kind.capitalize()} vectors of as many units"
            axes.axhline(float(rows["value"].iloc[-1]), color=color, lw=1, ls=":", label=label)


def _ordered(sites: list[str], there: list[str]) -> list[str]:
    first = [s for s in sites if s in there]
    return first + [s for s in there if s not in first]


def _rho_axes(axes: Axes, observations: pd.DataFrame, steps: Iterable[int]) -> None:
    zero_line(axes)
    set_step_axis(axes, steps, rates=observations)


def _rho_by_site(observations: pd.DataFrame, sites: list[str]) -> Figure:
    """Draw a row of panels for each vector: on the left target words, on the right input words."""
    kinds = [
        k for k in ("activation", "gradient", "attention_entropy") if len(_curves(observations, f"rho_{k}"))
    ]
    panels = new_panels(
        2 * len(kinds),
        4.6,
        3.3 if len(kinds) == 1 else 2.9,
        most=2,
        margin=(1.5, 0.2),
        sharex=True,
        sharey="row",
    )
    words = {
        "target": "ρ←: with frequency of the target word",
        "input": "ρ→: with frequency of the input word",
    }
    places = _ordered(sites, [s for s in observations["site"].unique() if s])
    few = len(places) <= MOST_LINES
    for line, kind in zip(panels.grid, kinds, strict=True):
        for axes, (role, title) in zip(line, words.items(), strict=True):
            quantity = f"rho_{kind}"
            rows = _curves(observations, quantity, role, pos_class="")
            if few:
                looks = site_styles(places)
                wanted = {"by": "site", "role": role, "pos_class": ""}
                _draw_with_errors(axes, observations, quantity, looks, "fisher", **wanted)
            else:
                draw_lines(axes, rows, "site", site_styles(places))
            axes.set_title(f"{kind.replace('_', ' ')}, {title}")
            _rho_axes(axes, observations, rows["step"])
            if line is not panels.grid[-1]:
                axes.set_xlabel("")
        outer_legend(line[1], title="2 standard errors\nof Fisher's z" if few else None)
    panels.set_ylabel("Pearson ρ(mean χ of a word,\nits frequency)")
    return panels.figure


def _rho_by_class(observations: pd.DataFrame, site: str) -> Figure:
    figure, axes = new_figure(7.5, 4.2)
    styles = {
        "open": ("blue", "-", "open classes"),
        "closed": ("vermilion", "-", "closed classes"),
        "open_matched": ("blue", ":", "open, matched in frequency"),
        "closed_matched": ("vermilion", ":", "closed, matched in frequency"),
        "": ("black", "--", "all words"),
    }
    looks = {name: {"color": COLOURS[c], "ls": ls, "label": label} for name, (c, ls, label) in styles.items()}
    looks = _sized(observations, looks)
    rows = _curves(observations, "rho_gradient", site=site)
    draw_lines(axes, rows, "pos_class", looks)
    whole = {name: looks[name] for name in ("open", "closed")}  # bands of five lines would hide each other
    _draw_with_errors(axes, observations, "rho_gradient", whole, "fisher", site=site)
    axes.set_title(f"ρ← of the gradient at {site}, by part of speech")
    axes.set_ylabel(_RHO)
    _rho_axes(axes, observations, rows["step"])
    outer_legend(axes, title="bands: 2 standard errors of Fisher's z")
    return figure


def _rho_by_sample(observations: pd.DataFrame, site: str) -> Figure:
    figure, axes = new_figure(7.5, 4.2)
    looks = {
        "": {"color": COLOURS["blue"], "label": "all words"},
        "no_top20": {"color": COLOURS["vermilion"], "label": "without the 20 most frequent"},
        "count100": {"color": COLOURS["green"], "label": "of at least 100 occurrences"},
        "count100_no_top20": {"color": COLOURS["black"], "label": "both"},
    }
    looks = _sized(observations, looks)
    rows = _draw_with_errors(axes, observations, "rho_gradient", looks, "fisher", site=site)
    axes.set_title(f"ρ← of the gradient at {site}, by sample of words")
    axes.set_ylabel(_RHO)
    _rho_axes(axes, observations, rows["step"])
    outer_legend(axes, title="bands: 2 standard errors of Fisher's z")
    return figure


def _types(observations: pd.DataFrame, site: str) -> Figure:
    """Draw χ by band of frequency over training, and by class and band at the end."""
    figure, (left, right) = new_figure(11, 4.2, ncols=2, sharey=True, width_ratios=(5, 4))
    rows = _curves(observations, "chi_gradient_types", site=site)
    there = set(rows["pos_class"])
    looks = shades([band for band in ("0-9", "10-99", "100-999", "1000+") if band in there])
    looks = _sized(observations, {band: {**look, "label": f"{band} times"} for band, look in looks.items()})
    _draw_with_errors(left, observations, "chi_gradient_types", looks, site=site)
    _references(left, observations, site)
    left.set_title(
        f"χ of the gradient at {site}: mean over target words by\ntraining occurrences; 2 standard errors"
    )
    left.set_ylabel("mean χ = ‖v‖₂ / ‖v‖₁")
    set_step_axis(left, rows["step"], rates=observations)
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
        right.errorbar(x, y, error, fmt="os"[shift > 0], ms=5, color=color, label=f"{pos_class} classes")
    _references(right, observations, site)
    right.set_xticks(np.arange(len(shown)), shown)
    right.set_xlabel("training occurrences")
    right.set_title(f"by class at equal frequency,\nstep {last['step'].max():,}")
    outer_legend(right, of=[left, right])
    return figure


def _l1_check(observations: pd.DataFrame, sites: list[str]) -> Figure:
    figure, axes = new_figure(7.5, 4.2)
    rows = _curves(observations, "rho_l1_gradient", pos_class="")
    ordered = _ordered(sites, list(rows["site"].unique()))
    if len(ordered) <= MOST_LINES:
        wanted = {"by": "site", "pos_class": ""}
        _draw_with_errors(axes, observations, "rho_l1_gradient", site_styles(ordered), "fisher", **wanted)
    else:
        draw_lines(axes, rows, "site", site_styles(ordered))
    axes.set_title("Is the gradient's ‖·‖₁ anti-correlated with the target's frequency?")
    axes.set_ylabel("Pearson ρ(mean ‖gradient‖₁ of a word,\nits frequency)")
    _rho_axes(axes, observations, list(rows["step"]))
    outer_legend(axes)
    return figure


def _frequencies(observations: pd.DataFrame) -> "pd.Series[float]":
    """Return the training frequency of each word, most frequent first."""
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
        rasterized=table.size > 5000,  # also in an SVG
    )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylabel("word frequency rank (most frequent at the bottom)")
    axes.set_xlabel("training step (optimizer updates), one column an observation")
    every = max(1, -(-table.shape[1] // 12))
    axes.set_xticks(np.arange(table.shape[1])[::every] + 0.5)
    axes.set_xticklabels([str(s) for s in table.columns[::every]], rotation=45, ha="right")
    axes.set_title(f"concentration χ of the gradient at {site}, by target word")
    bar = figure.colorbar(mesh, ax=axes, label="mean χ = ‖v‖₂ / ‖v‖₁\n(dotted: uniform and Gaussian vectors)")
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
    for pos_class, label in (
        ("", "rare, or of several classes"),
        ("open", "open class"),
        ("closed", "closed class"),
    ):
        one, color = select(rows, pos_class=pos_class), _CLASS_COLORS[pos_class]
        if len(one):
            label = f"{label} (n = {len(one):,})"
            axes.scatter(one["frequency"], one["value"], s=9, color=color, label=label, lw=0, alpha=0.8)
    _references(axes, observations, site)
    axes.set_xscale("log")
    axes.set_xlabel(f"occurrences in the {'training data' if frequency == 'train' else 'probe set'}")
    axes.set_ylabel("mean χ = ‖v‖₂ / ‖v‖₁")
    axes.set_title(f"concentration of the gradient at {site} by target word, step {last:,}")
    outer_legend(axes)
    frequent = pd.concat([select(rows, pos_class=c).nlargest(6, "frequency") for c in ("open", "closed")])
    frequent = frequent.sort_values("frequency", ascending=False, kind="stable")
    columns = (frequent[c] for c in ("frequency", "value", "word", "pos_class"))
    label_points(
        axes, [(float(x), float(y), str(w), _CLASS_COLORS[c]) for x, y, w, c in zip(*columns, strict=True)]
    )
    return figure

"""Figures of similarity: over steps, between pairs of steps, between layers."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import select

__all__ = ["similarity_figures"]

_LABELS = {
    "cca": "mean CCA correlation",
    "svcca": "SVCCA",
    "pwcca": "PWCCA",
    "linear_cka": "linear CKA",
    "debiased_linear_cka": "debiased linear CKA",
    "procrustes": "Procrustes similarity",
    "kernel_cka": "kernel CKA (rbf)",
    "rsa": "RSA (Spearman)",
    "attention_jensen_shannon": "Jensen–Shannon divergence (nats)",
    "attention_kullback_leibler": "Kullback–Leibler divergence (nats)",
    "attention_head_jensen_shannon": "JS divergence of heads (bits)",
    "attention_matched_jensen_shannon": "JS divergence of matched heads (bits)",
    "attention_uniform_jensen_shannon": "JS divergence from equal weights (bits)",
}
_FLOORS = {"": "-", "shuffled_": ":", "untrained_": "-."}
"""Prefixes of names of references: for shuffled labels and for untrained models."""
_ONE_SIDED = ("pwcca", "attention_kullback_leibler")  # rows: this model, or the later step
_FIXED = re.compile(r"svcca_(\d+)")
_PAST = r" ?step (\d+)$"
_LINE = ["step", "site", "reference", "reference_site"]
_ENDS = ("low", "high", "corrected", "error")


@fig.in_style
def similarity_figures(
    observations: pd.DataFrame, sites: Sequence[str], references: Mapping[str, Any]
) -> dict[str, Figure]:
    """Draw curves for each measure; heat maps of steps for ``Earlier``, layer matrices for ``Itself``.

    Args:
        observations: stored observations of ``Similarity``.
        sites: display names in the order of the model.
        references: settings of each reference by name.
    """
    classes = {n: s if isinstance(s, str) else str(s["class"]) for n, s in references.items()}
    figures: dict[str, Figure] = {}
    if "head" in observations:
        observations = observations[observations["head"].isna()]
    for measure in [q for q in observations["quantity"].unique() if _is_measure(q)]:
        rows = select(observations, quantity=measure)
        kind = rows["reference"].str.replace(_PAST, "", regex=True).map(classes)
        past, itself = rows[kind.eq("Earlier")], rows[kind.eq("Itself")]
        others = rows[~kind.isin(["Earlier", "Itself"])]
        if len(others):
            figures[measure] = _curves(observations, others, measure, sites)
        if len(itself):
            figures[f"{measure}_between_layers"] = _between_layers(observations, itself, measure, sites)
            if len(itself["site"].unique()) > 1:
                figures[f"{measure}_layer_matrix"] = _layer_matrix(itself, measure, sites)
        if len(past):
            figures[f"{measure}_between_steps"] = _between_steps(past, measure)
    ranks = select(observations, quantity=["rank", "reference_rank"])
    ranks = ranks[ranks["reference"].str.extract(_PAST, expand=False).isna()]
    if len(ranks):
        figures["rank"] = _ranks(observations, ranks, sites)
    return figures


def _is_measure(quantity: str) -> bool:
    """Return whether a quantity has its own figures; interval ends and errors are drawn with it."""
    return quantity in _LABELS or _FIXED.fullmatch(quantity) is not None


def _label(measure: str) -> str:
    """Return the axis label of a measure."""
    fixed = _FIXED.fullmatch(measure)
    return f"SVCCA, {fixed[1]} directions" if fixed else _LABELS[measure]


def _ordered(there: Sequence[str], sites: Sequence[str]) -> list[str]:
    """Return sites in the order of the model, and runs of one module (``name@i``) in their order."""
    names = list(sites)

    def place(site: str) -> tuple[int, int]:
        base, _, run = site.partition("@")
        return (names.index(base) if base in names else len(names), int(run or 0))

    return sorted(there, key=place)


def _curves(observations: pd.DataFrame, rows: pd.DataFrame, measure: str, sites: Sequence[str]) -> Figure:
    """Draw a panel for each own site, a line for each reference; baselines of shuffled labels dotted, others dashed."""
    places = _ordered(list(rows["site"].unique()), sites)
    panels = fig.new_panels(len(places), 4.2, 3.4, margin=(1.6, 0), sharey=True)
    there = list(dict.fromkeys(rows["reference"]))
    bases = {name: _base(name, there) for name in there}
    names = list(dict.fromkeys(base for base, _ in bases.values()))
    around = _around(observations, measure)
    for ax, site in zip(panels, places, strict=True):
        here = select(rows, site=site)
        for reference, (base, dashes) in sorted(bases.items(), key=lambda item: names.index(item[1][0])):
            line = select(here, reference=reference)
            label, several = reference.replace("_", " "), len(line["reference_site"].unique()) > 1
            for their, one in line.groupby("reference_site", sort=False):
                look = {"label": f"{label}, {their}" if several else label, "ls": dashes}
                _line(ax, around, one, {**fig.line_style(names.index(base)), **look})
        theirs = [str(t) for t in here["reference_site"].unique()]
        of = ", ".join(theirs) if len(theirs) <= 2 else f"{len(theirs)} sites"
        ax.set_title(site if theirs == [site] else f"{site} – {of}")
        fig.set_step_axis(ax, here["step"], rates=observations)
    panels.set_ylabel(f"{_label(measure)}\nwith the reference")
    panels.legend(of_all=True)
    return panels.figure


def _base(name: str, there: Sequence[str]) -> tuple[str, str]:
    """Return the reference of which a name is the baseline, or the name itself, and its line style."""
    for prefix, dashes in _FLOORS.items():
        if prefix and name.startswith(prefix):
            base = name.removeprefix(prefix)
            return (base if base in there else name), dashes
    return name, _FLOORS[""]


def _around(observations: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return interval ends and errors of a measure as columns, NaN if there are none: low, high, corrected, error."""
    quantities = {f"{measure}_{end}": end for end in _ENDS}
    rows = select(observations, quantity=list(quantities))
    rows = rows.assign(quantity=rows["quantity"].astype(str).map(quantities))
    around = rows[_LINE].drop_duplicates()
    for end in _ENDS:
        these = select(rows, quantity=end)[[*_LINE, "value"]].rename(columns={"value": end})
        around = around.merge(these, on=_LINE, how="left")
    return around


def _line(ax: Axes, around: pd.DataFrame, line: pd.DataFrame, look: Mapping[str, Any]) -> None:
    """Draw a line over steps, with its bootstrap interval or two jackknife standard errors if there are any."""
    line = line.sort_values("step")
    ax.plot(line["step"], line["value"], marker=".", **look)
    found = line[_LINE].merge(around, on=_LINE, how="left")
    low, high, corrected, error = (found[end].to_numpy() for end in _ENDS)
    if np.isfinite(error).any():
        low, high = fig.error_band(np.clip(corrected, -1, 1), error, "fisher")
    if np.isfinite([low, high]).any():
        fig.draw_band(ax, line["step"], low, high, color=look["color"], alpha=0.15)


def _ranks(observations: pd.DataFrame, rows: pd.DataFrame, sites: Sequence[str]) -> Figure:
    """Draw a panel for each own site: its kept directions, and those of each reference."""
    places = _ordered(list(rows["site"].unique()), sites)
    panels = fig.new_panels(len(places), 4.2, 3.4, margin=(1.6, 0), sharey=True)
    names = list(dict.fromkeys(rows["reference"]))
    for ax, site in zip(panels, places, strict=True):
        here = select(rows, site=site)
        own = select(here, quantity="rank").drop_duplicates("step").sort_values("step")
        ax.plot(own["step"], own["value"], ".-", color="0.0", lw=1.8, label="this model")
        for i, name in enumerate(names):
            if name == "itself":  # the ranks of its other sites are in their own panels
                continue
            line = select(here, quantity="reference_rank", reference=name)
            for their, one in line.groupby("reference_site", sort=False):
                one = one.sort_values("step")
                label = name.replace("_", " ") + ("" if their == site else f", {their}")
                look = {**fig.line_style(i), "ls": _base(name, names)[1], "lw": 1.1}
                ax.plot(one["step"], one["value"], marker=".", label=label, **look)
        ax.set_title(site)
        fig.set_step_axis(ax, here["step"], rates=observations)
    panels.set_ylabel("directions of 99 % of variance")
    panels.legend(of_all=True)
    return panels.figure


def _between_layers(
    observations: pd.DataFrame, rows: pd.DataFrame, measure: str, sites: Sequence[str]
) -> Figure:
    """Draw a line for each pair of layers; for many pairs, the means by distance."""
    figure, ax = fig.new_figure(7.5, 3.8)
    around = _around(observations, measure)
    pairs = list(rows.groupby(["site", "reference_site"], sort=False))
    ax.set_title("layers of the model with each other")
    if len(pairs) <= fig.MOST_LINES:
        for i, ((site, their), line) in enumerate(pairs):
            _line(ax, around, line, {"label": f"{site} – {their}", **fig.line_style(i)})
    else:
        names = _ordered(list(dict.fromkeys([*rows["site"], *rows["reference_site"]])), sites)
        places = {name: i for i, name in enumerate(names)}
        apart = (rows["site"].map(places).astype(int) - rows["reference_site"].map(places).astype(int)).abs()
        means = rows.assign(apart=apart).groupby(["apart", "step"])["value"].mean().reset_index()
        fig.draw_lines(ax, means, "apart", fig.shades(sorted(set(apart))))
        ax.set_title(
            f"layers of the model with each other: means of the {len(pairs)} pairs by their distance"
        )
    ax.set_ylabel(_label(measure))
    fig.set_step_axis(ax, rows["step"], rates=observations)
    fig.outer_legend(ax, title=None if len(pairs) <= fig.MOST_LINES else "layers apart")
    return figure


def _layer_matrix(rows: pd.DataFrame, measure: str, sites: Sequence[str]) -> Figure:
    """Draw every layer against every layer, at up to four steps from the first to the last."""
    shown = fig.spread_out(sorted(rows["step"].unique()), 4)
    names = _ordered(list(dict.fromkeys([*rows["site"], *rows["reference_site"]])), sites)
    panels = fig.new_panels(len(shown), 2.6, 3.4, most=len(shown), margin=(1.2, 0))
    for i, (ax, step) in enumerate(zip(panels, shown, strict=True)):
        here = select(rows, step=step)
        matrix = _matrix(names, here["site"], here["reference_site"], here["value"], measure)
        image = _image(ax, matrix, measure)
        ax.set_title(f"step {step}", loc="center")
        _name_cells(ax, names, 13)
        if i:
            ax.set_yticks(ax.get_yticks(), [])
        if len(names) <= 6:
            fig.cell_values(ax, matrix, lambda value: value >= 0.6, fontsize=8)
    _colour_bar(panels, image, measure)
    return panels.figure


def _between_steps(rows: pd.DataFrame, measure: str) -> Figure:
    """Draw every checkpoint against every checkpoint, a panel for each site."""
    pairs = list(dict.fromkeys(zip(rows["site"], rows["reference_site"], strict=True)))
    panels = fig.new_panels(len(pairs), 3.9, 3.8, most=len(pairs), margin=(1.2, 0))
    for ax, (site, their) in zip(panels, pairs, strict=True):
        here = select(rows, site=site, reference_site=their)
        before = here["reference"].str.extract(_PAST, expand=False).astype(int)
        steps = sorted({*before, *here["step"]})
        matrix = _matrix(steps, here["step"], before, here["value"], measure, itself=site == their)
        image = _image(ax, matrix, measure)
        _name_cells(ax, [f"{step:,}" for step in steps], 8)
        ax.set_title(site if site == their else f"{site} with {their}")
        ax.set_xlabel("training step (optimizer updates)")
    panels.set_ylabel("training step (optimizer updates)")
    _colour_bar(panels, image, measure)
    return panels.figure


def _matrix(
    names: Sequence[Any],
    ours: Iterable[Any],
    theirs: Iterable[Any],
    values: Iterable[float],
    measure: str,
    *,
    itself: bool = True,
) -> Any:
    """Return the matrix of all pairs; ``itself`` fills the diagonal with the value of a representation with itself."""
    place = {name: i for i, name in enumerate(names)}
    matrix = np.full((len(names), len(names)), np.nan)
    if itself:
        np.fill_diagonal(matrix, 0.0 if measure.startswith("attention") else 1.0)
    for our, their, value in zip(ours, theirs, values, strict=True):
        matrix[place[our], place[their]] = value
        if measure not in _ONE_SIDED:
            matrix[place[their], place[our]] = value
    return matrix


def _image(ax: Axes, matrix: Any, measure: str) -> Any:
    least, top = np.nanmin(matrix, initial=0.0), 1.0
    if measure.startswith("attention"):
        limits = {
            "attention_jensen_shannon": np.log(2),
            "attention_kullback_leibler": np.nanmax(matrix, initial=1e-12),
        }
        top = float(limits.get(measure, 1.0))
    return fig.show_image(ax, matrix, vmin=least, vmax=top, cmap="viridis")


def _name_cells(ax: Axes, names: Sequence[str], most: int) -> None:
    """Add names of rows and columns, of every n-th if there are more than fit."""
    ticks = range(0, len(names), -(-len(names) // most))
    ax.set_xticks(ticks, [names[i] for i in ticks], rotation=60, ha="right", fontsize=8)
    ax.set_yticks(ticks, [names[i] for i in ticks], fontsize=8)


def _colour_bar(panels: fig.Panels, image: Any, measure: str) -> None:
    panels.figure.colorbar(image, ax=panels.grid, label=_label(measure), shrink=0.9)

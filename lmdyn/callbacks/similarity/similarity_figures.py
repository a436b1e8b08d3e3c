"""Figures of similarity: over steps, between pairs of steps, between layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmdyn.callbacks.observing.figures import (
    line_style,
    mark_rate_drops,
    new_figure,
    outer_legend,
    set_step_axis,
)

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
}
_ONE_SIDED = ("pwcca", "attention_kullback_leibler")  # rows: this model, or the later step
_PAST = r" ?step (\d+)$"


def similarity_figures(
    observations: pd.DataFrame, sites: Sequence[str], references: Mapping[str, Any]
) -> dict[str, Figure]:
    """Curves for each measure; heat maps of steps for ``Earlier``, layer matrices for ``Itself``.

    Args:
        observations: what ``Similarity`` has in its store.
        sites: display names in the order of the model.
        references: name to the settings of each reference.
    """
    classes = {n: s if isinstance(s, str) else str(s["class"]) for n, s in references.items()}
    figures: dict[str, Figure] = {}
    for measure in [q for q in observations["quantity"].unique() if q in _LABELS]:
        rows = observations[observations["quantity"].eq(measure)]
        kind = rows["reference"].str.replace(_PAST, "", regex=True).map(classes)
        past, itself = rows[kind.eq("Earlier")], rows[kind.eq("Itself")]
        others = rows[~kind.isin(["Earlier", "Itself"])]
        if len(others):
            figures[measure] = _curves(observations, others, measure, sites)
        if len(itself):
            figures[f"{measure}_between_layers"] = _between_layers(observations, itself, measure)
            if len(itself["site"].unique()) > 1:
                figures[f"{measure}_layer_matrix"] = _layer_matrix(itself, measure, sites)
        if len(past):
            figures[f"{measure}_between_steps"] = _between_steps(past, measure)
    return figures


def _ordered(there: Sequence[str], sites: Sequence[str]) -> list[str]:
    """Sites in the order of the model, runs of one module (``name@i``) in theirs."""
    names = list(sites)

    def place(site: str) -> tuple[int, int]:
        base, _, run = site.partition("@")
        return (names.index(base) if base in names else len(names), int(run or 0))

    return sorted(there, key=place)


def _curves(observations: pd.DataFrame, rows: pd.DataFrame, measure: str, sites: Sequence[str]) -> Figure:
    """A panel for each own site, a line for each reference, its shuffled floor dotted."""
    panels = _ordered(list(rows["site"].unique()), sites)
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = new_figure(
        4.2 * columns + 1.6, 3.4 * lines, nrows=lines, ncols=columns, sharey=True, squeeze=False
    )
    names = list(dict.fromkeys(n.removeprefix("shuffled_") for n in rows["reference"]))
    for ax, site in zip(axes.flat, panels, strict=False):
        here = rows[rows["site"].eq(site)]
        for name in names:
            for reference, style in ((name, "-"), (f"shuffled_{name}", ":")):
                line = here[here["reference"].eq(reference)].sort_values("step")
                for their, one in line.groupby("reference_site", sort=False):
                    label = reference.replace("_", " ")
                    several = len(line["reference_site"].unique()) > 1
                    color = line_style(names.index(name))["color"]
                    ax.plot(
                        one["step"], one["value"], style, color=color, marker=".", ms=3.5, lw=1.3,
                        label=f"{label}, {their}" if several else label,
                    )  # fmt: skip
                    _band(ax, observations, measure, one, color)
        theirs = [str(t) for t in here["reference_site"].unique()]
        ax.set_title(f"{site} with {', '.join(theirs)} of the reference", fontsize=10, loc="left")
        _finish(ax, observations, list(here["step"]))
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax in axes[:, 0]:
        ax.set_ylabel(_LABELS[measure])
    outer_legend(axes[0, columns - 1], fontsize=7)
    return figure


def _band(ax: Axes, observations: pd.DataFrame, measure: str, line: pd.DataFrame, color: Any) -> None:
    """The bootstrap interval of a line, where there is one."""
    key = ["step", "site", "reference", "reference_site"]
    bounds = []
    for end in ("low", "high"):
        found = observations[observations["quantity"].eq(f"{measure}_{end}")]
        bounds.append(line[key].merge(found, on=key, how="left")["value"].to_numpy())
    if np.isfinite(bounds).any():
        ax.fill_between(line["step"].to_numpy(), bounds[0], bounds[1], color=color, alpha=0.15, lw=0)


def _between_layers(observations: pd.DataFrame, rows: pd.DataFrame, measure: str) -> Figure:
    figure, ax = new_figure(7.5, 3.8)
    for i, ((site, their), line) in enumerate(rows.groupby(["site", "reference_site"], sort=False)):
        line = line.sort_values("step")
        ax.plot(
            line["step"], line["value"], marker=".", ms=4, lw=1.3, label=f"{site} – {their}", **line_style(i)
        )
        _band(ax, observations, measure, line, line_style(i)["color"])
    ax.set_title("layers of the model with each other", fontsize=10, loc="left")
    ax.set_ylabel(_LABELS[measure])
    _finish(ax, observations, list(rows["step"]))
    outer_legend(ax, fontsize=7)
    return figure


def _layer_matrix(rows: pd.DataFrame, measure: str, sites: Sequence[str]) -> Figure:
    """Every layer against every layer, at up to four steps from the first to the last."""
    steps = sorted(rows["step"].unique())
    shown = [steps[i] for i in sorted({round(k) for k in np.linspace(0, len(steps) - 1, 4)})]
    names = _ordered(list(dict.fromkeys([*rows["site"], *rows["reference_site"]])), sites)
    figure, axes = new_figure(2.6 * len(shown) + 1.2, 3.4, ncols=len(shown), squeeze=False)
    for ax, step in zip(axes[0], shown, strict=True):
        matrix = np.full((len(names), len(names)), np.nan)
        np.fill_diagonal(matrix, _equal(measure))
        here = rows[rows["step"].eq(step)]
        for site, their, value in zip(here["site"], here["reference_site"], here["value"], strict=True):
            i, j = names.index(site), names.index(their)
            matrix[i, j] = value
            if measure not in _ONE_SIDED:
                matrix[j, i] = value
        image = _image(ax, matrix, measure)
        ax.set_title(f"step {step}", fontsize=9)
        ticks = range(0, len(names), -(-len(names) // 13))
        ax.set_xticks(ticks, [names[i] for i in ticks], rotation=60, ha="right", fontsize=7)
        ax.set_yticks(ticks, [names[i] for i in ticks] if ax is axes[0, 0] else [], fontsize=7)
        if len(names) <= 6:
            for (i, j), value in np.ndenumerate(matrix):
                if value == value:
                    ax.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7,
                            color="w" if value < 0.6 else "k")  # fmt: skip
    figure.colorbar(image, ax=axes, label=_LABELS[measure], shrink=0.9)
    return figure


def _between_steps(rows: pd.DataFrame, measure: str) -> Figure:
    """Every checkpoint against every checkpoint, a panel for each site."""
    panels = list(dict.fromkeys(zip(rows["site"], rows["reference_site"], strict=True)))
    figure, axes = new_figure(3.9 * len(panels) + 1.2, 3.8, ncols=len(panels), squeeze=False)
    for ax, (site, their) in zip(axes[0], panels, strict=True):
        here = rows[rows["site"].eq(site) & rows["reference_site"].eq(their)]
        before = here["reference"].str.extract(_PAST, expand=False).astype(int)
        steps = sorted({*before, *here["step"]})
        place = {step: i for i, step in enumerate(steps)}
        matrix = np.full((len(steps), len(steps)), np.nan)
        if site == their:
            np.fill_diagonal(matrix, _equal(measure))
        for step, earlier, value in zip(here["step"], before, here["value"], strict=True):
            matrix[place[step], place[earlier]] = value
            if measure not in _ONE_SIDED:
                matrix[place[earlier], place[step]] = value
        image = _image(ax, matrix, measure)
        ticks = range(0, len(steps), -(-len(steps) // 8))
        ax.set_xticks(ticks, [f"{steps[i]:,}" for i in ticks], rotation=60, ha="right", fontsize=7)
        ax.set_yticks(ticks, [f"{steps[i]:,}" for i in ticks], fontsize=7)
        ax.set_title(site if site == their else f"{site} with {their}", fontsize=10, loc="left")
        ax.set_xlabel("training step (optimizer updates)")
    axes[0, 0].set_ylabel("training step (optimizer updates)")
    figure.colorbar(image, ax=axes, label=_LABELS[measure], shrink=0.9)
    return figure


def _image(ax: Axes, matrix: Any, measure: str) -> Any:
    least, top = np.nanmin(matrix, initial=0.0), 1.0
    if measure.startswith("attention"):
        top = np.log(2) if measure.endswith("jensen_shannon") else float(np.nanmax(matrix, initial=1e-12))
    return ax.imshow(matrix, vmin=least, vmax=top, cmap="viridis", interpolation="nearest")


def _equal(measure: str) -> float:
    """The value of a representation with itself."""
    return 0.0 if measure.startswith("attention") else 1.0


def _finish(ax: Axes, observations: pd.DataFrame, steps: list[int]) -> None:
    mark_rate_drops(ax, observations)
    set_step_axis(ax, steps)

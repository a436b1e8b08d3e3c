"""Heat maps of similarity: each layer with each other, and each step with each earlier one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import Quantity, declared, select, wide

__all__ = ["over_steps", "similarity_maps"]

_STEP = r" ?step (\d+)$"  # ends the name of an earlier checkpoint
_ONE_SIDED = ("pwcca", "attention_kullback_leibler")  # rows: this model, or the later step
_MOST_NAMES = 10  # of cells along an axis
_STEPS = 4


def over_steps(observations: pd.DataFrame, references: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows to draw as lines: not of single heads, of earlier checkpoints, or of many pairs of layers."""
    kinds = _kinds(observations, references)
    pairs = observations.loc[kinds.eq("Itself"), ["site", "reference_site"]].drop_duplicates()
    drawn = ~kinds.isin(["Earlier", "Itself"] if len(pairs) > fig.MOST_LINES else ["Earlier"])
    return observations[drawn & observations["head"].isna() if "head" in observations else drawn]


def _kinds(observations: pd.DataFrame, references: Mapping[str, Any]) -> "pd.Series[str]":
    """Return the class of the reference of each row."""
    classes = {n: s if isinstance(s, str) else str(s["class"]) for n, s in references.items()}
    return observations["reference"].str.replace(_STEP, "", regex=True).map(classes)


@fig.in_style
def similarity_maps(
    observations: pd.DataFrame, references: Mapping[str, Any], recorded: Sequence[Quantity]
) -> dict[str, Figure]:
    """Draw ``<measure>_layer_matrix`` at up to four steps, and ``<measure>_between_steps`` for each pair of sites.

    Args:
        observations: stored observations of ``Similarity``.
        references: settings of each reference by name.
        recorded: quantities, of which those with a panel are measures.
    """
    if "head" in observations:
        observations = observations[observations["head"].isna()]
    observations = observations.assign(kind=_kinds(observations, references))
    figures = {}
    for measure in observations["quantity"].unique():
        known = declared(recorded, measure)
        if known is None or known.panel in ("", "rank"):
            continue
        rows = observations[observations["quantity"].eq(measure)]
        layers = select(rows, kind="Itself")
        past = select(rows, kind="Earlier")
        names: list[Any] = list(dict.fromkeys([*layers["site"], *layers["reference_site"]]))
        if len(names) > 2:
            steps = fig.spread_out(sorted(layers["step"].unique()), _STEPS)
            at = {f"step {step:,}": select(layers, step=step) for step in steps}
            maps = {k: _square(v, "site", "reference_site", names, measure) for k, v in at.items()}
            figures[f"{measure}_layer_matrix"] = _draw(maps, measure, "layer")
        if len(past):
            past = past.assign(before=past["reference"].str.extract(_STEP, expand=False).astype(int))
            names = sorted({*past["before"], *past["step"]})
            pairs = past.groupby(["site", "reference_site"], observed=True, sort=False)
            maps = {" – ".join(map(str, k)): _square(v, "step", "before", names, measure) for k, v in pairs}
            figures[f"{measure}_between_steps"] = _draw(maps, measure, "training step (optimizer updates)")
    return figures


def _square(rows: pd.DataFrame, ours: str, theirs: str, names: list[Any], measure: str) -> pd.DataFrame:
    table = wide(rows, theirs, ours).reindex(index=names, columns=names)
    return table if measure in _ONE_SIDED else table.fillna(table.T)


def _draw(maps: Mapping[str, pd.DataFrame], measure: str, what: str) -> Figure:
    panels = fig.new_panels(len(maps), 3.4, 3.4, most=_STEPS, margin=(1.2, 0))
    values = np.stack([table.to_numpy(dtype=float) for table in maps.values()])
    low = np.nanmin(values, initial=0.0)
    high = np.nanmax(values, initial=1e-12)
    for ax, (title, table), of in zip(panels, maps.items(), values, strict=True):
        image = fig.show_image(ax, of, cmap="viridis", vmin=low, vmax=high)
        ticks = range(0, len(table), -(-len(table) // _MOST_NAMES))
        names = table.index[ticks]
        ax.set_xticks(ticks, names, rotation=60, ha="right", fontsize=8)
        ax.set_yticks(ticks, names, fontsize=8)
        ax.set(title=title, xlabel=what)
    panels.set_ylabel(what)
    panels.figure.colorbar(image, ax=panels.grid, label=measure.replace("_", " "), shrink=0.9)
    return panels.figure

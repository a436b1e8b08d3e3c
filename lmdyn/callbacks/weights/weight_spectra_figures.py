"""Figures of weight matrices: ranks, norms and distances by kind of matrix and layer over steps; ranks of heads."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import last_step, select

__all__ = ["weight_spectra_figures"]

_OVER_STEPS = {
    "effective_rank": "effective rank",
    "stable_rank": "stable rank",
    "spectral_norm": "spectral norm",
}
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)|(?<=_l)\d+|(?<=[a-z])\d+(?=\.)")
_MOST = 12  # panels of a figure
_PRODUCTS = {"qk": "QK", "ov": "OV"}


@fig.in_style
def weight_spectra_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw all figures of the finite observations; none if there are none."""
    finite = observations[np.isfinite(observations["value"])]
    whole = finite[finite["head"].isna() & finite["k"].isna() & finite["part"].fillna("").eq("")]
    figures: dict[str, Figure] = {}
    for quantity, label in _OVER_STEPS.items():
        figures |= _by_kind(select(whole, quantity=quantity, matrix="weight"), quantity, label)
    figures |= _by_kind(
        select(whole, quantity="effective_rank", matrix="gradient"), "gradient_effective_rank",
        "effective rank of the gradient",
    )  # fmt: skip
    distances = select(whole, quantity="relative_distance")
    for reference in distances["reference"].dropna().unique():
        rows = select(distances, reference=reference)
        figures |= _by_kind(rows, f"distance_{reference}", f"relative distance from {reference}")
    heads = select(last_step(observations), quantity="effective_rank", matrix=list(_PRODUCTS))
    if len(heads):
        figures["heads"] = _heads(heads)
    tables = select(whole, quantity=["output_cosine", "output_cka"])
    if len(tables) and tables["value"].lt(1).any():  # tied tables are equal
        figures["alignment"] = _alignment(tables)
    return figures


def kind_and_layer(site: str) -> tuple[str, int]:
    """Return the path with ``*`` in place of numbers, and its first number, −1 without.

    Example:
        >>> kind_and_layer("h.3.attn.c_proj"), kind_and_layer("lstm.weight_hh_l1"), kind_and_layer("wte")
        (('h.*.attn.c_proj', 3), ('lstm.weight_hh_l*', 1), ('wte', -1))
    """
    found = _NUMBER.search(site)
    return _NUMBER.sub("*", site), int(found[0]) if found else -1


def _by_kind(rows: pd.DataFrame, name: str, label: str) -> dict[str, Figure]:
    """Draw a panel for each kind of matrix and a line for each layer; single matrices share a panel."""
    if rows.empty:
        return {}
    sites = {site: kind_and_layer(str(site)) for site in rows["site"].unique()}
    rows = rows.assign(
        kind=rows["site"].map(lambda s: sites[s][0]), layer=rows["site"].map(lambda s: sites[s][1])
    )
    means = rows.groupby(["kind", "layer", "step"], observed=True, sort=False)["value"].mean().reset_index()
    kinds = list(dict.fromkeys(kind for kind, _ in sites.values()))
    layers = means.groupby("kind", observed=True)["layer"].nunique()
    single = [kind for kind in kinds if layers[kind] == 1]
    panels = [[kind] for kind in kinds if layers[kind] > 1]
    panels = [*fig.portions(single, 4), *panels] if single else panels
    figures = {}
    for number, part in enumerate(fig.portions(range(len(panels)), _MOST), start=1):
        shown = [panels[i] for i in part]
        figures[name if number == 1 else f"{name}_{number}"] = _panels(means, shown, label)
    return figures


def _panels(means: pd.DataFrame, shown: Sequence[Sequence[str]], label: str) -> Figure:
    numbers = sorted({int(n) for n in means["layer"].unique() if n >= 0})
    looks = fig.site_styles(numbers)
    panels = fig.new_panels(len(shown), 3.6, 2.7, margin=(1.3, 0.3))
    for ax, kinds in zip(panels, shown, strict=True):
        rows = means[means["kind"].isin(kinds)]
        if len(kinds) == 1 and rows["layer"].max() > rows["layer"].min():
            fig.draw_lines(ax, rows, "layer", looks)
            ax.set_title(_short(kinds[0]))
        else:
            fig.draw_lines(ax, rows, "kind", fig.line_styles(kinds), label=_short)
            ax.set_title("single matrices")
            ax.legend(fontsize=7, frameon=True, framealpha=0.7)
        fig.set_step_axis(ax, means["step"])
    panels.set_ylabel(label)
    of_layers = [ax for ax, kinds in zip(panels, shown, strict=True) if ax.get_legend() is None]
    if of_layers:
        fig.outer_legend(panels.grid[0, -1], of=of_layers, title="number *")
    return panels.figure


def _short(kind: str, most: int = 34) -> str:
    """Return the end of a long path."""
    parts = kind.split(".")
    while len(".".join(parts)) > most and len(parts) > 1:
        parts = parts[1:]
    name = ".".join(parts)
    return name if name == kind else f"…{name}"


def _heads(last: pd.DataFrame) -> Figure:
    """Draw the effective rank of the products of all heads at one step."""
    sites = list(dict.fromkeys(last["site"]))
    count = int(last["head"].max()) + 1
    panels = fig.new_panels(2, 2.0 + 0.22 * count, 1.0 + 0.22 * len(sites), margin=(1, 0.5), sharey=True)
    for ax, (product, title) in zip(panels, _PRODUCTS.items(), strict=True):
        fig.show_heads(ax, select(last, matrix=product), sites, name=_short)
        ax.set_title(f"effective rank of {title}")
    panels.figure.suptitle(f"all heads at step {int(last['step'].iloc[0]):,}")
    return panels.figure


def _alignment(rows: pd.DataFrame) -> Figure:
    figure, ax = fig.new_figure()
    labels = {"output_cosine": "mean cosine of a token's vectors", "output_cka": "linear CKA of the tables"}
    fig.draw_lines(ax, rows, "quantity", fig.line_styles(labels), label=labels.__getitem__)
    ax.set_ylabel("embedding and output layer")
    ax.legend()
    fig.set_step_axis(ax, rows["step"])
    return figure

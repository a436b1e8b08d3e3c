"""Figures of ``Geometry``: ranks, intrinsic dimensions, outliers, units, and attention to the first token."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmdyn.callbacks.geometry.geometry_quantities import PARTS
from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import last_step, select

__all__ = ["geometry_figures"]

_RANKS = {
    "rankme": "RankMe (singular values,\nuncentred)",
    "rankme_covariance": "RankMe (eigenvalues of the\ncovariance)",
    "participation_ratio": "participation ratio\n(Σλ)²/Σλ²",
    "alpha": "exponent α of λᵢ ~ i^−α",
}
_OUTLIERS = {
    "anisotropy": "mean cosine of pairs\nof vectors",
    "token_kurtosis": "excess kurtosis over the\ncomponents of a vector",
    "unit_kurtosis": "excess kurtosis of a unit\nover vectors",
    "largest_to_median": "largest over median\nmagnitude",
}
_UNITS = {"dead_units": "units above 0 for no token", "always_on_units": "units above 0 for all tokens"}
_LABELS = {
    "dead_units": "share of units",
    "always_on_units": "share of units",
    "intrinsic_dimension": "intrinsic dimension",
}
_SIZES = ("all distinct vectors", "a half", "a quarter")
_SETS = {"all": "all tokens", "last": "last tokens of sequences"}


@fig.in_style
def geometry_figures(observations: pd.DataFrame, sites: Sequence[str]) -> dict[str, Figure]:
    """Draw all figures of the finite observations, none if there are none."""
    finite = observations[np.isfinite(observations["value"])]
    figures: dict[str, Figure] = {}
    for over, name in _SETS.items():
        rows = select(finite, over=over)
        end = "" if over == "all" else f"_{over}"
        for key, titles in (("ranks", _RANKS), ("outliers", _OUTLIERS)):
            if (figure := _panels(rows, titles, sites, name)) is not None:
                figures[f"{key}{end}"] = figure
        dimensions = {q: f"{size}" for q, size in zip(PARTS, _SIZES, strict=True)}
        if (figure := _panels(rows, dimensions, sites, f"TwoNN, {name}", sharey=True)) is not None:
            figures[f"dimension{end}"] = figure
    if (figure := _panels(finite, _UNITS, [], "all tokens")) is not None:
        figures["units"] = figure
    if finite["quantity"].eq("first_token_attention").any():
        figures["first_token"] = _first_token(finite)
    return figures


def _ordered(sites: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return the sites of the table in the order of the model; ``name@i`` follows ``name``."""
    first = [name for site in sites for name in there if name.split("@")[0] == site]
    return first + [name for name in there if name not in first]


def _panels(
    rows: pd.DataFrame, titles: Mapping[str, str], sites: Sequence[str], legend: str, *, sharey: bool = False
) -> Figure | None:
    """Draw a panel for each quantity that occurs, with a line for each site."""
    noise = select(rows, quantity="rankme_white_noise").sort_values("step")
    noise = noise.assign(value=noise["value"].round(1)).drop_duplicates(
        ["step", "value"]
    )  # a line for each width
    rows = select(rows, quantity=list(titles))
    there = [name for name in titles if rows["quantity"].eq(name).any()]
    if not there:
        return None
    looks = fig.site_styles(_ordered(sites, list(rows["site"].unique())))
    most = 2 if len(there) in (2, 4) else 3
    panels = fig.new_panels(len(there), 3.6, 2.7, most=most, margin=(1.5, 0), sharey=sharey)
    for ax, name in zip(panels, there, strict=True):
        of = select(rows, quantity=name)
        fig.draw_lines(ax, of, "site", looks, label=fig.site_label)
        if name == "rankme":
            for i, (_, line) in enumerate(noise.groupby("site", observed=True)):
                ax.plot(
                    line["step"],
                    line["value"],
                    color="0.4",
                    ls=":",
                    label="Gaussian vectors" if not i else None,
                )
        ax.set_title(titles[name])
        _scale(ax, name, of)
        fig.set_step_axis(ax, rows["step"], rates=rows)
    if label := _LABELS.get(there[0]):
        panels.set_ylabel(label)
    panels.legend(of_all=True, title=legend)
    return panels.figure


def _scale(ax: Axes, name: str, rows: pd.DataFrame) -> None:
    if name == "largest_to_median" or (name.endswith("kurtosis") and rows["value"].max() > 100):
        ax.set_yscale("log" if rows["value"].min() > 0 else "symlog")
    elif name in ("anisotropy", "token_kurtosis", "unit_kurtosis"):
        fig.zero_line(ax)
    else:
        fig.from_zero(ax)


def _first_token(observations: pd.DataFrame) -> Figure:
    """Draw the mean over heads by layer over steps, with that of equal weights, and all heads at the last step."""
    rows = select(observations, quantity="first_token_attention")
    sites = list(rows["site"].unique())
    heads = int(rows["head"].max()) + 1
    figure, (left, right) = fig.new_figure(
        8.6 + 0.15 * heads, max(3.2, 1.6 + 0.22 * len(sites)), ncols=2, width_ratios=(5, 2 + 0.25 * heads)
    )
    means = rows.groupby(["site", "step"], observed=True)["value"].mean().reset_index()
    fig.draw_lines(left, means, "site", fig.site_styles(sites), label=fig.site_label)
    equal = select(observations, quantity="first_token_equal").groupby("step")["value"].mean()
    left.plot(
        equal.index, equal.to_numpy(), color="0.2", ls=":", label="equal weights on\nall visible tokens"
    )
    left.set_title("weight on the first token,\nmean over heads")
    fig.from_zero(left)
    fig.set_step_axis(left, rows["step"])
    fig.outer_legend(left)
    last = last_step(rows)
    fig.show_heads(right, last, sites, label="weight on the first token", vmin=0)
    right.set_title(f"all heads at step {int(last['step'].iloc[0]):,}")
    return figure

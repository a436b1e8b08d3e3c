"""Figures of loss change allocation: shares by layer over training, and by layer and class of token at the end."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import last_step, select, wide

__all__ = ["loss_change_figures"]

_TITLES = {"rank": "frequency rank of the predicted word", "upos": "Universal POS of the predicted word"}


@fig.in_style
def loss_change_figures(observations: pd.DataFrame, allocation: str = "path") -> dict[str, Figure]:
    """Draw shares by layer over steps, and shares by layer and class of token in the last interval.

    Args:
        observations: observations of ``LossChangeAllocation``.
        allocation: its setting. Chords start at checkpoints: if these are not the steps of the observations, the title
            says how many of the updates the summed intervals cover.

    Returns:
        ``by_layer``: sums of the shares since the start, without void intervals, at which the lines have gaps, and
        the shares of entries that help. ``by_class``: the shares of the last interval that is not void, each scaled
        to the mean loss of its class. Neither, if there is no interval.
    """
    shares = select(observations, quantity="allocation", parameter="")
    by_layer = select(shares, by="")
    if not by_layer["value"].notna().any():
        return {}
    figures = {"by_layer": _by_layer(observations, by_layer, allocation)}
    by_class = shares[shares["by"].ne("") & shares["site"].ne("") & shares["value"].notna()]
    if len(by_class):
        figures["by_class"] = _by_class(observations, last_step(by_class), list(by_layer["site"].unique()))
    return figures


def _shared(sites: "pd.Series[str]") -> set[str]:
    """Return the layers in whose place their applications are shown."""
    return {site.partition("@")[0] for site in sites.unique() if "@" in site}


def _by_layer(observations: pd.DataFrame, shares: pd.DataFrame, allocation: str) -> Figure:
    lines = shares[~shares["site"].isin(_shared(shares["site"]))].sort_values("step")
    sums = lines.assign(value=lines.groupby("site", observed=True)["value"].cumsum())
    helping = select(observations, quantity="helping_share", parameter="")
    sites = list(lines["site"].unique())
    names = sites + [site for site in helping["site"].unique() if site and site not in sites]
    looks = fig.site_styles(names)
    panels = fig.new_panels(2, 5.0, 3.4, most=2, margin=(1.6, 0))
    left, right = panels
    fig.draw_lines(left, sums, "site", looks, label=fig.site_label)
    void = sorted(shares["step"][shares["value"].isna()].unique())
    left.set_ylabel("sum of the shares (nats)")
    title = f"changes of the loss; void intervals: {len(void)}" if void else "changes of the loss"
    updates = select(observations, quantity="updates").groupby("step")["value"].first()
    ends = sorted(observations["step"].unique())
    if allocation == "chord" and updates.sum() != ends[-1] - ends[0]:
        title += f"; intervals of {updates.sum():,.0f} updates of {ends[-1] - ends[0]:,}"
    left.set_title(title, wrap=True)
    fig.zero_line(left)
    fig.draw_lines(
        right,
        helping,
        "site",
        {**looks, "": {"color": "k", "ls": "--", "label": "all"}},
        label=fig.site_label,
    )
    right.set_ylabel("entries that help (share)")
    right.axhline(0.5, color="0.4", lw=0.8, zorder=1)
    for ax, rows in ((left, lines), (right, helping)):
        fig.set_step_axis(ax, rows["step"], rates=observations)
    panels.legend(of_all=True)
    return panels.figure


def _by_class(observations: pd.DataFrame, last: pd.DataFrame, sites: list[str]) -> Figure:
    columns = [site for site in sites if site not in _shared(last["site"])]
    step = int(last["step"].iloc[0])
    tokens = select(observations, quantity="class_tokens", step=step)
    divisions = list(last["by"].unique())
    matrices = {}
    for by in divisions:
        number = select(tokens, by=by).set_index("group")["value"]
        values = wide(select(last, by=by), "site", "group").reindex(columns=columns)
        named = [group for group in number.index if group in values.index]
        # of the whole mean loss to the mean loss of the class
        matrices[by] = values.loc[named].mul(number.sum() / number.loc[named], axis=0)
    most = max(len(matrix) for matrix in matrices.values())
    width = 1.9 + 0.42 * len(columns)
    panels = fig.new_panels(len(matrices), width, 1.9 + 0.21 * most, most=2, margin=(1.2, 0.3))
    for ax, (by, matrix) in zip(panels, matrices.items(), strict=True):
        _heat_map(ax, matrix)
        ax.set_title(_TITLES.get(by, f"{by} of the predicted word"), fontsize=9)
    panels.figure.suptitle(f"mean loss of classes, by layer, to step {step:,}", wrap=True)
    return panels.figure


def _heat_map(ax: Axes, matrix: pd.DataFrame) -> None:
    values = matrix.to_numpy(dtype=float)
    most = float(np.nanmax(np.abs(values))) or 1.0
    image = fig.show_image(ax, values, aspect="auto", cmap="RdBu_r", norm=CenteredNorm(halfrange=most))
    ax.set_xticks(
        range(len(matrix.columns)), [fig.site_label(s) for s in matrix.columns], rotation=90, fontsize=8
    )
    ax.set_yticks(range(len(matrix)), list(matrix.index), fontsize=8)
    ax.figure.colorbar(image, ax=ax, label="change (nats)")

"""Pictures of groups of tokens over training, as figure 3.4 of Saphra 2021, by PCA and by MDS."""

import math
from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lmdyn.analysis.geometry.pictures import aligned_courses, cosine_distances, mds_picture, principal_course
from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import select

__all__ = ["pictured_rows", "pictured_steps", "pictures"]

_MOST_PANELS = 8
_MOST_SITES = 3
_LEAST = 3  # points of a picture
_MARKERS = ("o", "s", "^")


def pictured_steps(steps: Sequence[int], most: int = _MOST_PANELS) -> list[int]:
    """Choose at most ``most`` of several steps, from the first to the last, at about equal distances of log(1 + step).

    Example:
        >>> pictured_steps([0, 1, 3, 10, 30, 100, 300, 1000, 3000], 4)
        [0, 10, 300, 3000]
    """
    left = sorted(set(steps))
    at = np.log1p(np.array(left, dtype=float))
    targets = np.linspace(at[0], at[-1], most) if len(left) > most else at
    return [left[i] for i in sorted({int(np.abs(at - target).argmin()) for target in targets})]


def pictured_rows(steps: Sequence[int]) -> pc.Expression:
    """Return an expression for the rows that figures of these steps require: means of pictured steps only."""
    return (pc.field("quantity") != "mean") | pc.field("step").isin(pictured_steps(steps))


@fig.in_style
def pictures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw the groups at up to 8 steps: ``pca_<by>_<site>`` and ``mds_<by>_<site>``.

    Groupings of at least three groups are drawn, at up to three sites, from the first to the last of the model.
    """
    means = select(observations[np.isfinite(observations["value"])], quantity="mean")
    figures: dict[str, Figure] = {}
    for by in means["by"].unique():
        for site in fig.spread_out(list(means["site"].unique()), _MOST_SITES):
            rows = select(means, by=by, site=site)
            rows = rows[rows["step"].isin(pictured_steps(list(rows["step"].unique())))]
            table = rows.pivot_table("value", "group", ["step", "dimension"], observed=True).dropna()
            if len(table) >= _LEAST:  # known at all steps
                parents = rows.drop_duplicates("group").set_index("group")["parent"][table.index]
                for kind, draw in (("pca", _principal_axes), ("mds", _scaled)):
                    figures[f"{kind}_{by}_{site}"] = draw(
                        table, parents, f"{fig.site_label(site)}, by {by}\n"
                    )
    return figures


def _principal_axes(table: pd.DataFrame, parents: "pd.Series[str]", title: str) -> Figure:
    """Draw the groups at each step in one plane for all."""
    course = principal_course(_vectors(table))
    first, second = course.shares.tolist()
    return _draw(table, course.points, parents, f"{title}PCA of all steps ({first:.0%}, {second:.0%})")


def _scaled(table: pd.DataFrame, parents: "pd.Series[str]", title: str) -> Figure:
    """Draw the groups at each step in a plane of its own, rotated to the next one."""
    found = [mds_picture(cosine_distances(x)) for x in _vectors(table)]
    points = aligned_courses(torch.stack([one.points for one in found]))
    notes = [f", stress {one.stress:.2f}" for one in found]
    return _draw(table, points, parents, f"{title}MDS of cosine distances", notes)


def _vectors(table: pd.DataFrame) -> Tensor:
    """Return the mean vectors, (steps, groups, dimensions)."""
    return torch.stack([torch.tensor(of.to_numpy()) for _, of in table.T.groupby("step")]).mT


def _draw(
    table: pd.DataFrame,
    points: Tensor,
    parents: "pd.Series[str]",
    title: str,
    notes: Iterable[str] = repeat(""),
) -> Figure:
    steps = table.columns.unique("step")
    panels = fig.new_panels(len(steps), 2.6, 2.75, most=4, margin=(1.1 * any(parents), 0.6))
    size = 1.25 * float(points.abs().max()) or 1.0
    looks = fig.line_styles(parents.unique())
    labels = []
    for ax, step, note, places in zip(panels, steps, notes, points.numpy(), strict=False):
        for i, (parent, look) in enumerate(looks.items()):
            marker = _MARKERS[i // fig.MOST_LINES % 3]
            there = places[parents == parent].T
            ax.plot(*there, marker, ms=4, label=parent or "_nolegend_", color=look["color"])
        ax.set_title(f"step {step:,}{note}", fontsize=9)
        ax.set(xlim=(-size, size), ylim=(-size, size), xticks=[], yticks=[], box_aspect=1)
        ax.spines[:].set_visible(True)
        named = zip(*places.T, parents.index, (looks[parent]["color"] for parent in parents), strict=True)
        labels.append(sorted(named, key=lambda at: -math.hypot(*at[:2])))  # outer points have room
    panels.figure.suptitle(title)
    panels.legend(title="most frequent class" if any(parents) else None)
    fig.lay_out(panels.figure, panels.figure.get_dpi())  # once: labels inside the panels do not change it
    for ax, of in zip(panels, labels, strict=True):
        fig.label_points(ax, of, fontsize=6.5)
    return panels.figure

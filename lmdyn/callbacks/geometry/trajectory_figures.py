"""Pictures of groups of tokens over training, as figure 3.4 of Saphra 2021, by PCA and by MDS."""

from collections.abc import Sequence
from textwrap import wrap

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import torch
from matplotlib.figure import Figure

from lmdyn.analysis.geometry.pictures import aligned_courses, cosine_distances, mds_picture, principal_course
from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import select

__all__ = ["pictured_rows", "pictured_steps", "pictures"]

_LETTERS = 30  # of a title, for each panel beside another
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
            number = rows["step"].nunique() * (rows["dimension"].max() + 1)
            known = rows.groupby("group", observed=True)["value"].transform("size")
            rows = rows[known.eq(number)]  # known at all steps: pictures place them in common axes
            if rows["group"].nunique() >= _LEAST:
                title = f"{fig.site_label(site)}, by {by}"
                figures[f"pca_{by}_{site}"] = _picture(rows, "pca", title)
                figures[f"mds_{by}_{site}"] = _picture(rows, "mds", title)
    return figures


def _picture(rows: pd.DataFrame, kind: str, title: str) -> Figure:
    """Draw the groups at each step: one plane for all (PCA), or aligned planes (MDS)."""
    parents = rows.drop_duplicates("group").set_index("group")["parent"]
    rows = rows.sort_values(["step", "group", "dimension"])
    steps, names = list(rows["step"].unique()), list(rows["group"].unique())
    vectors = torch.from_numpy(rows["value"].to_numpy(float, copy=True).reshape(len(steps), len(names), -1))
    notes = [""] * len(steps)
    if kind == "pca":
        course = principal_course(vectors)
        points = course.points
        first, second = course.shares.tolist()
        title += (
            f": mean vectors in two axes common to all steps ({first:.0%} and {second:.0%} of their variance)"
        )
    else:
        found = [mds_picture(cosine_distances(x)) for x in vectors]
        points = aligned_courses(torch.stack([one.points for one in found]))
        title += ": metric MDS of cosine distances, each step rotated to the next"
        notes = [f", stress {one.stress:.2f}" for one in found]
    lines = wrap(title, _LETTERS * min(len(steps), 4))
    margin = (1.1 if any(parents) else 0.1, 0.2 + 0.2 * len(lines))
    panels = fig.new_panels(len(steps), 2.6, 2.75, most=4, margin=margin, fixed=True)
    size = 1.25 * float(points.abs().max()) or 1.0
    looks = fig.line_styles(parents.unique())
    labels = []
    for ax, step, note, places in zip(panels, steps, notes, points.numpy(), strict=True):
        for i, (parent, look) in enumerate(looks.items()):
            there = [name for name in range(len(names)) if parents[names[name]] == parent]
            marker = {"marker": _MARKERS[i // fig.MOST_LINES % 3], "color": look["color"]}
            ax.plot(*places[there].T, ls="", ms=4, label=parent or "_nolegend_", **marker)
        ax.set_title(f"step {step:,}{note}", fontsize=9)
        ax.set(xlim=(-size, size), ylim=(-size, size), xticks=[], yticks=[], box_aspect=1)
        ax.spines[:].set_visible(True)
        order = np.argsort(-np.linalg.norm(places, axis=1))  # outer points first: they have room
        labels.append([(*places[i], names[i], looks[parents[names[i]]]["color"]) for i in order])
    panels.figure.suptitle("\n".join(lines))
    panels.legend(of_all=True, title="most frequent class" if any(parents) else None)
    fig.lay_out(panels.figure, panels.figure.get_dpi())  # once: labels inside the panels do not change it
    for ax, of in zip(panels, labels, strict=True):
        fig.label_points(ax, of, fontsize=6.5)
    return panels.figure

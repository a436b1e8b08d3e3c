"""Figures of ``Trajectory``: variance between groups over steps, and pictures of the groups by PCA and MDS."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lmdyn.analysis.geometry.pictures import aligned_courses, cosine_distances, mds_picture, principal_course
from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import select

__all__ = ["pictured_rows", "pictured_steps", "trajectory_figures"]

_LETTERS = 30
"""Letters of a title for each panel beside another."""

_MOST_PANELS = 8
_MOST_SITES = 3
_LEAST = 3  # points of a picture
_MARKERS = ("o", "s", "^")
_BY = {"word": "words", "upos": "parts of speech"}
_MEASURES = {
    "between_share": ("share of variance\nbetween groups", "between_floor"),
    "separation": ("distance between groups\nover distance within", "separation_floor"),
    "planar_share": ("share of the means' variance\nin two directions", ""),
}


def pictured_steps(steps: Sequence[int], most: int = _MOST_PANELS) -> list[int]:
    """Choose at most ``most`` of several steps, from the first to the last, at about equal distances of log(1 + step).

    Example:
        >>> pictured_steps([0, 1, 3, 10, 30, 100, 300, 1000, 3000], 4)
        [0, 10, 300, 3000]
    """
    left = sorted(set(steps))
    if len(left) <= most:
        return left
    at = np.log1p(np.array(left, dtype=float))
    targets = np.linspace(at[0], at[-1], most)
    chosen = [0, *(int(np.abs(at - target).argmin()) for target in targets[1:-1]), len(left) - 1]
    return [left[i] for i in sorted(set(chosen))]


def pictured_rows(steps: Sequence[int]) -> pc.Expression:
    """Return an expression for the rows that figures of these steps require: means of pictured steps only."""
    return (pc.field("quantity") != "mean") | pc.field("step").isin(pictured_steps(steps))


@fig.in_style
def trajectory_figures(observations: pd.DataFrame, sites: Sequence[str]) -> dict[str, Figure]:
    """Draw all figures of the finite observations, none if there are none.

    Args:
        observations: observations of ``Trajectory``.
        sites: sites in the order of the model.

    Returns:
        ``differentiation``: shares of the variance at both levels of each tree; ``groups``: variance between the groups
        of each grouping; for each grouping of three groups and up to three sites, from the first to the last,
        ``pca_<by>_<site>`` and ``mds_<by>_<site>``.
    """
    finite = observations[np.isfinite(observations["value"])]
    there = list(finite.loc[finite["quantity"].eq("between_share"), "site"].unique())
    ordered = [name for site in sites for name in there if name.split("@")[0] == site]
    ordered += [name for name in there if name not in ordered]
    figures: dict[str, Figure] = {}
    if not ordered:
        return figures
    looks = fig.site_styles(ordered)
    if finite["quantity"].eq("coarse_share").any():
        figures["differentiation"] = _differentiation(finite, looks)
    figures["groups"] = _groups(finite, looks)
    means = select(finite, quantity="mean")
    for by in means["by"].unique():
        for site in fig.spread_out(ordered, _MOST_SITES):
            rows = select(means, by=by, site=site)
            if rows["group"].nunique() < _LEAST:
                continue
            for kind in ("pca", "mds"):
                figures[f"{kind}_{by}_{site}"] = _picture(rows, kind, by, site)
    return figures


def _lines(ax: Axes, rows: pd.DataFrame, quantity: str, floor: str, looks: dict[Any, dict[str, Any]]) -> None:
    here = select(rows, quantity=quantity)
    fig.draw_lines(ax, here, "site", looks, label=fig.site_label)
    for name, look in looks.items():
        line = select(rows, quantity=floor, site=name).sort_values("step")
        if floor and len(line):
            ax.plot(line["step"], line["value"], color=look["color"], ls=":", lw=1.0, label="_nolegend_")
    if floor:
        ax.plot([], [], color="0.4", ls=":", lw=1.0, label="groups at random")
    if not len(here):
        fig.say_why_empty(ax, "not defined")
    fig.set_step_axis(ax, rows["step"], rates=rows)


def _differentiation(finite: pd.DataFrame, looks: dict[Any, dict[str, Any]]) -> Figure:
    """Draw a row of two panels for each tree: variance between coarse groups, and between fine ones within them."""
    rows = finite[finite["quantity"].isin(["coarse_share", "fine_share", "coarse_floor", "fine_floor"])]
    trees = list(rows["by"].unique())
    panels = fig.new_panels(2 * len(trees), 4.2, 2.9, most=2, margin=(1.5, 0), sharey="row")
    for line, by in zip(panels.grid, trees, strict=True):
        tree = select(rows, by=by)
        coarse = _name(str(tree["parent"].iloc[0]))
        titles = (f"between {coarse}", f"between {_name(by)} within {coarse}")
        for ax, title, quantity in zip(line, titles, ("coarse", "fine"), strict=True):
            _lines(ax, tree, f"{quantity}_share", f"{quantity}_floor", looks)
            ax.set_title(title)
            fig.from_zero(ax)
        line[0].set_ylabel("share of the variance\nof tokens")
    panels.legend(of_all=True)
    return panels.figure


def _groups(finite: pd.DataFrame, looks: dict[Any, dict[str, Any]]) -> Figure:
    """Draw a row of panels for each grouping: variance between groups, separation, and planarity of their means."""
    rows = finite[finite["quantity"].isin([q for pair in _MEASURES.items() for q in (pair[0], pair[1][1])])]
    groupings = list(rows["by"].unique())
    panels = fig.new_panels(3 * len(groupings), 3.4, 2.8, most=3, margin=(1.5, 0))
    for line, by in zip(panels.grid, groupings, strict=True):
        for ax, (quantity, (label, floor)) in zip(line, _MEASURES.items(), strict=True):
            _lines(ax, select(rows, by=by), quantity, floor, looks)
            ax.set_title(_name(by))
            ax.set_ylabel(label)
            fig.from_zero(ax)
    panels.legend(of_all=True)
    return panels.figure


def _name(by: str) -> str:
    return _BY.get(by, f"values of {by}")


def _picture(rows: pd.DataFrame, kind: str, by: str, site: str) -> Figure:
    """Draw the groups at each pictured step: one plane for all (PCA), or aligned planes (MDS)."""
    steps = pictured_steps(list(rows["step"].unique()))
    rows = rows[rows["step"].isin(steps)]
    named = rows.drop_duplicates("group")
    names, parents = list(named["group"]), dict(zip(named["group"], named["parent"], strict=True))
    vectors = _vectors(rows, steps, names)
    title = f"{fig.site_label(site)}: {_name(by)}"
    if kind == "pca":
        course = principal_course(vectors)
        points = course.points
        first, second = course.shares.tolist()
        title += (
            f", mean vectors in two axes common to all steps ({first:.0%} and {second:.0%} of their variance)"
        )
        notes = [""] * len(steps)
    else:
        found = [mds_picture(cosine_distances(x)) for x in vectors]
        points = aligned_courses(torch.stack([one.points for one in found]))
        title += ", metric MDS of cosine distances, each step rotated to the next"
        notes = [f", stress {one.stress:.2f}" for one in found]
    looks = _looks(list(dict.fromkeys(parents.values())))
    lines = wrap(title, _LETTERS * min(len(steps), 4))
    margin = (1.1 if any(parents.values()) else 0.1, 0.2 + 0.2 * len(lines))
    panels = fig.new_panels(len(steps), 2.6, 2.75, most=4, margin=margin)
    size = 1.25 * float(points.abs().max()) or 1.0
    labels = []
    for ax, step, note, places in zip(panels, steps, notes, points.numpy(), strict=True):
        for parent, look in looks.items():
            there = [i for i, name in enumerate(names) if parents[name] == parent]
            ax.plot(*places[there].T, ls="", ms=4, label=parent or "_nolegend_", **look)
        ax.set_title(f"step {step:,}{note}", fontsize=9)
        ax.set(xlim=(-size, size), ylim=(-size, size), xticks=[], yticks=[])
        ax.set_box_aspect(1)
        ax.spines[:].set_visible(True)
        order = np.argsort(-np.linalg.norm(places, axis=1))  # outer points first: they have room
        labels.append([(*places[i], names[i], looks[parents[names[i]]]["color"]) for i in order])
    panels.figure.suptitle("\n".join(lines))
    panels.legend(of_all=True, title="most frequent class" if any(parents.values()) else None)
    fig.lay_out(panels.figure, panels.figure.get_dpi())  # once: labels inside the panels do not change it
    for ax, of in zip(panels, labels, strict=True):
        fig.label_points(ax, of, fontsize=6.5)
    return panels.figure


def _looks(parents: Sequence[str]) -> dict[str, dict[str, Any]]:
    colours = list(fig.COLOURS.values())
    return {
        parent: {
            "color": colours[i % len(colours)],
            "marker": _MARKERS[i // len(colours) % len(_MARKERS)],
        }
        for i, parent in enumerate(parents)
    }


def _vectors(rows: pd.DataFrame, steps: Sequence[int], names: Sequence[str]) -> Tensor:
    """Return the mean vectors, (steps, groups, d)."""
    d = int(rows["dimension"].max()) + 1
    found = np.full((len(steps), len(names), d), np.nan)
    step, group = (
        pd.Index(values).get_indexer(pd.Index(rows[column]))
        for column, values in (("step", steps), ("group", names))
    )
    found[step, group, rows["dimension"].to_numpy(dtype=int)] = rows["value"].to_numpy(dtype=float)
    return torch.from_numpy(found)

"""Intervals around lines, and labels next to points."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox
from numpy.typing import ArrayLike


def draw_band(axes: Axes, x: ArrayLike, low: ArrayLike, high: ArrayLike, **look: Any) -> None:
    """Fill the area between two lines over ``x``; draw a vertical line if they have only one point."""
    at, below, above = (np.asarray(of, dtype=float) for of in (x, low, high))
    if len(at) == 1:
        axes.vlines(at, below, above, color=look["color"], lw=1.2)
    else:
        axes.fill_between(at, below, above, lw=0, **look)


_PLACES = (("left", "bottom"), ("left", "top"), ("right", "bottom"), ("right", "top"), ("center", "bottom"),
           ("center", "top"))  # fmt: skip


def label_points(axes: Axes, points: Iterable[tuple[float, float, str, str]], fontsize: float = 7) -> None:
    """Write labels next to points, without overlap with other labels or points; omit labels without free space.

    Call it after everything else is drawn: positions are found in the layout at this time.

    Args:
        axes: axes to draw in.
        points: x, y, label and colour of each, in descending order of priority; white space is quoted.
        fontsize: font size of all labels.
    """
    points = [(x, y, label if label.strip() else repr(label), colour) for x, y, label, colour in points]
    figure: Any = axes.get_figure(root=True)
    if figure.get_layout_engine() is not None:  # else the layout is known
        figure.draw_without_rendering()
    renderer = FigureCanvasAgg(figure).get_renderer()  # once: each text would create its own
    taken = []
    for x, y, *_ in points:
        at, above = axes.transData.transform((x, y))
        taken.append(Bbox.from_extents(at - 2, above - 2, at + 2, above + 2))
    for i, (x, y, label, colour) in enumerate(points):
        for ha, va in _PLACES:
            away = {"left": 3, "right": -3, "center": 0}[ha], {"bottom": 2, "top": -2}[va]
            text = axes.annotate(
                label, (x, y), xytext=away, textcoords="offset points", ha=ha, va=va, fontsize=fontsize, color=colour,
                parse_math=False,
            )  # fmt: skip
            # letters are not of the same size at each resolution
            box = text.get_window_extent(renderer).padded(2)
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
            if inside and not any(box.overlaps(other) for j, other in enumerate(taken) if j != i):
                taken.append(box)
                break
            text.remove()

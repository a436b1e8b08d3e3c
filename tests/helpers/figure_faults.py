"""What is wrong with how a figure looks, as far as it can be computed: texts cut or over one another, markers cut, …"""

from itertools import combinations
from unittest import mock

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from lmdyn.callbacks.observing.figures import pixels

COLUMN = 1080  # pixels of a report's column, in which a wider figure is made smaller
PIXELS_PER_INCH = 96  # of a browser
SMALLEST = 8.0  # height of a font in pixels there


def figure_faults(figure: Figure) -> list[str]:
    """What a reader would complain of; empty for a figure that can be read.

    Found are texts that reach beyond the canvas, that overlap or are too small in a report, markers that are cut by
    the axes, lines of one panel that look alike and have different names, and panels without anything in them.
    """
    shown: list[tuple[Text, Bbox]] = []
    original = Text.draw

    def draw(text: Text, renderer: object, *args: object, **kwargs: object) -> None:
        if text.get_visible() and text.get_text().strip():
            shown.append((text, text.get_window_extent(renderer)))
        original(text, renderer, *args, **kwargs)

    def unpainted(*_: object, **__: object) -> None:
        """Letters take longest to paint, and are not looked at."""

    with mock.patch.object(Text, "draw", draw), mock.patch.object(RendererAgg, "draw_text", unpainted):
        pixels(figure)
    return [*_texts(figure, shown), *_panels(figure)]


def _texts(figure: Figure, shown: list[tuple[Text, Bbox]]) -> list[str]:
    faults = []
    canvas = figure.bbox.padded(1)
    scale = min(PIXELS_PER_INCH, COLUMN / figure.get_figwidth()) / 72
    for text, box in shown:
        name = repr(text.get_text())
        if not (canvas.x0 <= box.x0 and box.x1 <= canvas.x1 and canvas.y0 <= box.y0 and box.y1 <= canvas.y1):
            faults.append(f"beyond the canvas: {name}")
        if text.get_fontsize() * scale < SMALLEST:
            faults.append(f"{text.get_fontsize() * scale:.1f} pixels in a report: {name}")
    for (one, box), (other, its) in combinations(shown, 2):
        inside = Bbox.intersection(box, its)
        slanted = one.get_rotation() % 90 and other.get_rotation() % 90  # their boxes overlap, they do not
        if inside is not None and min(inside.width, inside.height) > 1.5 and not slanted:
            faults.append(f"over one another: {one.get_text()!r} and {other.get_text()!r}")
    return list(dict.fromkeys(faults))


def _panels(figure: Figure) -> list[str]:
    faults = []
    for ax in figure.axes:
        if not ax.axison or not ax.get_visible():
            continue
        faults += [f"cut at the axes: {cut}" for line in ax.lines if (cut := _cut(ax, line))]
        looks: dict[object, str] = {}
        for line in ax.lines:
            label = str(line.get_label())
            if label.startswith("_") or not np.size(line.get_xdata()):
                continue
            colour = to_hex(line.get_color()), line.get_alpha()
            look = (colour, str(line._dash_pattern), str(line.get_marker()), line.get_linewidth())
            if looks.setdefault(look, label) != label:
                faults.append(f"look alike: {looks[look]!r} and {label!r}")
        if not any(isinstance(a, (Line2D, Collection, AxesImage, Text, Axes)) for a in _drawn(ax)):
            faults.append(f"empty, and does not say why: {ax.get_title(loc='left') or ax.get_ylabel()!r}")
    return faults


def _drawn(ax: Axes) -> list[object]:
    """What is in the panel besides its frame, its titles and its legend."""
    patches = [p for p in ax.patches if isinstance(p, Patch)]
    if patches:
        return [ax]
    lines = [line for line in ax.lines if np.isfinite(np.asarray(line.get_ydata(), dtype=float)).any()]
    return [*lines, *ax.collections, *ax.images, *ax.texts, *ax.tables, *ax.child_axes]


def _cut(ax: Axes, line: Line2D) -> str | None:
    """The first point of a line whose marker is in part beyond the axes, where it is clipped there."""
    if (
        str(line.get_marker()) in ("None", "", " ")
        or not line.get_clip_on()
        or line.get_transform() != ax.transData
    ):
        return None
    points = np.column_stack([np.ma.filled(np.ma.asarray(d, dtype=float), np.nan) for d in line.get_data()])
    at = ax.transData.transform(points)
    size = {".": 0.5}.get(str(line.get_marker()), 1.0) * line.get_markersize()
    half = 0.8 * size / 2 * ax.figure.dpi / 72
    box = ax.bbox
    with np.errstate(invalid="ignore"):
        inside = ((at >= box.min - 1) & (at <= box.max + 1)).all(axis=1)
        whole = ((at >= box.min + half) & (at <= box.max - half)).all(axis=1)
    cut = np.flatnonzero(inside & ~whole)
    return f"{line.get_label()} at {points[cut[0]].tolist()}" if len(cut) else None

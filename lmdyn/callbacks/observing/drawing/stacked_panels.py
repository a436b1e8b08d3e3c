"""Conversion of a figure for TensorBoard: columns of panels below each other, as wide as its cards."""

from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.transforms import Bbox

from lmdyn.callbacks.observing.drawing.plain_text_figure import PlainTextFigure, lay_out
from lmdyn.callbacks.observing.figures import pixels

__all__ = ["stacked_pixels"]

Pixels = npt.NDArray[np.uint8]

_WIDTH = (
    350  # pixels of a card; wider images are shown at every n-th pixel, which leaves of small letters little
)
_LEAST = 55.0  # dots per inch at which letters are readable
_GAP = 6  # pixels around a column and between two columns


def stacked_pixels(figure: Figure, width: int = _WIDTH) -> Pixels:
    """Render as :func:`pixels`, with columns of panels below each other if that makes letters readable in a card.

    Figures of one column are drawn as wide as the card. Those whose widest column would have less than 55 dots per inch
    are not changed, nor are those with a title or a legend over several columns: a click shows them in full size.
    """
    with figure.as_it_is() if isinstance(figure, PlainTextFigure) else nullcontext():
        dpi = figure.get_dpi()
        FigureCanvasAgg(figure)
        _label_shared_axes(figure)
        lay_out(figure, dpi)
        columns = _columns(figure)
        widest = max(end - start for start, end in columns) / dpi
        if (width - 2 * _GAP) / widest < _LEAST:
            return pixels(figure)
        scale = min(1.0, (width - 2 * _GAP) / widest / dpi)
        figure.set_dpi(dpi * scale)
        picture = pixels(figure)
        figure.set_dpi(dpi)
    if len(columns) == 1 and scale == 1:
        return picture
    # letters do not scale exactly, but the middle between two columns is white
    cuts = [round(scale * (end + start) / 2) for (_, end), (start, _) in pairwise(columns)]
    parts = [_trimmed(part) for part in np.split(picture, cuts, axis=1)]
    whole = np.full((sum(len(p) + _GAP for p in parts) + _GAP, width, 3), 255, dtype=np.uint8)
    top = _GAP
    for part in parts:
        at = max(0, min(_GAP, width - part.shape[1]))
        whole[top : top + len(part), at : at + part.shape[1]] = part[:, :width]
        top += len(part) + _GAP
    return whole


def _label_shared_axes(figure: Figure) -> None:
    """Add numbers to the other panels of a row that share the axis of the first one, which alone has them."""
    for ax in figure.axes:
        place = ax.get_subplotspec()
        if (
            place is not None
            and not place.is_first_col()
            and len(ax.get_shared_y_axes().get_siblings(ax)) > 1
        ):
            ax.tick_params(axis="y", labelleft=True)


def _columns(figure: Figure) -> list[tuple[float, float]]:
    """Return the start and end of each column of panels in pixels; one for all if something spans several of them."""
    whole = [(0.0, float(figure.bbox.width))]
    if figure.subfigs or not figure.axes:
        return whole
    panels = [ax for ax in figure.axes if ax.get_visible() and ax.axison]
    legends = [legend for ax in panels if (legend := ax.get_legend()) is not None and _is_outside(legend, ax)]
    for legend in legends:  # a legend is a column on its own
        legend.set_in_layout(False)
    boxes = _boxes(panels)
    for legend in legends:
        legend.set_in_layout(True)
    boxes += _boxes(legends)
    merged: list[tuple[float, float]] = []
    for artist, box in sorted(boxes, key=lambda found: float(found[1].x0)):
        start, end = float(box.x0), float(box.x1)
        if merged and (artist.get_label() == "<colorbar>" or start < merged[-1][1] - 1):
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    rest: list[Any] = [*figure.texts, *figure.legends, *filter(None, [figure._suptitle])]  # type: ignore[attr-defined]
    for _, box in _boxes(rest):
        if not any(start - 1 <= box.x0 and box.x1 <= end + 1 for start, end in merged):
            return whole
    return merged


def _is_outside(legend: Legend, axes: Axes) -> bool:
    return bool(legend.get_window_extent().x0 > axes.get_window_extent().x1 - 1)


def _boxes(artists: list[Any]) -> list[tuple[Any, Bbox]]:
    """Return the bounding boxes of artists, with their labels."""
    found = [(artist, artist.get_tightbbox()) for artist in artists]
    return [(artist, box) for artist, box in found if box is not None]


def _trimmed(picture: Pixels) -> Pixels:
    """Return a picture without white rows and columns at its edges."""
    drawn = (picture != 255).any(2)
    rows, columns = drawn.any(1).nonzero()[0], drawn.any(0).nonzero()[0]
    return picture[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] if len(rows) else picture[:0]

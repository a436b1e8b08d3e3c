"""Figures with complete and literal texts."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.spines import Spine
from matplotlib.table import Table
from matplotlib.text import Text
from matplotlib.ticker import Formatter, LogFormatterMathtext

from lmdyn.callbacks.observing.drawing.style import STYLE

__all__ = ["Around", "PlainTextFigure", "UnicodePowers", "lay_out"]


class PlainTextFigure(Figure):
    r"""A figure that shows every text literally: none is parsed as mathematics, even with dollar signs.

    Words, sites and names of runs are data: matplotlib cannot draw some of them (``$\frac$``) and changes others.
    Formulas in labels are written in Unicode (t₀, 10⁻³), and so are the powers on logarithmic axes.

    Args:
        width: width, inches.
        height: height, inches.
    """

    def __init__(self, width: float = 7.0, height: float = 4.2) -> None:
        self._unbroken = True
        self._as_it_is = False
        super().__init__(figsize=(width, height), dpi=110, layout="constrained")

    def draw(self, renderer: Any) -> None:
        """Draw; every canvas and every file format call this, also to determine the layout."""
        with self.as_it_is():
            self._break_long_labels()
            super().draw(renderer)

    def lay_out(self) -> None:
        """Determine the layout, as drawing would do first."""
        if (engine := self.get_layout_engine()) is not None:
            with self.as_it_is():
                self._break_long_labels()
                engine.execute(self)
                if self._break_labels(self._is_cut):
                    engine.execute(self)

    def _break_long_labels(self) -> None:
        """Break labels of vertical axes that are longer than the axes, once: the layout ignores them."""
        if self._unbroken:
            self._unbroken = False
            self._break_labels(lambda axes, axis: axis is axes.yaxis and _height(axis) > 1.04 * _room(axes))

    def _break_labels(self, where: Callable[[Axes, Axis], bool]) -> bool:
        """Break the labels of some axes into two or three lines; return whether there were any."""
        found = False
        for ax in self.axes:
            for axis in (ax.xaxis, ax.yaxis):
                for _ in range(2):
                    if axis.get_label_text() and where(ax, axis):
                        axis.label.set_text(_broken(axis.get_label_text()))
                        found = True
        return found

    def _is_cut(self, axes: Axes, axis: Axis) -> bool:
        """Return whether the label extends beyond the picture's edge."""
        box = axis.label.get_window_extent()
        if axis is axes.xaxis:
            return bool(box.x0 < 0 or box.x1 > self.bbox.width)
        return bool(box.y0 < 0 or box.y1 > self.bbox.height)

    @contextmanager
    def as_it_is(self) -> Iterator[None]:
        """Apply the style, and parse no text as mathematics: neither existing texts nor ticks created meanwhile.

        A context within another one changes nothing.
        """
        if self._as_it_is:
            yield
            return
        for artist in _parts(self):
            if isinstance(artist, Text):
                artist.set_parse_math(False)
            elif isinstance(artist, Spine):
                artist.set_in_layout(False)  # the box of its axes has the same edges
            elif isinstance(artist, Axis):
                major, minor = artist.get_major_formatter(), artist.get_minor_formatter()
                if isinstance(major, LogFormatterMathtext):
                    artist.set_major_formatter(UnicodePowers(major))
                if isinstance(minor, LogFormatterMathtext):
                    artist.set_minor_formatter(UnicodePowers(minor))
        with mpl.rc_context({**STYLE, "text.parse_math": False}):
            self._as_it_is = True
            try:
                yield
            finally:
                self._as_it_is = False


def _parts(artist: Artist) -> Iterator[Artist]:
    """Yield all artists of a figure; of axes only the ticks that exist, since a list of them creates all others."""
    yield artist
    if isinstance(artist, Axis):
        ticks = [tick for kind in ("majorTicks", "minorTicks") for tick in vars(artist).get(kind, ())]
        yield from (artist.label, artist.offsetText, *(text for t in ticks for text in (t.label1, t.label2)))
    elif isinstance(artist, Table):  # its cells do not list their texts among their children
        yield from (cell.get_text() for cell in artist.get_celld().values())
    else:
        for child in artist.get_children():
            yield from _parts(child)


def lay_out(figure: Figure, dpi: float) -> None:
    """Determine a figure's layout once for all files to which it is saved, each of which would repeat it otherwise."""
    figure.set_dpi(dpi)
    if isinstance(figure, PlainTextFigure):
        figure.lay_out()
    else:
        figure.draw_without_rendering()
    # not "none", whose engine does nothing, but makes each savefig draw the figure twice
    with mpl.rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)


def _height(axis: Axis) -> float:
    return float(axis.label.get_window_extent().height)


def _room(axes: Axes) -> float:
    """Return the height of axes before the layout is determined."""
    spec: Any = axes.get_subplotspec()
    place = axes.get_position(original=True) if spec is None else spec.get_position(axes.figure)
    return float(place.height * axes.figure.bbox.height)


def _broken(label: str) -> str:
    r"""Split the longest line in two, near its middle and preferably at the end of a part of the sentence.

    Example:
        >>> _broken("Pearson ρ(mean χ of a word, its frequency)")
        'Pearson ρ(mean χ of a word,\nits frequency)'
    """
    lines = label.split("\n")
    longest = max(lines, key=len)

    def cost(i: int) -> float:
        ends_part = longest[i - 1] in ",;:" or longest[i + 1 : i + 2] == "("
        return abs(i / len(longest) - 0.5) - 0.25 * ends_part

    if blanks := [i for i, c in enumerate(longest) if c == " "]:
        at = min(blanks, key=cost)
        lines[lines.index(longest)] = f"{longest[:at]}\n{longest[at + 1 :]}"
    return "\n".join(lines)


class Around(Formatter):
    """A formatter that changes the output of another one."""

    def __init__(self, formatter: Formatter) -> None:
        self._formatter = formatter

    def set_axis(self, axis: Any) -> None:
        """Set the axis of both formatters."""
        super().set_axis(axis)
        self._formatter.set_axis(axis)

    def set_locs(self, locs: Any) -> None:
        """Set the locations of the other formatter."""
        self._formatter.set_locs(locs)


class UnicodePowers(Around):
    """A formatter that converts the mathematics of formatters of logarithmic axes to Unicode."""

    _SUPERSCRIPT = str.maketrans("0123456789-.", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻·")

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of a tick."""
        text = self._formatter(x, pos).removeprefix(r"$\mathdefault{").removesuffix("}$")
        powers = re.sub(r"\^\{(.*?)\}", lambda m: m[1].translate(self._SUPERSCRIPT), text)
        return powers.replace(r"\times", "×").replace("-", "\N{MINUS SIGN}")

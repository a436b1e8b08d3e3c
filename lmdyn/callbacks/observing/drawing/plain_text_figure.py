"""Figures with complete and literal texts."""

import re
import textwrap
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.table import Table
from matplotlib.text import Text
from matplotlib.ticker import Formatter, LogFormatterMathtext

from lmdyn.callbacks.observing.drawing.style import STYLE


class PlainTextFigure(Figure):
    r"""A figure that shows every text literally: none is parsed as mathematics, even with dollar signs.

    Words, sites and names of runs are data: matplotlib cannot draw some of them (``$\frac$``) and changes others.
    Formulas in labels are written in Unicode (t₀, 10⁻³), and so are the powers on logarithmic axes. Labels that are
    longer than their axes are broken into lines.

    Args:
        width: width, inches.
        height: height, inches.
    """

    def __init__(self, width: float = 7.0, height: float = 4.2) -> None:
        super().__init__(figsize=(width, height), dpi=110, layout="constrained")
        FigureCanvasAgg(self)  # keeps one renderer; without it, each text that is measured creates its own
        self._prepared = False

    def draw(self, renderer: Any) -> None:
        """Draw; every canvas and every file format call this."""
        with mpl.rc_context({**STYLE, "text.parse_math": False}):  # of ticks that are created meanwhile
            self._prepare()
            super().draw(renderer)

    def lay_out(self) -> None:
        """Determine the layout without drawing; texts and labels must not change afterwards."""
        with mpl.rc_context({**STYLE, "text.parse_math": False}):
            self._prepare()
            self._prepared = True
            if (engine := self.get_layout_engine()) is not None:
                engine.execute(self)

    def _prepare(self) -> None:
        """Make all texts literal, and break long labels."""
        if self._prepared:
            return
        found: list[Any] = self.findobj(lambda artist: isinstance(artist, Text | Table))
        for one in found:
            if isinstance(one, Text):
                one.set_parse_math(False)
                continue
            for cell in one.get_celld().values():  # whose texts are not among a table's children
                cell.get_text().set_parse_math(False)
        for ax in self.axes:
            for axis in (ax.xaxis, ax.yaxis):
                # the formatters of a logarithmic axis write mathematics
                if isinstance(major := axis.get_major_formatter(), LogFormatterMathtext):
                    axis.set_major_formatter(UnicodePowers(major))
                if isinstance(minor := axis.get_minor_formatter(), LogFormatterMathtext):
                    axis.set_minor_formatter(UnicodePowers(minor))
                _break_label(ax, axis)


def _break_label(axes: Axes, axis: Axis) -> None:
    """Break a label that is longer than its axis has room before the layout is determined, which ignores it."""
    label = axis.get_label_text()
    spec: Any = axes.get_subplotspec()
    place: Any = axes.get_position(original=True) if spec is None else spec.get_position(axes.figure)
    box, whole = axis.label.get_window_extent(), axes.figure.bbox
    down = axis is axes.yaxis
    excess = box.height / (place.height * whole.height) if down else box.width / (place.width * whole.width)
    if excess > (1.04 if down else 1.4):  # at the sides there is room
        longest = max(map(len, label.splitlines()))
        lines = (textwrap.fill(line, max(12, int(longest / excess))) for line in label.splitlines())
        axis.set_label_text("\n".join(lines))


def lay_out(figure: Figure, dpi: float) -> None:
    """Determine a figure's layout once for all files to which it is saved, each of which would repeat it otherwise."""
    figure.set_dpi(dpi)
    figure.lay_out() if isinstance(figure, PlainTextFigure) else figure.draw_without_rendering()
    # not "none", whose engine does nothing, but makes each savefig draw the figure twice
    with mpl.rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)


class UnicodePowers(Formatter):
    """A formatter that converts the mathematics of formatters of logarithmic axes to Unicode."""

    _SUPERSCRIPT = str.maketrans("0123456789-.", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻·")

    def __init__(self, formatter: Formatter) -> None:
        self._formatter = formatter

    def set_locs(self, locs: Any) -> None:
        """Set the locations of the other formatter."""
        self._formatter.set_locs(locs)

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of a tick."""
        text = self._formatter(x, pos).removeprefix(r"$\mathdefault{").removesuffix("}$")
        powers = re.sub(r"\^\{(.*?)\}", lambda m: m[1].translate(self._SUPERSCRIPT), text)
        return powers.replace(r"\times", "×").replace("-", "\N{MINUS SIGN}")

"""The picture of what an observer found, in the form of TensorBoard's cards: its sentences above its chart."""

import textwrap

from matplotlib.figure import Figure

from lmdyn.callbacks.observing.drawing.plain_text_figure import PlainTextFigure
from lmdyn.callbacks.observing.drawing.sentences import Finding
from lmdyn.callbacks.observing.drawing.step_axis import set_step_axis
from lmdyn.callbacks.observing.drawing.style import in_style
from lmdyn.callbacks.observing.drawing.words import quantity_words
from lmdyn.runs.schema import wide

_SIZE = 5.0, 2.8  # inches
_RESOLUTION = 72  # dots per inch: the size of a card, which shows of a larger image every n-th pixel
_MOST_LINES = 6
_LETTERS = 76  # of a line of the sentences
_LONGEST = 24  # of a line of a name


@in_style
def summary_picture(found: Finding) -> Figure:
    """Draw a finding: the line over everything, and the six that change most, from the highest at the end."""
    lines = wide(found.chart.rows, "line", sort=False)
    most = (lines.max() / 2 - lines.min() / 2).nlargest(_MOST_LINES).index
    drawn = lines[most].sort_values(lines.index[-1], axis=1, ascending=False)
    figure = PlainTextFigure(*_SIZE)
    figure.set_dpi(_RESOLUTION)
    figure.suptitle(textwrap.fill(found.sentence, _LETTERS), x=0.01, ha="left", fontsize=8)
    axes = figure.subplots()
    for name, course in drawn.items():
        label = "\n".join(textwrap.wrap(str(name), _LONGEST)[:2])
        axes.plot(course.dropna(), marker=".", label=label)
    if found.whole is not None:
        whole = wide(found.whole.rows, "line").iloc[:, 0]
        axes.plot(whole, color="black", lw=2.2, marker=".", label="over everything")
    set_step_axis(axes, lines.index)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.label.set_fontsize(8)
    axes.set_title(quantity_words(found.chart.quantity, found.of), fontsize=8)
    if found.chart.by:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return figure

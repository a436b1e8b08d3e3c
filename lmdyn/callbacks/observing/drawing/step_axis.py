"""The axis of training steps."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import Formatter, LogFormatterMathtext, MaxNLocator

from lmdyn.callbacks.observing.drawing.plain_text_figure import Around, UnicodePowers

_MOST_DROPS = 50  # of a learning rate; more would form a solid area


def set_step_axis(axes: Axes, steps: Iterable[int], rates: pd.DataFrame | None = None) -> None:
    """Label and limit the axis of training steps; logarithmic (including 0) if observations are spaced accordingly.

    Args:
        axes: axes with this x axis.
        steps: drawn steps, in any order.
        rates: observations whose drops of the learning rate are marked, see :func:`mark_rate_drops`, and whose
            ``tokens`` are written below the steps.
    """
    if rates is not None:
        mark_rate_drops(axes, rates)
    axes.set_xlabel("training step (optimizer updates)")
    different = sorted(set(steps))
    if len(different) == 1:
        axes.set_xticks(different)
        axes.set_xlim(different[0] - 1, different[0] + 1)
        _show_points(axes)
    elif different:
        early = sum(step < different[-1] / 10 for step in different)
        if early > max(3, len(different) / 3):
            axes.set_xscale("symlog", linthresh=max(1, different[1]), linscale=0.3)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        _leave_room(axes, different[0], different[-1])
    if rates is not None and "tokens" in rates:
        known = rates[["step", "tokens"]].dropna().drop_duplicates("step").sort_values("step")
        if len(known) >= min(2, len(different)) > 0 and known["tokens"].iloc[-1] > 0:
            axes.set_xlabel("training step (optimizer updates)\nand tokens seen")
            inner = axes.xaxis.get_major_formatter()
            if isinstance(inner, _AndTokens):  # from a panel that shares the axis
                inner = inner.inner
            axes.xaxis.set_major_formatter(_AndTokens(inner, known))


def _leave_room(axes: Axes, first: float, last: float) -> None:
    """Limit the horizontal axis so that marks at both ends are complete."""
    scale = axes.xaxis.get_transform()
    low, high = scale.transform(np.array([first, last], dtype=float))
    room = 0.02 * (high - low)
    axes.set_xlim(*scale.inverted().transform(np.array([low - room, high + room])))


def _show_points(axes: Axes) -> None:
    """Make lines of one point visible: large dots, also complete on the frame, with other shapes for dashed lines."""
    for line in axes.lines:
        if np.size(line.get_xdata()) == 1:
            marker = {"--": "s", ":": "^", "-.": "D"}.get(str(line.get_linestyle()), "o")
            line.set(marker=marker, markersize=max(6.0, line.get_markersize()), clip_on=False)


class _AndTokens(Around):
    """A formatter that adds, below the output of another one, the number of tokens seen at this step."""

    lines = 2

    def __init__(self, formatter: Formatter, known: pd.DataFrame) -> None:
        super().__init__(
            UnicodePowers(formatter) if isinstance(formatter, LogFormatterMathtext) else formatter
        )
        self._steps, self._tokens = (known[c].to_numpy(dtype=float) for c in ("step", "tokens"))

    @property
    def inner(self) -> Formatter:
        """The formatter of the steps alone."""
        return self._formatter

    def __call__(self, x: float, pos: int | None = None) -> str:
        tokens = float(np.interp(x, self._steps, self._tokens))
        return f"{self._formatter(x, pos)}\n{_short_number(tokens)}"


def _short_number(x: float) -> str:
    """Return three digits and a unit: 950, 1.4k, 227M, 1.34G."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= 0.9995 * unit:
            return f"{x / unit:.3g}{name}"
    return f"{x:.3g}"


def mark_rate_drops(axes: Axes, observations: pd.DataFrame) -> None:
    """Draw a vertical dashed line at each observation with a lower learning rate than before, with one legend entry.

    Draws none if the rate decreases constantly after its maximum, as with warmup and decay, or has more than 50 drops.
    """
    rates = (
        observations[observations["quantity"] == "learning_rate"].drop_duplicates("step").sort_values("step")
    )
    values = rates["value"].reset_index(drop=True)
    if len(values) == 0 or (len(values) > 2 and (values[values.idxmax() :].diff().dropna() < 0).all()):
        return
    drops = rates["step"][rates["value"].diff() < 0]
    if len(drops) > _MOST_DROPS:
        return
    for i, step in enumerate(drops):
        axes.axvline(
            step, color="0.6", lw=0.8, ls="--", zorder=0, label=None if i else "learning rate reduced"
        )

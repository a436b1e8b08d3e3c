"""The axis of training steps."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmdyn.runs.schema import step_unit

_unit = ContextVar("_unit", default="updates")


@contextmanager
def unit_of(observations: DataFrame) -> Iterator[None]:
    """Label the axes of training steps by what the steps of these observations count."""
    before = _unit.set(step_unit(observations))
    try:
        yield
    finally:
        _unit.reset(before)


def set_step_axis(axes: Axes, steps: Iterable[int]) -> None:
    """Label and limit the axis of training steps; logarithmic (including 0) if observations are spaced accordingly.

    Args:
        axes: axes with this x axis.
        steps: drawn steps, in any order.
    """
    axes.set_xlabel(f"training step ({'optimizer updates' if _unit.get() == 'updates' else _unit.get()})")
    different = sorted(set(steps))
    if len(different) == 1:
        axes.set_xticks(different)
        axes.set_xlim(different[0] - 1, different[0] + 1)
        # lines of one point: large dots, complete on the frame, with other shapes for dashed lines
        for line in axes.lines:
            if np.size(line.get_xdata()) == 1:
                marker = {"--": "s", ":": "^", "-.": "D"}.get(str(line.get_linestyle()), "o")
                line.set(marker=marker, markersize=max(6.0, line.get_markersize()), clip_on=False)
    elif different:
        early = sum(step < different[-1] / 10 for step in different)
        if early > max(3, len(different) / 3):
            axes.set_xscale("symlog", linthresh=max(1, different[1]), linscale=0.3)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        # marks at both ends are complete
        scale = axes.xaxis.get_transform()
        low, high = scale.transform(np.array([different[0], different[-1]], dtype=float))
        room = 0.02 * (high - low)
        axes.set_xlim(*scale.inverted().transform(np.array([low - room, high + room])))

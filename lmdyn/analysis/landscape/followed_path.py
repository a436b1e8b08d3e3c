"""The path of a training, update by update: allocation along each of them, usually with two gradients for each."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lmdyn.analysis.landscape.allocation_sums import AllocationSums
from lmdyn.analysis.landscape.line_integral import LinePoint, integrate_line
from lmdyn.analysis.landscape.loss_change import differences, point_between
from lmdyn.analysis.landscape.text_line import TextOnLines, moving
from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["FollowedPath"]

Values = Mapping[str, Tensor]


class FollowedPath:
    """Allocation along the updates of a training: the line of each, by Simpson's rule at its ends and its middle.

    The end of one update is the start of the next: both are computed from one gradient, when the next update is known.
    An update whose end has not been computed yet is open until :meth:`finish`, which costs one more gradient and
    does not change the sums. An update along which three points do not add up to the change of the loss gets more,
    as in :func:`~lmdyn.analysis.landscape.line_integral.integrate_line`.

    Args:
        sums: sums of the allocations, to which updates are added.
        most_points: maximum number of points of an update.

    Attributes:
        sums: the same.
        values: parameters after the last update that was followed.
        step: number of updates at that time.
    """

    def __init__(self, sums: AllocationSums, most_points: int = 17) -> None:
        self.sums = sums
        self.most_points = most_points
        self.values: Values = {}
        self.step = -1
        self._open: tuple[Values, LinePoint, LinePoint] | None = None  # difference, start and middle

    def begin(self, values: Values, step: int) -> None:
        """Start at these values of the parameters."""
        self.values, self.step, self._open = values, step, None

    def follow(self, text: TextOnLines, values: Values, step: int) -> None:
        """Follow an update from the last values to these. Every rank must call it."""
        moved = moving(differences(self.values, values))
        before = () if self._open is None else (self._open[0],)
        *end, start = text.points(self.values, [*before, moved])
        if end:
            self._close(text, end[0])
        before_it, after_it = ({name: at[name] for name in moved} for at in (self.values, values))
        (middle,) = text.points(point_between(before_it, after_it, 0.5), [moved])
        self._open = moved, start, middle
        self.values, self.step = values, step

    def finish(self, text: TextOnLines) -> float:
        """Complete the last update, and return the loss after it. Every rank must call it."""
        if self._open is None:
            return text.loss()
        (end,) = text.points(self.values, [self._open[0]])
        self._close(text, end)
        return end.loss

    def _close(self, text: TextOnLines, end: LinePoint) -> None:
        assert self._open is not None
        moved, start, middle = self._open
        known = {0.0: start, 0.5: middle, 1.0: end}

        def point(alpha: float) -> LinePoint:
            if alpha in known:
                return known[alpha]
            values = {n: exact_float(self.values[n]) - (1 - alpha) * by for n, by in moved.items()}
            return text.points(values, [moved])[0]

        self.sums.add(integrate_line(point, self.most_points))
        self._open = None

    def state(self) -> dict[str, Any]:
        """Return the finished sums, for a checkpoint; the parameters are those of the module."""
        assert self._open is None
        return self.sums.state()

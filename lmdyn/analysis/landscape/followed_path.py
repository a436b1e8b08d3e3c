"""The path of a training, followed update by update, and the sums of allocations over its lines."""

import math
from collections.abc import Mapping
from operator import add
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from lmdyn.analysis.landscape.class_slopes import Key, TextOnLines, moving
from lmdyn.analysis.landscape.line_integral import LineIntegral, LinePoint, integrate_line, is_void
from lmdyn.analysis.parameters.line import differences, point_between
from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["AllocationSums", "FollowedPath"]

Values = Mapping[str, Tensor]
"""Parameters by name."""

_KEYED = ("parts", "first_order_parts")  # stored as pairs: keys of a checkpoint are texts


class AllocationSums:
    """Sums of allocations over lines: one for a chord, one for each update of a path.

    Args:
        rows: for each division of the rows of ``table``, the class of each row, and the number of classes; a class
            below 0 is that of the others, which is counted last.
        table: name of the parameter whose rows are divided.

    Attributes:
        lines: number of lines.
        points: number of gradients, each end of a line counted for it.
        loss_change: sum of the changes of the loss in nats.
        gross_change: the same without their signs: an update that raises the loss does not cancel one that lowers it.
        gross_residual: sum of the residuals of the lines, without their signs.
        errors: sums of the lines' estimated errors of the parts: of single entries, and of ``parts``.
        sizes: sums of the absolute values of the same parts.
        total: sum of the allocations.
        first_order: sum of the allocations to first order.
        parts: allocation by division of the tokens, parameter and application, by class.
        first_order_parts: the same to first order.
        helping: by parameter, the number of its entries with an allocation below 0, and with one that is not 0,
            over all lines.
        row_parts: by division of the rows, the allocation of each class of rows.

    Example:
        >>> line = LineIntegral({"w": torch.tensor([-2.0, 1.0, 0.0])}, {}, {}, -1.0, -1.5, -1.0, 3)
        >>> sums = AllocationSums()
        >>> sums.add(line)
        >>> sums.add(line)
        >>> sums.lines, sums.loss_change, sums.helping["w"].tolist(), sums.residual, sums.relative_error
        (2, -2.0, [2, 4], 0.0, 0.0)
    """

    def __init__(
        self, rows: Mapping[str, tuple[Int[Tensor, "rows"], int]] | None = None, table: str = ""
    ) -> None:
        self._rows = {} if rows is None else dict(rows)
        self._table = table
        self.lines = self.points = 0
        self.loss_change = self.total = self.first_order = 0.0
        self.gross_change = self.gross_residual = 0.0
        self.errors = self.sizes = (0.0, 0.0)
        self.parts: dict[Key, Tensor] = {}
        self.first_order_parts: dict[Key, Tensor] = {}
        self.helping: dict[str, Tensor] = {}
        self.row_parts: dict[str, Tensor] = {}

    @property
    def residual(self) -> float:
        """Error of the quadrature in nats."""
        return self.total - self.loss_change

    @property
    def void(self) -> bool:
        """Whether the parts are no numbers to use: residuals, or errors of the parts, see ``is_void``."""
        return is_void((self.gross_residual, self.gross_change), *zip(self.errors, self.sizes, strict=True))

    @property
    def relative_error(self) -> float:
        """Estimated errors of the parts, divided by their sizes: of single entries or of ``parts``, the larger one."""
        shares = [e / size if size else 0.0 for e, size in zip(self.errors, self.sizes, strict=True)]
        return math.nan if any(map(math.isnan, shares)) else max(shares)

    def add(self, line: LineIntegral) -> None:
        """Add a line."""
        self.lines += 1
        self.gross_change += abs(line.loss_change)
        self.gross_residual += abs(line.residual)
        for name in ("points", "loss_change", "total", "first_order"):
            setattr(self, name, getattr(self, name) + getattr(line, name))
        for name in ("errors", "sizes"):
            setattr(self, name, tuple(map(add, getattr(self, name), getattr(line, name))))
        for own, given in ((self.parts, line.groups), (self.first_order_parts, line.groups_at_start)):
            for key, values in given.items():
                own[key] = own.get(key, 0) + values.double()
        for name, part in line.slopes.items():
            count = torch.stack([(part < 0).sum(), (part != 0).sum()]).cpu()
            self.helping[name] = self.helping.get(name, 0) + count
        if self._table in line.slopes:
            by_row = line.slopes[self._table].flatten(1).sum(1).cpu()
            for division, (classes, number) in self._rows.items():
                index = torch.where(classes < 0, number, classes)
                sums = by_row.new_zeros(number + 1).index_add_(0, index, by_row)
                self.row_parts[division] = self.row_parts.get(division, 0) + sums

    def state(self) -> dict[str, Any]:
        """Return the sums as plain values, for a checkpoint."""
        keyed = {name: [[list(k), v] for k, v in getattr(self, name).items()] for name in _KEYED}
        return {name: v for name, v in vars(self).items() if not name.startswith("_")} | keyed

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue with sums from a checkpoint."""
        # of an earlier version's, at least these
        self.gross_change = abs(state["loss_change"])
        self.gross_residual = abs(state["total"] - state["loss_change"])
        for name, value in state.items():
            setattr(self, name, {tuple(key): part for key, part in value} if name in _KEYED else value)


class FollowedPath:
    """Allocation along the updates of a training: the line of each, by Simpson's rule at its ends and its middle.

    The end of one update is the start of the next: both are computed from one gradient, when the next update is known.
    An update whose end has not been computed yet is open until :meth:`finish`, which costs one more gradient and
    does not change the sums. An update for which three points are not enough gets more, as in
    :func:`~lmdyn.analysis.landscape.line_integral.integrate_line`.

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

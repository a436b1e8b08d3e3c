"""Integrals along a line by Simpson's rule, refined until they add up to the change of the loss."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = ["LineIntegral", "LinePoint", "integrate_line", "is_void"]

_TOLERANCE = 0.01, 1e-4
"""Refinement ends at a residual of 1 % of the change of the loss, or of 1e-4 nats."""

_VOID = 0.05
"""Share of the change of the loss above which a residual makes an allocation void."""


@dataclass(frozen=True)
class LinePoint:
    """Loss and its derivative at one point of the line θ(α) = θ₀ + α(θ₁ − θ₀).

    Attributes:
        loss: loss in nats.
        slopes: summands of the derivative dL/dα in float64: all their entries add up to it.
        groups: further linear parts of it, in any division, by name; one that is missing is 0.
    """

    loss: float
    slopes: Mapping[Any, Tensor]
    groups: Mapping[Any, Tensor] = field(default_factory=dict)

    @property
    def derivative(self) -> float:
        """Derivative of the loss with respect to α."""
        return math.fsum(float(part.sum()) for part in self.slopes.values())


@dataclass(frozen=True)
class LineIntegral:
    """Result of :func:`integrate_line`.

    Attributes:
        slopes: integral over α from 0 to 1 of each of :attr:`LinePoint.slopes`.
        groups: integral of each of :attr:`LinePoint.groups`.
        groups_at_start: their values at α = 0: the integral to first order.
        total: sum of all entries of ``slopes``.
        first_order: derivative at α = 0.
        loss_change: loss at α = 1 less that at α = 0.
        points: number of points of the rule.
    """

    slopes: Mapping[Any, Tensor]
    groups: Mapping[Any, Tensor]
    groups_at_start: Mapping[Any, Tensor]
    total: float
    first_order: float
    loss_change: float
    points: int

    @property
    def residual(self) -> float:
        """Error of the quadrature: ``total`` less ``loss_change``."""
        return self.total - self.loss_change

    @property
    def void(self) -> bool:
        """Whether the parts are no numbers to use: see :func:`is_void`."""
        return is_void(self.residual, self.loss_change)


def is_void(residual: float, loss_change: float) -> bool:
    """Return whether a residual exceeds 5 % of the change of the loss, and 1e-4 nats, or is not finite.

    Example:
        >>> is_void(0.02, -1.0), is_void(0.06, -1.0), is_void(5e-5, 0.0), is_void(math.nan, 1.0)
        (False, True, False, True)
    """
    return not abs(residual) <= max(_VOID * abs(loss_change), _TOLERANCE[1])


def integrate_line(point: Callable[[float], LinePoint], most_points: int = 17) -> LineIntegral:
    """Integrate the derivative of a loss along a line, part by part, by the composite rule of Simpson.

    The rule has 3 points, and then 5, 9, 17, of which each contains the points before, until the parts add up to the
    change of the loss within 1 % or 1e-4 nats, or until ``most_points``. It is exact for derivatives that are
    polynomials of degree 3 in α. That the parts add up tests the quadrature, and nothing else: by the fundamental
    theorem of calculus, *any* parts of a gradient do.

    Args:
        point: function that returns loss and derivative at α, for α from 0 to 1.
        most_points: maximum number of points: 3, 5, 9, 17, …

    Returns:
        The integrals in float64; NaN if a loss is not finite.

    Raises:
        ValueError: for another number of points.

    Example:
        >>> cubic = lambda a: LinePoint(a**4, {"w": torch.tensor([4 * a**3], dtype=torch.float64)})
        >>> found = integrate_line(cubic)
        >>> found.points, found.slopes["w"].item(), found.loss_change, found.first_order
        (3, 1.0, 1.0, 0.0)
    """
    if most_points < 3 or (most_points - 1) & (most_points - 2):
        raise ValueError(f"most_points is {most_points}: expected 3, 5, 9, 17 or another 2ⁿ + 1")
    start, end = point(0.0), point(1.0)
    loss_change, first_order = end.loss - start.loss, start.derivative
    trapezoid = _Sums()  # Σ over the points so far, of which the ends count half
    trapezoid.add(start, 0.5)
    trapezoid.add(end, 0.5)
    groups_at_start = start.groups
    del start, end  # large: the parts of each parameter
    intervals = 1
    while True:
        intervals *= 2
        between = _Sums()
        for i in range(1, intervals, 2):
            between.add(point(i / intervals))
        total = (2 * trapezoid.total + 4 * between.total) / (3 * intervals)
        close = abs(total - loss_change) <= max(_TOLERANCE[0] * abs(loss_change), _TOLERANCE[1])
        if close or intervals + 1 >= most_points or not math.isfinite(total - loss_change):
            break
        trapezoid.join(between)
    trapezoid.scale(2 / (3 * intervals))
    trapezoid.join(between, 4 / (3 * intervals))
    return LineIntegral(
        trapezoid.slopes, trapezoid.groups, groups_at_start, total, first_order, loss_change, intervals + 1
    )


class _Sums:
    """Weighted sums over points, in place: the parts of all parameters are large."""

    def __init__(self) -> None:
        self.slopes: dict[Any, Tensor] = {}
        self.groups: dict[Any, Tensor] = {}
        self.total = 0.0

    def add(self, point: LinePoint, weight: float = 1.0) -> None:
        self._join(point.slopes, point.groups, weight)
        self.total += weight * point.derivative

    def join(self, other: "_Sums", weight: float = 1.0) -> None:
        self._join(other.slopes, other.groups, weight)
        self.total += weight * other.total

    def scale(self, by: float) -> None:
        for part in (*self.slopes.values(), *self.groups.values()):
            part.mul_(by)
        self.total *= by

    def _join(self, slopes: Mapping[Any, Tensor], groups: Mapping[Any, Tensor], weight: float) -> None:
        for own, given in ((self.slopes, slopes), (self.groups, groups)):
            for name, value in given.items():
                if name in own:
                    own[name].add_(value, alpha=weight)
                else:
                    own[name] = value * weight

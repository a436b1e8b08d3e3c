"""Integrals along a line by Simpson's rule, refined until the parts are right and add up to the change of the loss."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = ["LineIntegral", "LinePoint", "integrate_line", "is_void"]

_TOLERANCE = 0.01, 1e-4
"""Refinement ends at an error of 1 % of the change of the loss, or of the parts, or of 1e-4 nats."""

_VOID = 0.05
"""Share of the change of the loss, or of the parts, above which an error makes an allocation void."""


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
        errors: estimated errors of the parts, summed without signs: of the entries of ``slopes``, and of ``groups``.
        sizes: sums of the absolute values of the same parts.
    """

    slopes: Mapping[Any, Tensor]
    groups: Mapping[Any, Tensor]
    groups_at_start: Mapping[Any, Tensor]
    total: float
    first_order: float
    loss_change: float
    points: int
    errors: tuple[float, float] = (0.0, 0.0)
    sizes: tuple[float, float] = (0.0, 0.0)

    @property
    def residual(self) -> float:
        """Error of the quadrature in the sum of all parts: ``total`` less ``loss_change``."""
        return self.total - self.loss_change

    @property
    def void(self) -> bool:
        """Whether the parts are no numbers to use: the residual, or the errors of the parts, see :func:`is_void`."""
        return is_void((self.residual, self.loss_change), *zip(self.errors, self.sizes, strict=True))


def is_void(*pairs: tuple[float, float]) -> bool:
    """Return whether one of several errors exceeds 5 % of the number that it is of, and 1e-4 nats, or is not finite.

    Example:
        >>> [is_void(pair) for pair in ((0.02, -1.0), (0.06, -1.0), (5e-5, 0.0), (math.nan, 1.0))]
        [False, True, False, True]
    """
    return not all(_within(error, of, _VOID) for error, of in pairs)


def _within(error: float, of: float, share: float) -> bool:
    return abs(error) <= max(share * abs(of), _TOLERANCE[1])


def integrate_line(point: Callable[[float], LinePoint], most_points: int = 17) -> LineIntegral:
    """Integrate the derivative of a loss along a line, part by part, by the composite rule of Simpson.

    The rule has 3 points, and then 5, 9, 17, of which each contains the points before, until

    - the estimated errors of the parts, summed without signs, are at most 1 % of the parts, or 1e-4 nats: for the
      entries of ``slopes``, and for ``groups``. The error is a fifteenth of the difference from the rule of half the
      intervals; the rule of 3 points is compared with the trapezoids at the same points;
    - they add up to the change of the loss within 1 % or 1e-4 nats;

    or until ``most_points``. It is exact for derivatives that are polynomials of degree 3 in α. The second condition
    alone does not test the parts: by the fundamental theorem of calculus, *any* parts of a gradient add up, and errors
    of opposite signs cancel: along the line from (0, 0) to (1, 1), sin 8x − sin 8y does not change at all, and 3 points
    give parts of ∓2.35 where they are ±0.99.

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
        >>> found.points, round(found.slopes["w"].item(), 9), found.loss_change, found.first_order
        (5, 1.0, 1.0, 0.0)
    """
    start, end = point(0.0), point(1.0)
    loss_change = end.loss - start.loss
    first_order = start.derivative
    trapezoid = _Sums()  # Σ over the points so far, of which the ends count half
    trapezoid.add(start, 0.5)
    trapezoid.add(end, 0.5)
    groups_at_start = start.groups
    del start, end  # large: the parts of each parameter
    intervals, before = 1, None
    while True:
        intervals *= 2
        between = _Sums()
        for i in range(1, intervals, 2):
            between.add(point(i / intervals))
        total = (2 * trapezoid.derivative + 4 * between.derivative) / (3 * intervals)
        parts = [
            _error_and_size(kind, trapezoid, between, before, intervals) for kind in ("slopes", "groups")
        ]
        pairs = [(total - loss_change, loss_change), *parts]
        close = all(_within(error, of, _TOLERANCE[0]) for error, of in pairs)
        if close or intervals + 1 >= most_points or not math.isfinite(total - loss_change):
            break
        trapezoid.add(between)
        before = between
    trapezoid.scale(2 / (3 * intervals))
    trapezoid.add(between, 4 / (3 * intervals))
    return LineIntegral(
        trapezoid.slopes,
        trapezoid.groups,
        groups_at_start,
        total,
        first_order,
        loss_change,
        intervals + 1,
        *zip(*parts, strict=True),
    )


def _error_and_size(
    kind: str, trapezoid: "_Sums", between: "_Sums", before: "_Sums | None", intervals: int
) -> tuple[float, float]:
    """Return the estimated error of the parts, and how large they are, both summed without signs.

    The coarser rule has half of the intervals: its inner points are those ``before`` and those of its trapezoid. By
    Richardson's extrapolation, a fifteenth of the difference is the error of the finer one. At first there is no such
    rule, and the difference is that from the trapezoids of the same points.

    Reference: Lyness 1969, "Notes on the adaptive Simpson quadrature routine".
    """
    error = size = 0.0
    middles: Mapping[Any, Tensor] = getattr(between, kind)
    earlier: Mapping[Any, Tensor] = {} if before is None else getattr(before, kind)
    for name, rest in getattr(trapezoid, kind).items():
        middle = middles.get(name, 0 * rest)
        fine = 2 * rest + 4 * middle
        coarse = 3 * (rest + middle) if before is None else 4 * (rest + earlier.get(name, 0))
        error += float((fine - coarse).abs().sum())
        size += float(fine.abs().sum())
    shrink = 1 if before is None else 15
    return error / (3 * intervals * shrink), size / (3 * intervals)


class _Sums:
    """Weighted sums over points, in place: the parts of all parameters are large."""

    def __init__(self) -> None:
        self.slopes: dict[Any, Tensor] = {}
        self.groups: dict[Any, Tensor] = {}
        self.derivative = 0.0

    def scale(self, by: float) -> None:
        for part in (*self.slopes.values(), *self.groups.values()):
            part.mul_(by)

    def add(self, other: "LinePoint | _Sums", weight: float = 1.0) -> None:
        self.derivative += weight * other.derivative
        for own, given in ((self.slopes, other.slopes), (self.groups, other.groups)):
            for name, value in given.items():
                if name in own:
                    own[name].add_(value, alpha=weight)
                else:
                    own[name] = value * weight

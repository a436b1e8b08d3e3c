"""Loss change allocation: the share of each parameter in a change of the loss (Lan et al. 2019)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from lmdyn.analysis.landscape.line_integral import LinePoint, integrate_line
from lmdyn.analysis.parameters.line import differences, point_between
from lmdyn.analysis.parameters.loss_gradient import LossGradient
from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["LossChange", "loss_change_allocation", "slopes_of"]


@dataclass(frozen=True)
class LossChange:
    """Allocation of a change of the loss to parameters.

    Attributes:
        allocation: for each parameter, in its shape and in float64, its share of the change in nats. Below 0, it helps:
            its change lowers the loss.
        first_order: the gradient at the start times the difference, as printed in equation 6.3.
        loss_change: loss at the end less that at the start, in nats.
        points: number of gradients from which the allocation is computed.
        error: estimated error of the shares in nats, summed over entries without signs.
        void: whether the shares are no numbers to use: the error exceeds 5 % of the shares, or ``residual`` 5 % of
            ``loss_change``, and 1e-4 nats.
    """

    allocation: Mapping[str, Tensor]
    first_order: Mapping[str, Tensor]
    loss_change: float
    points: int
    error: float
    void: bool

    @property
    def residual(self) -> float:
        """Error of the quadrature in nats: sum of the allocation less ``loss_change``."""
        return math.fsum(float(part.sum()) for part in self.allocation.values()) - self.loss_change


def loss_change_allocation(
    gradient: Callable[[Mapping[str, Tensor]], LossGradient],
    start: Mapping[str, Tensor],
    end: Mapping[str, Tensor],
    most_points: int = 17,
) -> LossChange:
    r"""Allocate the change of a loss between two points to parameters, along the straight line between them.

    A_i = ∫₀¹ ∂_iL(θ₀ + α(θ₁ − θ₀)) dα · (θ₁ − θ₀)_i, by the composite rule of Simpson with at most ``most_points``
    gradients (:func:`~lmdyn.analysis.landscape.line_integral.integrate_line`). Σ_i A_i = L(θ₁) − L(θ₀) holds for any
    path between the two points: that the sum is right does not test the shares, which are compared with those of a
    coarser rule. They depend on the path: those along the line between two distant points of a training differ from the
    sums over its updates, also in sign. A parameter that does not change has the share 0.

    Args:
        gradient: function that returns the loss and its gradient at values of the parameters, such as
            :func:`~lmdyn.analysis.parameters.loss_gradient.loss_gradient` within
            :func:`~lmdyn.analysis.parameters.at_point.at_point`.
        start: values of the parameters at the start, by name.
        end: values at the end, of the same names and shapes.
        most_points: maximum number of gradients: 3, 5, 9, 17, …

    Raises:
        ValueError: for other names or shapes at the end, or another number of points.

    Reference: Lan et al. 2019, "LCA: Loss Change Allocation for Neural Network Training"; Saphra 2021, equations 6.1
        to 6.3.

    Example:
        >>> def square(values):  # L = w² / 2
        ...     w = values["w"]
        ...     return LossGradient(float((w**2).sum() / 2), 1, {"w": w})
        >>> found = loss_change_allocation(square, {"w": torch.tensor([2.0, 1.0])}, {"w": torch.tensor([1.0, 1.5])})
        >>> found.allocation["w"].tolist(), found.first_order["w"].tolist(), found.loss_change
        ([-1.5, 0.625], [-2.0, 0.5], -0.875)
    """
    moved = differences(start, end)
    at_start: dict[str, Tensor] = {}

    def point(alpha: float) -> LinePoint:
        found = gradient(point_between(start, end, alpha))
        slopes = slopes_of(found.gradients, moved)
        if alpha == 0:
            at_start.update({name: value.clone() for name, value in slopes.items()})
        return LinePoint(found.loss, slopes)

    integral = integrate_line(point, most_points)
    return LossChange(
        integral.slopes, at_start, integral.loss_change, integral.points, integral.errors[0], integral.void
    )


def slopes_of(gradients: Mapping[str, Tensor], moved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ∂_iL · (θ₁ − θ₀)_i in float64 for each parameter.

    Example:
        >>> slopes_of({"w": torch.tensor([2.0])}, {"w": torch.tensor([0.5])})
        {'w': tensor([1.], dtype=torch.float64)}
    """
    return {name: exact_float(gradients[name]) * by for name, by in moved.items()}

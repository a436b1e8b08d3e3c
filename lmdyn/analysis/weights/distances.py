"""Distance and angle between two values of the same weights."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["WeightDistance", "weight_distance"]

_CHUNK = 1 << 18  # numbers that are converted to float64 at a time on a CPU


@dataclass(frozen=True)
class WeightDistance:
    """How far weights are from a reference. NaN if one of them is not finite.

    Attributes:
        distance: ‖W − W₀‖_F.
        relative_distance: ‖W − W₀‖_F / ‖W₀‖_F; NaN for W₀ = 0.
        angle: angle between W and W₀ as vectors, in degrees, 0 to 180; NaN if one of them is 0.
    """

    distance: float
    relative_distance: float
    angle: float


def weight_distance(w: Float[Tensor, "*shape"], reference: Float[Tensor, "*shape"]) -> WeightDistance:
    """Compute distance and angle of weights from a reference of the same shape, in float64.

    The angle is 2 atan2(‖u − v‖, ‖u + v‖) of the unit vectors u and v, which keeps its digits for small angles, unlike
    the arc cosine. It is invariant to the scale of either; distances change with it.

    Args:
        w: weights of any shape and floating type.
        reference: weights of the same shape.

    Raises:
        ValueError: for different shapes.

    Reference: angle: Kahan 2006, "How futile are mindless assessments of roundoff in floating-point computation?",
    section 12.

    Example:
        >>> found = weight_distance(torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 0.0]]))
        >>> round(found.distance, 4), round(found.relative_distance, 4), round(found.angle, 4)
        (1.4142, 0.7071, 45.0)
    """
    own, other, distance = _norms(w, reference, (1.0, 0.0), (0.0, 1.0), (1.0, -1.0))
    if not (math.isfinite(own) and math.isfinite(other)):
        return WeightDistance(math.nan, math.nan, math.nan)
    angle = math.nan
    if own and other:
        (apart,) = _norms(w, reference, (1 / own, -1 / other))
        # ‖u + v‖² = 4 − ‖u − v‖², which loses digits near 180 degrees only
        together = math.sqrt(4 - apart**2) if apart < 1.5 else _norms(w, reference, (1 / own, 1 / other))[0]
        angle = math.degrees(2 * math.atan2(apart, together))
    return WeightDistance(distance, distance / other if other else math.nan, angle)


def _norms(w: Tensor, reference: Tensor, *combinations: tuple[float, float]) -> list[float]:
    """Compute ‖a W + b W₀‖_F for each (a, b), a part at a time, which stays in the cache of a CPU core."""
    totals = torch.zeros(len(combinations), dtype=torch.float64)
    for x, y in zip(
        w.detach().flatten().split(_CHUNK), reference.detach().flatten().split(_CHUNK), strict=True
    ):
        ours = exact_float(x)
        theirs = exact_float(y).to(ours.device)
        found = [
            (a * ours if b == 0 else b * theirs if a == 0 else a * ours + b * theirs) for a, b in combinations
        ]
        totals = totals.to(ours.device) + torch.stack([part.dot(part) for part in found])
    return [math.sqrt(total) for total in totals.tolist()]

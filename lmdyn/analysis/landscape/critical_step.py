"""The longest step along a direction that does not raise a loss."""

from collections.abc import Callable

import scipy

__all__ = ["critical_step"]


def critical_step(
    loss: Callable[[float], float],
    first: float,
    *,
    resolution: float = 0.0,
    tolerance: float = 1e-3,
    most: int = 40,
) -> float:
    """Find the step η_c along a direction at which a loss is again as high as at its start: L(η_c) = L(0).

    Steps are doubled while the loss is below L(0), or halved while it is above, and the crossing is then located by
    Brent's method on (L(η) − L(0)) / η. If the loss crosses L(0) several times, one of the crossings is found. For a
    quadratic loss with slope −s and second derivative c along the direction, η_c = 2s / c.

    Args:
        loss: function that returns the loss at a step η ≥ 0 along the direction.
        first: positive step at which the search begins.
        resolution: difference of losses, above 0, that is only rounding.
        tolerance: relative accuracy of the result.
        most: maximum number of doublings or halvings.

    Returns:
        Positive step; NaN if the loss rises at once (no step lowers it by more than ``resolution``) or is not finite
        at 0; infinite if no step raises it, within ``most`` doublings.

    Raises:
        ValueError: for a first step that is not positive.

    Example:
        >>> round(critical_step(lambda step: (1 - step) ** 2, 0.01), 6)
        2.0
        >>> critical_step(lambda step: step, 0.01)
        nan
    """
    if not first > 0:
        raise ValueError(f"first is {first:g}: expected a step above 0")
    start = loss(0.0)
    if not abs(start) < float("inf"):
        return float("nan")

    def change(step: float) -> float:
        """Change of the loss; infinite where the loss is not finite, which is above any other."""
        found = loss(step) - start
        return found if found == found else float("inf")

    low, high, step = 0.0, 0.0, first
    for _ in range(most + 1):
        found = change(step)
        if found > 0:
            high = step
            if low:
                break
            step /= 2
        elif found < -resolution:
            low = step
            if high:
                break
            step *= 2
        elif high:  # within the rounding, and above it at twice the step
            return float("nan")
        else:
            step *= 2
    if not low:
        return float("nan")
    if not high:
        return float("inf")

    def slope(step: float) -> float:
        """Mean slope up to a step; a bound where it is infinite, since Brent's method interpolates."""
        found = change(step) / step
        return found if found < float("inf") else abs(start) / step + 1.0

    return float(scipy.optimize.brentq(slope, low, high, xtol=tolerance * low / 10, rtol=tolerance / 10))

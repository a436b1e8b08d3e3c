"""The straight line between two points of weight space."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["differences", "point_between", "point_distance"]


def point_distance(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> dict[str, float]:
    """Compute the distance and the cosine of two points, in float64, one parameter at a time.

    Returns:
        ``distance``, of all parameters, and ``cosine`` of both points as vectors, NaN if one of them is 0.

    Raises:
        ValueError: if the names or the shapes differ.

    Example:
        >>> point_distance({"w": torch.tensor([3.0, 0.0])}, {"w": torch.tensor([0.0, 4.0])})
        {'distance': 5.0, 'cosine': 0.0}
    """
    _check_alike(start, end)
    sums = torch.zeros(4, dtype=torch.float64)
    for name, value in start.items():
        own = exact_float(value).flatten()
        other = exact_float(end[name]).flatten().to(own.device)
        sums += torch.stack([(own - other).square().sum(), own @ other, own @ own, other @ other]).cpu()
    squared, inner, first, second = sums.tolist()
    size = math.sqrt(first) * math.sqrt(second)
    cosine = max(-1.0, min(1.0, inner / size)) if size > 0 else math.nan
    return {"distance": math.sqrt(squared), "cosine": cosine}


def differences(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``end`` less ``start`` in float64, by name.

    Raises:
        ValueError: if the names or the shapes differ.

    Example:
        >>> differences({"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])})
        {'w': tensor([2.], dtype=torch.float64)}
    """
    _check_alike(start, end)
    return {name: exact_float(end[name]) - exact_float(value) for name, value in start.items()}


def point_between(start: Mapping[str, Tensor], end: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """Return θ₀ + α(θ₁ − θ₀), in float64 rounded to the types of ``start``; the ends are exact.

    Args:
        start: values by name of parameter, θ₀.
        end: values of the same names and shapes, θ₁.
        alpha: position on the line; below 0 and above 1 beyond its ends.

    Raises:
        ValueError: if the names or the shapes differ.

    Example:
        >>> point_between({"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}, 0.25)
        {'w': tensor([1.5000])}
    """
    _check_alike(start, end)
    if alpha in (0, 1):
        return dict(end if alpha else start)
    return {
        name: torch.lerp(exact_float(value), exact_float(end[name]), alpha).to(value.device, value.dtype)
        for name, value in start.items()
    }


def _check_alike(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> None:
    if start.keys() != end.keys():
        raise ValueError(
            "expected parameters of the same names at both ends of the line, but one end lacks "
            f"{', '.join(sorted(start.keys() ^ end.keys())[:6])}"
        )
    for name, value in start.items():
        if value.shape != end[name].shape:
            raise ValueError(
                f"expected one shape of parameter {name!r} at both ends, got {tuple(value.shape)} and "
                f"{tuple(end[name].shape)}"
            )

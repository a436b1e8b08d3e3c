"""Scales on which bounded numbers scatter evenly: correlations, shares, ratios."""

import math

__all__ = ["error_on_scale", "from_scale", "to_scale"]

_RANGES = {
    "plain": (-math.inf, math.inf),
    "fisher": (-1.0, 1.0),
    "logit": (0.0, 1.0),
    "log": (0.0, math.inf),
}


def to_scale(value: float | int, scale: str) -> float:
    """Transform a number to a scale: Fisher's z of a correlation, the logit of a share, the logarithm of a ratio.

    Args:
        value: within the range of the scale; NaN stays NaN, and ±∞ is the end of any scale.
        scale: ``plain``, ``fisher``, ``logit`` or ``log``.

    Returns:
        The number on the scale, infinite at the ends of its range.

    Raises:
        ValueError: if the number is out of range, or if the scale is unknown.

    Reference: Fisher 1921 (z); Berkson 1944 (logit).

    Example:
        >>> round(to_scale(0.5, "fisher"), 4), to_scale(0.5, "logit"), to_scale(1.0, "log"), to_scale(1.0, "fisher")
        (0.5493, 0.0, 0.0, inf)
    """
    if scale not in _RANGES:
        raise ValueError(f"scale must be one of {', '.join(_RANGES)}, got {scale!r}")
    low, high = _RANGES[scale]
    if not low <= value <= high and not math.isinf(value) and not math.isnan(value):
        raise ValueError(f"scale {scale!r} requires numbers from {low} to {high}, got {value}")
    if scale == "plain" or math.isnan(value):
        return value
    if value <= low:
        return -math.inf
    if value >= high:
        return math.inf
    if scale == "fisher":
        return math.atanh(value)
    return math.log(value / (1 - value)) if scale == "logit" else math.log(value)


def from_scale(value: float | int, scale: str) -> float:
    """Invert :func:`to_scale`.

    Example:
        >>> [round(from_scale(to_scale(0.3, scale), scale), 9) for scale in ("fisher", "logit", "log", "plain")]
        [0.3, 0.3, 0.3, 0.3]
    """
    if scale == "plain":
        return value
    if scale == "fisher":
        return math.tanh(value)
    if scale == "logit":
        return 1 / (1 + math.exp(-value)) if value > 0 else math.exp(value) / (1 + math.exp(value))
    return math.exp(value)


def error_on_scale(value: float | int, error: float, scale: str) -> float:
    """Transform a small standard error to a scale: error times slope of the scale at the value, infinite at its ends.

    Example:
        >>> round(error_on_scale(0.5, 0.01, "fisher"), 6), error_on_scale(0.5, 0.01, "logit")
        (0.013333, 0.04)
    """
    if scale == "plain" or error == 0:
        return error
    slope = {"fisher": 1 - value * value, "logit": value * (1 - value), "log": value}[scale]
    return error / slope if slope > 0 else math.inf

"""Confidence intervals of printed numbers, from their number of observations only."""

import math

import scipy

__all__ = ["correlation_interval", "share_interval"]

_Z = float(scipy.special.ndtri(0.975))


def correlation_interval(r: float | int, n: int) -> tuple[float, float]:
    """Compute Fisher's 95 % interval of a correlation of n pairs: tanh(artanh r ± z / √(n − 3)).

    Args:
        r: Pearson's correlation, -1 to 1; for a rank correlation, the interval is slightly too narrow.
        n: number of pairs, more than 3.

    Raises:
        ValueError: if r is not a correlation, or if there are too few pairs.

    Reference: Fisher 1921, "On the probable error of a coefficient of correlation deduced from a small sample".

    Example:
        >>> [round(end, 3) for end in correlation_interval(0.5, 28)]
        [0.156, 0.736]
    """
    if not (-1 <= r <= 1 and n > 3):
        raise ValueError(f"expected a correlation r and n > 3, got r={r} and n={n}")
    if abs(r) == 1:
        return r, r
    half = _Z / math.sqrt(n - 3)
    return math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def share_interval(p: float | int, n: int) -> tuple[float, float]:
    """Compute Wilson's 95 % interval of a share of n independent cases, such as an accuracy.

    With z the 97.5 % quantile of the normal distribution: (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n).

    Args:
        p: the share, 0 to 1.
        n: number of cases.

    Raises:
        ValueError: if p is not a share, or if there are no cases.

    Reference: Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    Example:
        >>> [round(end, 3) for end in share_interval(0.9, 100)]
        [0.826, 0.945]
    """
    if not (0 <= p <= 1 and n > 0):
        raise ValueError(f"expected a share p and n > 0, got p={p} and n={n}")
    z2 = _Z**2 / n
    middle = p + z2 / 2
    half = math.sqrt(z2 * (p * (1 - p) + z2 / 4))
    return max((middle - half) / (1 + z2), 0.0), min((middle + half) / (1 + z2), 1.0)

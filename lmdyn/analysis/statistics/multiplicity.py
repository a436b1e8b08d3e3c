"""Several statements at once: simultaneous intervals, and p-values adjusted by Holm's method."""

from collections.abc import Sequence

__all__ = ["holm", "simultaneous_confidence"]


def simultaneous_confidence(confidence: float, intervals: int) -> float:
    """Return the confidence of each of several intervals that all cover with ``confidence``, for any dependence.

    Reference: Bonferroni's inequality; Dunn 1961, "Multiple comparisons among means".

    Example:
        >>> simultaneous_confidence(0.95, 5)
        0.99
    """
    if intervals < 1 or not 0 < confidence < 1:
        raise ValueError(f"expected intervals >= 1 and 0 < confidence < 1, got {intervals} and {confidence}")
    return 1 - (1 - confidence) / intervals


def holm(p: Sequence[float | int]) -> list[float]:
    """Compute Holm's adjusted p-values: rejecting those up to α keeps the probability of any false one below α.

    In ascending order, p_(i) is multiplied by the number of those not smaller, n - i + 1, and is at least as large as
    the previous ones, and at most 1. There is no assumption on dependence.

    Args:
        p: one p-value per hypothesis, in any order.

    Returns:
        Adjusted p-values in the same order.

    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure".

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    if any(not 0 <= value <= 1 for value in p):
        raise ValueError(f"expected p-values from 0 to 1, got {', '.join(f'{v:g}' for v in p)}")
    adjusted = [0.0] * len(p)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = largest
    return adjusted

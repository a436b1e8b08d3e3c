"""Rank correlation, also with other variables held."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

__all__ = ["spearman"]


def spearman(x: npt.NDArray[Any], y: npt.NDArray[Any], given: Sequence[npt.NDArray[Any]] = ()) -> float:
    """Spearman's rank correlation of x and y, partial where other variables are given.

    Partial: Pearson's correlation of what is left of the ranks of x and y after a linear regression on the ranks of
    the variables that are held (Conover & Iman 1981).

    Args:
        x: (n,) values.
        y: (n,) values.
        given: variables to hold, each (n,).

    Returns:
        A number from -1 to 1; NaN where one of both is constant, or is told by the others, or is not finite.

    Example:
        >>> x = np.arange(6.0)
        >>> round(spearman(x, x**3), 6)
        1.0
    """
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("nan")
    ranks = [rankdata(values) for values in (x, y)]
    held = np.stack([np.ones(len(x)), *(rankdata(values) for values in given)], axis=1)
    left = [r - held @ np.linalg.lstsq(held, r, rcond=None)[0] for r in ranks]
    norms = [np.linalg.norm(v) for v in left]
    if any(n <= 1e-9 * np.linalg.norm(r) for n, r in zip(norms, ranks, strict=True)):
        return float("nan")
    return float(left[0] @ left[1] / (norms[0] * norms[1]))

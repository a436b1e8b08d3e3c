"""Shares of a number's variance that are due to initialisation and to the order of data."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["VarianceComponents", "variance_components"]


class VarianceComponents(NamedTuple):
    """Variances of a crossed design of two random factors with one run per cell.

    Attributes:
        rows: variance of the factor in the rows (initialisation); negative if the sample gives no evidence of it.
        columns: variance of the factor in the columns (order of data).
        rest: variance of their interaction and everything else, which one run per cell cannot separate.
        mean: mean of all cells.
    """

    rows: float
    columns: float
    rest: float
    mean: float


def variance_components(values: npt.NDArray[Any]) -> VarianceComponents:
    """Estimate components of variance by the analysis of variance: y_ij = μ + a_i + b_j + e_ij, all except μ random.

    From the mean squares of a × b cells, σ_e² = MS_e, σ_a² = (MS_a − MS_e) / b, σ_b² = (MS_b − MS_e) / a. They are
    unbiased, and can therefore be negative; with three by three cells, each has few degrees of freedom (2, 2 and 4).

    Args:
        values: (a, b) one run per cell, at least two rows and columns.

    Raises:
        ValueError: if the shape is wrong, or if a cell is missing.

    Reference: Searle, Casella & McCulloch 1992, "Variance components", section 4.3.

    Example:
        >>> found = variance_components(np.array([[1.0, 2.0], [3.0, 4.0]]))
        >>> found.rows, found.columns, found.rest  # additive: no rest
        (2.0, 0.5, 0.0)
    """
    y = np.asarray(values, np.float64)
    if y.ndim != 2 or min(y.shape) < 2 or not np.isfinite(y).all():
        raise ValueError(
            f"expected at least two finite rows and columns, got {y.shape} with {np.isfinite(y).sum()} finite values"
        )
    a, b = y.shape
    mean = y.mean()
    row = y.mean(1, keepdims=True) - mean
    column = y.mean(0, keepdims=True) - mean
    ms_rest = float(((y - mean - row - column) ** 2).sum() / ((a - 1) * (b - 1)))
    ms_row = float(b * (row**2).sum() / (a - 1))
    ms_column = float(a * (column**2).sum() / (b - 1))
    return VarianceComponents((ms_row - ms_rest) / b, (ms_column - ms_rest) / a, ms_rest, float(mean))

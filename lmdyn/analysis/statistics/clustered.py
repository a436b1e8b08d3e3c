"""Means of groups of values that belong to clusters, with their standard errors."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["ClusteredMeans", "clustered_means"]


class ClusteredMeans(NamedTuple):
    """For each group: the mean, its standard error, and the number of values, each (groups,)."""

    mean: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64]
    number: npt.NDArray[np.int64]


def clustered_means(
    values: npt.NDArray[np.float64], groups: npt.NDArray[np.int64], clusters: npt.NDArray[np.int64]
) -> ClusteredMeans:
    """Compute the mean of each group, with a standard error that is robust to correlation within clusters.

    The error is √(Σ_c (Σ_{i∈c} (x_i − x̄))² · C / (C − 1)) / n, for n values in C clusters.

    Args:
        values: (n,) values.
        groups: (n,) the group of each value, from 0.
        clusters: (n,) the cluster of each value, from 0; a cluster may have values in several groups.

    Returns:
        One entry for each group up to the largest; the mean is NaN without values, the error with fewer than two
        clusters.

    Reference: Liang & Zeger 1986.

    Example:
        >>> found = clustered_means(np.array([1.0, 3.0, 4.0]), np.array([0, 0, 1]), np.array([0, 1, 1]))
        >>> found.mean.tolist(), found.error.tolist(), found.number.tolist()
        ([2.0, 4.0], [1.0, nan], [2, 1])
    """
    size = int(groups.max()) + 1 if len(groups) else 0
    count = np.bincount(groups, minlength=size)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(groups, values, minlength=size) / count
        cells, cell = np.unique(np.stack([groups, clusters]), axis=1, return_inverse=True)
        sums = np.bincount(cell.ravel(), values - mean[groups], minlength=cells.shape[1])
        number = np.bincount(cells[0], minlength=size).astype(np.float64)
        number[number < 2] = np.nan
        error = np.sqrt(np.bincount(cells[0], sums**2, minlength=size) * number / (number - 1)) / count
    return ClusteredMeans(mean, error, count)

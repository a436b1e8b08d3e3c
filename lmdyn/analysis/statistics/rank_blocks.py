"""Rank correlations with standard errors over text: the same correlations without each block of observations."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from lmdyn.analysis.statistics.jackknife import jackknife

__all__ = ["RankCorrelation", "RankCorrelations", "blocks_of_clusters"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class RankCorrelation(NamedTuple):
    """A rank correlation of two variables.

    Attributes:
        value: from -1 to 1.
        error: standard error over blocks, by the delete-one-block jackknife; NaN for fewer than two blocks.
        without: (blocks,) the correlation without each block; empty for fewer than two blocks.
    """

    value: float
    error: float
    without: FloatArray


class RankCorrelations:
    """Spearman's correlations of several variables, plain, partial or within strata, also without each block.

    Values are those of :func:`~lmdyn.analysis.spearman`. With strata, ranks are taken within each stratum, about its
    middle and as a share of its size, and correlated over all: observations are compared with others that agree in the
    variable of the strata, and an observation that is alone in its stratum has no influence.

    Errors are for observations in blocks, such as the pairs of words of some sentences: everything is ranked again
    without each block.

    Args:
        columns: values of each variable, each (n,); a variable with a NaN or an infinite value has no correlation.
        blocks: (n,) the block of each observation: see :func:`blocks_of_clusters`.
        strata: (n,) the stratum of each observation.

    Attributes:
        blocks: the blocks that have observations, in order.
        sizes: number of observations of each block.

    Raises:
        ValueError: if the lengths of arrays differ.

    Reference: Busing, Meijer & van der Leeden 1999 (:func:`~lmdyn.analysis.jackknife`); Conover & Iman 1981.

    Example:
        >>> x, blocks = np.arange(6.0), np.arange(6) // 2
        >>> found = RankCorrelations([x, x**3, -x], blocks).of(0, 2)
        >>> round(found.value, 6), round(found.error, 6)
        (-1.0, 0.0)
    """

    def __init__(
        self,
        columns: Sequence[npt.NDArray[Any]],
        blocks: npt.NDArray[Any],
        strata: npt.NDArray[Any] | None = None,
    ) -> None:

        lengths = {len(column) for column in (*columns, blocks, *(() if strata is None else (strata,)))}
        if len(lengths) > 1:
            raise ValueError(f"columns, blocks and strata differ in length: {min(lengths)} to {max(lengths)}")
        self.blocks, self.sizes = np.unique(blocks, return_counts=True)
        stratum = np.zeros(len(blocks), int) if strata is None else np.unique(strata, return_inverse=True)[1]
        codes = [np.unique(column, return_inverse=True)[1] + len(blocks) * stratum for column in columns]
        moments = []
        for left_out in [None, *(self.blocks if len(self.blocks) > 1 else ())]:
            kept = np.full(len(blocks), True) if left_out is None else blocks != left_out
            ranks = np.stack([_ranks(code[kept], stratum[kept]) for code in codes])
            moments.append(ranks @ ranks.T)
        self._moments = np.stack(moments)
        self._finite = [bool(np.isfinite(column).all()) for column in columns]

    def of(self, x: int, y: int, given: Sequence[int] = ()) -> RankCorrelation:
        """Compute the correlation of variables x and y, by index, given the ranks of others (linear regression).

        It is NaN if x or y is constant or determined by the others, for fewer than 3 observations, and if a value of
        any of these variables is not finite.
        """
        if self.sizes.sum() < 3 or not all(self._finite[number] for number in (x, y, *given)):
            return RankCorrelation(np.nan, np.nan, np.full(len(self._moments) - 1, np.nan))
        found = _partial(self._moments, (x, y), given)
        value, without = float(found[0]), found[1:]
        error = float(jackknife(value, without, self.sizes).error) if len(without) else np.nan
        return RankCorrelation(value, error, without)


def blocks_of_clusters(clusters: npt.NDArray[Any], most: int = 64) -> IntArray:
    """Divide neighbouring clusters, such as sentences, into blocks of about equal numbers of observations.

    Args:
        clusters: (n,) the cluster of each observation, numbered in the order of the text.
        most: number of blocks; fewer if there are fewer clusters.

    Returns:
        Array of shape (n,): the block of each observation, from 0; all observations of a cluster are in one block.

    Example:
        >>> blocks_of_clusters(np.array([0, 0, 0, 1, 1, 2, 3]), most=2).tolist()
        [0, 0, 0, 1, 1, 1, 1]
    """
    _, cluster, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    if len(sizes) <= most:
        return np.asarray(cluster, np.int64)
    of = ((np.cumsum(sizes) - sizes / 2) * most / len(clusters)).astype(np.int64)
    return np.asarray(np.unique(of, return_inverse=True)[1][cluster], np.int64)


def _ranks(code: IntArray, stratum: IntArray) -> FloatArray:
    """Return middle ranks within strata about their mean, as shares; codes are in the order of stratum and value."""
    size = np.bincount(stratum)
    before = np.cumsum(size) - size
    ranks = scipy.stats.rankdata(code) - before[stratum] - (size[stratum] + 1) / 2
    return np.asarray(ranks / size[stratum])


def _partial(moments: FloatArray, pair: tuple[int, int], given: Sequence[int]) -> FloatArray:
    """Compute the partial correlation of a pair of variables, given others, from each matrix of moments.

    Moments (m, variables, variables) are about means. A given variable that is constant in one of them is ignored
    there.
    """
    scale = np.sqrt(np.diagonal(moments, axis1=1, axis2=2))
    chosen = [*pair, *given]
    scale = np.where(scale > 0, scale, np.nan)[:, chosen]
    r = moments[:, chosen][:, :, chosen] / (scale[:, :, None] * scale[:, None, :])
    left = r[:, :2, :2]
    if len(given):
        r = np.nan_to_num(r)
        across, held = r[:, :2, 2:], r[:, 2:, 2:]
        left = left - across @ np.linalg.pinv(held, rcond=1e-12, hermitian=True) @ across.transpose(0, 2, 1)
    remains = left[:, 0, 0] * left[:, 1, 1]
    remains[(left[:, 0, 0] <= 1e-12) | (left[:, 1, 1] <= 1e-12)] = np.nan
    return np.asarray(np.clip(left[:, 0, 1] / np.sqrt(remains), -1, 1))

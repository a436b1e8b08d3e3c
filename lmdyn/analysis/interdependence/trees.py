"""Distances in dependency trees."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import shortest_path

__all__ = ["dependency_distances"]


def dependency_distances(heads: Sequence[int]) -> npt.NDArray[np.int64]:
    """Edges on the way between every two words of a dependency tree.

    A word and its head are 1 apart, two words with the same head 2.

    Args:
        heads: the index of each word's head, -1 for a root.

    Returns:
        (words, words), symmetric; -1 where no way leads from one word to the other, under different roots.

    Raises:
        ValueError: a head outside of the sentence, or heads that go round in a circle.

    Example:
        >>> dependency_distances([1, -1, 3, 1])  # Socrates ← asked → student, the ← student
        array([[0, 1, 3, 2],
               [1, 0, 2, 1],
               [3, 2, 0, 1],
               [2, 1, 1, 0]])
    """
    head = np.asarray(heads, dtype=np.int64)
    n = len(head)
    if n and (head.min() < -1 or head.max() >= n):
        raise ValueError(f"heads {list(heads)} point outside of a sentence of {n} words (-1 is a root)")
    climbed = head.copy()
    for _ in range(n):
        climbed = np.where(climbed >= 0, head[climbed], -1)
    if (climbed >= 0).any():
        raise ValueError(
            f"heads {list(heads)} go round in a circle: expected a tree, words counted from 0, -1 the root"
        )
    child = np.flatnonzero(head >= 0)
    edges = coo_matrix((np.ones(len(child)), (child, head[child])), shape=(n, n))
    distance = shortest_path(edges.tocsr(), directed=False, unweighted=True)
    return np.where(np.isfinite(distance), distance, -1).astype(np.int64)

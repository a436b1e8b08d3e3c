"""Distances in dependency trees."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import shortest_path

__all__ = ["dependency_distances", "off_by_one_distances"]


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
    head = _heads(heads)
    n = len(head)
    climbed = head.copy()
    for _ in range(n):
        climbed = np.where(climbed >= 0, head[climbed], -1)
    if (climbed >= 0).any():
        raise ValueError(
            f"heads {list(heads)} go round in a circle: expected a tree, words counted from 0, -1 the root"
        )
    child = np.flatnonzero(head >= 0)
    return _distances(child, head[child], n)


def off_by_one_distances(heads: Sequence[int]) -> npt.NDArray[np.int64]:
    """The distances that come of heads counted from 1 which are taken for positions counted from 0.

    The mistake is easily made with CoNLL-U, where 0 is the head of the root: each word is joined to the word after its
    head, a root to the first word. What comes of it is no tree: a word whose head is the word before it is joined to
    itself. A control for what depends on syntactic distance: what shows here too is no matter of syntax.

    Args:
        heads: as of :func:`dependency_distances`: the index of each word's head from 0, -1 for a root.

    Returns:
        (words, words), symmetric; -1 where no way leads from one word to the other.

    Raises:
        ValueError: a head outside of the sentence.

    Example:
        >>> off_by_one_distances([1, -1, 3, 1])  # 0 to 2, 1 to 0, 2 to 4, which is no word, 3 to 2
        array([[0, 1, 1, 2],
               [1, 0, 2, 3],
               [1, 2, 0, 1],
               [2, 3, 1, 0]])
    """
    head = _heads(heads)
    n = len(head)
    return _distances(np.arange(n), head + 1, n + 1)[:n, :n]


def _heads(heads: Sequence[int]) -> npt.NDArray[np.int64]:
    head = np.asarray(heads, dtype=np.int64)
    n = len(head)
    if n and (head.min() < -1 or head.max() >= n):
        raise ValueError(f"heads {list(heads)} point outside of a sentence of {n} words (-1 is a root)")
    return head


def _distances(start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Edges between every two of n nodes, -1 where there is no way."""
    edges = coo_matrix((np.ones(len(start)), (start, end)), shape=(n, n))
    distance = shortest_path(edges.tocsr(), directed=False, unweighted=True)
    return np.where(np.isfinite(distance), distance, -1).astype(np.int64)

"""Distances in dependency trees."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy

__all__ = ["dependency_distances", "off_by_one_distances"]


def dependency_distances(heads: Sequence[int]) -> npt.NDArray[np.int64]:
    """Compute the number of edges between every two words of a dependency tree.

    A word and its head have distance 1, two words with the same head have distance 2.

    Args:
        heads: index of each word's head, -1 for a root.

    Returns:
        Array of shape (words, words), symmetric; -1 if two words are not connected, under different roots.

    Raises:
        ValueError: if a head is outside the sentence, or if the heads form a cycle.

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
            f"heads {', '.join(map(str, heads))} form a cycle: expected a tree of words from 0, with -1 for the root"
        )
    child = np.flatnonzero(head >= 0)
    return _distances(child, head[child], n)


def off_by_one_distances(heads: Sequence[int]) -> npt.NDArray[np.int64]:
    """Compute the distances that result if heads counted from 1 are read as positions counted from 0.

    This mistake is easily made with CoNLL-U, in which 0 is the head of the root: each word is joined to the word after
    its head, a root to the first word. The result is not a tree: a word whose head is the previous word is joined to
    itself. It is a control for effects of syntactic distance: an effect that also appears here is not syntactic.

    Args:
        heads: as in :func:`dependency_distances`: index of each word's head from 0, -1 for a root.

    Returns:
        Array of shape (words, words), symmetric; -1 if two words are not connected.

    Raises:
        ValueError: if a head is outside the sentence.

    Example:
        >>> off_by_one_distances([1, -1, 3, 1])  # 0 to 2, 1 to 0, 2 to 4 (not a word), 3 to 2
        array([[0, 1, 1, 2],
               [1, 0, 2, 3],
               [1, 2, 0, 1],
               [2, 3, 1, 0]])
    """
    head = _heads(heads)
    n = len(head)
    return _distances(np.arange(n), head + 1, n + 1)[:n, :n]


def _heads(heads: Sequence[int]) -> npt.NDArray[np.int64]:
    head = np.asarray(heads, np.int64)
    n = len(head)
    if n and (head.min() < -1 or head.max() >= n):
        raise ValueError(
            f"heads {', '.join(map(str, heads))} point outside the sentence of {n} words: expected indices from 0, or "
            "-1 for a root"
        )
    return head


def _distances(start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Compute the number of edges between every two of n nodes, -1 if they are not connected."""
    edges = scipy.sparse.coo_matrix((np.ones(len(start)), (start, end)), shape=(n, n))
    distance = scipy.sparse.csgraph.shortest_path(edges.tocsr(), directed=False, unweighted=True)
    return np.where(np.isfinite(distance), distance, -1).astype(np.int64)

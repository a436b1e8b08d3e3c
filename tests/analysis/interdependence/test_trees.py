"""Distances in dependency trees: trees worked by hand, and paths searched one by one."""

from collections import deque

import numpy as np
import pytest

from lmdyn.analysis.interdependence.trees import dependency_distances, off_by_one_distances

WORDS = ("Socrates", "asked", "the", "student", "trick", "questions")
HEADS = (1, -1, 3, 1, 5, 1)  # figure 2 of Saphra & Lopez 2020


def searched(edges, n):
    """Distances among n words by a search, breadth first from each, over pairs of nodes."""
    neighbours = {}
    for a, b in edges:
        neighbours.setdefault(a, set()).add(b)
        neighbours.setdefault(b, set()).add(a)
    found = np.full((n, n), -1)
    for start in range(n):
        reached = {start: 0}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for other in neighbours.get(node, set()) - reached.keys():
                reached[other] = reached[node] + 1
                queue.append(other)
        for word in reached.keys() & range(n):
            found[start, word] = reached[word]
    return found


def random_heads(random, n, roots=1):
    """Words in random order, each after the roots hanging on one before it."""
    order = random.permutation(n)
    heads = np.full(n, -1)
    for i in range(roots, n):
        heads[order[i]] = order[random.integers(i)]
    return heads.tolist()


@pytest.mark.parametrize(
    ("one", "other", "edges"),
    [
        ("trick", "questions", 1),
        ("trick", "the", 4),
        ("Socrates", "asked", 1),
        ("Socrates", "student", 2),
        ("Socrates", "trick", 3),
        ("the", "the", 0),
    ],
)
def test_the_sentence_of_the_publication(one, other, edges):
    found = dependency_distances(HEADS)
    assert found.dtype == np.int64
    assert found[WORDS.index(one), WORDS.index(other)] == edges
    assert found[WORDS.index(other), WORDS.index(one)] == edges


@pytest.mark.parametrize("roots", [1, 2, 3])
def test_equals_a_search_along_the_edges(roots):
    random = np.random.default_rng(roots)
    for n in (roots, 5, 9, 30):
        for _ in range(4):
            heads = random_heads(random, n, roots)
            edges = [(word, head) for word, head in enumerate(heads) if head >= 0]
            np.testing.assert_array_equal(dependency_distances(heads), searched(edges, n))


@pytest.mark.parametrize("heads", [[0], [1, 0], [-1, 2, 3, 1], [-1, 2, 1]])
def test_a_circle_is_refused(heads):
    with pytest.raises(ValueError, match="form a cycle"):
        dependency_distances(heads)


@pytest.mark.parametrize("heads", [[1], [-1, 2], [-2, 0], [-1, 0, 5]])
def test_a_head_outside_is_refused(heads):
    with pytest.raises(ValueError, match=f"outside the sentence of {len(heads)} words"):
        dependency_distances(heads)


@pytest.mark.parametrize("seed", range(4))
def test_heads_counted_from_one_as_positions_counted_from_zero(seed):
    """The CoNLL-U column as it stands, 0 for the root, joined to positions from 0."""
    heads = random_heads(np.random.default_rng(seed), 9)
    found = off_by_one_distances(heads)
    np.testing.assert_array_equal(found, searched([(i, head + 1) for i, head in enumerate(heads)], 9))
    assert not np.array_equal(found, dependency_distances(heads))

"""Distances in dependency trees: trees worked by hand, and paths searched one by one."""

from collections import deque

import numpy as np
import pytest

from lmdyn.analysis.interdependence.trees import dependency_distances, off_by_one_distances

WORDS = ("Socrates", "asked", "the", "student", "trick", "questions")
HEADS = (1, -1, 3, 1, 5, 1)  # figure 2 of Saphra & Lopez 2020


def searched(heads):
    """Breadth first from each word over the edges as they are written."""
    neighbours = [set() for _ in heads]
    for word, head in enumerate(heads):
        if head >= 0:
            neighbours[word].add(head)
            neighbours[head].add(word)
    found = np.full((len(heads), len(heads)), -1)
    for start in range(len(heads)):
        found[start, start] = 0
        queue = deque([start])
        while queue:
            word = queue.popleft()
            for other in neighbours[word]:
                if found[start, other] < 0:
                    found[start, other] = found[start, word] + 1
                    queue.append(other)
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
        ("trick", "asked", 2),
        ("trick", "the", 4),
        ("Socrates", "asked", 1),
        ("Socrates", "student", 2),
        ("student", "questions", 2),
        ("Socrates", "trick", 3),
        ("the", "the", 0),
    ],
)
def test_the_sentence_of_the_publication(one, other, edges):
    found = dependency_distances(HEADS)
    assert found.dtype == np.int64
    assert found[WORDS.index(one), WORDS.index(other)] == edges
    assert found[WORDS.index(other), WORDS.index(one)] == edges


def test_head_and_child_are_1_apart_and_siblings_2():
    for heads in (HEADS, random_heads(np.random.default_rng(7), 15)):
        found = dependency_distances(heads)
        for word, head in enumerate(heads):
            assert head < 0 or found[word, head] == 1
            for other in range(len(heads)):
                if other != word and heads[other] == head >= 0:
                    assert found[word, other] == 2


@pytest.mark.parametrize("roots", [1, 2, 3])
def test_equals_a_search_along_the_edges(roots):
    random = np.random.default_rng(roots)
    for n in (roots, 5, 9, 30):
        for _ in range(4):
            heads = random_heads(random, n, roots)
            np.testing.assert_array_equal(dependency_distances(heads), searched(heads))


def test_a_chain_and_a_star():
    chain = dependency_distances([-1, 0, 1, 2, 3])
    np.testing.assert_array_equal(chain, np.abs(np.subtract.outer(np.arange(5), np.arange(5))))
    star = dependency_distances([2, 2, -1, 2])
    np.testing.assert_array_equal(star, [[0, 2, 1, 2], [2, 0, 1, 2], [1, 1, 0, 1], [2, 2, 1, 0]])


def test_no_way_leads_from_root_to_root():
    found = dependency_distances([-1, 0, -1, 2])
    np.testing.assert_array_equal(found, [[0, 1, -1, -1], [1, 0, -1, -1], [-1, -1, 0, 1], [-1, -1, 1, 0]])


def test_a_word_alone_and_no_word():
    assert dependency_distances([-1]).tolist() == [[0]]
    assert dependency_distances((-1,)).tolist() == [[0]]
    assert dependency_distances([]).shape == (0, 0)


@pytest.mark.parametrize("heads", [[0], [1, 0], [-1, 2, 3, 1], [-1, 2, 1]])
def test_a_circle_is_refused(heads):
    with pytest.raises(ValueError, match="form a cycle"):
        dependency_distances(heads)


@pytest.mark.parametrize("heads", [[1], [-1, 2], [-2, 0], [-1, 0, 5]])
def test_a_head_outside_is_refused(heads):
    with pytest.raises(ValueError, match=f"outside the sentence of {len(heads)} words"):
        dependency_distances(heads)


def graph_distance(edges, start, end):
    """By breadth-first search."""
    reached, step = {start}, 0
    while end not in reached:
        further = reached | {b for a, b in edges if a in reached} | {a for a, b in edges if b in reached}
        if further == reached:
            return -1
        reached, step = further, step + 1
    return step


@pytest.mark.parametrize("seed", range(4))
def test_heads_counted_from_one_as_positions_counted_from_zero(seed):
    """The CoNLL-U column as it stands, 0 for the root, joined to positions from 0."""
    random = np.random.default_rng(seed)
    n = 9
    order, heads = random.permutation(n), np.full(n, -1)
    for i in range(1, n):
        heads[order[i]] = order[random.integers(0, i)]
    column = [head + 1 for head in heads]
    edges = set(enumerate(column))
    found = off_by_one_distances(heads.tolist())
    assert found.shape == (n, n)
    for a in range(n):
        for b in range(n):
            assert found[a, b] == graph_distance(edges, a, b)
    assert not np.array_equal(found, dependency_distances(heads.tolist()))


def test_off_by_one_a_chain_is_no_tree_at_all():
    """Each word joined to itself but the first, which is the root."""
    assert off_by_one_distances([-1, 0, 1]).tolist() == [[0, -1, -1], [-1, 0, -1], [-1, -1, 0]]
    assert off_by_one_distances([]).shape == (0, 0)
    with pytest.raises(ValueError, match="outside the sentence of 2 words"):
        off_by_one_distances([2, -1])

"""Clusters of words: a matrix made by hand, and sources that are known."""

import math

import pytest
import torch

from lmdyn.analysis.preference import clustering as C
from lmdyn.analysis.preference.independent_components import IndependentComponents

SETTINGS = {"components": 4, "learning_rate": 0.1, "tolerance": 1e-9}


def embeddings(n=1500, seed=3):
    """Of 8 dimensions, of float32, around a mean that is far from 0: four Laplace sources and a little noise."""
    g = torch.Generator().manual_seed(seed)
    u = torch.rand(n, 4, generator=g).clamp(1e-6) - 0.5
    sources = -u.sign() * torch.log1p(-2 * u.abs())
    return sources @ torch.randn(4, 8, generator=g) + 0.05 * torch.randn(n, 8, generator=g) + 4


def matrix():
    """6 words, 2 components: two members of 0+, one of 0-, one of 1-, one word in two clusters."""
    return torch.tensor([[2.6, 0.0], [4.0, -3.0], [2.5, 1.0], [-2.6, 1.5], [0.1, -1.0], [-2.5, 2.4]])


def by_hand():
    return C._clustered(matrix(), 2.5, IndependentComponents(matrix(), torch.eye(2), 3, True, 0.001))


def test_clusters_of_a_matrix_made_by_hand():
    clusters = by_hand()
    assert [
        *zip(
            clusters.word.tolist(), clusters.component.tolist(), clusters.sign.tolist(), clusters.value.tolist(),
            strict=True,
        )
    ] == [(0, 0, 1, pytest.approx(2.6)), (1, 0, 1, 4.0), (3, 0, -1, pytest.approx(-2.6)), (1, 1, -1, -3.0)]  # fmt: skip
    assert clusters.cluster.tolist() == [0, 0, 1, 3]
    assert [C.cluster_name(c) for c in clusters.cluster.tolist()] == ["0+", "0+", "0-", "1-"]
    assert (clusters.words, clusters.number) == (6, 4)
    assert clusters.sizes.tolist() == [2, 1, 0, 1]
    assert clusters.clusters_per_word.tolist() == [1, 2, 0, 1, 0, 0]
    assert clusters.shares(3).tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 6, 0])
    assert clusters.shares(1).tolist() == [1 / 2, 1 / 2]  # the last is of so many or more
    assert clusters.mean_clusters == pytest.approx(4 / 6)
    assert clusters.within_one == pytest.approx(4 / 12)  # 0, 1, 0.1, -1
    assert (clusters.iterations, clusters.converged, clusters.residual) == (3, True, 0.001)


def test_typical_words():
    clusters = by_hand()
    assert C.typical_words(clusters, 0).tolist() == [1, 0]
    assert C.typical_words(clusters, 0, by="frequency").tolist() == [0, 1]
    assert C.typical_words(clusters, 0, count=1).tolist() == [1]
    assert C.typical_words(clusters, 2).tolist() == []


def test_cluster_means():
    preference = torch.tensor([1.0, 4.0, 9.0, torch.nan, 9.0, 9.0])
    means, members = C.cluster_means(by_hand(), preference)
    assert members.tolist() == [2, 0, 0, 1]
    assert means[[0, 3]].tolist() == [2.5, 4.0]
    assert means[[1, 2]].isnan().all()
    with pytest.raises(ValueError, match="for each of 6 words, got 5"):
        C.cluster_means(by_hand(), preference[:5])


def test_words_have_unit_variance_in_each_component():
    x = embeddings()
    clusters = C.word_clusters(x, C.Clustering(**SETTINGS))
    assert clusters.converged
    assert clusters.values.dtype == torch.float32
    assert torch.allclose(clusters.values.mean(0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(clusters.values.var(0, correction=0), torch.ones(4), atol=1e-5)
    assert torch.equal(clusters.clusters_per_word, (clusters.values.abs() > 2.5).sum(1))
    assert clusters.within_one == pytest.approx(1 - math.exp(-math.sqrt(2)), abs=0.03)  # Laplace
    assert clusters.mean_clusters == pytest.approx(4 * math.exp(-2.5 * math.sqrt(2)), abs=0.03)
    assert float(clusters.shares(2).sum()) == pytest.approx(1)

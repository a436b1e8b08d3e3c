"""RSA: scipy as the oracle, ties, kernels turned round."""

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import torch

from lmdyn.analysis import rbf_kernel, rsa
from lmdyn.analysis.similarity.kernels import pair_distances, pairs_of_rows, squared_distances
from lmdyn.analysis.similarity.rsa import centred_ranks, distance_ranks


def expected(x, y, metric, metric_y=None):
    pairs = (scipy.spatial.distance.pdist(v.numpy(), m) for v, m in ((x, metric), (y, metric_y or metric)))
    return scipy.stats.spearmanr(*pairs).statistic


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "correlation"])
def test_equals_scipy(related, metric):
    x, y = related(n=50)
    assert float(rsa(x, y, metric)) == pytest.approx(expected(x, y, metric), abs=1e-9)
    mixed = rsa(x, y, metric, dissimilarity_y="euclidean")
    assert float(mixed) == pytest.approx(expected(x, y, metric, "euclidean"), abs=1e-9)


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "correlation"])
def test_repeated_samples_are_ties(related, metric):
    """As in an embedding layer, where each occurrence of a word is the same vector."""
    x, y = related(n=12)
    words = torch.randint(12, (60,), generator=torch.Generator().manual_seed(0))
    tokens = x[words]
    first, second = torch.triu_indices(60, 60, 1)
    same = words[first] == words[second]
    # ties by the words themselves, not by rounding
    table = scipy.spatial.distance.squareform(scipy.spatial.distance.pdist(x.numpy(), metric))
    dissimilarity = table[words[first], words[second]]
    assert (dissimilarity[same] == 0).all()
    context = torch.randn(60, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + y[words]
    other = scipy.spatial.distance.pdist(context.numpy(), metric)
    rho = scipy.stats.spearmanr(dissimilarity, other).statistic
    assert float(rsa(tokens, context, metric)) == pytest.approx(rho, abs=1e-9)
    assert float(rsa(tokens, tokens, metric)) == pytest.approx(1, abs=1e-12)


def sets_of_points():
    g = torch.Generator().manual_seed(2)
    normal = torch.randn(120, 9, generator=g, dtype=torch.float64)
    return {
        "no ties": normal,
        "a mean of 1e6": normal + 1e6,
        "near pairs": torch.cat([normal, normal + 1e-9 * normal.flip(0)]),
        "words": normal[torch.randint(60, (120,), generator=g)],
        "a grid": normal.mul(2).round(),
        "unit vectors": torch.cat([torch.eye(40), 2 * torch.eye(40)]).double(),
        "a far one": torch.cat([normal[:1] + 1e7, normal[1:]]),
        "two far groups": normal + 1e6 * (torch.arange(120) % 2)[:, None],
    }


@pytest.mark.parametrize("name", sets_of_points())
def test_ranks_by_products_are_those_by_differences(name):
    points = sets_of_points()[name]
    expected = centred_ranks(pair_distances(points))
    np.testing.assert_array_equal(distance_ranks(points), expected)
    # the control: products alone break ties, and lose small distances next to large norms
    by_products = centred_ranks(pairs_of_rows(squared_distances(points)[0]))
    if name in ("near pairs", "a grid", "unit vectors", "a far one", "two far groups"):
        assert not torch.equal(by_products, expected)


@pytest.mark.parametrize("levels", [1, 2, 7, 10_000])
def test_ranks_are_scipys(levels):
    values = torch.randint(levels, (500,), generator=torch.Generator().manual_seed(0)).double()
    expected = scipy.stats.rankdata(values.numpy()) - 250.5
    np.testing.assert_array_equal(centred_ranks(values), expected)


def test_only_the_order_counts_and_kernels_are_turned_round(related):
    x, y = related(n=40)
    value = float(rsa(x, y, "euclidean"))
    assert float(rsa(x, y, lambda v: torch.cdist(v, v) ** 3)) == pytest.approx(value, abs=1e-12)
    assert float(rsa(x, y, rbf_kernel)) == pytest.approx(value, abs=1e-12)
    assert float(rsa(x, y, rbf_kernel, dissimilarity_y="euclidean")) == pytest.approx(-value, abs=1e-12)
    assert float(rsa(x, y, lambda v: -rbf_kernel(v), dissimilarity_y="euclidean")) == pytest.approx(
        value, abs=1e-12
    )
    given = rsa(torch.cdist(x, x), y, "precomputed", dissimilarity_y="euclidean")
    assert float(given) == pytest.approx(value, abs=1e-12)

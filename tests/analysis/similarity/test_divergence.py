"""Divergences against scipy and closed forms."""

import math

import pytest
import scipy.spatial.distance
import scipy.stats
import torch

from lmdyn.analysis import jensen_shannon, kullback_leibler


@pytest.fixture
def pq():
    g = torch.Generator().manual_seed(0)
    return torch.rand(2, 50, 7, generator=g, dtype=torch.float64).softmax(-1)


def test_against_scipy(pq):
    p, q = pq
    assert kullback_leibler(p, q).numpy() == pytest.approx(scipy.stats.entropy(p.T.numpy(), q.T.numpy()))
    expected = scipy.spatial.distance.jensenshannon(p.numpy(), q.numpy(), axis=1) ** 2
    assert jensen_shannon(p, q).numpy() == pytest.approx(expected)


def test_equal_distributions_do_not_diverge(pq):
    for divergence in (jensen_shannon, kullback_leibler):
        assert (divergence(*pq) > 0).all()
        assert (divergence(pq[0], pq[0]) == 0).all()


def test_zeros():
    one, other = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.5, 0.5])
    assert float(jensen_shannon(one, other)) == pytest.approx(math.log(2))
    assert float(kullback_leibler(one, other)) == math.inf
    assert float(kullback_leibler(one, torch.tensor([0.5, 0.5, 0.0]))) == pytest.approx(math.log(2))

"""Clustered means against the formula written out, and where they become the textbook's standard error."""

import numpy as np
import pytest

from lmdyn.analysis.statistics.clustered import clustered_means


def naive(values, groups, clusters, group):
    x, c = values[groups == group], clusters[groups == group]
    sums = [sum(v - x.mean() for v in x[c == k]) for k in set(c.tolist())]
    return x.mean(), np.sqrt(sum(s**2 for s in sums) * len(sums) / (len(sums) - 1)) / len(x)


def test_equals_the_formula():
    random = np.random.default_rng(0)
    values, groups, clusters = (
        random.normal(size=300),
        random.integers(4, size=300),
        random.integers(20, size=300),
    )
    found = clustered_means(values, groups, clusters)
    for group in range(4):
        mean, error = naive(values, groups, clusters, group)
        assert found.mean[group] == pytest.approx(mean, abs=1e-13)
        assert found.error[group] == pytest.approx(error, abs=1e-13)
    assert found.number.tolist() == np.bincount(groups).tolist()

"""Correlations: scipy's values, the textbook formula of the partial one, weights as repetitions, degenerate input."""

import math

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from lmdyn.analysis import pearson, spearman
from lmdyn.analysis.statistics.correlation import weighted_pearson


@pytest.fixture
def data():
    random = np.random.default_rng(0)
    z = random.integers(0, 6, 200)  # with ties
    return z + random.normal(size=200), random.integers(0, 4, 200) + z, z


def test_equals_scipy_with_ties(data):
    x, y, z = data
    assert pearson(x, y) == pytest.approx(pearsonr(x, y).statistic, abs=1e-12)
    assert pearson(y, z) == pytest.approx(pearsonr(y, z).statistic, abs=1e-12)
    assert abs(pearson(x, np.exp(x)) - spearman(x, np.exp(x))) > 0.01  # one is of values, the other of ranks
    assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
    assert spearman(y, z) == pytest.approx(spearmanr(y, z).statistic, abs=1e-12)


def test_nan_where_nothing_is_left(data):
    x, y, z = data
    assert math.isnan(spearman(x, z, [z]))
    assert math.isfinite(pearson(x[:3], z[:3] + x[:3]))
    # constant but for rounding
    assert math.isnan(pearson(np.where(x > 2, 0.3, 0.1 + 0.2), y))
    assert math.isfinite(pearson(np.where(x > 2, 0.3, 0.3 + 1e-9), y))


def test_weights_count_values_several_times():
    random = np.random.default_rng(7)
    x, y = random.normal(size=(2, 50))
    weights = random.integers(4, size=(20, 50)).astype(np.float64)
    got = weighted_pearson(x + 1e4, y - 1e4, weights)
    for row, r in zip(weights.astype(int), got, strict=True):
        assert r == pytest.approx(pearsonr(np.repeat(x, row), np.repeat(y, row)).statistic, abs=1e-10)
    assert np.std(got) > 0.01
    assert np.isnan(weighted_pearson(x, y, np.eye(50) * 49)).all()  # one value alone

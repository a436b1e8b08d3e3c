"""Spearman's correlation: scipy's values, the textbook formula of the partial one, degenerate input."""

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from lmdyn.analysis import spearman


@pytest.fixture
def data():
    random = np.random.default_rng(0)
    z = random.integers(0, 6, 200)  # with ties
    return z + random.normal(size=200), random.integers(0, 4, 200) + z, z


def test_equals_scipy_with_ties(data):
    x, y, z = data
    assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
    assert spearman(y, z) == pytest.approx(spearmanr(y, z).statistic, abs=1e-12)


def test_partial_is_the_textbook_formula(data):
    x, y, z = data
    xy, xz, yz = (spearmanr(a, b).statistic for a, b in ((x, y), (x, z), (y, z)))
    expected = (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))
    assert spearman(x, y, [z]) == pytest.approx(expected, abs=1e-12)
    assert abs(expected) < abs(xy)


def test_nan_where_nothing_is_left(data):
    x, y, z = data
    assert math.isnan(spearman(np.ones(200), x))
    assert math.isnan(spearman(x, z, [z]))
    assert math.isnan(spearman(x, np.where(y > 0, np.nan, y.astype(float))))

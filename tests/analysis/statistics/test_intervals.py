"""Intervals from a number of observations against scipy's."""

import numpy as np
import pytest
from scipy import stats

from lmdyn.analysis.statistics.intervals import correlation_interval, share_interval


def test_of_a_correlation_as_scipy():
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    y += 0.5 * x
    found = stats.pearsonr(x, y)
    low, high = found.confidence_interval(0.95)
    assert correlation_interval(float(found.statistic), 30) == pytest.approx((low, high), abs=1e-12)
    assert correlation_interval(1.0, 9) == (1.0, 1.0)


@pytest.mark.parametrize("k", [0, 3, 50, 97, 100])
def test_of_a_share_as_scipy(k):
    oracle = stats.binomtest(k, 100).proportion_ci(0.95, method="wilson")
    assert share_interval(k / 100, 100) == pytest.approx((oracle.low, oracle.high), abs=1e-12)

"""The jackknife against closed forms."""

import numpy as np
import pytest
from scipy import stats

from lmdyn.analysis.statistics.jackknife import jackknife


def leave_out(statistic, *arrays, blocks=None):
    n = len(arrays[0])
    blocks = np.arange(n) if blocks is None else blocks
    return [statistic(*(a[blocks != b] for a in arrays)) for b in np.unique(blocks)]


def test_of_a_mean_it_is_the_textbook_standard_error():
    x = np.random.default_rng(0).normal(size=20)
    found = jackknife(x.mean(), leave_out(np.mean, x))
    assert found.value == pytest.approx(x.mean(), abs=1e-13)
    assert found.error == pytest.approx(stats.sem(x), abs=1e-13)
    assert found.bias == pytest.approx(0, abs=1e-13)
    assert found.df == 19


def test_blocks_of_unequal_size_give_the_weighted_mean():
    """Of a mean, the pseudo-value of a block is the block's mean."""
    rng = np.random.default_rng(2)
    blocks = np.repeat([0, 1, 2, 3], [3, 5, 2, 10])
    x = rng.normal(size=20)
    sizes = np.bincount(blocks)
    found = jackknife(x.mean(), leave_out(np.mean, x, blocks=blocks), sizes)
    assert found.value == pytest.approx(x.mean(), abs=1e-13)
    means = np.array([x[blocks == b].mean() for b in range(4)])
    h = 20 / sizes
    assert found.error == pytest.approx(np.sqrt(np.mean((means - x.mean()) ** 2 / (h - 1))), abs=1e-13)
    unweighted = jackknife(x.mean(), leave_out(np.mean, x, blocks=blocks))
    assert abs(unweighted.value - x.mean()) > 1e-3  # the control: sizes matter


def test_values_of_any_shape_are_those_of_each():
    x = np.random.default_rng(3).normal(size=(12, 2, 3))
    found = jackknife(x.var(0), np.stack([np.delete(x, i, 0).var(0) for i in range(12)]))
    for i, j in np.ndindex(2, 3):
        one = jackknife(x[:, i, j].var(), leave_out(np.var, x[:, i, j]))
        assert (found.value[i, j], found.error[i, j]) == pytest.approx((one.value, one.error))

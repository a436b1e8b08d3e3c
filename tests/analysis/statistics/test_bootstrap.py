"""The bootstrap over blocks: draws that add up, an interval in closed form."""

import numpy as np
import pytest

from lmdyn.analysis.statistics.bootstrap import basic_interval, draw_blocks


def test_draws_add_up_and_are_those_of_the_seed():
    found = draw_blocks(7, 500, seed=3)
    assert found.shape == (500, 7)
    assert found.min() == 0
    assert (found.sum(1) == 7).all()
    np.testing.assert_array_equal(found, draw_blocks(7, 500, seed=3))
    np.testing.assert_array_equal(found[:10], draw_blocks(7, 10, seed=3))
    assert (found != draw_blocks(7, 500, seed=4)).any()
    # a multinomial: mean 1, variance 1 - 1/7
    np.testing.assert_allclose(found.mean(0), 1, atol=5 * (6 / 7 / 500) ** 0.5)
    assert found.var() == pytest.approx(6 / 7, rel=0.1)


def test_the_interval_in_closed_form():
    resampled = np.arange(101) / 100  # quantile q is q
    low, high = basic_interval(0.7, np.random.default_rng(0).permutation(resampled), 0.9)
    assert float(low) == pytest.approx(2 * 0.7 - 0.95, abs=1e-12)
    assert float(high) == pytest.approx(2 * 0.7 - 0.05, abs=1e-12)
    # what resampling adds is taken off: centred on 2θ - median, not on θ
    assert (float(low) + float(high)) / 2 == pytest.approx(2 * 0.7 - 0.5, abs=1e-12)
    narrow = basic_interval(0.7, resampled, 0.5)
    assert low < narrow[0] < narrow[1] < high
    assert [float(end) for end in basic_interval(0.7, [0.4], 0.9)] == pytest.approx([1.0, 1.0])

"""The 0–1 test: maps whose answer is known, the formulas term by term, and where it fails."""

import math

import numpy as np
import pytest
import torch

from lmdyn.analysis.orbits.zero_one_test import _growth_correlation, decorrelation_lag, zero_one_test


def series(rates, n, start=0.3):
    x = [torch.full((len(rates),), start, dtype=torch.float64)]
    rates = torch.tensor(rates, dtype=torch.float64)
    for _ in range(n - 1):
        x.append(rates * x[-1] * (1 - x[-1]))
    return torch.stack(x)


def naive(values, c):
    """Gottwald and Melbourne's equations, one by one."""
    n = len(values)
    cut = n // 10
    p = np.cumsum([v * math.cos((j + 1) * c) for j, v in enumerate(values)])
    q = np.cumsum([v * math.sin((j + 1) * c) for j, v in enumerate(values)])
    d = []
    for lag in range(1, cut + 1):
        moved = np.mean([(p[j + lag] - p[j]) ** 2 + (q[j + lag] - q[j]) ** 2 for j in range(n - cut)])
        d.append(moved - np.mean(values) ** 2 * (1 - math.cos(lag * c)) / (1 - math.cos(c)))
    return np.corrcoef(range(1, cut + 1), d)[0, 1]


@pytest.mark.parametrize("c", [0.7, 1.1, 2.3])
def test_formula(c):
    x = series([3.55, 3.9, 4.0], 300) + 5
    found = _growth_correlation(x, torch.tensor(c, dtype=torch.float64))
    centred = x - x.mean(0)
    assert found.tolist() == pytest.approx([naive(column.tolist(), c) for column in centred.T], abs=1e-8)


@pytest.mark.parametrize("offset", [*(pytest.param(o, marks=pytest.mark.slow) for o in (1.0, 1e4)), 1e6])
def test_an_offset_changes_nothing(offset):
    """What the published displacement takes off leaves a part that grows with the offset, of any finite series."""
    x = series([3.55, 4.0], 2000)
    assert (zero_one_test(x + offset).k - zero_one_test(x).k).abs().max() < 1e-6
    assert (
        naive((x[:300, 1] + 1e4).tolist(), 1.1) < 0.5 < naive((x[:300, 1] - x[:300, 1].mean()).tolist(), 1.1)
    )


def test_known_maps():
    k = zero_one_test(series([3.2, 3.55, 3.9, 4.0], 4000)[500:]).k[-1]
    assert (k[:2].abs() < 0.1).all()
    assert (k[2:] > 0.9).all()


def test_quasi_periodic():
    t = torch.arange(4000, dtype=torch.float64)[:, None]
    assert zero_one_test((t * math.sqrt(2)).cos() + (t * math.sqrt(3)).cos()).k[-1].abs() < 0.1


def test_oversampled_chaos_looks_regular_and_subsampled_does_not():
    """Why it is no more than a second opinion."""
    chaos = series([4.0], 400)
    slow = torch.nn.functional.interpolate(chaos.T[None], size=20_000, mode="linear", align_corners=True)[0].T
    assert zero_one_test(slow, n_frequencies=20).k[-1] < 0.5
    assert zero_one_test(slow, every=50, n_frequencies=20).k[-1] > 0.9


@pytest.mark.parametrize("options", [{"every": 10}, {"n_frequencies": 0}, {"every": 0}])
def test_refused(options):
    with pytest.raises(ValueError, match="expected"):
        zero_one_test(torch.rand(500, 1), **options)


def test_lag_that_decorrelates():
    t = torch.arange(4000, dtype=torch.float64)
    decaying = 0.95 ** (t % 400)  # of an exponential decay it is the time constant
    assert decorrelation_lag(decaying - decaying.mean()) == pytest.approx(1 / -math.log(0.95), abs=3)
    assert decorrelation_lag(torch.randn(5000, generator=torch.Generator().manual_seed(0))) == 1
    assert decorrelation_lag(t, share=-1.0) == 4000  # it never falls so low

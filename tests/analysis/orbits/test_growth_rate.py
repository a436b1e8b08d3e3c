"""λ with its error and resolution: closed forms, coverage, change points."""

import math

import pytest
import torch
from scipy import stats

from lmdyn.analysis.orbits.growth_rate import arrival, growth_rate


def noise(windows, batch, seed=0):
    return torch.randn(windows, batch, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_mean_error_and_resolution():
    x = noise(40, 3)
    found = growth_rate(x, 10)
    errors = [x.reshape(n, 40 // n, 3).mean(1).std(0) / math.sqrt(n) for n in (20, 10, 5)]
    assert found.exponent.tolist() == pytest.approx(x.mean(0).tolist())
    assert found.error.tolist() == pytest.approx(torch.stack(errors).amax(0).tolist())
    reach = torch.stack(
        [stats.t.ppf(0.975, n - 1) * e for n, e in zip((20, 10, 5), errors, strict=True)]
    ).amax(0)
    assert (found.high - found.exponent).tolist() == pytest.approx(reach.tolist())
    assert (found.resolution == found.error).all()  # larger than ln T / T
    assert growth_rate(torch.zeros(40, 1), 10).resolution.item() == pytest.approx(math.log(400) / 400)


def autoregressive(rho, windows, batch, seed=0):
    x, found = noise(1, batch, seed)[0], []
    for e in noise(windows, batch, seed + 1):
        x = rho * x + math.sqrt(1 - rho**2) * e
        found.append(x)
    return torch.stack(found)


@pytest.mark.parametrize(
    ("rho", "windows", "covered"),
    [(0.5, 100, 0.98), (0.5, 500, 0.98), (0.9, 100, 0.90), (0.9, 500, 0.96), (0.97, 100, 0.71), (0.97, 500, 0.92),
     (0.99, 100, 0.46), (0.99, 500, 0.80)],
)  # fmt: skip
def test_coverage_of_correlated_windows(rho, windows, covered):
    """What the docstring says: short series of long memory have intervals that are too short."""
    x = 0.02 * autoregressive(rho, windows, 4000)
    found = growth_rate(x, 10)
    there = ((found.low <= 0) & (found.high >= 0)).double().mean()
    assert float(there) == pytest.approx(covered, abs=0.03)
    if windows == 500:
        called = float(found.chaotic.double().mean())
        assert called <= 0.002 if rho <= 0.5 else called < 0.07
        assert rho < 0.99 or called > 0.02  # the control: of long memory it errs
        if rho == 0.5:
            assert float(growth_rate(x + 0.004, 10).chaotic.double().mean()) == pytest.approx(0.16, abs=0.03)


def test_slow_swings_are_no_chaos():
    """λ that swings about −0.01 in 60 windows, over less than two of them: growth on the way is no evidence."""
    phase = 2 * math.pi * torch.rand(2000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    swings = 0.08 * torch.cos(2 * math.pi * torch.arange(100)[:, None] / 60 + phase) - 0.01
    assert growth_rate(swings, 10).chaotic.double().mean() < 0.01


def test_what_is_chaotic():
    calm = torch.zeros(1000)
    weak = torch.full((1000,), 1.05e-3)  # above ln T / T = 9.2e-4, λT = 10.5
    short = torch.full((1000,), 9.5e-4)  # λT below 10
    early = torch.cat([torch.full((50,), 0.04), torch.zeros(950)])  # λT = 20, all of it at the start
    found = growth_rate(torch.stack([calm, weak, short, early], 1), 10)
    assert found.chaotic.tolist() == [False, True, False, False]


def test_parts_and_gaps():
    x = torch.cat([torch.full((50, 1), 0.5), torch.full((50, 1), -0.1)])
    at = torch.tensor([50])
    assert growth_rate(x, 10, stop=at).exponent.item() == pytest.approx(0.5)
    assert growth_rate(x, 10, start=at).exponent.item() == pytest.approx(-0.1)
    gaps = x.clone()
    gaps[::2] = math.nan
    found = growth_rate(gaps, 10)
    assert found.exponent.item() == pytest.approx(0.2)
    assert found.steps.item() == 500
    assert growth_rate(x, 10, start=at, stop=at).exponent.isnan().item()
    assert not growth_rate(x[:3], 10).chaotic.item()  # no error, no verdict


def test_arrival_is_the_split_of_least_squares():
    x = noise(60, 5, seed=2)
    x[25:] += 1.5

    def squares(column, at):
        return sum(float(((part - part.mean()) ** 2).sum()) for part in (column[:at], column[at:]))

    expected = [min(range(1, 60), key=lambda at: squares(column, at)) for column in x.T]
    assert arrival(x).tolist() == expected
    assert (arrival(x, torch.full((5,), 10)) <= 10).all()
    assert arrival(torch.full((5, 1), math.nan)).tolist() == [0]

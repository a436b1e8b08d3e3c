"""Survival of transients: closed forms, an open tent map, and coverage of the intervals."""

import math

import pytest
import torch

from lmdyn.analysis.orbits.survival import survival


def none(n):
    return torch.zeros(n, dtype=torch.bool)


def by_hand(lengths, censored, t):
    """The product of Kaplan and Meier, factor by factor."""
    s = 1.0
    for at in sorted({x for x, c in zip(lengths, censored, strict=True) if not c and x <= t}):
        at_risk = sum(x >= at for x in lengths)
        s *= 1 - sum(x == at and not c for x, c in zip(lengths, censored, strict=True)) / at_risk
    return s


class TestCurve:
    def test_without_censoring_it_is_the_share_left(self):
        found = survival(torch.tensor([1.0, 2.0, 2.0, 5.0]), none(4))
        assert found.times.tolist() == [0, 1, 2, 5]
        assert found.survival.tolist() == pytest.approx([1, 0.75, 0.25, 0])
        assert found.restricted_mean == 2.5

    def test_with_censoring(self):
        lengths, censored = [3.0, 5.0, 5.0, 8.0, 8.0], [False, False, True, False, True]
        found = survival(torch.tensor(lengths), torch.tensor(censored), horizon=5.0)
        assert found.survival.tolist() == pytest.approx(
            [by_hand(lengths, censored, t) for t in found.times.tolist()]
        )
        assert (found.n, found.n_ended, found.n_groups) == (5, 3, 5)

    def test_restricted_mean_is_the_area(self):
        lengths, censored = [3.0, 5.0, 5.0, 8.0, 9.0], [False, False, True, False, True]
        found = survival(torch.tensor(lengths), torch.tensor(censored), horizon=9.0)
        area = sum(by_hand(lengths, censored, t + 0.5) for t in range(9))  # a curve of steps at whole numbers
        assert found.restricted_mean == pytest.approx(area)

    def test_all_censored(self):
        found = survival(torch.full((4,), 100.0), ~none(4), [0, 0, 1, 1])
        assert found.survival.tolist() == [1]
        assert found.escape_rate == 0
        assert found.restricted_mean == 100
        assert found.escape_interval == (0, math.inf)


class TestOpenTent:
    """Slope a > 2 on [0, 1]: what starts uniformly is still there after n steps with probability (2/a)ⁿ."""

    @pytest.fixture(scope="class")
    @classmethod
    def left(cls):
        a, n = 2.2, 20_000
        x = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        left = torch.full((n,), -1)
        for t in range(1, 61):
            x = torch.where(x < 0.5, a * x, a * (1 - x))
            left = torch.where((left < 0) & (x > 1), t, left)
            x = torch.where(left > 0, 0.25, x)
        return a, torch.where(left > 0, left, 60), left < 0

    def test_curve(self, left):
        a, lengths, censored = left
        found = survival(lengths, censored)
        expected = (2 / a) ** found.times
        assert (found.survival - expected).abs().max() < 4 * math.sqrt(0.25 / len(lengths))
        assert ((found.low <= expected) & (expected <= found.high)).double().mean() > 0.8

    def test_escape_rate_above_a_limit_of_detection(self, left):
        """A part of chaos without memory has its rate; steps are not quite short beside 11 of them."""
        a, lengths, censored = left
        seen = torch.where(lengths > 10, lengths, 0)
        found = survival(seen, censored, detected=10.0)
        assert found.escape_rate == pytest.approx(math.log(a / 2), rel=0.07)
        assert survival(seen, censored).escape_rate < 0.8 * math.log(a / 2)


@pytest.mark.slow
def test_intervals_over_networks_cover():
    """Networks with rates of their own: an interval over orbits is too narrow for the mean over networks."""
    g = torch.Generator().manual_seed(2)
    covered = {"groups": 0, "orbits": 0}
    repeats, networks, orbits = 200, 10, 20
    truth = 0.5 * (20 * (1 - math.exp(-100 / 20)) + 60 * (1 - math.exp(-100 / 60)))
    for _ in range(repeats):
        mean = torch.where(torch.rand(networks, generator=g) < 0.5, 20.0, 60.0).repeat_interleave(orbits)
        lengths = -mean * torch.rand(networks * orbits, generator=g).clamp(min=1e-12).log()
        of = [i // orbits for i in range(networks * orbits)]
        for name, groups in (("groups", of), ("orbits", None)):
            found = survival(lengths.clamp(max=100), lengths > 100, groups, horizon=100.0)
            low, high = found.restricted_interval
            covered[name] += low <= truth <= high
    assert covered["groups"] / repeats > 0.9
    assert covered["orbits"] / repeats < 0.75


@pytest.mark.parametrize(
    ("lengths", "censored", "options", "message"),
    [
        ([-1.0], [False], {}, "at least 0"),
        ([1.0, 2.0], [False, False], {"groups": [1]}, "one group for each"),
        ([1.0, 2.0], [False, False], {"groups": [1, 1]}, "1 group: expected at least 2"),
        ([1.0, 3.0], [False, True], {"horizon": 9.0}, "no orbit was followed beyond 3"),
        ([1.0], [False], {"detected": -1.0}, "at least 0"),
    ],
)
def test_refused(lengths, censored, options, message):
    with pytest.raises(ValueError, match=message):
        survival(torch.tensor(lengths), torch.tensor(censored, dtype=torch.bool), **options)

"""Recurrence: orbits of known period, drift and chaos that are none, rows on shared attractors."""

import math

import pytest
import torch

from lmdyn.analysis.orbits.recurrence import Recurrence, attractors
from lmdyn.analysis.orbits.trajectories import repeat

R = torch.tensor([[2.8], [3.2], [3.5], [3.83], [4.0]], dtype=torch.float64)
PERIODS = [1, 2, 4, 3, 0]
GOLDEN = math.pi * (5**0.5 - 1)


def logistic(x):
    return R * x * (1 - x)


def rotation(x, angle=GOLDEN):
    c, s = math.cos(angle), math.sin(angle)
    return x @ torch.tensor([[c, s], [-s, c]], dtype=x.dtype)


def watch(f, x, steps, tolerance):
    recurrence = Recurrence(tolerance)
    for _ in range(steps):
        recurrence.update(x)
        x = f(x)
    return recurrence


class TestRecurrence:
    def test_periods_of_the_logistic_map(self):
        found = watch(logistic, torch.full((5, 1), 0.2, dtype=torch.float64), 600, 1e-7)
        assert found.period[1:].tolist() == PERIODS[1:]
        assert found.period[0] in (1, 2)  # approached in oscillations
        assert found.recurred_at[4] == -1
        assert (found.recurred_at[:4] > 0).all()

    def test_a_slow_approach_is_closed_where_it_has_arrived(self):
        """x shrinks by e^-0.01 a step: within 1e-3 after 691 steps, though each moves it by less from 230 on."""
        found = watch(
            lambda x: 1 + (x - 1) * math.exp(-0.01), torch.full((1, 1), 2.0, dtype=torch.float64), 2000, 1e-3
        )
        assert found.period.tolist() == [1]
        assert 691 <= found.recurred_at.item() <= 1.25 * 691 + 2

    def test_onset_of_orbits_that_start_at_different_times(self):
        """Row i counts down to 0 and then goes round a cycle of 5, whose first state is at step onset[i]."""
        onset = torch.tensor([0, 3, 40, 41, 97, 200, 333])
        x = torch.where(onset > 0, -onset, 0)[:, None].double()

        def f(x):
            return torch.where(x < 0, x + 1, (x + 1) % 5)

        # + 10: the relative distance of states around 0
        found = watch(lambda x: f(x - 10) + 10, x + 10, 600, 1e-6)
        assert found.period.tolist() == [5] * 7
        late = found.recurred_at - onset
        assert (late >= 0).all()
        latest = torch.maximum(onset, torch.tensor(25.0))  # by the period, five times
        assert (found.recurred_at <= 1.25 * latest + 1).all()

    def test_slow_drift_is_no_recurrence(self):
        x = torch.tensor([[1000.0], [1000.0]], dtype=torch.float64)
        speed = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
        found = watch(lambda x: x + speed, x, 100, 1.4e-3)  # one step is within the tolerance, two are not
        assert found.period.tolist() == [0, 1]

    def test_near_misses_do_not_hide_the_orbit(self):
        """A cycle of 7 in which two neighbours look the same, but not a third."""
        cycle = torch.tensor([1.0, 1.0001, 2, 3, 4, 5, 6], dtype=torch.float64)
        recurrence = Recurrence(1e-3)
        for t in range(300):
            recurrence.update(cycle[t % 7].reshape(1, 1))
        assert recurrence.period.tolist() == [7]

    def test_quasi_periodic_and_chaotic_orbits_do_not_recur(self):
        x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        assert watch(rotation, x, 300, 1e-4).period.tolist() == [0]
        rational = watch(lambda x: rotation(x, 2 * math.pi / 11), x, 300, 1e-4)
        assert rational.period.tolist() == [11]

    def test_nan_never_recurs_and_rows_do_not_mix(self):
        x = torch.tensor([[torch.nan, 1.0], [torch.inf, 1.0], [0.0, 0.0], [1.0, 2.0]])
        found = watch(lambda x: x, x, 30, 1e-6)
        assert found.period.tolist() == [0, 0, 1, 1]
        assert found.recurred_at[:2].tolist() == [-1, -1]


class TestAttractors:
    def test_periods_of_the_logistic_map(self):
        x = repeat(logistic, 3000)(torch.full((5, 1), 0.2, dtype=torch.float64))
        assert attractors(logistic, x, 8, 1e-9).period.tolist() == PERIODS
        assert attractors(logistic, x, 3, 1e-9).period.tolist() == [1, 2, 0, 3, 0]
        assert attractors(logistic, x, 8, 1e-9).label.tolist() == [0, 1, 2, 3, -1]

    def test_phases_of_one_orbit_and_other_orbits(self):
        """x ↦ −1.5 x + 0.5 x³ swaps ±1; two wells of it in y."""

        def f(x):
            u, v = x[:, 0], x[:, 1]
            return torch.stack([-1.5 * u + 0.5 * u**3, 1.5 * v - 0.5 * v**3], 1)

        x = torch.tensor([[0.5, 0.5], [-0.5, 0.1], [0.3, -0.2], [0.2, 0.9], [-0.1, -0.3], [torch.nan, 1.0]])
        found = attractors(f, repeat(f, 200)(x), 5, 1e-5)
        assert found.period.tolist() == [2, 2, 2, 2, 2, 0]
        assert found.label.tolist() == [0, 0, 1, 0, 1, -1]

    def test_drift_and_rotation_are_none(self):
        x = torch.tensor([[1000.0, 0.0]], dtype=torch.float64)
        assert attractors(lambda x: x + 1, x, 10, 1.8e-3).period.tolist() == [0]
        assert attractors(lambda x: x + 1e-3, x, 10, 1.8e-3).period.tolist() == [1]
        assert attractors(rotation, x, 300, 1e-4).period.tolist() == [0]
        with pytest.raises(ValueError, match="max_period"):
            attractors(rotation, x, 0, 1e-4)


def test_slow_approach_to_one_fixed_point_is_one_attractor():
    for factor in (0.9, 0.99, 0.999):
        f = lambda x: 1 + factor * (x - 1)  # noqa: B023, E731
        away = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        x = 1 + 4e-6 / (1 - factor) * away  # moves by less than the tolerance
        found = attractors(f, x, max_period=3, tolerance=1e-5)
        closed = found.period == 1
        assert bool(closed.any())
        assert found.label[closed].unique().tolist() == [0]
    two = attractors(lambda x: 1.5 * x - 0.5 * x**3, torch.tensor([[1.0], [-1.0], [0.999]]).double(), 4, 1e-3)
    assert two.label.tolist() == [0, 1, 0]

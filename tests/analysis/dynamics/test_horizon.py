"""What trajectories end on, and the means over rows of which some are no longer followed."""

import torch

from lmdyn.analysis.dynamics.horizon import carried_on, ends, late_exponents

SETTINGS = {"max_period": 6, "tolerance": 1e-8}


def test_attractors_of_different_maps_are_counted_apart():
    wells = lambda x: 1.5 * x - 0.5 * x**3  # noqa: E731
    last = torch.tensor([[1.0], [-1.0], [1.0]], dtype=torch.float64)
    first = torch.tensor([True, True, False])
    found = ends([(wells, last, first), (wells, last, ~first)], first | ~first, **SETTINGS)
    assert found.tolist() == [0, 1, 2]
    assert ends([(wells, last, first), (wells, last, ~first)], first, **SETTINGS).tolist() == [0, 1, -1]


def test_cycles_have_an_attractor_and_chaos_has_none():
    two, chaos = (lambda x, r=r: r * x * (1 - x) for r in (3.2, 3.9))
    last = torch.tensor([[0.2], [0.3], [0.4]], dtype=torch.float64)
    for _ in range(2000):
        last = torch.cat([two(last[:2]), chaos(last[2:])])
    first = torch.tensor([True, True, False])
    found = ends([(two, last, first), (chaos, last, ~first)], first | ~first, **SETTINGS)
    assert found.tolist() == [0, 0, -1]


def test_states_that_are_not_finite_have_no_attractor():
    last, both = torch.tensor([[1.0], [float("nan")]]), torch.tensor([True, True])
    assert ends([(lambda x: 1 + 0 * x, last, both)], both, **SETTINGS).tolist() == [0, -1]


def test_late_exponents_are_means_of_the_last_values():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[30:, 1] = torch.nan
    x[3::4, 2] = torch.nan
    for row in range(6):
        there = [v for v in x[:, row].tolist() if v == v]
        assert abs(float(late_exponents(x)[row]) - sum(there[-20:]) / 20) < 1e-12


def test_carried_on_replaces_from_the_start():
    values = torch.arange(12.0).reshape(4, 3)
    out = carried_on(values, torch.tensor([100.0, 200.0, 300.0]), torch.tensor([2, -1, 4]))
    assert out[:, 0].tolist() == [0.0, 3.0, 100.0, 100.0]
    assert torch.equal(out[:, 1:], values[:, 1:])

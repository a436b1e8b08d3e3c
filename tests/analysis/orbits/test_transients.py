"""Lengths of chaotic transients: sequences with known ends, and a loop over rows as oracle."""

import math

import pytest
import torch

from lmdyn.analysis.orbits.transients import transient_length


def naive(column, tau, width, recurred_at=-1):
    """One row, as the definition says it."""
    values = [float(v) for v in column]
    while values and math.isnan(values[-1]):
        values.pop()
    means = []
    for w in range(max(len(values) - width, 0) + 1):
        seen = [v for v in values[w : w + width] if not math.isnan(v)]
        means.append(math.fsum(seen) / len(seen) if seen else 0.0)
    end = next((w for w in range(len(means)) if all(m <= 0 for m in means[w:])), None) if values else None
    censored = end is None and recurred_at < 0
    end = len(values) if end is None else end
    if recurred_at >= 0:
        end = min(end, recurred_at // tau)
    before = [v for v in values[:end] if not math.isnan(v)]
    return end * tau, censored, math.fsum(before) / len(before) if before else math.nan


class TestKnown:
    def test_zeros_after_numbers_that_do_not_add_up_exactly(self):
        """Differences of running totals would leave 1e-17 there."""
        x = torch.tensor([0.1, 0.7, 0.3, 1e8 / 3] * 5 + [0.0] * 30, dtype=torch.float64)[:, None]
        found = transient_length(x, 1, 5)
        assert found.length.tolist() == [20]
        assert not found.censored


@pytest.mark.parametrize("width", [1, 5, 20])
def test_against_a_loop(width):
    g = torch.Generator().manual_seed(width)
    # sixteenths: sums are exact, so that no sign is a matter of rounding
    x = (torch.randn(60, 200, generator=g) * 16 + torch.linspace(20, -20, 60)[:, None]).round() / 16
    x[torch.rand(60, 200, generator=g) < 0.2] = math.nan
    lengths = torch.randint(0, 61, (200,), generator=g)
    x[torch.arange(60)[:, None] >= torch.where(lengths % 3 == 0, lengths, 60)] = math.nan
    recurred = torch.randint(0, 600, (200,), generator=g)
    recurred[::2] = -1
    for given in (None, recurred):
        found = transient_length(x, 10, width, recurred_at=given)
        rows = [naive(x[:, i], 10, width, -1 if given is None else int(given[i])) for i in range(200)]
        assert found.length.tolist() == [r[0] for r in rows]
        assert found.censored.tolist() == [r[1] for r in rows]
        expected = torch.tensor([r[2] for r in rows], dtype=torch.float64)
        torch.testing.assert_close(found.mean_exponent, expected, equal_nan=True)
    assert len(set(found.length.tolist())) > 10


def test_sign_change_is_the_likeliest_place_of_one():
    """All places tried: the greatest number of windows with the sign that they should have."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(30, 12, generator=g, dtype=torch.float64) + torch.linspace(1, -1, 30)[:, None]
    x[3, 0] = torch.nan
    found = transient_length(x, 50, 5, rule="sign_change")
    for row in range(12):
        known = x[:, row].nan_to_num(0)
        right = [int((known[:w] > 0).sum() + (known[w:] < 0).sum()) for w in range(31)]
        end = right.index(max(right))
        assert found.length[row] == 50 * end
        assert bool(found.censored[row]) == (end == 30)


def test_sign_change_does_not_weigh():
    """A strong calm phase hides weak chaos from the running mean, and one strong window makes it see some."""
    weak = torch.cat([torch.full((15, 1), 0.006), torch.full((60, 1), -0.2)]).double()
    assert transient_length(weak, 50).length.tolist() == [0]
    assert transient_length(weak, 50, rule="sign_change").length.tolist() == [750]

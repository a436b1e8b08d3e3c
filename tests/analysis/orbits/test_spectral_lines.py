"""Discrete lines and continuous spectra; the correlation dimension of known sets."""

import math

import pytest
import torch

from lmdyn.analysis.orbits.correlation_dimension import correlation_dimension
from lmdyn.analysis.orbits.spectral_lines import spectral_lines


def times(n):
    return torch.arange(n, dtype=torch.float64)[:, None, None]


class TestLines:
    def test_lines_stay(self):
        t = times(8192)
        found = spectral_lines((0.3 * t).cos() + 0.01 * (math.sqrt(0.7) * t).sin() + 5)
        assert found.change < 1e-8
        assert found.share > 1 - 1e-8

    @pytest.mark.parametrize("rate", [1e-4, 1e-5])
    def test_lines_that_shrink(self, rate):
        """Power falls by exp(−2·rate·n) from half to half, and change is tanh of half the exponent."""
        n = 4096
        found = spectral_lines(torch.exp(-rate * times(2 * n)) * (0.3 * times(2 * n)).cos())
        assert found.change.item() == pytest.approx(math.tanh(rate * n), rel=0.01)

    def test_chaos(self):
        x = [torch.tensor([0.3], dtype=torch.float64)]
        for _ in range(4095):
            x.append(4 * x[-1] * (1 - x[-1]))
        found = spectral_lines(torch.stack(x)[:, :, None])
        assert found.change.item() == pytest.approx(0.5, abs=0.03)
        assert found.share < 0.8


class TestDimension:
    def test_known_sets(self):
        g = torch.Generator().manual_seed(0)
        angle = 2 * math.pi * torch.rand(3000, 1, generator=g, dtype=torch.float64)
        circle = torch.stack([angle.cos(), angle.sin(), angle.cos() * 0], 2)
        square = torch.rand(3000, 1, 3, generator=g, dtype=torch.float64) * torch.tensor([1.0, 1.0, 0.0])
        digits = 2 * torch.randint(2, (3000, 1, 25), generator=g)  # Cantor's set, ln 2 / ln 3
        cantor = (digits * 3.0 ** -torch.arange(1, 26, dtype=torch.float64)).sum(2)[:, :, None]
        assert correlation_dimension(circle).item() == pytest.approx(1, abs=0.1)
        assert correlation_dimension(square).item() == pytest.approx(2, abs=0.15)
        assert correlation_dimension(cantor).item() == pytest.approx(math.log(2) / math.log(3), abs=0.1)

    def test_the_end_of_the_period_doublings(self):
        """0.50 ± 0.005 by Grassberger and Procaccia."""
        x = torch.tensor([0.3], dtype=torch.float64)
        points = []
        for i in range(12_000):
            x = 3.569945672 * x * (1 - x)
            if i >= 2000:
                points.append(x)
        assert correlation_dimension(torch.stack(points)[:, :, None]).item() == pytest.approx(0.5, abs=0.12)

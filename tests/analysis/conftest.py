"""Representations with a given spectrum, for the measures of similarity."""

import pytest
import torch


def matrix(seed: int, n: int, spectrum: torch.Tensor, mean: float = 3.0) -> torch.Tensor:
    """(n, d) whose centred singular values are ``spectrum``, in random directions, around a random mean."""
    g = torch.Generator().manual_seed(seed)
    normal = torch.randn(n, len(spectrum), generator=g, dtype=torch.float64)
    u = torch.linalg.qr(normal - normal.mean(0)).Q
    v = torch.linalg.qr(torch.randn(len(spectrum), len(spectrum), generator=g, dtype=torch.float64)).Q
    return u * spectrum.double() @ v.T + mean * torch.randn(len(spectrum), generator=g, dtype=torch.float64)


@pytest.fixture
def with_spectrum():
    return matrix


@pytest.fixture
def related():
    """Two representations that share half of what they hold: (n, d₁) and (n, d₂), condition number some 30."""

    def make(seed: int = 0, n: int = 200, d1: int = 7, d2: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
        g = torch.Generator().manual_seed(seed)
        common = torch.randn(n, 4, generator=g, dtype=torch.float64)
        x, y = (
            common @ torch.randn(4, d, generator=g, dtype=torch.float64)
            + torch.randn(n, d, generator=g, dtype=torch.float64)
            for d in (d1, d2)
        )
        return x * torch.linspace(0.2, 3, d1) + 2, y - 5

    return make

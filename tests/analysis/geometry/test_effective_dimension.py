"""N_eff: known clouds, the formula of eigenvalues, streaming."""

import pytest
import torch

from lmdyn.analysis.geometry.effective_dimension import EffectiveDimension, effective_dimension


def cloud(n=300, d=12, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=torch.float64) * torch.linspace(
        0.1, 3, d, dtype=torch.float64
    )


def by_eigenvalues(x):
    values = torch.linalg.eigvalsh(torch.cov(x.double().T))
    return 1 / (values / values.sum()).square().sum()


def streamed(x, size):
    streaming = EffectiveDimension()
    for part in x.split(size):
        streaming.update(part)
    streaming.reduce()
    return streaming.result()


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, atol=0, rtol=tolerance)


@pytest.mark.parametrize(("n", "d"), [(300, 12), (12, 300), (50, 50), (2, 7), (7, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_equation_6(n, d, dtype):
    x = cloud(n, d).to(dtype)
    close(effective_dimension(x), by_eigenvalues(x))
    assert effective_dimension(x).dtype == torch.float64


def test_known_clouds():
    axes = torch.eye(9, dtype=torch.float64)
    close(effective_dimension(torch.cat([axes, -axes])), torch.tensor(9.0).double())
    g = torch.Generator().manual_seed(1)
    noise = torch.randn(20000, 10, generator=g)
    assert 9.9 < effective_dimension(noise) < 10  # tends to d as 1/(1/d + 1/n)
    close(effective_dimension(noise[:, :1] * torch.arange(1.0, 9).double()), torch.tensor(1.0).double())


@pytest.mark.parametrize(("n", "d"), [(300, 12), (12, 300)])
def test_a_mean_far_from_0_loses_nothing(n, d):
    x = (cloud(n, d) * 2**10).round() / 2**10  # so that adding the mean rounds nothing
    close(effective_dimension(x + 1e4), effective_dimension(x), 1e-9)
    close(streamed(x + 1e4, 50), effective_dimension(x), 1e-9)


@pytest.mark.parametrize("size", [1, 7, 300, [0, 299, 1]])
def test_streaming_is_at_once(size):
    x = cloud() + 3
    close(streamed(x, size), effective_dimension(x))

"""RankMe, power laws and the participation ratio: closed forms, an SVD as oracle."""

import numpy as np
import pytest
import torch

from lmdyn.analysis.geometry.effective_dimension import effective_dimension
from lmdyn.analysis.geometry.spectrum import Spectrum, exp_entropy, power_law, rankme, white_noise_rank

F64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def orthonormal(n, d, seed=0):
    """Columns that are orthogonal to one another and to the mean."""
    x = torch.randn(n, d, generator=generator(seed), dtype=F64)
    return torch.linalg.qr(x - x.mean(0)).Q


def with_eigenvalues(eigenvalues, n=None):
    """Centred vectors whose covariance has exactly these eigenvalues, in rotated axes."""
    d = len(eigenvalues)
    n = n or 3 * d
    rotation = torch.linalg.qr(torch.randn(d, d, generator=generator(1), dtype=F64)).Q
    return orthonormal(n, d) * (n * eigenvalues).sqrt() @ rotation


def by_svd(x, epsilon=0.0):
    """The definition, of numpy's singular values."""
    values = np.linalg.svd(x.double().numpy(), compute_uv=False)
    p = values / values.sum() + epsilon
    p = p[p > 0]
    return float(np.exp(-(p * np.log(p)).sum()))


@pytest.mark.parametrize("shift", [0.0, 3.0])
@pytest.mark.parametrize(("n", "d"), [(200, 12), (12, 30), (50, 50)])
def test_it_is_the_definition(n, d, shift):
    x = torch.randn(n, d, generator=generator(), dtype=F64) * torch.linspace(0.1, 3, d) + shift
    for factor in (1, 1e60):
        assert float(rankme(factor * x)) == pytest.approx(by_svd(x), rel=1e-6)
    assert float(rankme(x, variant="covariance")) == pytest.approx(
        float(exp_entropy(torch.linalg.eigvalsh(torch.cov(x.T)).clamp(min=0))), rel=1e-9
    )
    assert float(rankme(x, epsilon=1e-3)) == pytest.approx(by_svd(x, 1e-3), rel=1e-6)
    assert abs(float(rankme(x)) - by_svd(x - x.mean(0))) > (0.1 if shift else -1)  # the mean counts


@pytest.mark.parametrize("rank", [1, 5, 20])
def test_equal_directions_are_the_rank(rank):
    x = orthonormal(100, rank) @ orthonormal(64, rank, 2).T
    for variant in ("singular_values", "covariance"):
        assert float(rankme(x, variant=variant)) == pytest.approx(rank, rel=1e-9)
    assert float(Spectrum.of(x).participation_ratio) == pytest.approx(rank, rel=1e-9)


@pytest.mark.parametrize(("n", "d"), [(400, 100), (100, 400), (300, 300)])
def test_white_noise_is_less_than_full_rank(n, d):
    """Marchenko and Pastur 1967, against noise, whose rank is less than it could be."""
    x = torch.randn(n, d, generator=generator(), dtype=F64)
    expected = white_noise_rank(n, d)
    assert float(rankme(x)) == pytest.approx(expected, rel=3e-3)
    assert expected < 0.97 * min(n, d)
    participation = Spectrum.of(x).participation_ratio
    assert float(participation) == pytest.approx(1 / (1 / d + 1 / n), rel=0.02)
    far = x.float() + 100
    torch.testing.assert_close(Spectrum.of(far).participation_ratio, effective_dimension(far))


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_power_laws_are_found(exponent):
    eigenvalues = 7 * torch.arange(1, 65, dtype=F64) ** -exponent
    for first, last in ((1, None), (3, 100), (10, 30)):
        found = power_law(eigenvalues, first, last)
        assert found.exponent == pytest.approx(exponent, abs=1e-12)
        assert (found.first, found.last) == (first, min(last or 64, 64))
        assert found.r2 == pytest.approx(1)
        assert found.error == pytest.approx(0, abs=1e-7)
    found = power_law(Spectrum.of(with_eigenvalues(eigenvalues)).eigenvalues, 1)
    assert found.exponent == pytest.approx(exponent, abs=1e-9)


def test_the_line_is_that_of_scipy():
    from scipy.stats import linregress

    eigenvalues = torch.rand(40, generator=generator(), dtype=F64).sort(descending=True).values
    found = power_law(eigenvalues, 5, 33)
    line = linregress(np.log(np.arange(5, 34)), np.log(eigenvalues[4:33].numpy()))
    assert found.exponent == pytest.approx(-line.slope)
    assert found.error == pytest.approx(line.stderr)
    assert found.r2 == pytest.approx(line.rvalue**2)
    assert found.r2 < 0.99  # an exponential is no power law
    steep = power_law(torch.exp(-torch.arange(40, dtype=F64)), 1)
    assert steep.last == 28  # eigenvalues below 1e-12 of the first are absent: exp(-27) is the last

"""Streamed geometry of vectors: definitions, known directions, planted components, scipy as oracle."""

import numpy as np
import pytest
import torch
from scipy.stats import kurtosis

from lmdyn.analysis.geometry.vector_sums import VectorSums, anisotropy, token_kurtosis

F64 = torch.float64


def vectors(n=120, d=7, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=F64) ** 3 + torch.linspace(-1, 2, d)


def streamed(x, size=25):
    sums = VectorSums()
    for rows in x.split(size):
        sums.update(rows)
    sums.reduce()
    return sums.result()


def test_anisotropy_is_the_mean_over_pairs():
    x = vectors(30)
    pairs = [float(torch.cosine_similarity(x[i], x[j], 0)) for i in range(30) for j in range(30) if i != j]
    assert float(anisotropy(x)) == pytest.approx(np.mean(pairs), rel=1e-12)
    assert float(anisotropy(torch.cat([x, torch.zeros(5, 7)]))) == pytest.approx(np.mean(pairs), rel=1e-12)


def test_anisotropy_of_known_directions():
    x = torch.ones(9, 4)
    assert float(anisotropy(x * torch.arange(1, 10)[:, None])) == pytest.approx(1)
    assert float(anisotropy(torch.cat([x, -x]))) == pytest.approx(-1 / 17)
    assert float(anisotropy(torch.eye(6))) == pytest.approx(0, abs=1e-12)
    noise = vectors(4000, 40) - vectors(4000, 40, 1)
    assert abs(float(anisotropy(noise))) < 0.002  # without preference
    assert float(anisotropy(noise + 2)) > 0.05


def test_kurtosis_is_scipy_s():
    x = vectors()
    np.testing.assert_allclose(token_kurtosis(x), kurtosis(x.numpy(), axis=1), rtol=1e-9)
    found = streamed(x)
    assert found.token_kurtosis == pytest.approx(kurtosis(x.numpy(), axis=1).mean(), rel=1e-9)
    assert found.unit_kurtosis == pytest.approx(kurtosis(x.numpy(), axis=0).mean(), rel=1e-9)


def test_a_privileged_basis_has_kurtosis_that_a_rotation_removes():
    d = 256
    x = torch.randn(200, d, generator=torch.Generator().manual_seed(1), dtype=F64)
    gaussian = float(token_kurtosis(x).mean())
    assert gaussian == pytest.approx(-6 / (d + 1), abs=0.06)
    x[:, 17] += 20
    assert float(token_kurtosis(x).mean()) > 20
    rotation = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(2), dtype=F64)).Q
    assert abs(float(token_kurtosis(x @ rotation).mean())) < 0.5
    one_hot = torch.eye(d, dtype=F64)  # the greatest value
    assert float(token_kurtosis(one_hot)[0]) == pytest.approx((d**2 - 3 * d + 3) / (d - 1) - 3)


@pytest.mark.parametrize("size", [1, 13])
def test_streaming_is_at_once(size):
    x = vectors() + 1000
    whole, found = streamed(x, 120), streamed(x, size)
    for name in ("anisotropy", "token_kurtosis", "unit_kurtosis", "largest"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), rel=1e-9), name
    torch.testing.assert_close(found.spectrum.eigenvalues, whole.spectrum.eigenvalues, rtol=1e-9, atol=0)


def test_a_first_batch_far_from_the_others_loses_little():
    x = torch.cat([vectors(20) + 1e3, vectors(2000, seed=3)])
    assert streamed(x, 20).unit_kurtosis == pytest.approx(kurtosis(x.numpy(), axis=0).mean(), rel=1e-6)


def test_constant_tokens_and_units_are_left_out():
    x = vectors()
    x[:, 2] = 0.1  # a unit
    with_tokens = torch.cat([x, torch.full((40, 7), 0.3)])
    assert streamed(x).unit_kurtosis == pytest.approx(
        kurtosis(np.delete(x.numpy(), 2, axis=1), axis=0).mean(), rel=1e-9
    )
    assert streamed(with_tokens).token_kurtosis == pytest.approx(streamed(x).token_kurtosis, rel=1e-9)

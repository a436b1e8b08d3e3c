"""Spectra of matrices: closed forms, a naive implementation, rotations and scales; products from factors."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate

from lmdyn.analysis import concentration, linear_cka, weight_distance
from lmdyn.analysis.weights.alignment import table_alignment
from lmdyn.analysis.weights.sparsity_of_entries import gini, hoyer
from lmdyn.analysis.weights.spectra import MatrixSpectrum, matrix_spectrum, product_spectrum, singular_values

RANKS = ("stable_rank", "effective_rank", "numerical_rank", "condition_number")
NORMS = ("frobenius_norm", "spectral_norm", "nuclear_norm", "mean", "median", "variance")
SIZES = [(7, 7), (5, 9), (9, 5), (40, 6), (6, 41), (300, 4), (1, 6), (6, 1), (1, 1)]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthogonal(n, seed=0):
    return torch.linalg.qr(random(n, n, seed=seed)).Q


def with_values(values, rows, seed=0):
    """A matrix with given singular values."""
    s = torch.as_tensor(values, dtype=torch.float64)
    return (orthogonal(rows, seed)[:, : len(s)] * s) @ orthogonal(len(s), seed + 1)


def naive(w):
    """The definitions, one after the other, by numpy."""
    a = w.double().numpy()
    s = np.linalg.svd(a, compute_uv=False)
    p = s / s.sum()
    x = np.abs(a).ravel()
    n = len(x)
    differences = np.abs(x[:, None] - x[None, :]).sum()
    kept = s[s > 1e-6 * s[0]]
    return {
        "frobenius_norm": np.sqrt((a**2).sum()),
        "spectral_norm": s[0],
        "nuclear_norm": s.sum(),
        "mean": s.mean(),
        "median": np.median(s),
        "variance": s.var(),
        "stable_rank": (a**2).sum() / s[0] ** 2,
        "effective_rank": math.exp(-sum(q * math.log(q) for q in p if q > 0)),
        "numerical_rank": len(kept),
        "condition_number": s[0] / kept[-1],
        "gini": differences / (2 * n * x.sum()),  # relative mean absolute difference, halved
        "hoyer": (np.sqrt(n) - x.sum() / np.sqrt((x**2).sum())) / (np.sqrt(n) - 1) if n > 1 else math.nan,
    }


@pytest.mark.parametrize("shape", SIZES)
def test_equals_the_definitions_one_by_one(shape):
    w = random(*shape)
    found = matrix_spectrum(w)
    for name, value in naive(w).items():
        expected = torch.tensor(value, dtype=torch.float64)
        torch.testing.assert_close(getattr(found, name), expected, equal_nan=True, msg=f"{name}: {{}}")
    np.testing.assert_allclose(found.singular_values, np.linalg.svd(w.numpy(), compute_uv=False), atol=1e-12)


def test_a_batch_is_each_of_its_matrices():
    w = random(2, 3, 50, 4)
    w[1, 2] = 0
    found = matrix_spectrum(w)
    for i in range(2):
        for j in range(3):
            one = matrix_spectrum(w[i, j])
            for name in MatrixSpectrum.__dataclass_fields__:
                torch.testing.assert_close(getattr(found, name)[i, j], getattr(one, name), equal_nan=True)


def test_of_a_power_law():
    n = 64
    s = torch.arange(1, n + 1, dtype=torch.float64) ** -1
    found = matrix_spectrum(with_values(s, 100))
    harmonic = sum(1 / i for i in range(1, n + 1))
    entropy = math.log(harmonic) + sum(math.log(i) / i for i in range(1, n + 1)) / harmonic
    assert float(found.stable_rank) == pytest.approx(sum(i**-2 for i in range(1, n + 1)))
    assert float(found.effective_rank) == pytest.approx(math.exp(entropy))
    assert float(found.condition_number) == pytest.approx(n)
    steeper = matrix_spectrum(with_values(s**2, 100))  # control
    assert float(steeper.effective_rank) < float(found.effective_rank) / 2


def marchenko_pastur(ratio):
    """Distribution function of the eigenvalues of WᵀW, entries of variance 1/rows, ratio columns/rows ≤ 1."""
    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2
    grid = low + (high - low) * (1 - np.cos(np.linspace(0, np.pi, 4001))) / 2
    density = np.sqrt(np.clip((high - grid) * (grid - low), 0, None)) / (
        2 * np.pi * ratio * np.maximum(grid, 1e-12)
    )
    return lambda x: np.interp(x, grid, integrate.cumulative_trapezoid(density, grid, initial=0))


def distance_to_marchenko_pastur(w, ratio):
    eigenvalues = np.sort(singular_values(w).square().numpy())
    return np.abs(
        marchenko_pastur(ratio)(eigenvalues) - (np.arange(len(eigenvalues)) + 0.5) / len(eigenvalues)
    ).max()


@pytest.mark.parametrize(("rows", "columns"), [(600, 300), (300, 300), (1200, 300)])
def test_of_a_gaussian_matrix_is_marchenko_pastur(rows, columns):
    w = random(rows, columns, seed=3) / rows**0.5
    assert distance_to_marchenko_pastur(w, columns / rows) < 0.01
    assert distance_to_marchenko_pastur(w.float(), columns / rows) < 0.01
    for wrong in (0.9, 0.8):
        assert distance_to_marchenko_pastur(w, columns / rows * wrong) > 0.015
    spiked = w + 2.0 * torch.outer(*(torch.ones(n, dtype=torch.float64) / n**0.5 for n in (rows, columns)))
    assert float(matrix_spectrum(spiked).spectral_norm) > 1 + (columns / rows) ** 0.5 + 0.1  # an outlier


@pytest.mark.parametrize("shape", [(12, 12), (70, 9)])
def test_rotations_change_only_the_entries_and_scaling_only_the_norms(shape):
    w = random(*shape)
    found = matrix_spectrum(w)
    turned = matrix_spectrum(orthogonal(shape[0], 5) @ w @ orthogonal(shape[1], 6))
    for name in (*RANKS, *NORMS):
        torch.testing.assert_close(getattr(found, name), getattr(turned, name))
    assert abs(float(found.gini - turned.gini)) > 1e-4
    for factor in (-3.0, 2.0**-200, 1e120, 1e-170):
        scaled = matrix_spectrum(w * factor)
        for name in (*RANKS, "gini", "hoyer"):
            torch.testing.assert_close(getattr(found, name), getattr(scaled, name))
        torch.testing.assert_close(found.frobenius_norm * abs(factor), scaled.frobenius_norm)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_zero_singular_values_give_numbers(dtype):
    low = matrix_spectrum((random(30, 2) @ random(2, 20)).to(dtype))
    assert float(low.numerical_rank) == 2  # not what rounding adds
    assert all(getattr(low, name).isfinite() for name in (*RANKS, *NORMS, "gini", "hoyer"))
    nothing = matrix_spectrum(torch.zeros(30, 20, dtype=dtype))
    assert all(float(getattr(nothing, name)) == 0 for name in (*NORMS, *RANKS[:3]))
    assert all(getattr(nothing, name).isnan() for name in ("condition_number", "gini", "hoyer"))


def test_a_matrix_that_is_not_finite_is_nan_and_leaves_the_others_alone():
    w = random(2, 30, 4)
    plain = matrix_spectrum(w[0])
    w[1, 29, 3] = torch.inf
    found = matrix_spectrum(w)
    for name in MatrixSpectrum.__dataclass_fields__:
        assert getattr(found, name)[1].isnan().all(), name
        torch.testing.assert_close(getattr(found, name)[0], getattr(plain, name))
    product = product_spectrum(w, random(2, 4, 4))
    assert product.effective_rank.isnan().tolist() == [False, True]


@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(40, 3, 30), (3, 7, 30), (5, 5, 5), (5, 4, 7), (3, 9, 4)]
)
def test_of_a_product_is_that_of_the_multiplied_matrix(rows, inner, columns):
    a, b = random(2, rows, inner), random(2, inner, columns, seed=1)
    found, full = product_spectrum(a, b), matrix_spectrum(a @ b)
    k = min(rows, inner, columns)
    assert found.singular_values.shape == (2, k)
    torch.testing.assert_close(found.singular_values, full.singular_values[:, :k])
    for name in ("frobenius_norm", "spectral_norm", "nuclear_norm", *RANKS):
        torch.testing.assert_close(getattr(found, name), getattr(full, name))
    torch.testing.assert_close(found.mean, full.singular_values[:, :k].mean(-1))
    assert found.gini.isnan().all()


@pytest.mark.parametrize("d", [1, 2, 5, 40])
def test_gini_and_hoyer_of_one_hot_and_uniform_vectors(d):
    hot = torch.zeros(d)
    hot[d // 2] = -7
    assert float(gini(hot)) == pytest.approx(1 - 1 / d)
    assert float(gini(torch.full((d,), -2.5))) == pytest.approx(0, abs=1e-12)
    if d > 1:
        assert float(hoyer(hot)) == pytest.approx(1)
        assert float(hoyer(torch.full((d,), -2.5))) == pytest.approx(0, abs=1e-7)
    else:
        assert hoyer(hot).isnan()


def test_hoyer_is_a_function_of_the_concentration_and_gini_of_an_exponential_a_half():
    v = random(3, 200)
    root = 200**0.5
    torch.testing.assert_close(hoyer(v), (root - 1 / concentration(v)) / (root - 1))
    exponential = -torch.rand(200_000, generator=torch.Generator().manual_seed(0)).log()
    # closed form of the exponential distribution
    assert float(gini(exponential)) == pytest.approx(0.5, abs=5e-3)


def test_distance_and_angle_of_turned_weights():
    w = random(8, 8)
    for degrees in (1e-5, 30.0, 90.0, 179.0):
        angle = math.radians(degrees)
        u = w / w.norm()
        other = random(8, 8, seed=1)
        other = other - (other * u).sum() * u
        other = other / other.norm()
        turned = 5 * (math.cos(angle) * u + math.sin(angle) * other)
        found = weight_distance(turned, w)
        assert found.angle == pytest.approx(degrees, rel=1e-6)
        assert found.distance == pytest.approx(float((turned - w).norm()))
        assert found.relative_distance == pytest.approx(float((turned - w).norm() / w.norm()))
    assert weight_distance(w, w).angle == 0
    assert weight_distance(w, -w).angle == pytest.approx(180)


def test_alignment_of_tables():
    table, other = random(500, 6), random(500, 6, seed=1)
    same = table_alignment(table, table)
    assert (same.mean_cosine, same.linear_cka) == (pytest.approx(1), pytest.approx(1))
    turned = table_alignment(table, table @ orthogonal(6))
    assert turned.linear_cka == pytest.approx(1)
    assert abs(turned.mean_cosine) < 0.5
    unrelated = table_alignment(table, other)
    assert unrelated.mean_cosine == pytest.approx(float(torch.cosine_similarity(table, other).mean()))
    assert unrelated.linear_cka == pytest.approx(float(linear_cka(table, other)))
    assert unrelated.linear_cka < 0.1
    narrow = table_alignment(table, other[:, :3])
    assert math.isnan(narrow.mean_cosine)
    assert 0 < narrow.linear_cka < 0.1


def test_rounding_of_the_stored_type_is_no_rank_and_costs_none():
    """In bfloat16: rounding raises zeros to about ε ‖W‖_F / √n each way, below the planted value of 0.02."""
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(400, 51, dtype=torch.float64))[0] for _ in range(2))
    values = torch.cat([torch.ones(50), torch.tensor([0.02])]).double()
    w = (left * values @ right.T).bfloat16()
    assert float(matrix_spectrum(w).numerical_rank) == 51
    assert float(matrix_spectrum(w.double()).numerical_rank) == 400  # the same numbers, meant as they are


@pytest.mark.parametrize("smallest", [1e-3, 1e-7, 0.0])
@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
def test_values_of_single_precision_are_those_of_its_numbers_in_double(smallest, shape):
    g = torch.Generator().manual_seed(0)
    k = min(shape)
    left, right = (torch.linalg.qr(torch.randn(n, k, generator=g, dtype=torch.float64)).Q for n in shape)
    w = (
        left * torch.logspace(0, -1, k, dtype=torch.float64).index_fill(0, torch.tensor([k - 1]), smallest)
    ) @ right.T
    expected = torch.linalg.svdvals(w.float().double())
    torch.testing.assert_close(singular_values(w.float()), expected, rtol=2e-6, atol=1e-15)
    torch.testing.assert_close(
        singular_values(w.float() * 2.0**100) / 2.0**100, expected, rtol=2e-6, atol=1e-15
    )

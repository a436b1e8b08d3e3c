"""Principal and independent components: against theory, a naive loop and sources that are known."""

import math

import pytest
import torch

from lmdyn.analysis.preference import independent_components as I

N, K = 4000, 5


def sources(kind="laplace", n=N, k=K, seed=0):
    g = torch.Generator().manual_seed(seed)
    if kind == "gauss":
        return torch.randn(n, k, generator=g, dtype=torch.float64)
    u = torch.rand(n, k, generator=g, dtype=torch.float64) - 0.5
    return -u.sign() * torch.log1p(-2 * u.abs())


def mixing(k=K, d=None, seed=1):
    return torch.randn(d or k, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def amari_index(product):
    """How far an unmixing matrix times the mixing matrix is from a scaled permutation, from 0 to 1."""
    size, k = product.abs(), len(product)
    total = (size / size.amax(1, keepdim=True)).sum() + (size / size.amax(0)).sum() - 2 * k
    return float(total) / (2 * k * (k - 1))


def found_index(x, a, **settings):
    """Amari index of what was found in x = s Aᵀ: sources are linear in x, so regression tells the product."""
    p = I.principal_components(x, a.shape[1])
    found = I.amari_ica(p, **{"learning_rate": 0.1, "tolerance": 1e-6, "max_iterations": 4000, **settings})
    whitening = torch.linalg.lstsq(x - x.mean(0), p).solution
    return amari_index(found.unmixing @ whitening.T @ a), found


# ---------------------------------------------------------------- principal components


@pytest.mark.parametrize("mean", [0.0, 50.0])
def test_whitened_components_have_the_identity_as_covariance(mean):
    x = sources() @ mixing(d=9).T + 0.1 * sources(k=9, seed=2) + mean
    p = I.principal_components(x, K)
    assert torch.allclose(p.mean(0), torch.zeros(K).double(), atol=1e-9)
    assert torch.allclose(p.T @ p / N, torch.eye(K).double(), atol=1e-9)


def test_components_against_the_singular_value_decomposition():
    x = sources() @ mixing(d=9).T
    centred = x - x.mean(0)
    _, singular, vt = torch.linalg.svd(centred, full_matrices=False)
    expected = (centred @ vt[:3].T) / singular[:3] * math.sqrt(len(x))
    assert torch.allclose(I.principal_components(x, 3).abs(), expected.abs(), atol=1e-9)


def test_errors_of_principal_components():
    x = sources(n=20)
    with pytest.raises(ValueError, match="expected 1 to 5 components"):
        I.principal_components(x, 6)
    with pytest.raises(I.UnusableEmbeddingsError, match=r"got rank 2: use fewer components"):
        I.principal_components(x[:, :2] @ mixing(2, 5).T, 3)


# ---------------------------------------------------------------- independent components


@pytest.mark.parametrize("nonlinearity", ["bounded", "halved"])
def test_unmixes_super_gaussian_sources_up_to_order_and_sign(nonlinearity):
    s, a = sources(), mixing()
    index, found = found_index(s @ a.T, a, nonlinearity=nonlinearity)
    assert found.converged
    assert index < 0.05
    correlation = torch.corrcoef(torch.cat([found.sources, s], 1).T)[:K, K:].abs()
    assert (correlation.amax(1) > 0.99).all()
    assert sorted(correlation.argmax(1).tolist()) == list(range(K))


def test_gaussian_sources_are_not_unmixed():
    """The control: any rotation of them is as independent."""
    a = mixing()
    assert found_index(sources("gauss") @ a.T, a, max_iterations=2000)[0] > 0.2
    p = I.principal_components(sources() @ a.T, K)  # and whitening alone does not unmix
    assert amari_index(torch.linalg.lstsq(sources() - sources().mean(0), p).solution.T) > 0.2


@pytest.mark.parametrize(("nonlinearity", "scale"), [("bounded", 1.0), ("halved", 0.5)])
def test_the_fixed_point_fixes_the_scale(nonlinearity, scale):
    p = I.principal_components(sources() @ mixing().T, K)
    found = I.amari_ica(p, 0.1, 4000, 1e-9, nonlinearity)
    assert found.converged
    y = found.sources
    assert torch.allclose(y, p @ found.unmixing.T)
    g = scale * y.sign() * (1 - torch.exp(-math.sqrt(2) * y.abs()))
    # E g(y)yᵀ = I: each row is scaled so, and g(yᵢ) is uncorrelated with every other yⱼ
    assert torch.allclose(g.T @ y / N, torch.eye(K).double(), atol=1e-8)
    # of Laplace variables of scale b: b − b / (1 + √2 b)² = 1 (2 if halved)
    b = y.abs().mean(0)
    assert torch.allclose(b - b / (1 + math.sqrt(2) * b) ** 2, torch.ones(K).double() / scale, atol=0.1)


def test_the_rule_step_by_step():
    """A naive loop in the publication's layout, words in columns."""
    p = I.principal_components(sources(n=200) @ mixing().T, K)
    w = torch.eye(K).double()
    for _ in range(7):
        y = w @ p.T
        g = y.sign() * (1 - (-(2**0.5) * y.abs()).exp())
        w = w + 0.01 * (torch.eye(K) - g @ y.T / 200) @ w
    found = I.amari_ica(p, max_iterations=7)
    assert torch.allclose(found.unmixing, w, atol=1e-12)
    assert (found.iterations, found.converged) == (7, False)
    assert found.residual > 0.01


def test_the_rule_has_the_same_fixed_points_however_it_starts():
    """Given the iterations, a smaller start gets there too, since Y depends on Y alone; a large one diverges."""
    p = I.principal_components(sources() @ mixing().T, K)
    near, far = (I.amari_ica(scale * p, 0.1, tolerance=1e-8) for scale in (1, 0.1))
    assert far.iterations > near.iterations
    assert torch.allclose(near.sources, far.sources, atol=1e-5)
    with pytest.raises(I.UnusableEmbeddingsError, match="diverged within"):
        I.amari_ica(1000 * p)

"""Principal and independent components: against theory, a naive loop and sources that are known."""

import math

import pytest
import torch

from lmdyn.analysis.preference.independent_components import (
    UnusableEmbeddingsError,
    amari_ica,
    amari_index,
    fast_ica,
    principal_components,
)

N, K = 4000, 5


def sources(kind="laplace", n=N, k=K, seed=0):
    g = torch.Generator().manual_seed(seed)
    if kind == "gauss":
        return torch.randn(n, k, generator=g, dtype=torch.float64)
    u = torch.rand(n, k, generator=g, dtype=torch.float64) - 0.5
    return -u.sign() * torch.log1p(-2 * u.abs())


def mixing(k=K, d=None, seed=1):
    return torch.randn(d or k, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def found_index(x, a, **settings):
    """Amari index of what was found in x = s Aᵀ: sources are linear in x, so regression tells the product."""
    p = principal_components(x, a.shape[1])
    found = amari_ica(p, **{"learning_rate": 0.1, "tolerance": 1e-6, "max_iterations": 4000, **settings})
    whitening = torch.linalg.lstsq(x - x.mean(0), p).solution
    return amari_index(found.unmixing @ whitening.T @ a), found


# ---------------------------------------------------------------- principal components


@pytest.mark.parametrize("mean", [0.0, 50.0])
def test_whitened_components_have_the_identity_as_covariance(mean):
    x = sources() @ mixing(d=9).T + 0.1 * sources(k=9, seed=2) + mean
    p = principal_components(x, K)
    assert torch.allclose(p.mean(0), torch.zeros(K).double(), atol=1e-9)
    assert torch.allclose(p.T @ p / N, torch.eye(K).double(), atol=1e-9)


def test_the_other_whitenings_scale_the_same_components():
    x = sources() @ mixing(d=9).T + 3
    divided, multiplied, plain = (principal_components(x, K, w) for w in ("divide", "multiply", None))
    variance = plain.square().mean(0)
    assert (variance.diff() < 0).all()
    assert torch.allclose(multiplied, plain * variance.sqrt())
    assert torch.allclose(divided, plain / variance.sqrt())
    covariance = multiplied.T @ multiplied / N
    assert torch.allclose(covariance, torch.diag(variance**2), atol=1e-8 * float(variance[0] ** 2))


def test_components_against_the_singular_value_decomposition():
    x = sources() @ mixing(d=9).T
    centred = x - x.mean(0)
    _, singular, vt = torch.linalg.svd(centred, full_matrices=False)
    plain = principal_components(x, 3, None)
    assert torch.allclose(plain.abs(), (centred @ vt[:3].T).abs(), atol=1e-9)
    assert torch.allclose(plain.norm(dim=0), singular[:3])


def test_without_centring_the_mean_is_the_first_component():
    """The printed form."""
    x = sources() @ mixing().T + 100
    printed = principal_components(x, 1, centre=False).flatten()
    assert torch.allclose(printed.abs(), torch.ones(N).double(), atol=0.2)  # about the same for every word
    assert torch.allclose((printed**2).mean(), torch.tensor(1.0).double())
    centred = principal_components(x, 1).flatten()
    assert abs(float(torch.corrcoef(torch.stack([printed, centred]))[0, 1])) < 0.999


def test_errors_of_principal_components():
    x = sources(n=20)
    with pytest.raises(ValueError, match="expected 1 to 5 components"):
        principal_components(x, 6)
    with pytest.raises(UnusableEmbeddingsError, match=r"got rank 2: use at most 2"):
        principal_components(x[:, :2] @ mixing(2, 5).T, 3)
    assert principal_components(x[:, :2] @ mixing(2, 5).T, 3, None).shape == (20, 3)


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
    p = principal_components(sources() @ a.T, K)  # and whitening alone does not unmix
    assert amari_index(torch.linalg.lstsq(sources() - sources().mean(0), p).solution.T) > 0.2


@pytest.mark.parametrize(("nonlinearity", "scale"), [("bounded", 1.0), ("halved", 0.5)])
def test_the_fixed_point_fixes_the_scale(nonlinearity, scale):
    p = principal_components(sources() @ mixing().T, K)
    found = amari_ica(p, 0.1, 4000, 1e-9, nonlinearity)
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
    p = principal_components(sources(n=200) @ mixing().T, K)
    w = torch.eye(K).double()
    for _ in range(7):
        y = w @ p.T
        g = y.sign() * (1 - (-(2**0.5) * y.abs()).exp())
        w = w + 0.01 * (torch.eye(K) - g @ y.T / 200) @ w
    found = amari_ica(p, max_iterations=7)
    assert torch.allclose(found.unmixing, w, atol=1e-12)
    assert (found.iterations, found.converged) == (7, False)
    assert found.residual > 0.01


def test_multiplying_does_not_converge_where_dividing_does():
    """At the published rate, from embeddings as small as a model's (0.02), and as large as 30."""
    x = sources() @ mixing().T
    divided = amari_ica(principal_components(0.02 * x, K), tolerance=0.1)
    assert divided.converged
    settings = {"max_iterations": divided.iterations, "tolerance": 0.1}
    assert amari_ica(principal_components(30 * x, K), **settings).converged
    assert not amari_ica(principal_components(0.02 * x, K, "multiply"), **settings).converged
    with pytest.raises(UnusableEmbeddingsError, match=r"diverged within .*whiten by 'divide'"):
        amari_ica(principal_components(30 * x, K, "multiply"), **settings)


def test_the_rule_has_the_same_fixed_points_however_it_starts():
    """Given the iterations, multiplying gets there too: the course of Y depends on Y alone."""
    x = 0.1 * sources() @ mixing().T
    divided, multiplied = (
        amari_ica(principal_components(x, K, whiten), 0.1, tolerance=1e-8)
        for whiten in ("divide", "multiply")
    )
    assert multiplied.iterations > divided.iterations
    correlation = torch.corrcoef(torch.cat([divided.sources, multiplied.sources], 1).T)[:K, K:].abs()
    assert torch.allclose(correlation.amax(1), torch.ones(K).double(), atol=1e-6)


def test_fastica_unmixes_too():
    """And the control: Gaussian sources are not found by it either."""
    a, found = mixing(), {}
    for kind in ("laplace", "gauss"):
        s = sources(kind)
        p = principal_components(s @ a.T, K)
        y = fast_ica(p, max_iterations=200).sources
        assert torch.allclose(y.T @ y / N, torch.eye(K).double(), atol=1e-6)  # W is orthogonal
        found[kind] = amari_index(torch.linalg.lstsq(s, y).solution.T)
    assert found["laplace"] < 0.05
    assert found["gauss"] > 0.2


def test_fastica_says_whether_it_converged():
    p = principal_components(sources() @ mixing().T, K)
    assert fast_ica(p).converged
    stopped = fast_ica(p, max_iterations=1)
    assert (stopped.iterations, stopped.converged) == (1, False)
    assert math.isnan(stopped.residual)


def test_amari_index():
    k = 4
    permutation = torch.eye(k)[torch.randperm(k, generator=torch.Generator().manual_seed(0))]
    scaled = permutation * torch.tensor([2.0, -1.0, 0.1, 30.0])
    assert amari_index(scaled) == 0
    assert amari_index(torch.ones(k, k)) == 1
    assert 0 < amari_index(scaled + 0.01) < amari_index(scaled + 0.1) < 1
    naive = sum(float(r.abs().sum() / r.abs().max()) - 1 for m in (mixing(4), mixing(4).T) for r in m)
    assert amari_index(mixing(4)) == pytest.approx(naive / (2 * 4 * 3))
    assert amari_index(torch.tensor([[3.0]])) == 0
    with pytest.raises(ValueError, match="singular"):
        amari_index(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))

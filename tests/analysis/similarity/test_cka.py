"""CKA: the printed formulas written out with n × n matrices, closed forms, precision."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from lmdyn.analysis import kernel_cka, linear_cka, rbf_kernel
from lmdyn.analysis.similarity import kernels
from tests.analysis.similarity.streams import stream


def hsic_0(K, L):  # noqa: N803
    """Kornblith et al. 2019, equation 3."""
    n = len(K)
    H = np.eye(n) - np.ones((n, n)) / n
    return np.trace(K @ H @ L @ H) / (n - 1) ** 2


def hsic_1(K, L):  # noqa: N803
    """HSIC₁ of Song et al. 2012, as printed."""
    n = len(K)
    K, L, one = K - np.diag(np.diag(K)), L - np.diag(np.diag(L)), np.ones(n)
    return (
        np.trace(K @ L)
        + (one @ K @ one) * (one @ L @ one) / ((n - 1) * (n - 2))
        - 2 / (n - 2) * (one @ K @ L @ one)
    ) / (n * (n - 3))


def cka(K, L, hsic):  # noqa: N803
    return hsic(K, L) / math.sqrt(hsic(K, K) * hsic(L, L))


class TestLinear:
    @pytest.mark.parametrize(("debiased", "hsic"), [(False, hsic_0), (True, hsic_1)])
    @pytest.mark.parametrize(
        ("n", "d1", "d2"), [(200, 7, 5), (30, 90, 4), (30, 4, 90), (6, 40, 40), (4, 2, 2)]
    )
    def test_equals_the_printed_formula(self, related, debiased, hsic, n, d1, d2):
        x, y = related(n=n, d1=d1, d2=d2)
        expected = cka((x @ x.T).numpy(), (y @ y.T).numpy(), hsic)
        assert float(linear_cka(x, y, debiased)) == pytest.approx(expected, abs=1e-9)
        assert float(kernel_cka(x, y, "linear", debiased=debiased)) == pytest.approx(expected, abs=1e-9)
        mixed = kernel_cka(x @ x.T, y, "precomputed", kernel_y="linear", debiased=debiased)
        assert float(mixed) == pytest.approx(expected, abs=1e-9)
        for batch in (1, 7, n):
            assert float(stream(x, y, batch).linear_cka(debiased)) == pytest.approx(expected, abs=1e-9)

    def test_debiased_is_unbiased_at_0(self):
        g = torch.Generator().manual_seed(0)
        pairs = [torch.randn(2, 20, 50, generator=g, dtype=torch.float64) for _ in range(200)]
        biased, debiased = (np.array([float(linear_cka(*p, d)) for p in pairs]) for d in (False, True))
        assert biased.min() > 0.5
        assert abs(debiased.mean()) < 5 * debiased.std() / math.sqrt(200)
        assert debiased.min() < 0

    @pytest.mark.parametrize("shift", [0.0, 1.0, 1e3])
    def test_in_float32(self, related, shift):
        for n, d1, d2 in ((2000, 64, 48), (60, 300, 20), (4, 3, 3)):
            x, y = (v.float() for v in related(n=n, d1=d1, d2=d2))
            x, y = x + shift * x.std(), y - shift * y.std()
            for debiased, most in ((False, 1e-6), (True, 1e-5)):
                found = linear_cka(x, y, debiased, dtype=torch.float32)
                assert found.dtype == torch.float64
                assert float(found) == pytest.approx(float(linear_cka(x, y, debiased)), abs=most)
                scaled = linear_cka(x * 2**60, y.double() * 2**-300, debiased, dtype=torch.float32)
                assert float(scaled) == pytest.approx(float(found), abs=most)

    def test_structureless_samples(self):
        g = torch.Generator().manual_seed(0)
        assert float(linear_cka(torch.eye(5), torch.eye(5))) == pytest.approx(1)
        streamed = lambda x, y, debiased: stream(x, y, 2).linear_cka(debiased)  # noqa: E731
        for f in (linear_cka, partial(kernel_cka, kernel="linear"), streamed):
            with pytest.raises(ValueError, match="the unbiased HSIC of x with itself is 0"):
                f(torch.eye(5), torch.randn(5, 2, generator=g), debiased=True)


class TestKernels:
    @pytest.mark.parametrize(("debiased", "hsic"), [(False, hsic_0), (True, hsic_1)])
    def test_rbf_equals_the_printed_formula(self, related, debiased, hsic):
        x, y = related(n=40)

        def gram(v, bandwidth=1.0):
            distances = np.linalg.norm(v[:, None] - v[None], axis=-1)
            sigma = (
                bandwidth
                * np.sort(distances[np.triu_indices(len(v), 1)])[(len(v) * (len(v) - 1) // 2 - 1) // 2]
            )
            return np.exp(-(distances**2) / (2 * sigma**2))

        a, b = x.numpy(), y.numpy()
        assert float(kernel_cka(x, y, debiased=debiased)) == pytest.approx(
            cka(gram(a), gram(b), hsic), abs=1e-9
        )
        narrow = partial(rbf_kernel, bandwidth=0.4)
        got = kernel_cka(x, y, narrow, kernel_y="linear", debiased=debiased)
        assert float(got) == pytest.approx(cka(gram(a, 0.4), b @ b.T, hsic), abs=1e-9)

    def test_cosine_equals_the_printed_formula(self, related):
        x, y = related(n=40)
        K, L = ((v / v.norm(dim=1, keepdim=True)).numpy() for v in (x, y))
        assert float(kernel_cka(x, y, "cosine")) == pytest.approx(cka(K @ K.T, L @ L.T, hsic_0), abs=1e-9)

    @pytest.mark.parametrize(
        "place", ["anywhere", "a mean of 1e6", "a far pair", "two far groups", "repeated"]
    )
    def test_rbf_by_products_is_that_by_differences(self, place, monkeypatch):
        x = torch.randn(60, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        far = torch.zeros(60, 1).double()
        far[: {"a far pair": 2, "two far groups": 40}.get(place, 0)] = 1e6
        x = x + far + (1e6 if place == "a mean of 1e6" else 0)
        if place == "repeated":
            x = torch.cat([x[:40], x[:20]])
        distances = torch.nn.functional.pdist(x)
        above = torch.ones(60, 60).triu(1).bool()
        expected = (
            torch.eye(60).double().masked_scatter(above, (-0.5 * (distances / distances.median()) ** 2).exp())
        )
        expected = torch.maximum(expected, expected.T)
        np.testing.assert_allclose(rbf_kernel(x), expected, atol=1e-13)
        monkeypatch.setattr(kernels, "_FAR", math.inf)
        if place in ("a far pair", "two far groups"):  # the control
            assert not np.allclose(rbf_kernel(x), expected, atol=1e-9)

    def test_subsample_is_seeded_stated_and_the_same_on_both_sides(self, related):
        x, y = related(n=300)
        state = torch.get_rng_state()
        value = kernel_cka(x, y, max_samples=50, seed=1)
        assert torch.equal(torch.get_rng_state(), state)
        assert value == kernel_cka(x, y, max_samples=50, seed=1)
        assert value != kernel_cka(x, y, max_samples=50, seed=2)
        assert float(kernel_cka(x, x, max_samples=50)) == pytest.approx(1, abs=1e-12)
        assert kernel_cka(x, y, max_samples=300, seed=5) == kernel_cka(x, y)
        K = rbf_kernel(x)
        rows = torch.randperm(300, generator=torch.Generator().manual_seed(1))[:50]
        expected = kernel_cka(K[rows][:, rows], rbf_kernel(y)[rows][:, rows], "precomputed")
        got = kernel_cka(K, rbf_kernel(y), "precomputed", max_samples=50, seed=1)
        assert float(got) == pytest.approx(float(expected), abs=1e-12)

    def test_errors(self, related):
        x, y = related(n=30)
        with pytest.raises(ValueError, match="set max_samples"):
            kernel_cka(torch.zeros(10_001, 1), torch.zeros(10_001, 1))
        with pytest.raises(ValueError, match=r"must be of shape \(n, n\)"):
            kernel_cka(x, y, "precomputed")
        with pytest.raises(ValueError, match="more than half of the pairs"):
            kernel_cka(torch.where(torch.arange(30)[:, None] < 28, 1.0, x), y)

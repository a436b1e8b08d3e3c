"""Lyapunov exponents of systems in which they are known, and algorithm A1 in numpy as oracle."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lmdyn.analysis.orbits.lyapunov import derivative, local_lyapunov_exponents, random_perturbation
from lmdyn.analysis.orbits.lyapunov_spectrum import lyapunov_spectrum
from lmdyn.analysis.orbits.orbit_kind import orbit_kind

F64 = torch.float64


def logistic(x):
    return 4 * x * (1 - x)


def henon(x):
    return torch.stack([1 - 1.4 * x[:, 0] ** 2 + x[:, 1], 0.3 * x[:, 0]], 1)


def linear(matrix):
    return lambda x: x @ matrix.T.to(x.dtype)


def start(n, d, seed=0, dtype=F64):
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype) * 0.8 + 0.1


@pytest.fixture(scope="module")
def network():
    g = torch.Generator().manual_seed(3)
    weight = 1.5 * torch.randn(20, 20, generator=g, dtype=F64) / 20**0.5
    return weight, torch.randn(4, 5, 4, generator=g, dtype=F64)


def tanh_map(weight):
    return lambda x: torch.tanh(x.flatten(1) @ weight.to(x.dtype)).reshape(x.shape)


class TestLocalExponents:
    def test_logistic_map(self):
        x = start(1500, 1)
        found = local_lyapunov_exponents(logistic, x, 1, 50, epsilon=1e-9)
        # from 20 steps on rows follow the invariant measure; of these some 50,000 the standard error is 2e-3
        assert found.exponents[20:].mean().item() == pytest.approx(math.log(2), abs=1e-2)
        assert not found.diverged.any()
        assert found.exponents.shape == (50, 1500)
        assert found.exponents.dtype == F64

    @pytest.mark.parametrize("dtype", [torch.float32, F64])
    @pytest.mark.parametrize("epsilon", [1.0, 1e-2])
    def test_algorithm_a1_in_numpy(self, network, dtype, epsilon):
        weight, x = network
        tau, steps = 5, 40
        found = local_lyapunov_exponents(tanh_map(weight), x.to(dtype), tau, steps, epsilon)
        W, deltas = weight.numpy(), random_perturbation(x, epsilon).numpy()
        for row in range(len(x)):
            x_t, delta = x[row].numpy().flatten(), deltas[row].flatten()
            for w in range(steps // tau):
                moved = x_t + delta
                for _ in range(tau):
                    x_t, moved = np.tanh(x_t @ W), np.tanh(moved @ W)
                delta = moved - x_t
                norm = np.sqrt((delta**2).sum())
                tolerance = 1e-10 if dtype == F64 else 2e-3
                assert found.exponents[w, row].item() == pytest.approx(
                    np.log(norm / epsilon) / tau, abs=tolerance
                )
                delta *= epsilon / norm
        assert (found.exponents.max() - found.exponents.min()) > 0.1

    @pytest.mark.parametrize("dtype", [torch.float32, F64])
    def test_rotations_neither_grow_nor_shrink(self, dtype):
        q = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=F64)).Q
        for scale in (1.0, 0.5, 2.0):
            found = local_lyapunov_exponents(linear(scale * q), torch.zeros(3, 6, dtype=dtype), 4, 12)
            expected = torch.full((3, 3), math.log(scale), dtype=F64)
            torch.testing.assert_close(
                found.exponents, expected, atol=2e-6 if dtype != F64 else 1e-13, rtol=0
            )

    def test_small_perturbations_tend_to_the_jacobian(self, network):
        weight, x = network
        f = tanh_map(weight)
        v = random_perturbation(x)
        jacobian = torch.autograd.functional.jacobian(lambda s: f(f(s[None]))[0], x[1]).reshape(20, 20)
        expected = (jacobian @ v[1].flatten()).norm().log() / 2
        errors = [
            float((local_lyapunov_exponents(f, x, 2, 2, epsilon).exponents[0, 1] - expected).abs())
            for epsilon in (1.0, 1e-3, 1e-6)
        ]
        assert errors[0] > 1e-3 > errors[1] > 1e-6 > errors[2]

    def test_a_sequence_of_maps(self, network):
        weight, x = network
        maps = [tanh_map(weight * (1 + i / 10)) for i in range(6)]
        found = local_lyapunov_exponents(maps, x, 2, 6)
        one = local_lyapunov_exponents(lambda x: maps[1](maps[0](x)), x, 1, 1)
        torch.testing.assert_close(found.exponents[0], one.exponents[0] / 2)
        with pytest.raises(ValueError, match="at most 6 steps"):
            local_lyapunov_exponents(maps, x, 2, 8)

    @pytest.mark.parametrize("dtype", [torch.float32, F64])
    def test_below_the_precision_there_is_a_bound(self, dtype):
        f = lambda x: 3 + 1e-3 * (x - 3)  # noqa: E731
        x = torch.full((2, 4), 3.0, dtype=dtype)
        found = local_lyapunov_exponents(f, x, 20, 60)
        eps = torch.finfo(dtype).eps
        assert found.saturated.all()
        bound = torch.full((3, 2), math.log(eps * 6) / 20, dtype=F64)  # ‖x‖ = 3 · 2
        torch.testing.assert_close(found.exponents, bound)
        assert bound[0, 0] > math.log(1e-3)  # above the truth
        assert not local_lyapunov_exponents(f, x, 1, 3).saturated.any()
        lost = local_lyapunov_exponents(lambda x: 0 * x, x, 1, 2)
        assert lost.saturated.all()
        assert lost.exponents.isfinite().all()

    def test_rows_do_not_depend_on_the_batch(self):
        x = start(5, 6).reshape(5, 2, 3)
        every = random_perturbation(x, 0.1, seed=4)
        assert torch.equal(random_perturbation(x[:2], 0.1, seed=4), every[:2])
        assert torch.equal(random_perturbation(x[3:], 0.1, seed=4, rows=[3, 4]), every[3:])
        torch.testing.assert_close(every.flatten(1).norm(dim=1), torch.full((5,), 0.1, dtype=F64))
        shifted = random_perturbation(x, 0.1, seed=5)
        # row i + 1 is not row i of the next seed
        assert not any(torch.equal(a, b) for a in every for b in shifted)
        with pytest.raises(ValueError, match="zip"):
            random_perturbation(x, rows=[0, 1])
        f = tanh_map(torch.eye(6, dtype=F64) * 1.3)
        part = local_lyapunov_exponents(f, x[3:], 2, 6, rows=[3, 4]).exponents
        torch.testing.assert_close(part, local_lyapunov_exponents(f, x, 2, 6).exponents[:, 3:])

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((10, 25), "use 20 or 30 steps"),
            ((10, 5), "use 10 steps"),
            ((0, 5), "tau must be at least 1"),
            ((5, 10, 0.0), "epsilon"),
        ],
    )
    def test_errors(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            local_lyapunov_exponents(logistic, start(2, 1), *arguments)


class TestSpectrum:
    def test_henon(self):
        found = lyapunov_spectrum(henon, start(2000, 2) / 10, 2, 60, skip=40)
        torch.testing.assert_close(
            found.exponents.sum(1), torch.full((2000,), math.log(0.3), dtype=F64), atol=1e-10, rtol=0
        )
        assert found.exponents[:, 0].mean().item() == pytest.approx(0.4192, abs=5e-3)
        assert found.exponents[:, 1].mean().item() == pytest.approx(-1.6232, abs=5e-3)
        assert found.kaplan_yorke.mean().item() == pytest.approx(1.258, abs=4e-3)

    @pytest.mark.parametrize("dtype", [torch.float32, F64])
    def test_linear_maps_exactly(self, dtype):
        """A triangular map, its eigenvalues in no order, as seen through a rotation."""
        values = torch.tensor([0.5, -2.0, 0.1, 1.2], dtype=F64)
        g = torch.Generator().manual_seed(1)
        triangular = torch.diag(values) + torch.randn(4, 4, generator=g, dtype=F64).triu(1)
        q = torch.linalg.qr(torch.randn(4, 4, generator=g, dtype=F64)).Q
        expected = values.abs().log().sort(descending=True).values
        for k, every in ((1, 1), (2, 5), (4, 2)):
            found = lyapunov_spectrum(
                linear(q @ triangular @ q.T), torch.zeros(2, 4, dtype=dtype), k, 20, skip=100, every=every
            )
            tolerance = 1e-10 if dtype == F64 else 1e-5
            torch.testing.assert_close(found.exponents, expected[:k].expand(2, k), atol=tolerance, rtol=0)
            assert found.final.dtype == dtype

    def test_k_of_them_are_the_first_of_all(self, network):
        weight, x = network
        f = tanh_map(weight)
        every = lyapunov_spectrum(f, x, 20, 100, skip=60)
        some = lyapunov_spectrum(f, x, 3, 100, skip=60)
        torch.testing.assert_close(some.exponents, every.exponents[:, :3], atol=3e-2, rtol=0)
        assert (every.exponents.diff(dim=1) <= 0).all()
        maximal = local_lyapunov_exponents(f, x, 20, 160, epsilon=1e-7).exponents[3:].mean(0)
        torch.testing.assert_close(some.exponents[:, 0], maximal, atol=3e-2, rtol=0)

    def test_lost_directions_and_diverged_rows(self):
        lost = lyapunov_spectrum(linear(torch.diag(torch.tensor([2.0, 0.0]))), torch.ones(1, 2), 2, 5, skip=5)
        assert lost.exponents[0, 0].item() == pytest.approx(math.log(2), abs=1e-6)
        assert lost.exponents[0, 1] < -5
        gone = lyapunov_spectrum(henon, torch.tensor([[0.1, 0.1], [50.0, 0.0]], dtype=F64), 2, 40)
        assert gone.exponents[1].isnan().all()
        assert gone.kaplan_yorke[1].isnan()
        assert gone.exponents[0].sum().item() == pytest.approx(math.log(0.3))

    def test_a_sequence_of_maps_and_errors(self):
        maps = [linear(torch.diag(torch.tensor([2.0, 0.5]))), linear(torch.diag(torch.tensor([4.0, 0.5])))]
        found = lyapunov_spectrum(maps, torch.ones(1, 2), 2, 2)
        torch.testing.assert_close(
            found.exponents.sum(1), torch.tensor([math.log(2) / 2]).double(), atol=1e-6, rtol=0
        )
        with pytest.raises(ValueError, match="at most 2 steps"):
            lyapunov_spectrum(maps, torch.ones(1, 2), 2, 2, skip=1)
        with pytest.raises(ValueError, match="k must be from 1 to 2"):
            lyapunov_spectrum(henon, torch.ones(1, 2), 3, 2)
        with pytest.raises(ValueError, match="expected steps >= 1"):
            lyapunov_spectrum(henon, torch.ones(1, 2), 2, 0)


class TestSpectrumInSteps:
    """Fewer factorizations, and perturbed copies instead of derivatives, give the same exponents."""

    @pytest.mark.slow
    def test_by_perturbations(self):
        x = torch.tensor([[0.1, 0.1]], dtype=torch.float64)
        exact = lyapunov_spectrum(henon, x, 2, 400, skip=100)
        finite = lyapunov_spectrum(henon, x, 2, 400, skip=100, every=2, method="perturbation")
        torch.testing.assert_close(exact.exponents, finite.exponents, rtol=0, atol=1e-4)
        fifth = lyapunov_spectrum(henon, x, 2, 400, skip=100, every=5)
        torch.testing.assert_close(exact.exponents, fifth.exponents, rtol=0, atol=1e-8)
        linear = torch.tensor([[0.5, 1.0], [0.0, 0.9]], dtype=torch.float64)
        found = lyapunov_spectrum(lambda x: x @ linear, x, 2, 100, skip=100, every=5, method="perturbation")
        expected = torch.tensor([[math.log(0.9), math.log(0.5)]], dtype=torch.float64)
        torch.testing.assert_close(found.exponents, expected, rtol=0, atol=1e-5)

    @pytest.mark.slow
    def test_errors_are_those_of_blocks(self):
        x = torch.tensor([[0.1, 0.1]], dtype=torch.float64)
        found = lyapunov_spectrum(henon, x, 1, 1000, skip=100)
        assert 0 < found.errors.item() < 0.05
        assert abs(found.exponents.item() - 0.4192) < 4 * found.errors.item()
        assert lyapunov_spectrum(henon, x, 1, 4).errors.isnan().all()  # too few blocks

    @pytest.mark.parametrize("options", [{"every": 3}, {"every": 0}, {"skip": 5, "every": 2}])
    def test_refused(self, options):
        with pytest.raises(ValueError, match="`every` that divides both"):
            lyapunov_spectrum(henon, torch.zeros(1, 2), 1, 10, **options)

    @pytest.mark.parametrize(("constant", "told"), [(0.0, True), (100.0, True), (1e4, False), (1e6, False)])
    def test_perturbations_that_are_not_small_are_refused(self, constant, told):
        """Chaos of size 1 beside a constant: √eps of the norm is no small part of it any more."""

        def beside(x):
            return torch.cat([henon(x[:, :2]), constant + 0.5 * (x[:, 2:] - constant)], 1)

        x = torch.tensor([[0.1, 0.1, constant], [0.2, 0.0, constant]])
        if told:
            found = lyapunov_spectrum(beside, x, 2, 1000, skip=100, every=2, method="perturbation")
            assert (found.exponents[:, 0] - 0.4192).abs().max() < 0.03
            return
        with pytest.raises(ValueError, match=r"not small in torch.float32, for 2 of 2 rows.* use float64"):
            lyapunov_spectrum(beside, x, 2, 1000, skip=100, every=2, method="perturbation")
        assert "torus" not in orbit_kind(beside, x, steps=400).kinds
        double = lyapunov_spectrum(beside, x.double(), 2, 1000, skip=100, every=2, method="perturbation")
        assert (double.exponents[:, 0] - 0.4192).abs().max() < 0.03


LAYERS = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 5, bias=False)).double()
MAPS = {
    "layers of constant weights": LAYERS,
    "a norm of all": lambda x: F.layer_norm(x.sin(), x.shape[1:]),
    "weights of the state": lambda x: F.linear(x[:, 0], x[0], x[0, :, 0]),
    "nothing of the state": lambda x: F.linear(torch.ones_like(x), torch.eye(3).double()),
}


@pytest.mark.parametrize("name", MAPS)
def test_the_derivative_is_that_of_torch(name):
    x, v = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = derivative(MAPS[name], x, v)
    for ours, theirs in zip(found, torch.func.jvp(MAPS[name], (x,), (v,)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)

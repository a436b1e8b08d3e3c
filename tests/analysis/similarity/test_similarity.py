"""What holds for every measure beside its row in ``tests/properties``: controls, errors; Procrustes and sweeps."""

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial
import torch

from lmdyn.analysis import cca, kernel_cka, linear_cka, procrustes, pwcca, rsa, svcca, sweep
from lmdyn.analysis.similarity.sweep import MEASURES


def debiased_linear_cka(x, y):
    return linear_cka(x, y, debiased=True)


def euclidean_rsa(x, y):
    return rsa(x, y, "euclidean")


DIRECT = {
    "cca": cca, "svcca": svcca, "pwcca": pwcca, "linear_cka": linear_cka,
    "debiased_linear_cka": debiased_linear_cka, "procrustes": procrustes,
}  # fmt: skip
ALL = [*DIRECT.values(), kernel_cka, euclidean_rsa]
names = pytest.mark.parametrize("measure", ALL, ids=lambda f: f.__name__)


@names
@pytest.mark.parametrize("side", [0, 1])
def test_invariant_to_no_more_than_its_group(related, measure, side):
    pair = related(n=150)
    d, g = pair[side].shape[1], torch.Generator().manual_seed(0)
    normal = torch.randn(d, d, generator=g, dtype=torch.float64)
    rotation = torch.linalg.qr(normal).Q
    linear = (rotation * torch.logspace(-2, 0, d)) @ torch.linalg.qr(normal.T).Q
    for change in (linear, rotation) if measure is pwcca else (linear,):
        moved = [v @ change if i == side else v for i, v in enumerate(pair)]
        difference = abs(float(measure(*moved)) - float(measure(*pair)))
        assert (difference < 1e-9) == (measure is cca or (measure is pwcca and side == 1))
        assert difference < 1e-9 or difference > 1e-3


@names
def test_the_pairing_of_samples_is_what_is_measured(related, measure):
    x, y = related(n=80)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(0))
    assert float(measure(x[order], y)) < float(measure(x, y)) - 0.05
    assert float(measure(x, x)) == pytest.approx(1, abs=1e-9)


@names
@pytest.mark.parametrize("side", [0, 1])
def test_constants_on_either_side_and_two_samples_are_errors(related, measure, side):
    pair = related(n=40)
    for bad in (torch.zeros(3), torch.full((3,), 0.1), 1e9 + torch.tensor([1.0, 0.1, 7.0])):
        arguments = [bad.expand(40, 3) if i == side else v for i, v in enumerate(pair)]
        with pytest.raises(ValueError, match=r"constant|equally|coincide"):
            measure(*arguments)
    with pytest.raises(ValueError, match=r"requires|span|at least 3 samples"):
        measure(pair[0][:2], pair[1][:2])


@names
def test_a_nearly_constant_side_is_no_constant(related, measure):
    x, y = related(n=40)
    assert float(measure(x * 1e-7 + 100, y)) == pytest.approx(float(measure(x, y)), abs=1e-4)


class TestProcrustes:
    @pytest.mark.parametrize(("d1", "d2", "n"), [(6, 6, 40), (6, 3, 40), (3, 6, 40), (20, 30, 10)])
    def test_equals_the_rotation_that_scipy_finds(self, related, d1, d2, n):
        x, y = (v.numpy() - v.numpy().mean(0) for v in related(n=n, d1=d1, d2=d2))
        d = max(d1, d2)
        a, b = (np.pad(v, ((0, 0), (0, d - v.shape[1]))) / np.linalg.norm(v) for v in (x, y))
        rotation, _ = scipy.linalg.orthogonal_procrustes(a, b)
        similarity = float(procrustes(torch.from_numpy(x), torch.from_numpy(y)))
        assert similarity == pytest.approx((a @ rotation * b).sum(), abs=1e-12)
        assert 2 * (1 - similarity) == pytest.approx(np.linalg.norm(a @ rotation - b) ** 2, abs=1e-12)
        assert 1 - similarity**2 == pytest.approx(scipy.spatial.procrustes(a, b)[2], abs=1e-12)


class TestSweep:
    def test_equals_each_measure_of_each_pair(self, with_spectrum, related):
        x, y = related(n=300, d1=40, d2=30)
        xs = [x, x[:, :11], y, with_spectrum(0, 300, torch.logspace(0, -5, 20)), x + 1e3]
        got = sweep((v for v in xs), y, list(MEASURES))
        assert set(got) == set(DIRECT) == set(MEASURES)
        for name, measure in DIRECT.items():
            expected = torch.stack([measure(v, y) for v in xs])
            torch.testing.assert_close(got[name], expected, atol=1e-12, rtol=0)

    def test_a_reference_of_bad_condition(self, with_spectrum):
        y = with_spectrum(0, 200, torch.logspace(0, -5.5, 20))
        xs = [with_spectrum(seed, 200, torch.logspace(0, -1, 9)) for seed in (1, 2)]
        expected = torch.stack([cca(v, y) for v in xs])
        torch.testing.assert_close(sweep(xs, y, ["cca"])["cca"], expected, atol=1e-12, rtol=0)

    def test_errors_and_nothing(self, related):
        x, y = related(n=50)
        assert sweep([], y)["svcca"].shape == (0,)
        with pytest.raises(
            ValueError, match=r"unknown measure ccca, did you mean 'cca'.* expected cca, svcca"
        ):
            sweep([x], y, ["ccca"])
        with pytest.raises(ValueError, match=r"xs\[1\] is constant"):
            sweep([x, torch.ones(50, 2)], y)

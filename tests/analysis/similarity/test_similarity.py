"""What holds for every measure: the group it is invariant to and no more, symmetry, errors; Procrustes and sweeps."""

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial
import torch

from lmdyn.analysis import CrossCovariance, cca, kernel_cka, linear_cka, procrustes, pwcca, rsa, svcca, sweep
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
AFFINE = "shift", "rotation", "scale", "permutation", "linear"
RIGID = AFFINE[:-1]
# the changes of the first and of the second argument that leave each measure as it is
GROUPS = {
    cca: (AFFINE, AFFINE),
    svcca: (RIGID, RIGID),
    pwcca: (("shift", "scale", "permutation"), AFFINE),
    linear_cka: (RIGID, RIGID),
    debiased_linear_cka: (RIGID, RIGID),
    procrustes: (RIGID, RIGID),
    kernel_cka: (RIGID, RIGID),
    euclidean_rsa: (RIGID, RIGID),
}
names = pytest.mark.parametrize("measure", ALL, ids=lambda f: f.__name__)


def changed(v, change, seed=0):
    g, d = torch.Generator().manual_seed(seed), v.shape[1]
    normal = torch.randn(d, d, generator=g, dtype=torch.float64)
    rotation = torch.linalg.qr(normal).Q
    if change == "shift":
        return v + 10 * normal[0]
    if change == "rotation":
        return v @ rotation
    if change == "scale":
        return -v * 3e-4
    if change == "permutation":
        return v[:, torch.randperm(d, generator=g)]
    assert change == "linear"
    return v @ (rotation * torch.logspace(-2, 0, d)) @ torch.linalg.qr(normal.T).Q


@names
@pytest.mark.parametrize("change", AFFINE)
@pytest.mark.parametrize("side", [0, 1])
def test_invariant_to_its_group_and_to_nothing_else(related, measure, change, side):
    pair = related(n=150)
    value = float(measure(*pair))
    moved = [changed(v, change) if i == side else v for i, v in enumerate(pair)]
    difference = abs(float(measure(*moved)) - value)
    if change in GROUPS[measure][side]:
        assert difference < 1e-9
    else:
        assert difference > 1e-3


@names
def test_range_order_of_samples_and_of_arguments(related, measure):
    x, y = related(n=80)
    value = float(measure(x, y))
    assert 0 < value < 1
    order = torch.randperm(80, generator=torch.Generator().manual_seed(0))
    assert float(measure(x[order], y[order])) == pytest.approx(value, abs=1e-12)
    assert float(measure(x[order], y)) < value - 0.05  # the pairing of samples is what is measured
    assert float(measure(x, x)) == pytest.approx(1, abs=1e-9)
    if measure is not pwcca:
        assert float(measure(y, x)) == pytest.approx(value, abs=1e-12)
    else:
        assert abs(float(measure(y, x)) - value) > 1e-3


@pytest.mark.parametrize("seed", range(40))
def test_never_silently_out_of_range(seed):
    g = torch.Generator().manual_seed(seed)
    n, d1, d2 = (int(torch.randint(*limits, (), generator=g)) for limits in ((5, 60), (1, 13), (1, 13)))
    scale, dtype = [1e-12, 1.0, 1e9][seed % 3], [torch.float32, torch.float64][seed % 2]
    x, y = (scale * torch.randn(n, d, generator=g, dtype=dtype) for d in (d1, d2))
    covariance = CrossCovariance()
    covariance.update(x[: n // 2], y[: n // 2])
    covariance.update(x[n // 2 :], y[n // 2 :])
    for name, measure in DIRECT.items():
        try:
            value = float(measure(x, y))
        except ValueError as error:
            assert n <= max(d1, d2) + 1 or "unbiased" in str(error)  # noqa: PT017
            continue
        assert -1 * name.startswith("debiased") <= value <= 1
        assert float(MEASURES[name](covariance.pair())) == pytest.approx(value, abs=1e-9)


@names
@pytest.mark.parametrize("side", [0, 1])
def test_bad_input_is_an_error_and_never_a_number(related, measure, side):
    pair = related(n=40)
    for bad, message in (
        (torch.zeros(40, 3), "constant|equally|coincide"),
        (torch.full((40, 3), 0.1), "constant|equally|coincide"),
        (torch.full((40, 3), 1e9) + torch.tensor([1.0, 0.1, 7.0]), "constant|equally|coincide"),
        (torch.where(torch.arange(40)[:, None] == 7, torch.nan, pair[0]), "NaN or infinite"),
        (torch.where(torch.arange(40)[:, None] == 7, torch.inf, pair[0]), "NaN or infinite"),
        (pair[0][:39], r"expected y of Float \(n d2\)"),
    ):
        arguments = [bad if i == side else v for i, v in enumerate(pair)]
        with pytest.raises(ValueError, match=message):
            measure(*arguments)
    for n in (1, 2):
        with pytest.raises(ValueError, match=r"requires|span|constant"):
            measure(pair[0][:n], pair[1][:n])


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

    def test_hand_computed(self):
        x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        assert float(procrustes(x, x * torch.tensor([3.0, 1.0]))) == pytest.approx((6 + 2) / (2 * 20**0.5))
        assert float(procrustes(x[:, :1], x[:, 1:])) == 0


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

    def test_the_reference_is_decomposed_once(self, related, monkeypatch):
        x, y = related(n=100)
        calls = []
        eigh = torch.linalg.eigh
        monkeypatch.setattr(torch.linalg, "eigh", lambda a: calls.append(1) or eigh(a))
        sweep([x, x + 1, x * 2], y, ["cca", "svcca", "pwcca"])
        assert len(calls) == 4

    def test_errors_and_nothing(self, related):
        x, y = related(n=50)
        assert sweep([], y)["svcca"].shape == (0,)
        with pytest.raises(ValueError, match=r"unknown measure ccca: expected cca, svcca"):
            sweep([x], y, ["ccca"])
        with pytest.raises(ValueError, match=r"xs\[1\] is constant"):
            sweep([x, torch.ones(50, 2)], y)

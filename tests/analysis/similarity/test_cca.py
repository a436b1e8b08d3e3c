"""CCA, SVCCA and PWCCA: theory, closed forms, and a second implementation by SVD in numpy."""

import math

import numpy as np
import pytest
import torch

from lmdyn.analysis import canonical_correlations, cca, pwcca, svcca
from lmdyn.analysis.similarity.scatter import Side, kept_directions
from tests.analysis.similarity.streams import stream


def decompose(x, variance, cut):
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    keep = s > 1e-6 * s[0]
    if variance < 1:
        share = np.cumsum(s**2 if cut == "variance" else s)
        share /= share[-1]
        keep &= np.arange(len(s)) <= np.argmax(share >= variance)
    return u[:, keep]


def reference(x, y, variance=1.0, cut="variance"):
    """Textbook: left singular vectors of both sides, cut, and the singular values of their product."""
    ux, uy = decompose(x, variance, cut), decompose(y, variance, cut)
    left, rho, _ = np.linalg.svd(ux.T @ uy, full_matrices=False)
    return ux @ left, rho


def reference_pwcca(x, y):
    h, rho = reference(x, y)
    alpha = np.abs(h.T @ (x - x.mean(0))).sum(1)
    return (alpha * rho).sum() / alpha.sum()


FORMS = [pytest.param(lambda x, y: (cca(x, y), svcca(x, y), pwcca(x, y)), id="direct"),
         pytest.param(lambda x, y: ((c := stream(x, y)).cca(), c.svcca(), c.pwcca()), id="stream")]  # fmt: skip


class TestFormula:
    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("condition", [3.0, 1e2, 1e3, 1e4])
    @pytest.mark.parametrize(("d1", "d2"), [(3, 3), (24, 9), (9, 24), (150, 140), (5, 1), (1, 1)])
    def test_equals_the_textbook_up_to_condition_1e4(self, with_spectrum, form, condition, d1, d2):
        x = with_spectrum(0, 600, torch.logspace(0, -math.log10(condition), d1, dtype=torch.float64))
        y = with_spectrum(1, 600, torch.logspace(0, -math.log10(condition), d2, dtype=torch.float64))
        d = min(d1, d2)
        y[:, :d] += 0.5 * x[:, :d] / x.std() * y.std()
        expected = (
            reference(x.numpy(), y.numpy())[1].mean(),
            reference(x.numpy(), y.numpy(), 0.99)[1].mean(),
            reference_pwcca(x.numpy(), y.numpy()),
        )
        for got, value in zip(form(x, y), expected, strict=True):
            assert got.dtype == torch.float64
            assert got.shape == ()
            assert float(got) == pytest.approx(value, abs=1e-9)

    @pytest.mark.parametrize("condition", [1e5, 3e5, 1e7, 1e12])
    def test_the_exact_path_has_no_limit(self, with_spectrum, condition):
        # no singular value near the rank tolerance itself, no correlations near each other
        spectrum = torch.logspace(0, -math.log10(condition), 26, dtype=torch.float64)
        x, y = with_spectrum(0, 300, spectrum), with_spectrum(1, 300, spectrum)
        assert float(cca(x, y)) == pytest.approx(reference(x.numpy(), y.numpy())[1].mean(), abs=1e-9)
        assert float(pwcca(x, y)) == pytest.approx(reference_pwcca(x.numpy(), y.numpy()), abs=1e-9)

    @pytest.mark.parametrize("variance", [0.3, 0.5, 0.9, 0.99, 0.9999, 1.0])
    @pytest.mark.parametrize("cut", ["variance", "singular_values"])
    def test_cuts(self, with_spectrum, variance, cut):
        x, y = (with_spectrum(s, 200, torch.logspace(0, -2, d)) for s, d in ((0, 20), (1, 15)))
        y[:, :10] += x[:, :10]
        expected = reference(x.numpy(), y.numpy(), variance, cut)[1]
        np.testing.assert_allclose(
            canonical_correlations(x, y, variance=variance, cut=cut), expected, atol=1e-9
        )
        assert float(svcca(x, y, variance, cut=cut)) == pytest.approx(expected.mean(), abs=1e-9)
        assert float(stream(x, y).svcca(variance, cut=cut)) == pytest.approx(expected.mean(), abs=1e-9)

    def test_the_cut_is_on_squares_after_centring(self, with_spectrum):
        x = with_spectrum(0, 100, torch.tensor([10.0, 1.0, 0.5]), mean=1000.0)
        assert len(canonical_correlations(x, x, variance=0.98)) == 1  # 100 of 101.25
        # 11 of 11.5 is too little
        assert len(canonical_correlations(x, x, variance=0.98, cut="singular_values")) == 3
        y = with_spectrum(1, 100, torch.tensor([1.0]))
        direction = torch.linalg.svd(x - x.mean(0)).Vh[0]
        assert float(svcca(x, y, 0.98)) == pytest.approx(float(cca((x @ direction)[:, None], y)), abs=1e-12)


class TestClosedForms:
    def test_hand_computed(self):
        # x: two orthogonal neurons of norm 18 and 2; y: one along the first, one halfway between the second and neither
        x = torch.tensor([[9.0, 1.0], [-9.0, 1.0], [9.0, -1.0], [-9.0, -1.0]])
        y = torch.tensor([[1.0, 1.0], [-1.0, 0.0], [1.0, -1.0], [-1.0, 0.0]])
        for rho in (canonical_correlations(x, y), stream(x, y, 3).canonical_correlations()):
            torch.testing.assert_close(rho, torch.tensor([1, 0.5**0.5], dtype=torch.float64))
        assert float(cca(x, y)) == pytest.approx((1 + 0.5**0.5) / 2)
        assert float(pwcca(x, y)) == pytest.approx((18 + 2 * 0.5**0.5) / 20)
        # the weights are those of the first argument: y's neurons are (2, 0) and (0, √2) in its own variates
        assert float(pwcca(y, x)) == pytest.approx((2 + 2**0.5 * 0.5**0.5) / (2 + 2**0.5))
        assert float(svcca(x, y, 0.9)) == pytest.approx(1)  # only the first neuron of x is left

    def test_equal_correlations_leave_pwcca_one_value(self, monkeypatch):
        """By every path, and whatever the basis of y: y holds two directions of x as they are and a third in part."""
        g = torch.Generator().manual_seed(5)
        basis = torch.linalg.qr(torch.randn(100, 5, generator=g, dtype=torch.float64) - 0.5).Q
        basis = torch.linalg.qr(basis - basis.mean(0)).Q
        x = basis[:, :3] * torch.tensor([5.0, 2.0, 1.0]) @ torch.randn(3, 3, generator=g, dtype=torch.float64)
        y = torch.cat([basis[:, :2], 0.6 * basis[:, 2:3] + 0.8 * basis[:, 3:4]], 1)
        torch.testing.assert_close(
            canonical_correlations(x, y), torch.tensor([1, 1, 0.6], dtype=torch.float64)
        )
        value = float(pwcca(x, y))
        # by hand: the loadings of the two, turned to their principal directions, and of the third
        shared = (basis[:, :2].T @ x).numpy()
        alpha = [
            np.abs(np.linalg.svd(shared)[0].T @ shared).sum(),
            np.abs(basis[:, 2].numpy() @ x.numpy()).sum(),
        ]
        assert value == pytest.approx((alpha[0] + 0.6 * alpha[1]) / sum(alpha), abs=1e-9)
        for _ in range(3):
            other = y @ torch.randn(3, 3, generator=g, dtype=torch.float64)
            assert float(pwcca(x, other)) == pytest.approx(value, abs=1e-9)
            assert float(stream(x, other).pwcca()) == pytest.approx(value, abs=1e-9)
        monkeypatch.setattr(Side, "suffices", lambda *_: False)
        monkeypatch.setattr(Side, "factor", None)
        assert float(pwcca(x, y)) == pytest.approx(value, abs=1e-9)

    def test_a_share_that_is_held_exactly(self):
        values = torch.tensor([99.0, 1.0], dtype=torch.float64).sqrt()
        assert kept_directions(values, 0.99) == 1
        assert kept_directions(values, 0.990001) == 2
        assert kept_directions(torch.tensor([4.0, 3.0, 2.0, 1.0]), 0.7, "singular_values") == 2
        assert kept_directions(torch.tensor([4.0, 3.0, 2.0, 1.0]), 0.83) == 2


class TestRank:
    @pytest.mark.parametrize("f", [cca, pwcca, svcca, lambda x, y: svcca(x, y, 1.0)])
    def test_of_itself_is_1_on_a_spectrum_from_1e_8_to_1(self, with_spectrum, f):
        x = with_spectrum(0, 300, torch.logspace(0, -8, 40))
        assert float(f(x, x)) == pytest.approx(1, abs=1e-12)
        rotation = torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64)).Q
        assert float(f(x, 7 * x @ rotation + 1)) == pytest.approx(1, abs=1e-9)

    def test_kept_rank_is_that_of_the_tolerance(self, with_spectrum):
        x = with_spectrum(0, 300, torch.logspace(0, -8, 40))
        y = with_spectrum(1, 300, torch.ones(60))
        expected = int((torch.logspace(0, -8, 40) > 1e-6).sum())
        assert len(canonical_correlations(x, y)) == expected
        assert len(stream(x, y).canonical_correlations()) == expected
        centred = x - x.mean(0)
        # float32's own noise is cut off
        assert len(canonical_correlations(centred.float(), y.float())) == expected

    @pytest.mark.parametrize("form", FORMS)
    def test_duplicated_dead_and_constant_columns_change_nothing(self, related, form):
        x, y = related(d1=90, d2=60, n=400)
        wide = torch.cat(
            [x, x[:, :5], torch.zeros(400, 3, dtype=torch.float64), torch.full((400, 2), 0.1)], 1
        )
        wider = torch.cat([y, y @ y[:60], torch.full((400, 2), -1e3)], 1)
        a, b = form(x, y)[0], form(wide, wider)[0]
        assert float(a) == pytest.approx(float(b), abs=1e-9)
        assert float(form(wide, wide)[0]) == pytest.approx(1, abs=1e-9)

    def test_fewer_samples_than_dimensions(self, with_spectrum):
        g = torch.Generator().manual_seed(0)
        x = torch.randn(50, 4, generator=g, dtype=torch.float64) @ torch.randn(
            4, 80, generator=g, dtype=torch.float64
        )
        y = torch.randn(50, 6, generator=g, dtype=torch.float64)
        # of low rank: the value over the kept rank
        expected = reference(x.numpy(), y.numpy())[1]
        assert len(expected) == 4
        assert float(cca(x, y)) == pytest.approx(expected.mean(), abs=1e-12)
        assert float(stream(x, y, 7).cca()) == pytest.approx(expected.mean(), abs=1e-12)
        # of full rank: every correlation would be 1
        full = torch.randn(50, 80, generator=g, dtype=torch.float64)
        for form in (cca, pwcca, lambda a, b: stream(a, b, 7).cca()):
            with pytest.raises(ValueError, match="has 49 directions to compare, but 50 centred samples"):
                form(full, y)
            with pytest.raises(ValueError, match=r"y has 49"):
                form(y, full)
        assert 0 < svcca(full, y, 0.5) < 1

"""Concentration and its correlation with frequency: closed forms, invariances, independent references."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch

from lmdyn import analysis as A
from lmdyn.analysis.words import concentration as C


def naive_concentration(v):
    return math.sqrt(sum(x * x for x in v)) / sum(abs(x) for x in v)


class TestConcentration:
    def test_one_hot_is_1_and_uniform_is_1_over_sqrt_d(self):
        for d in (1, 2, 7, 500):
            one_hot = torch.zeros(d, dtype=torch.float64)
            one_hot[d // 2] = -3.0
            assert A.concentration(one_hot).item() == pytest.approx(1, abs=1e-15)
            uniform = torch.full((d,), -0.2, dtype=torch.float64)
            assert A.concentration(uniform).item() == pytest.approx(d**-0.5, abs=1e-15)

    def test_formula(self):
        v = torch.randn(5, 3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        expected = [[naive_concentration(row) for row in matrix.tolist()] for matrix in v]
        torch.testing.assert_close(
            A.concentration(v), torch.tensor(expected, dtype=torch.float64), atol=1e-14, rtol=0
        )

    @pytest.mark.parametrize("shape", [(3, 700, 150), (2, 7, 60_000), (1, 300_000), (5,), (0, 4), (2, 0, 4)])
    def test_chunks_of_rows_give_what_all_rows_at_once_give(self, shape):
        v = torch.randn(shape, generator=torch.Generator().manual_seed(5))
        wide = v.double()
        norm = torch.linalg.vector_norm(wide, 1, dim=-1)
        found = C.concentration_and_norm(v)
        torch.testing.assert_close(
            found[0].double(), torch.linalg.vector_norm(wide, dim=-1) / norm, rtol=5e-6, atol=0
        )
        torch.testing.assert_close(found[1].double(), norm, rtol=1e-6, atol=0)
        assert torch.equal(found[0], A.concentration(v))


class TestAttentionEntropy:
    def test_closed_forms_and_scipy(self):
        assert A.attention_entropy(torch.tensor([0.0, 1.0, 0.0])).item() == 0
        assert A.attention_entropy(torch.full((8,), 1 / 8)).item() == pytest.approx(math.log(8), rel=1e-6)
        p = torch.randn(2, 3, 4, 5, dtype=torch.float64).softmax(-1)
        half = p.half()
        assert torch.equal(A.attention_entropy(half), A.attention_entropy(half.float()))
        np.testing.assert_allclose(
            A.attention_entropy(p), scipy.stats.entropy(p.numpy(), axis=-1), atol=1e-14
        )

    def test_over_that_of_equal_weights(self):
        causal = torch.ones(1, 2, 6, 6).tril() / torch.arange(1, 7)[:, None]
        found = A.normalized_attention_entropy(causal)
        assert found[..., 0].isnan().all()  # one place
        torch.testing.assert_close(found[..., 1:], torch.ones(1, 2, 5))
        causal[:, 0] = torch.eye(6)  # one head attends to itself: the places are those of both
        found = A.normalized_attention_entropy(causal)
        assert (found[:, 0, 1:] == 0).all()
        torch.testing.assert_close(found[:, 1, 1:], torch.ones(1, 5))
        padded = torch.nn.functional.pad(causal, (0, 3))  # keys that nothing attends to
        torch.testing.assert_close(A.normalized_attention_entropy(padded), found, equal_nan=True)


class TestFrequencyCorrelation:
    def test_equals_scipy_over_the_words_that_have_a_mean(self):
        g = torch.Generator().manual_seed(4)
        means = torch.randn(50, dtype=torch.float64, generator=g)
        frequency = torch.rand(50, dtype=torch.float64, generator=g) * 1e6
        means[::7] = torch.nan
        kept = ~means.isnan()
        expected = scipy.stats.pearsonr(means[kept], frequency[kept]).statistic
        assert A.frequency_correlation(means, frequency) == pytest.approx(expected, abs=1e-14)


class TestWordTags:
    def test_majority_and_least_count(self):
        nouns_and_verbs = [(150, 100), (100, 100), (99, 0), (100, 0), (0, 101)]
        tags = A.word_tags(torch.tensor(nouns_and_verbs), torch.tensor([250, 200, 99, 100, 300]))
        assert tags.tolist() == [0, -1, -1, 0, -1]


class TestExpectedConcentration:
    @staticmethod
    def exact_gaussian(d):
        """E χ = E 1/‖v‖₁ ÷ E 1/‖v‖₂, since direction and length are independent; E 1/s = ∫ E e^(−ts) dt."""
        inverse = scipy.integrate.quad(lambda t: scipy.special.erfcx(t / math.sqrt(2)) ** d, 0, math.inf)[0]
        log_length = scipy.special.gammaln((d - 1) / 2) - scipy.special.gammaln(d / 2) - math.log(2) / 2
        return inverse / math.exp(log_length)

    @pytest.mark.parametrize("d", [10, 50, 200, 800])
    def test_gaussian_vectors(self, d):
        found, exact = C.expected_concentration(d, "gaussian"), self.exact_gaussian(d)
        assert found == pytest.approx(exact, rel=1.2e-1 / d**2 + 1e-9)  # the next term of the expansion
        # the control: the first term alone
        assert math.sqrt(math.pi / (2 * d)) != pytest.approx(exact, rel=1e-1 / d)

    @pytest.mark.parametrize(("d", "kind"), [(10, "uniform"), (200, "uniform"), (200, "gaussian")])
    def test_vectors_that_are_drawn(self, d, kind):
        random = np.random.default_rng(d)
        v = random.uniform(-3, 3, (20000, d)) if kind == "uniform" else random.normal(size=(20000, d))
        chi = A.concentration(torch.from_numpy(v)).numpy()
        error = chi.std() / math.sqrt(len(chi))
        assert abs(chi.mean() - C.expected_concentration(d, kind)) < 4 * error + 1e-3 / d
        other = {"uniform": "gaussian", "gaussian": "uniform"}[kind]
        assert abs(chi.mean() - C.expected_concentration(d, other)) > 100 * error

    @pytest.mark.parametrize(("d", "kind"), [(0, "uniform"), (5, "cauchy")])
    def test_refused(self, d, kind):
        with pytest.raises(ValueError, match="expected d >= 1"):
            C.expected_concentration(d, kind)


class TestErrorOfRho:
    def test_naive_jackknife(self):
        random = np.random.default_rng(0)
        means, counts = random.normal(size=30), random.zipf(1.5, 30).clip(max=10**6).astype(float)
        left_out = [scipy.stats.pearsonr(np.delete(means, i), np.delete(counts, i))[0] for i in range(30)]
        naive = math.sqrt(29 / 30 * ((np.array(left_out) - np.mean(left_out)) ** 2).sum())
        found = C.frequency_correlation_error(
            *map(torch.from_numpy, (np.append(means, np.nan), np.append(counts, 9.0)))
        )
        assert found == pytest.approx(naive, rel=1e-9)
        shifted = C.frequency_correlation_error(
            torch.from_numpy(means * 1e-3 + 0.08), torch.from_numpy(counts)
        )
        assert shifted == pytest.approx(naive, rel=1e-9)

    @pytest.mark.parametrize("counts", [[1.0, 1, 1, 1, 1], [1.0, 1, 1, 1, 9]])
    def test_nan_where_frequency_is_constant_or_becomes_so(self, counts):
        assert math.isnan(C.frequency_correlation_error(torch.arange(5.0), torch.tensor(counts)))


def test_unigram_entropy():
    assert C.unigram_entropy(torch.full((7,), 3)) == pytest.approx(math.log(7))
    p = np.array([5, 3, 2]) / 10
    assert C.unigram_entropy(torch.tensor([5, 0, 3, 2])) == pytest.approx(scipy.stats.entropy(p))

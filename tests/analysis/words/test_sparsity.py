"""Concentration and its correlation with frequency: closed forms, invariances, independent references."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from lmdyn.analysis import (
    attention_entropy,
    concentration,
    frequency_correlation,
    word_tags,
)
from lmdyn.analysis.words.sparsity import concentration_and_norm


def naive_concentration(v):
    return math.sqrt(sum(x * x for x in v)) / sum(abs(x) for x in v)


class TestConcentration:
    def test_one_hot_is_1_and_uniform_is_1_over_sqrt_d(self):
        for d in (1, 2, 7, 500):
            one_hot = torch.zeros(d, dtype=torch.float64)
            one_hot[d // 2] = -3.0
            assert concentration(one_hot).item() == pytest.approx(1, abs=1e-15)
            uniform = torch.full((d,), -0.2, dtype=torch.float64)
            assert concentration(uniform).item() == pytest.approx(d**-0.5, abs=1e-15)

    def test_formula(self):
        v = torch.randn(5, 3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        expected = [[naive_concentration(row) for row in matrix.tolist()] for matrix in v]
        torch.testing.assert_close(
            concentration(v), torch.tensor(expected, dtype=torch.float64), atol=1e-14, rtol=0
        )

    def test_invariant_to_scale_sign_and_order_but_not_to_shift_or_rotation(self):
        g = torch.Generator().manual_seed(1)
        v = torch.randn(20, 9, dtype=torch.float64, generator=g)
        chi = concentration(v)
        signs = torch.randint(0, 2, (9,), generator=g).double() * 2 - 1
        torch.testing.assert_close(concentration(-7.5 * v * signs), chi)
        torch.testing.assert_close(concentration(v[:, torch.randperm(9, generator=g)]), chi)
        rotation = torch.linalg.qr(torch.randn(9, 9, dtype=torch.float64, generator=g)).Q
        assert (concentration(v @ rotation) - chi).abs().max() > 1e-2
        assert (concentration(v + 1) - chi).abs().max() > 1e-2

    def test_range(self):
        chi = concentration(torch.randn(1000, 16, generator=torch.Generator().manual_seed(2)))
        assert chi.min() >= 0.25 - 1e-6
        assert chi.max() <= 1 + 1e-6

    def test_zero_is_nan(self):
        assert concentration(torch.zeros(2, 3)).isnan().all()

    @pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
    def test_float32_neither_underflows_nor_overflows(self, scale):
        v = torch.randn(4, 50, generator=torch.Generator().manual_seed(3))
        torch.testing.assert_close(concentration(v * scale), concentration(v), rtol=1e-5, atol=0)

    @pytest.mark.parametrize("shape", [(3, 700, 150), (2, 7, 60_000), (1, 300_000), (5,), (0, 4), (2, 0, 4)])
    def test_chunks_of_rows_give_what_all_rows_at_once_give(self, shape):
        v = torch.randn(shape, generator=torch.Generator().manual_seed(5))
        wide = v.double()
        norm = torch.linalg.vector_norm(wide, 1, dim=-1)
        found = concentration_and_norm(v)
        torch.testing.assert_close(
            found[0].double(), torch.linalg.vector_norm(wide, dim=-1) / norm, rtol=5e-6, atol=0
        )
        torch.testing.assert_close(found[1].double(), norm, rtol=1e-6, atol=0)
        assert torch.equal(found[0], concentration(v))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_summed_in_float32(self, dtype):
        v = (torch.randn(3, 4000, generator=torch.Generator().manual_seed(7)) * 300).to(dtype)  # ‖v‖₁ of 1e6
        for found, expected in zip(concentration_and_norm(v), concentration_and_norm(v.float()), strict=True):
            assert found.dtype == torch.float32
            assert torch.equal(found, expected)
        assert torch.equal(concentration(v), concentration(v.float()))

    def test_norm_and_rows_that_do_not_lie_together(self):
        v = torch.randn(4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
        chi, norm = concentration_and_norm(v.transpose(0, 1))
        torch.testing.assert_close(norm, v.abs().sum(-1).T)
        torch.testing.assert_close(chi, concentration(v).T)


class TestAttentionEntropy:
    def test_closed_forms_and_scipy(self):
        assert attention_entropy(torch.tensor([0.0, 1.0, 0.0])).item() == 0
        assert attention_entropy(torch.full((8,), 1 / 8)).item() == pytest.approx(math.log(8), rel=1e-6)
        p = torch.randn(2, 3, 4, 5, dtype=torch.float64).softmax(-1)
        half = p.half()
        assert torch.equal(attention_entropy(half), attention_entropy(half.float()))
        np.testing.assert_allclose(attention_entropy(p), scipy.stats.entropy(p.numpy(), axis=-1), atol=1e-14)


class TestFrequencyCorrelation:
    def test_equals_scipy_over_the_words_that_have_a_mean(self):
        g = torch.Generator().manual_seed(4)
        means = torch.randn(50, dtype=torch.float64, generator=g)
        frequency = torch.rand(50, dtype=torch.float64, generator=g) * 1e6
        means[::7] = torch.nan
        kept = ~means.isnan()
        expected = scipy.stats.pearsonr(means[kept], frequency[kept]).statistic
        assert frequency_correlation(means, frequency) == pytest.approx(expected, abs=1e-14)

    def test_shares_and_counts_agree(self):
        means, counts = torch.tensor([0.1, 0.5, 0.2, 0.9]), torch.tensor([10.0, 3.0, 7.0, 1.0])
        assert frequency_correlation(means, counts) == pytest.approx(
            frequency_correlation(means, counts / 21), abs=1e-7
        )

    def test_no_value_for_too_few_words_or_constants(self):
        assert math.isnan(frequency_correlation(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])))
        assert math.isnan(frequency_correlation(torch.full((9,), 0.1), torch.arange(9.0)))

    def test_refuses_other_lengths(self):
        with pytest.raises(ValueError, match="one of each a word"):
            frequency_correlation(torch.zeros(3), torch.zeros(4))


class TestWordTags:
    def test_majority_and_least_count(self):
        #               noun verb   all
        table = [
            ((150, 100), 250, 0),
            ((100, 100), 200, -1),
            ((99, 0), 99, -1),
            ((100, 0), 100, 0),
            ((0, 101), 300, -1),
        ]
        tags = word_tags(torch.tensor([t[0] for t in table]), torch.tensor([t[1] for t in table]))
        assert tags.tolist() == [t[2] for t in table]

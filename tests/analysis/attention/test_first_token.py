"""Attention to the first token: closed forms of equal weights, padding, windows, the definition."""

import pytest
import torch

from lmdyn.analysis.attention.first_token import FirstTokenSums, first_token_attention


def random_attention(batch=3, heads=2, time=5, causal=True, seed=0):
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(batch, heads, time, time, generator=g, dtype=torch.float64)
    if causal:
        scores = scores.masked_fill(torch.ones(time, time).triu(1).bool(), -torch.inf)
    return scores


def softmax_on(scores, tokens):
    return scores.masked_fill(~tokens[:, None, None, :], -torch.inf).softmax(-1).nan_to_num(0)


def everywhere(batch, time):
    return torch.ones(batch, time, dtype=torch.bool)


def summed(*batches):
    sums = FirstTokenSums()
    for attention, tokens in batches:
        sums.update({"layer": attention}, tokens)
    sums.reduce()
    return sums.result()["layer"]


@pytest.mark.parametrize("causal", [True, False])
def test_equal_weights(causal):
    """A head of equal weights has the weight that is given beside it, which is known."""
    n = 6
    mask = torch.ones(n, n).tril() if causal else torch.ones(n, n)
    uniform = (mask / mask.sum(1, keepdim=True)).expand(2, 3, n, n)
    found = summed((uniform, everywhere(2, n)))
    expected = sum(1 / (i + 1) for i in range(n)) / n if causal else 1 / n
    assert found.equal == pytest.approx(expected)
    assert found.weights.tolist() == pytest.approx([expected] * 3)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(side):
    """The first token is the first that is not padding, and a row counts as it does alone."""
    lengths = (5, 3, 1)
    time = torch.arange(5)
    tokens = torch.stack([time < n if side == "right" else time >= 5 - n for n in lengths])
    scores = random_attention()
    p = softmax_on(scores, tokens)
    own, equal = first_token_attention(p, tokens)
    for row, n in enumerate(lengths):
        there = tokens[row]
        alone = p[row : row + 1, :, there][..., there]
        of_row, equal_of_row = first_token_attention(alone, everywhere(1, n))
        torch.testing.assert_close(own[row][:, there], of_row[0])
        torch.testing.assert_close(equal[row][there], equal_of_row[0])
        torch.testing.assert_close(of_row[0], alone[0, :, :, 0])
        assert own[row][:, ~there].isnan().all()
    found = summed((p, tokens))
    assert found.weights.tolist() == pytest.approx(own.permute(1, 0, 2).flatten(1).nanmean(1).tolist())
    assert found.equal == pytest.approx(float(equal.nanmean()))
    assert found.equal == pytest.approx(sum(1 / (i + 1) for n in lengths for i in range(n)) / sum(lengths))


def test_a_window_does_not_see_the_first_token():
    n = 6
    mask = torch.ones(n, n).tril() - torch.ones(n, n).tril(-2)
    own, equal = first_token_attention((mask / mask.sum(1, keepdim=True))[None, None], everywhere(1, n))
    assert equal[0].tolist() == [1, 0.5, 0, 0, 0, 0]
    assert own[0, 0].tolist() == [1, 0.5, 0, 0, 0, 0]

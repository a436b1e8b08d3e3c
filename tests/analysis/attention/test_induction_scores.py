"""Repeated tokens, scores of heads on them, copying: closed forms, naive implementations, invariances."""

import numpy as np
import pytest
import torch

from lmdyn.analysis.attention.copying import copying_scores, positive_eigenvalues, vocabulary_product
from lmdyn.analysis.attention.induction_scores import SCORES, induction_scores, uniform_attention
from lmdyn.analysis.attention.repeated_tokens import repeated_tokens, repetition_losses


def test_rows_repeat_and_are_functions_of_their_number():
    rows = repeated_tokens(range(10, 40), 6, 50, seed=3, before=[1], after=[2])
    assert rows.shape == (50, 14)
    assert (rows[:, 0] == 1).all()
    assert (rows[:, -1] == 2).all()
    assert torch.equal(rows[:, 1:7], rows[:, 7:13])
    assert all(len(set(row)) == 6 for row in rows[:, 1:7].tolist())
    assert torch.equal(rows[:20], repeated_tokens(range(10, 40), 6, 20, seed=3, before=[1], after=[2]))
    assert torch.equal(rows[:, 1:13], repeated_tokens(range(10, 40), 6, 50, seed=3))
    assert len({tuple(row) for row in rows.tolist()}) == 50
    assert not torch.equal(rows, repeated_tokens(range(10, 40), 6, 50, seed=4, before=[1], after=[2]))
    counts = torch.bincount(repeated_tokens(range(10), 3, 3000).flatten(), minlength=10) / 2
    assert ((counts - 900).abs() < 5 * (3000 * 0.3 * 0.7) ** 0.5).all()  # each with the same probability


def test_rows_that_cannot_be_drawn():
    for ids, length, message in ((range(5), 6, "6 different tokens, got 5: lower"), ([1, 1, 2], 3, "got 2")):
        with pytest.raises(ValueError, match=message):
            repeated_tokens(ids, length, 1)


def test_losses_are_of_the_same_tokens():
    length, start = 4, 2
    row = repeated_tokens(range(3, 20), length, 1, before=[0, 1])[0]
    losses = torch.zeros(1, len(row))
    losses[0, :-1] = row[1:].float()  # the loss of a token is its id
    first, second = repetition_losses(losses, length, start)
    assert first == second == row[start + 1 : start + length].float().mean()
    with pytest.raises(ValueError, match="9 columns: expected 10"):
        repetition_losses(losses[:, 1:], length, start)


def naive_scores(weights, length, start):
    found = {name: np.zeros(weights.shape[:2]) for name in SCORES}
    for b, h in np.ndindex(*weights.shape[:2]):
        for j in range(length):
            i = start + length + j
            earlier = start + j
            found["prefix_matching"][b, h] += weights[b, h, i, earlier + 1] / length
            found["duplicate_token"][b, h] += weights[b, h, i, earlier] / length
            found["previous_token"][b, h] += weights[b, h, i, i - 1] / length
    return found


@pytest.mark.parametrize(("length", "start", "end"), [(2, 0, 0), (5, 1, 1), (4, 3, 0)])
def test_scores_are_those_of_loops(length, start, end):
    time = start + 2 * length + end
    weights = torch.rand(3, 2, time, time, generator=torch.Generator().manual_seed(0))
    found = induction_scores(weights, length, start)
    assert tuple(found) == SCORES
    for name, expected in naive_scores(weights.double().numpy(), length, start).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12)


@pytest.mark.parametrize(("length", "start"), [(2, 0), (7, 1)])
def test_uniform_attention_has_its_closed_form(length, start):
    time = start + 2 * length
    visible = torch.ones(time, time, dtype=torch.float64).tril()
    causal, whole = (
        visible / visible.sum(1, keepdim=True),
        torch.full((time, time), 1 / time, dtype=torch.float64),
    )
    for weights, floor in (
        (causal, uniform_attention(length, start)),
        (whole, uniform_attention(length, start, causal=False)),
    ):
        for score in induction_scores(weights[None, None], length, start).values():
            assert float(score) == pytest.approx(floor, rel=1e-12)
    assert uniform_attention(length, start) > uniform_attention(length, start, causal=False)


def test_shares_of_eigenvalues():
    rotation = torch.tensor([[0.0, -1], [1, 0]])
    known = torch.stack([torch.eye(2), -torch.eye(2), rotation, torch.diag(torch.tensor([3.0, -1]))])
    np.testing.assert_allclose(positive_eigenvalues(known), [1, -1, 0, 0.5], atol=1e-12)
    g = torch.Generator().manual_seed(0)
    a, basis = (torch.randn(5, 5, generator=g, dtype=torch.float64) for _ in range(2))
    np.testing.assert_allclose(
        positive_eigenvalues(basis @ a @ basis.inverse()), positive_eigenvalues(a), rtol=1e-6
    )
    np.testing.assert_allclose(positive_eigenvalues(-a), -positive_eigenvalues(a), rtol=1e-9)
    many = positive_eigenvalues(torch.randn(400, 16, 16, generator=g))
    assert abs(float(many.mean())) < 4 * float(many.std()) / 20  # of random matrices, 0 on average
    assert float(many.abs().max()) < 0.6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_copying_is_that_of_the_matrix_between_all_tokens(dtype):
    """The naive way: eigenvalues of the vocabulary × vocabulary matrix of each head, with grouped values."""
    g = torch.Generator().manual_seed(0)
    vocabulary, width, d_head = 60, 12, 4
    embedding, unembedding = (torch.randn(vocabulary, width, generator=g).to(dtype) for _ in range(2))
    v, o = torch.randn(2, d_head, width, generator=g), torch.randn(4, width, d_head, generator=g)
    group = torch.tensor([0, 0, 1, 1])
    found = copying_scores(v, o, vocabulary_product(embedding, unembedding), group)
    for head in range(4):
        whole = unembedding.double() @ o[head].double() @ v[group[head]].double() @ embedding.double().T
        values = np.linalg.eigvals(whole.numpy())
        expected = values.real.sum() / np.abs(values).sum()
        assert float(found[head]) == pytest.approx(expected, abs=1e-5)
    assert found.abs().max() > 0.05


def test_the_product_over_the_vocabulary_is_summed_by_parts():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(9001, 3, generator=g), torch.randn(9001, 2, generator=g)
    np.testing.assert_allclose(vocabulary_product(a, b), a.double().T @ b.double(), atol=1e-3)


def test_a_head_that_writes_what_it_reads_copies():
    words = torch.eye(6, dtype=torch.float64)[:, :4]  # four of the dimensions of a head's input
    v = torch.eye(4, dtype=torch.float64)[None]
    product = vocabulary_product(words, words)
    assert float(copying_scores(v, v, product)) == pytest.approx(1)
    assert float(copying_scores(v, -v, product)) == pytest.approx(-1)  # which suppresses the token
    assert copying_scores(v, torch.zeros_like(v), product).isnan().all()


def test_without_a_mask_equal_weights_are_over_the_whole_row():
    """Rows may end in tokens after the second repetition."""
    equal = torch.full((1, 1, 9, 9), 1 / 9, dtype=torch.float64)
    for score in induction_scores(equal, 3, start=1).values():
        assert float(score) == pytest.approx(uniform_attention(3, 1, 9, causal=False), rel=1e-12)

"""The chunked cross-entropy against PyTorch's own, of all logits at once."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import lmdyn.analysis.inspection.linear_cross_entropy as module
from lmdyn.analysis.inspection.linear_cross_entropy import linear_cross_entropy, target_log_probabilities

N, D, V = 23, 7, 31


@pytest.fixture
def parts():
    g = torch.Generator().manual_seed(0)
    hidden, weight, bias = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((N, D), (V, D), (V,)))
    labels = torch.randint(V, (N,), generator=g)
    labels[[0, 5, 22]] = -100
    return [t.requires_grad_() for t in (hidden, weight, bias)], labels


@pytest.mark.parametrize("chunk", [1, V, 5 * V, 10**6])
@pytest.mark.parametrize("with_bias", [True, False])
def test_loss_and_gradients_are_those_of_all_logits(parts, chunk, with_bias, monkeypatch):
    monkeypatch.setitem(module._CHUNK, "cpu", chunk)
    (hidden, weight, bias), labels = parts
    bias = bias if with_bias else None
    inputs = [t for t in (hidden, weight, bias) if t is not None]
    plain = F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction="sum")
    ours = linear_cross_entropy(hidden, weight, bias, labels)
    torch.testing.assert_close(ours, plain, rtol=1e-13, atol=0)
    for a, b in zip(
        torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * plain, inputs), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


def test_only_what_is_asked_for(parts):
    (hidden, weight, bias), labels = parts
    weight.requires_grad_(False)
    loss = linear_cross_entropy(hidden, weight, bias, labels)
    loss.backward()
    assert weight.grad is None
    assert hidden.grad is not None
    assert hidden.grad[labels == -100].eq(0).all()
    with torch.no_grad():
        assert not linear_cross_entropy(hidden, weight, bias, labels).requires_grad


def test_nothing_labelled_and_nothing_at_all(parts):
    (hidden, weight, bias), labels = parts
    loss = linear_cross_entropy(hidden, weight, bias, torch.full_like(labels, -100))
    loss.backward()
    assert loss == 0
    assert weight.grad.eq(0).all()
    empty = linear_cross_entropy(hidden[:0], weight, bias, labels[:0])
    empty.backward()
    assert empty == 0


def test_large_logits_do_not_overflow():
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, None, torch.tensor([0, 0]))
    loss.backward()
    assert loss.item() == pytest.approx(2e4)
    assert weight.grad.isfinite().all()


def test_autocast_multiplies_in_its_type_and_sums_in_float32(parts):
    (hidden, weight, bias), labels = parts
    single = [t.detach().float().requires_grad_() for t in (hidden, weight, bias)]
    exact = linear_cross_entropy(*single, labels)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(*single, labels)
        plain = F.cross_entropy(F.linear(*single).float(), labels, reduction="sum")
    assert loss.dtype == torch.float32
    assert loss != exact
    torch.testing.assert_close(loss, plain, rtol=2e-3, atol=0)
    loss.backward()
    assert single[1].grad.dtype == torch.float32


def test_log_probabilities(parts, monkeypatch):
    monkeypatch.setitem(module._CHUNK, "cpu", 4 * V)
    (hidden, weight, bias), labels = parts
    log_p = F.linear(hidden, weight, bias).log_softmax(1).detach()
    ours = target_log_probabilities(hidden, weight, bias, labels)
    there = labels != -100
    torch.testing.assert_close(ours[there], log_p[there, labels[there]])
    assert ours[~there].eq(0).all()


class Largest(TorchDispatchMode):
    """The most numbers in any tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.most = max(self.most, tensor.numel())
        return out


def test_no_more_logits_at_once_than_a_chunk(parts, monkeypatch):
    (hidden, weight, bias), labels = parts
    chunk = 10 * V
    monkeypatch.setitem(module._CHUNK, "cpu", chunk)
    assert N * V > chunk > max(hidden.numel(), weight.numel())
    with Largest() as ours:
        linear_cross_entropy(hidden, weight, bias, labels).backward()
        target_log_probabilities(hidden, weight, bias, labels)
    assert ours.most == chunk
    with Largest() as plain:  # the control
        F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction="sum").backward()
    assert plain.most == N * V

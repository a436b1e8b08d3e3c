"""Calling modules by the names of their forward, and token losses."""

import pytest
import torch
from torch import nn

from lmdyn.analysis.inspection.forward import call_module, dotted, logits_of, token_losses


class Model(nn.Module):
    def forward(self, input_ids, attention_mask=None, labels=None, **kwargs):
        assert not kwargs
        return input_ids, attention_mask, labels


def test_only_named_keys_are_passed_and_never_labels():
    batch = {"input_ids": torch.tensor([1]), "labels": torch.tensor([2]), "upos": torch.tensor([3])}
    assert call_module(Model(), batch) == (batch["input_ids"], None, None)


def test_missing_argument_lists_what_exists():
    with pytest.raises(ValueError, match=r"needs \['input_ids'\], the batch has \['ids'\]"):
        call_module(Model(), {"ids": torch.tensor([1])})


def call_it(module, batch):
    return module(batch["ids"])[0]


def test_forward_by_dotted_path():
    path = f"{__name__}.call_it"
    import sys

    sys.modules.setdefault(__name__, sys.modules[call_it.__module__])
    assert call_module(Model(), {"ids": torch.tensor([5])}, forward=path).item() == 5
    with pytest.raises(ValueError, match="cannot be imported"):
        dotted("lmdyn.nothing.here")


def test_logits_of_everything_that_has_some():
    t = torch.zeros(1, 2, 3)
    assert logits_of(t) is t
    assert logits_of({"prediction_logits": t}) is t
    assert logits_of(type("O", (), {"logits": t})()) is t
    with pytest.raises(ValueError, match=r"expected an output with `\.logits`"):
        logits_of(object())


def test_token_losses_equal_log_softmax_and_ignore_minus_100():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 5, generator=g, dtype=torch.float64)
    labels = torch.tensor([[0, 4, -100], [2, -100, 1]])
    losses = token_losses(logits, labels)
    log_p = logits.log_softmax(-1)
    for b in range(2):
        for t in range(3):
            expected = 0.0 if labels[b, t] < 0 else -log_p[b, t, labels[b, t]].item()
            assert losses[b, t].item() == pytest.approx(expected, abs=1e-14)
    with pytest.raises(ValueError, match="must be the prediction for"):
        token_losses(logits, labels[:, :2])

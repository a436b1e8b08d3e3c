"""Calling modules by the names of their forward, and token losses."""

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from lmdyn.analysis.inspection.forward import call_module, dotted, logits_of, token_losses
from tests.helpers.architectures import ARCHITECTURES, NanoGPT, example_batch


class Model(nn.Module):
    def forward(self, input_ids, attention_mask=None, labels=None, **kwargs):
        assert not kwargs
        return input_ids, attention_mask, labels


def call_it(module, batch):
    return module(batch["ids"])[0]


def test_forward_by_dotted_path():
    path = f"{__name__}.call_it"
    import sys

    sys.modules.setdefault(__name__, sys.modules[call_it.__module__])
    assert call_module(Model(), {"ids": torch.tensor([5])}, forward=path).item() == 5
    with pytest.raises(ValueError, match="cannot import"):
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
    with pytest.raises(ValueError, match="with the prediction"):
        token_losses(logits, labels[:, :2])


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def test_forward_of_nanogpt():
    module = NanoGPT()
    batch = {"input_ids": IDS, "labels": torch.full_like(IDS, -100)}  # which its own loss would refuse
    expected, _ = module(IDS, IDS)
    for _ in range(2):
        assert torch.equal(logits_of(call_module(module, batch)), expected)
    without_labels = logits_of(call_module(module, {"input_ids": IDS}))
    torch.testing.assert_close(without_labels, expected[:, -1:])  # nothing else is there


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 7)


class Flat(Table):
    """Karpathy's lectures: logits (batch · time, classes) where targets are given."""

    def forward(self, idx, targets):
        return F.cross_entropy(self.table(idx).view(-1, 7), targets.view(-1)), self.table(idx).view(-1, 7)


class Swallowing(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **batch):
        return self.inner(**batch)


def test_keywords_are_those_of_the_module_within():
    module = Swallowing(nn.Embedding(7, 7))
    module.inner.forward = lambda input_ids: F.embedding(input_ids, module.inner.weight)
    batch = {"input_ids": IDS, "labels": IDS, "upos": IDS}
    assert torch.equal(call_module(module, batch), module.inner.weight[IDS])


class TakesBatch(Table):
    def forward(self, batch):
        return {"scores": self.table(batch["idx"]), "loss": torch.zeros(())}


class Named(Table):
    def forward(self, **batch):
        return (self.table(batch["tokens"]),)


@pytest.mark.parametrize(
    ("make", "names"),
    [(Flat, {}), (TakesBatch, {"input_ids": "idx"}), (Named, {"input_ids": "tokens", "labels": "targets"})],
)
def test_logits_in_any_shape_of_batches_with_any_names(make, names):
    module = make()
    answer = call_module(module, {"input_ids": IDS, "labels": IDS}, names=names)
    assert torch.equal(logits_of(answer), module.table(IDS))


def test_lightning_module_without_a_forward():
    class Wrapper(L.LightningModule):
        def __init__(self, *models):
            super().__init__()
            for i, model in enumerate(models):
                self.add_module(f"model{i}", model)

    model = NanoGPT()
    batch = {"input_ids": IDS, "labels": IDS}
    assert torch.equal(logits_of(call_module(Wrapper(model), batch)), model(IDS, IDS)[0])
    with pytest.raises(ValueError, match=r"no `forward`.* got model0, model1"):
        call_module(Wrapper(model, NanoGPT()), batch)


def test_encoder_decoder_is_given_what_it_makes_of_labels():
    sizes = {"vocab_size": 11, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()
    labels = torch.tensor([[3, 4, 1, -100]]).repeat(2, 1)
    batch = {"input_ids": IDS, "labels": labels, "attention_mask": torch.ones_like(IDS)}
    assert torch.equal(logits_of(call_module(model, batch)), model(**batch).logits)


def test_a_recurrent_state_of_three_axes_is_no_logits():
    class Recurrent(nn.Module):
        def __init__(self, layers=1):
            super().__init__()
            self.embedding, self.rnn = nn.Embedding(7, 4), nn.GRU(4, 7, layers, batch_first=True)

        def forward(self, input_ids):
            return self.rnn(self.embedding(input_ids))

    module, ids = Recurrent(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert torch.equal(logits_of(call_module(module, {"input_ids": ids})), module(ids)[0])
    with pytest.raises(ValueError, match=r"0: \(2, 2, 7\), 1: \(2, 2, 7\)"):  # either could be meant
        logits_of(call_module(Recurrent(layers=2), {"input_ids": ids[:, :2]}))


def test_no_cache_is_kept():
    """RWKV writes its state in place, so that with it there is no gradient; others keep keys and values for nothing."""
    for name in ("rwkv", "mamba", "gpt2"):
        module, batch = ARCHITECTURES[name](), example_batch(name)
        output = call_module(module, batch)
        kept = [output.get(key) for key in ("past_key_values", "cache_params", "state")]
        assert kept == [None, None, None]
        grads = torch.autograd.grad(output.logits.sum(), module.get_input_embeddings().weight)
        assert grads[0].isfinite().all()
        with torch.no_grad():
            assert torch.equal(output.logits, module(**batch).logits)

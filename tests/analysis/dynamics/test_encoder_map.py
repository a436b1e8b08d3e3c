"""The encoder as a map: it computes what the model computes, of any family, and leaves the model as it was."""

import pytest
import torch
import transformers as hf
from torch import nn

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.inspection.activations import capture, observing
from lmdyn.analysis.inspection.forward import call_module
from lmdyn.analysis.inspection.transformer import layer_sites
from tests.helpers.architectures import ARCHITECTURES, example_batch

SIZES = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}


def albert(**changes):
    torch.manual_seed(0)
    config = hf.AlbertConfig(**{**SIZES, "embedding_size": 4, "num_hidden_layers": 4, **changes})
    return hf.AlbertModel(config).double().eval()


def batch(rows=3, tokens=6):
    return {"input_ids": torch.randint(0, 20, (rows, tokens), generator=torch.Generator().manual_seed(1))}


def iterated(f, x):
    for step in f.maps:
        x = step(x)
    return x


def test_attention_is_over_all_tokens_unless_masked():
    model, b = albert(), batch()
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6, [1, 1, 0, 0, 0, 0]])
    b = {**b, "attention_mask": mask}
    whole = EncoderMap(model, b, dtype=torch.float64)
    masked = EncoderMap(model, b, dtype=torch.float64, masked=True)
    x = whole.start(b)
    torch.testing.assert_close(
        iterated(whole, x), model(b["input_ids"]).last_hidden_state, rtol=0, atol=1e-12
    )
    torch.testing.assert_close(iterated(masked, x), model(**b).last_hidden_state, rtol=0, atol=1e-12)
    # a perturbed copy of the rows after the rows: each has its own mask
    torch.testing.assert_close(masked(torch.cat([x, x]))[3:], masked(x), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"masks of size \(3, "):
        masked(x[:2])


def test_the_model_is_left_as_it_was():
    model = hf.AlbertForPreTraining(hf.AlbertConfig(**SIZES, embedding_size=4)).train()
    model.albert.encoder.eval()
    before = {name: m.training for name, m in model.named_modules()}
    f = EncoderMap(model, batch())
    f(f.start(batch()))
    assert {name: m.training for name, m in model.named_modules()} == before
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert model.config._attn_implementation == "sdpa"
    assert not any(m._forward_pre_hooks for m in model.modules())
    frozen = f(f.start(batch()))
    with torch.no_grad():
        model.albert.encoder.albert_layer_groups[0].albert_layers[0].ffn.weight.add_(1.0)
    torch.testing.assert_close(f(f.start(batch())), frozen, rtol=0, atol=0)  # a copy, not the model's weights


def test_errors():
    with pytest.raises(ValueError, match="float32 or float64"):
        EncoderMap(albert(), batch(), dtype=torch.bfloat16)
    for nothing in ({}, {"input_ids": torch.zeros(2, 0, dtype=torch.int64)}, {"text": ["a"]}):
        with pytest.raises(ValueError, match="the batch has no tokens"):
            EncoderMap(albert(), nothing)
    with pytest.raises(ValueError, match="requires an attention_mask"):
        EncoderMap(albert(), batch(), masked=True)
    with pytest.raises(ValueError, match="models of transformers"):
        EncoderMap(nn.Linear(2, 2), batch())


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "name", [n for n in ARCHITECTURES if not any(other in n for other in ("lstm", "gru", "recurrent_depth"))]
)
def test_layers_of_each_architecture_iterated_are_the_model(name, attention):
    model, b = ARCHITECTURES[name](), {"input_ids": example_batch(name)["input_ids"]}
    f = EncoderMap(model, b, dtype=torch.float64, attention=attention)
    assert f.shared == (name in ("albert", "looped_llama"))
    assert len(f.maps) == 2
    if not f.shared:
        with pytest.raises(ValueError, match="a time step is a layer"):
            f(f.start(b))
    x = iterated(f, f.start(b))
    called = model.encoder if name == "t5" else model
    with (
        torch.no_grad(),
        observing(model),
        capture(model, dict(list(layer_sites(model).items())[-1:])) as seen,
    ):
        call_module(called, b)
        last = list(seen.activations.values())[-1]
    torch.testing.assert_close(x.float(), last, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(f.start(b).float(), last, atol=1e-3)  # the control: the layers do something


@pytest.mark.parametrize("name", ["own_lstm", "deep_lstm", "deep_gru"])
def test_recurrent_layers_are_refused(name):
    with pytest.raises(ValueError, match="recurrent layers, whose state runs over the tokens"):
        EncoderMap(ARCHITECTURES[name](), example_batch(name))


class Plain(nn.Module):
    """Blocks of a user's own, with something between them or not."""

    def __init__(self, between=None, out=8):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, out)) for _ in range(2)
        )
        self.unused = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(2))
        self.between, self.count = between, 0

    def forward(self, input_ids):
        x = self.blocks[0](self.embed(input_ids))
        return self.blocks[1](self.between(x) if self.between else x)


def test_of_several_lists_those_that_run_and_nothing_between_them():
    f = EncoderMap(Plain(), batch())
    assert len(f.maps) == 2
    torch.testing.assert_close(iterated(f, f.start(batch())), f._module(batch()["input_ids"]))
    with pytest.raises(ValueError, match=r"changes the token vectors between 'blocks\.0' and 'blocks\.1'"):
        EncoderMap(Plain(between=torch.tanh), batch())
    with pytest.raises(ValueError, match=r"'blocks\.0' of Plain takes \(1, 6, 8\) but returns \(1, 6, 9\)"):
        EncoderMap(Plain(between=lambda x: x[..., :8], out=9), batch())


def test_a_layer_that_reads_what_its_model_sets():
    class Secret(nn.Module):
        def __init__(self, owner):
            super().__init__()
            self.linear, self.owner = nn.Linear(8, 8), [owner]

        def forward(self, x):
            return self.linear(x) + self.owner[0].offset

    class Owner(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.offset = nn.Embedding(20, 8), 0.0
            self.blocks = nn.ModuleList([Secret(self), Secret(self)])

        def forward(self, input_ids):
            x = self.embed(input_ids)
            self.offset = 5.0
            for block in self.blocks:
                x = block(x)
            self.offset = 0.0
            return x

    owner = Owner()
    f = EncoderMap(owner, batch())
    expected = owner(batch()["input_ids"])
    torch.testing.assert_close(iterated(f, f.start(batch())), expected, rtol=0, atol=1e-6)


def test_models_that_compute_attention_in_their_own_way():
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    gemma = hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**sizes, intermediate_size=8, num_key_value_heads=1, head_dim=4, pad_token_id=0)
    )
    f = EncoderMap(gemma.eval(), batch(), dtype=torch.float64)  # which has no fused attention
    x = gemma.model.norm.double()(iterated(f, f.start(batch())))
    gemma.model.norm.float()
    torch.testing.assert_close(x.float(), gemma.model(**batch()).last_hidden_state, rtol=1e-5, atol=1e-5)
    sizes = {"vocab_size": 20, "hidden_size": 8, "n_layer": 2, "n_head": 2}
    bloom = hf.BloomForCausalLM(hf.BloomConfig(**sizes)).double().eval()  # positions of each row and head
    f = EncoderMap(bloom, batch(), dtype=torch.float64)
    x = bloom.transformer.ln_f(iterated(f, f.start(batch(5, 9))))
    torch.testing.assert_close(x, bloom.transformer(**batch(5, 9)).last_hidden_state, rtol=0, atol=1e-10)


def test_why_a_model_cannot_be_run_is_said():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.core = nn.Embedding(9, 4), nn.Linear(4, 4)

        def forward(self, input_ids):
            x = self.embed(input_ids)
            for _ in range(3):
                x = torch.tanh(self.core(x))
            return x @ torch.ones(5)

    with pytest.raises(ValueError, match=r"lmdyn cannot run Broken: RuntimeError: size mismatch") as caught:
        EncoderMap(Broken(), {"input_ids": torch.tensor([[1, 2, 3]])})
    assert isinstance(caught.value.__cause__, RuntimeError)

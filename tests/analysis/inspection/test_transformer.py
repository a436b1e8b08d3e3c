"""Layers and attention of transformers' models, by their structure alone."""

import pytest
import torch
import transformers as hf
from torch import nn

from lmdyn.analysis.inspection.activations import capture, observing
from lmdyn.analysis.inspection.attention_weights import attention_as
from lmdyn.analysis.inspection.transformer import attention_sites, check_positions, encoder_of, layer_sites
from tests.helpers.architectures import ARCHITECTURES, example_batch


@pytest.mark.parametrize("name", ["albert", "bert", "gpt2", "gpt_neox"])
def test_the_sites_are_the_hidden_states_and_attentions_of_transformers(name):
    model, ids = ARCHITECTURES[name](), example_batch(name)["input_ids"]
    module = nn.ModuleDict({"lm": model})
    with (
        observing(module),
        capture(module, layer_sites(module), attention_sites=attention_sites(module)) as seen,
    ):
        model(input_ids=ids)
        activations, attentions = seen.activations, seen.attentions
    with attention_as(module, "eager"):  # the only one that returns weights
        output = model(input_ids=ids, output_hidden_states=True, output_attentions=True)
    assert len(activations) == 2
    last = encoder_of(module)(input_ids=ids).last_hidden_state
    for layer, (x, a) in enumerate(zip(activations.values(), attentions.values(), strict=True), start=1):
        if layer < 2:  # the causal ones end in a norm after the last layer
            torch.testing.assert_close(x, output.hidden_states[layer])
        torch.testing.assert_close(a, output.attentions[layer - 1])
    if name in ("albert", "bert"):
        torch.testing.assert_close(activations[list(activations)[-1]], last)


def test_several_models_need_a_name():
    both = nn.ModuleDict({name: ARCHITECTURES[name]() for name in ("albert", "bert")})
    with pytest.raises(ValueError, match="contains 2 models"):
        encoder_of(both)
    both.encoder = both["bert"]
    assert encoder_of(both) is both["bert"].bert
    with pytest.raises(ValueError, match="contains 0 models"):
        layer_sites(nn.Linear(2, 2))


def test_rows_longer_than_an_encoder_reads():
    model = ARCHITECTURES["bert"]()
    check_positions(model, 64, "texts", "cut them")
    with pytest.raises(ValueError, match=r"^me: expected texts of at most 64 tokens.*got 65: cut them"):
        check_positions(model, 65, "texts", "cut them", "me")
    del model.config.max_position_embeddings  # relative positions have no limit
    check_positions(model, 65, "texts", "cut them")
    check_positions(nn.Linear(2, 2), 65, "texts", "cut them")  # nothing says that it has one
    two = nn.ModuleDict({name: ARCHITECTURES["bert"]() for name in "ab"})
    with pytest.raises(ValueError, match="2 models of transformers"):
        check_positions(two, 65, "texts", "cut them")


@pytest.mark.parametrize(
    ("name", "layers", "attention"),
    [
        ("opt", "model.decoder.layers", "self_attn"),  # a model around one other
        ("llama", "model.layers", "self_attn"),
        ("t5", "encoder.block", "layer.0.SelfAttention"),  # not the sublayers
        ("rwkv", "rwkv.blocks", "attention"),
        ("mamba", "backbone.layers", None),
        ("nanogpt", "transformer.h", "attn"),  # none of transformers'
        ("torch_transformer", "encoder.layers", "self_attn"),
    ],
)
def test_layers_of_architectures_whose_names_differ(name, layers, attention):
    model = ARCHITECTURES[name]()
    expected = {f"layer{i + 1}": f"{layers}.{i}" for i in range(2)}
    assert layer_sites(model) == expected
    assert layer_sites(nn.ModuleDict({"net": model})) == {n: f"net.{p}" for n, p in expected.items()}
    if attention is None:
        with pytest.raises(ValueError, match="no attention module"):
            attention_sites(model)
    else:
        assert attention_sites(model) == {n: f"{p}.{attention}" for n, p in expected.items()}


def test_one_model_within_another_and_the_encoder_of_an_encoder_decoder():
    assert type(encoder_of(ARCHITECTURES["opt"]())).__name__ == "OPTModel"
    sides = {f"{side}_{what}": 1 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = hf.BartConfig(vocab_size=30, d_model=8, encoder_ffn_dim=8, decoder_ffn_dim=8, **sides)
    bart = hf.BartForConditionalGeneration(config)
    assert encoder_of(nn.ModuleDict({"net": bart})) is bart.model.encoder
    config.is_encoder_decoder = False  # the control: two side by side, and neither stands for both
    with pytest.raises(ValueError, match=r"contains 3 models .*BartEncoder"):
        encoder_of(bart)

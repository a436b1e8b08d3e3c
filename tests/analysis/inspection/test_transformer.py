"""Layers and attention of transformers' models, by their structure alone."""

import pytest
import torch
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
)

from lmdyn.analysis.inspection.activations import capture, observing
from lmdyn.analysis.inspection.transformer import (
    attention_sites,
    check_positions,
    encoder_of,
    layer_number,
    layer_sites,
)

SIZES = {
    "vocab_size": 30,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
}
MODELS = {
    "albert": lambda: AlbertForPreTraining(AlbertConfig(**SIZES, embedding_size=4)),
    "bert": lambda: BertForMaskedLM(BertConfig(**SIZES)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=30, n_embd=8, n_layer=3, n_head=2, bos_token_id=0, eos_token_id=0)
    ),
    "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, bos_token_id=0, eos_token_id=0)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_sites_are_the_hidden_states_and_attentions_of_transformers(name):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    module = nn.ModuleDict({"lm": model})
    ids = torch.randint(0, 30, (2, 5))
    with (
        observing(module),
        capture(module, layer_sites(module), attention_sites=attention_sites(module)) as seen,
    ):
        output = model(input_ids=ids, output_hidden_states=True, output_attentions=True)
        activations, attentions = seen.activations, seen.attentions
    assert [layer_number(site) for site in activations] == [1, 2, 3]
    last = encoder_of(module)(input_ids=ids).last_hidden_state
    for layer, (x, a) in enumerate(zip(activations.values(), attentions.values(), strict=True), start=1):
        if layer < 3:  # the causal ones end in a norm after the last layer
            torch.testing.assert_close(x, output.hidden_states[layer])
        torch.testing.assert_close(a, output.attentions[layer - 1])
    if name in ("albert", "bert"):
        torch.testing.assert_close(activations[list(activations)[-1]], last)


def test_several_models_need_a_name():
    both = nn.ModuleDict({name: MODELS[name]() for name in ("albert", "bert")})
    with pytest.raises(ValueError, match="holds 2 models"):
        encoder_of(both)
    both.encoder = both["bert"]
    assert encoder_of(both) is both["bert"].bert
    with pytest.raises(ValueError, match="holds 0 models"):
        layer_sites(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="none of layer1"):
        layer_number("embedding")


def test_rows_longer_than_an_encoder_reads():
    model = BertForMaskedLM(BertConfig(**SIZES, max_position_embeddings=16))
    check_positions(model, 16, "texts", "cut them")
    with pytest.raises(
        ValueError, match=r"^me: expected texts of at most 16 tokens.*BertModel, got 17: cut them"
    ):
        check_positions(model, 17, "texts", "cut them", "me")
    del model.config.max_position_embeddings  # relative positions have no limit
    check_positions(model, 17, "texts", "cut them")
    with pytest.raises(ValueError, match="0 models of transformers"):
        check_positions(nn.Linear(2, 2), 17, "texts", "cut them")

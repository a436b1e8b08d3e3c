"""Exchangeable units of networks: permutations that leave logits unchanged, and are found again."""

from itertools import permutations

import pytest
import torch
import transformers as hf
from torch import nn

from lmdyn.analysis.inspection.forward import logits_of
from lmdyn.analysis.landscape.unit_groups import unit_groups
from lmdyn.analysis.landscape.unit_matching import match_units
from lmdyn.analysis.parameters.at_point import at_point, parameter_values
from lmdyn.analysis.parameters.exchangeable_units import UnitAxis, UnitGroup, exchange_error, permuted_units
from tests.analysis.landscape.recurrent_models import MODULES
from tests.helpers.modules import random_permutations

IDS = torch.tensor([[1, 4, 9, 3, 3, 7], [0, 10, 2, 5, 6, 8]])
SIZES = {
    "vocab_size": 13, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 1, "num_attention_heads": 3,
    "max_position_embeddings": 16,
}  # fmt: skip
SHARED = SIZES | {"num_hidden_layers": 2, "embedding_size": 6}
GROUPED = SIZES | {"hidden_size": 12, "num_attention_heads": 6, "num_key_value_heads": 3}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
GPT2 = hf.GPT2Config(vocab_size=13, n_positions=16, n_embd=12, n_layer=2, n_head=3, **NO_TOKENS)
OPT = {
    "vocab_size": 13, "hidden_size": 12, "ffn_dim": 10, "num_hidden_layers": 1, "num_attention_heads": 3,
    "max_position_embeddings": 16, **NO_TOKENS,
}  # fmt: skip


class Own(nn.Module):
    """A stranger's transformer, with positions that are a parameter."""

    def __init__(self, norm_first, positions=None):
        super().__init__()
        self.words = nn.Embedding(13, 12)
        self.positions = nn.Parameter(torch.zeros(16, 12)) if positions is None else positions
        layer = nn.TransformerEncoderLayer(12, 3, 10, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.output = nn.Linear(12, 13)

    def forward(self, input_ids):
        return self.output(self.encoder(self.words(input_ids) + self.positions[: input_ids.shape[1]]))


FAMILIES = {
    "gpt2": lambda: hf.GPT2LMHeadModel(GPT2),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, **NO_TOKENS)),
    "llama_grouped": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, **NO_TOKENS)),
    "phi3_fused_grouped": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**GROUPED, **NO_TOKENS)),
    "olmo2_normed_queries": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**GROUPED, **NO_TOKENS)),
    "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SIZES, **NO_TOKENS)),
    "opt": lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT, word_embed_proj_dim=12)),
    "opt_separate_post_norm": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(**OPT, word_embed_proj_dim=6, do_layer_norm_before=False)
    ),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES)),
    "bert_untied": lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES, tie_word_embeddings=False)),
    "albert": lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**SHARED, **NO_TOKENS)),
    "albert_pretraining": lambda: hf.AlbertForPreTraining(hf.AlbertConfig(**SHARED, **NO_TOKENS)),
    "own": lambda: Own(False),
    "own_pre_norm": lambda: Own(True), **MODULES,
}  # fmt: skip
CONTROLS = (
    "gpt2", "llama", "phi3_fused_grouped", "olmo2_normed_queries", "neox", "opt_separate_post_norm", "bert_untied",
    "albert", "own", *MODULES,
)  # fmt: skip
NORMS = ("LlamaRMSNorm", "Phi3RMSNorm", "Olmo2RMSNorm")
NO_EFFECT = ("key.bias", "k_proj.bias")
"""Biases of keys cancel in the softmax without rotary positions."""


def exact(module):
    """Replace norms that compute in float32 whatever their weights are."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child).__name__ in NORMS:
                norm = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)
                setattr(parent, name, norm)
    return module.double().eval()


def made(name, seed=0):
    """A model whose parameters are all random: those of a fresh one are alike in its norms and biases."""
    torch.manual_seed(seed)
    module = exact(FAMILIES[name]())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def logits(module):
    return logits_of(module(IDS))


@pytest.fixture(scope="module")
def models():
    return {name: made(name) for name in FAMILIES}


@pytest.fixture(params=FAMILIES)
def module(request, models):
    return models[request.param]


def test_permuted_units_compute_the_same(module):
    groups, values = unit_groups(module), parameter_values(module)
    expected = logits(module).detach()
    drawn = random_permutations(groups)
    for some in (drawn, *({name: order} for name, order in drawn.items())):  # all together, and each alone
        with at_point(module, permuted_units(values, groups, some)):
            torch.testing.assert_close(logits(module).detach(), expected, rtol=0, atol=1e-10)
    moved = permuted_units(values, groups, drawn)
    assert any(not torch.equal(moved[name], values[name]) for name in values)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_missing_axis_is_found(name, models):
    """The control, with the check of the observer: each axis is far from rounding, in float32 as well."""
    module = models[name]
    groups, values = unit_groups(module), parameter_values(module)
    assert exchange_error(module, values, groups, lambda: logits(module)) < 1e-12
    for group in groups:
        for axis in group.axes:
            if any(part in axis.parameter for part in NO_EFFECT):
                continue
            if axis.parameter.endswith(("in_proj_bias", "c_attn.bias")) and axis.start == 12:  # keys
                continue
            less = UnitGroup(group.name, group.size, tuple(a for a in group.axes if a != axis))
            kept = [less if g is group else g for g in groups]
            error = exchange_error(module, values, kept, lambda: logits(module), draws=1 + (name == "albert"))
            assert error > 1e-3, (group.name, axis)


def test_a_permuted_copy_is_matched_exactly(module):
    groups, own = unit_groups(module), parameter_values(module)
    other = permuted_units(own, groups, random_permutations(groups))
    found = match_units(own, other, groups)
    assert found.after == pytest.approx(1, abs=1e-12)
    assert found.before < 0.9
    matched = permuted_units(other, groups, found.permutations)
    assert all(torch.equal(matched[name], own[name]) for name in own)


@pytest.mark.parametrize("name", ["gpt2", "llama_grouped", "albert"])
def test_two_seeds_are_nearer_after_matching(name, models):
    module, other = models[name], parameter_values(made(name, seed=1))
    groups, own = unit_groups(module), parameter_values(module)
    found = match_units(own, other, groups, seed=3)
    assert found.after > found.before
    assert found.sweeps > 1
    again = match_units(own, other, groups, seed=3)
    assert all(torch.equal(found.permutations[g.name], again.permutations[g.name]) for g in groups)
    expected = logits_at(module, other)
    matched = permuted_units(other, groups, found.permutations)
    torch.testing.assert_close(logits_at(module, matched), expected, rtol=0, atol=1e-10)


def logits_at(module, values):
    with at_point(module, values):
        return logits(module).detach()


def test_units_of_several_entries_by_the_definition():
    """Naive oracle: unit i of block b is a slice, and the best order is that among all."""
    torch.manual_seed(0)
    axes = (UnitAxis("w", 1, blocks=2, width=3, start=2), UnitAxis("v", 0, width=2))
    group = UnitGroup("units", 3, axes)
    own = {"w": torch.randn(4, 23).double(), "v": torch.randn(6).double()}
    other = {name: torch.randn_like(value) for name, value in own.items()}

    def naive(order):
        w, v = other["w"].clone(), other["v"].clone()
        for to, of in enumerate(order):
            for block in (0, 1):
                for entry in range(3):
                    w[:, 2 + 9 * block + 3 * to + entry] = other["w"][:, 2 + 9 * block + 3 * of + entry]
            for entry in range(2):
                v[2 * to + entry] = other["v"][2 * of + entry]
        return {"w": w, "v": v}

    def product(values):
        return sum(float((own[name] * values[name]).sum()) for name in own)

    for order in permutations(range(3)):
        moved = permuted_units(other, [group], {"units": torch.tensor(order)})
        assert all(torch.equal(moved[name], value) for name, value in naive(order).items())
    best = max(permutations(range(3)), key=lambda order: product(naive(order)))
    assert match_units(own, other, [group]).permutations["units"].tolist() == list(best)


class Mixed(Own):
    """More is done with the units than layers show."""

    def __init__(self, how):
        super().__init__(True)
        self.how, self.mix = how, nn.Parameter(torch.randn(12, 12))

    def forward(self, input_ids):
        x = self.words(input_ids)
        if self.how == "rolled":
            x = x + x.roll(1, -1)
        elif self.how == "product":
            x = x @ self.mix
        elif self.how == "halves":
            x = x + torch.cat([x[..., 6:], x[..., :6]], -1)
        elif self.how == "sliced":
            x = x * x[..., :1]
        return self.output(self.encoder(x))


@pytest.mark.parametrize("how", ["rolled", "product", "halves", "sliced"])
def test_what_tells_units_apart_is_found(how):
    """Operations of autograd's graph are not judged by name: the output shows that units are no longer alike."""
    torch.manual_seed(0)
    module = Mixed(how).eval()
    assert (
        exchange_error(module, parameter_values(module), unit_groups(module), lambda: logits(module)) > 1e-2
    )


def test_parameters_that_tell_heads_apart_are_found():
    """T5's biases of relative positions belong to heads, of all layers at once."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 13, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2}
    module = hf.T5ForConditionalGeneration(hf.T5Config(**sizes, decoder_start_token_id=0)).eval()

    def run():
        return module(input_ids=IDS, decoder_input_ids=IDS).logits

    assert exchange_error(module, parameter_values(module), unit_groups(module, run), run) > 1e-3


def test_constants_that_tell_units_apart_are_found():
    """Sinusoidal positions are no parameter: only the output shows that the residual stream has an order."""
    torch.manual_seed(0)
    angles = torch.arange(16.0)[:, None] * torch.exp(-torch.arange(12.0))
    module = Own(True, positions=angles.sin()).eval()
    groups = unit_groups(module)
    assert exchange_error(module, parameter_values(module), groups, lambda: logits(module)) > 1e-2
    rest = [group for group in groups if group.name != "residual stream"]
    assert exchange_error(module, parameter_values(module), rest, lambda: logits(module)) < 1e-5

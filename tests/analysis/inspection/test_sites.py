"""Sites of models that lmdyn has never seen, found by running them; their values are held against transformers."""

import re
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lmdyn.analysis.inspection.activations import capture, observing, resolve_sites
from lmdyn.analysis.inspection.attention_weights import attention_as
from lmdyn.analysis.inspection.forward import call_module, logits_of
from lmdyn.analysis.inspection.sites import find_sites, match_sites
from tests.helpers import architectures as H
from tests.helpers.modules import Own

ATTENTION = {  # within a block, the module that answers the weights
    "gpt2": "attn", "gpt_neox": "attention", "opt": "self_attn", "llama": "self_attn", "qwen3": "self_attn",
    "olmo2": "self_attn", "gemma3": "self_attn", "mixtral": "self_attn", "bert": "attention.self",
    "modernbert": "attn", "deberta": "attention.self.dropout", "electra": "attention.self",
}  # fmt: skip
LISTS = {
    "gpt2": "transformer.h", "gpt_neox": "gpt_neox.layers", "opt": "model.decoder.layers", "mamba": "backbone.layers",
    "mamba2": "backbone.layers", "rwkv": "rwkv.blocks", "bert": "bert.encoder.layer",
    "deberta": "deberta.encoder.layer", "electra": "electra.encoder.layer", "nanogpt": "transformer.h",
    "nanogpt_slow": "transformer.h", "torch_transformer": "encoder.layers",
}  # fmt: skip
EMBEDDING = {
    "gpt2": "transformer.wte", "gpt_neox": "gpt_neox.embed_in", "opt": "model.decoder.embed_tokens",
    "mamba": "backbone.embeddings", "mamba2": "backbone.embeddings", "rwkv": "rwkv.embeddings",
    "bert": "bert.embeddings.word_embeddings", "modernbert": "model.embeddings.tok_embeddings",
    "deberta": "deberta.embeddings.word_embeddings", "albert": "albert.embeddings.word_embeddings",
    "electra": "electra.embeddings.word_embeddings",
}  # fmt: skip
RECURRENT = ("mamba", "mamba2", "rwkv")
NO_NORM = ("bert", "deberta", "electra", "albert")  # post-norm: the block ends in it


def captured(module, found, batch):
    """Activations and attention at the sites that were found."""
    with (
        torch.no_grad(),
        observing(module),
        capture(module, found.sites, attention_sites=found.attention) as seen,
    ):
        output = call_module(module, batch)
        return seen.activations, seen.attentions, output


def answer(model, batch):
    """All that transformers itself answers."""
    inputs = {k: v for k, v in batch.items() if k != "labels"}
    with torch.no_grad(), attention_as(model, "eager"):
        return model(**inputs, output_hidden_states=True, output_attentions=True)


def blocks(found):
    """Names of the blocks."""
    return [name for name, kind in found.kinds.items() if kind == "block"]


def block_paths(found):
    """Where blocks are."""
    return [path for name, path in found.sites.items() if "block" in name]


def said(found):
    """All that was left out."""
    return " | ".join(found.left_out)


SHARED = ("albert", "looped_llama")  # one block that runs several times


@pytest.mark.parametrize("name", [n for n in (*H.CAUSAL, *H.MASKED) if n not in SHARED])
def test_the_blocks_of_transformers_answer_its_hidden_states_and_attentions(name):
    model, batch = H.ARCHITECTURES[name](), H.example_batch(name)
    found = find_sites(model, batch)
    blocks = ["block_00", "block_01"]
    norm = [] if name in NO_NORM else ["norm"]
    assert list(found.sites) == ["embedding", *blocks, *norm, "logits"]
    assert [found.kinds[n] for n in found.sites] == ["embedding", *["block"] * 2, *norm, "logits"]
    assert found.sites["embedding"] == EMBEDDING.get(name, "model.embed_tokens")
    assert [found.sites[b] for b in blocks] == [f"{LISTS.get(name, 'model.layers')}.{i}" for i in (0, 1)]
    assert found.shapes["block_01"] == (2, 12, H.HIDDEN)
    assert found.shapes["logits"] == (2, 12, H.VOCABULARY)

    activations, attentions, output = captured(model, found, batch)
    inputs = {k: v for k, v in batch.items() if k != "labels"}
    if name in RECURRENT:
        inputs.pop("attention_mask")
    with torch.no_grad(), attention_as(model, "eager"):
        whole = model(**inputs, output_hidden_states=True)
        states = whole.hidden_states
        first = 0 if name in RECURRENT else 1  # theirs begin with what the first block answers
        torch.testing.assert_close(activations["block_00"], states[first])
        torch.testing.assert_close(activations["norm" if norm else "block_01"], states[-1])
        # the control: another layer
        assert not torch.allclose(activations["block_01"], states[first], atol=1e-3)
        torch.testing.assert_close(activations["logits"], whole.logits)
        torch.testing.assert_close(activations["logits"], logits_of(output))
        words = dict(model.named_modules())[found.sites["embedding"]]
        torch.testing.assert_close(activations["embedding"], words(batch["input_ids"]))
        if name in ATTENTION:
            assert found.attention == {b: f"{found.sites[b]}.{ATTENTION[name]}" for b in blocks}, (
                found.attention
            )
            weights = model(**inputs, output_attentions=True).attentions
            for block, expected in zip(blocks, weights, strict=True):
                torch.testing.assert_close(attentions[block], expected)
        elif name == "jamba":  # a Mamba layer, then an attention layer
            assert found.attention == {"block_01": "model.layers.1.self_attn"}
            assert any("block_00" in sentence and "attention" in sentence for sentence in found.left_out)
        else:
            assert found.attention == {}
            assert any("attention" in sentence for sentence in found.left_out)


def test_a_shared_block_fires_once_for_each_layer():
    model, batch = H.ARCHITECTURES["albert"](), H.example_batch("albert")
    found = find_sites(model, batch)
    assert found.sites["block"] == "albert.encoder.albert_layer_groups.0"
    assert "block_00" not in found.sites
    activations, attentions, _ = captured(model, found, batch)
    assert [n for n in activations if n.startswith("block")] == ["block@0", "block@1"]
    whole = answer(model, batch)
    for i in range(2):
        torch.testing.assert_close(activations[f"block@{i}"], whole.hidden_states[i + 1])
        torch.testing.assert_close(attentions[f"block@{i}"], whole.attentions[i])


def test_encoder_and_decoder_are_told_apart():
    model, batch = H.ARCHITECTURES["t5"](), H.example_batch("t5")
    found = find_sites(model, batch)
    parts = [
        f"{part}_{site}"
        for part in ("encoder", "decoder")
        for site in ("embedding", "block_00", "block_01", "norm")
    ]
    assert list(found.sites) == [*parts, "logits"]
    assert found.shapes["encoder_block_00"] == (2, 12, H.HIDDEN)
    assert found.shapes["decoder_block_00"] == (2, 7, H.HIDDEN)
    activations, attentions, _ = captured(model, found, batch)
    whole = answer(model, batch)
    for part in ("encoder", "decoder"):
        states = whole[f"{part}_hidden_states"]
        torch.testing.assert_close(activations[f"{part}_block_00"], states[1])
        torch.testing.assert_close(activations[f"{part}_norm"], states[-1])
        for i in range(2):
            torch.testing.assert_close(attentions[f"{part}_block_0{i}"], whole[f"{part}_attentions"][i])
    assert any("EncDecAttention" in sentence for sentence in found.left_out)


@pytest.mark.parametrize("name", H.OWN)
def test_modules_as_users_write_them(name):
    model, batch = H.ARCHITECTURES[name](), H.example_batch(name)
    found = find_sites(model, batch)
    expected = {
        "nanogpt": ["embedding", "block_00", "block_01", "norm", "logits"],
        "nanogpt_slow": ["embedding", "block_00", "block_01", "norm", "logits"],
        "own_lstm": ["embedding", "block_00", "block_01", "logits"],
        "deep_lstm": ["embedding", "block_01", "logits"],
        "deep_gru": ["embedding", "block_01", "logits"],
        "torch_transformer": ["embedding", "block_00", "block_01", "norm", "logits"],
        "recurrent_depth": [
            "embedding", "prelude_block_00", "core_block_00", "core_block_01", "coda_block_00", "coda_norm", "logits",
        ],
    }  # fmt: skip
    assert list(found.sites) == expected[name]
    activations, attentions, output = captured(model, found, batch)
    torch.testing.assert_close(activations["logits"], logits_of(output))
    last = "coda_block_00" if name == "recurrent_depth" else "block_01"
    norm = next((n for n in found.sites if n.endswith("norm")), None)
    parts = resolve_sites(model, found.sites)
    state = activations[last] if norm is None else parts[norm](activations[last])
    torch.testing.assert_close(parts["logits"](state), activations["logits"])
    if name.startswith("deep"):
        assert any("2 layers" in sentence for sentence in found.left_out)
    if name == "nanogpt_slow":
        assert found.attention["block_01"] == "transformer.h.1.attn.attn_dropout"
        weights = attentions["block_01"]
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 12))
        assert weights.triu(1).abs().max() == 0 < weights[..., -1, 0].min()
    elif name == "recurrent_depth":
        assert list(found.attention) == [n for n in found.sites if "block" in n]
        assert {"core_block_00@0", "core_block_00@1"} <= activations.keys()  # iterated twice
    elif name == "nanogpt":
        assert found.attention == {f"block_0{i}": f"transformer.h.{i}.attn" for i in (0, 1)}
        slow = H.ARCHITECTURES["nanogpt_slow"]()
        slow.load_state_dict(model.state_dict())
        _, expected, _ = captured(slow, find_sites(slow, batch), batch)
        for block, weights in attentions.items():
            torch.testing.assert_close(weights, expected[block], atol=1e-6, rtol=0)
    elif name == "torch_transformer":
        assert found.attention == {f"block_0{i}": f"encoder.layers.{i}.self_attn" for i in (0, 1)}
        layer, mask = model.encoder.layers[1], nn.Transformer.generate_square_subsequent_mask(12)
        x = layer.norm1(activations["block_00"])
        with torch.no_grad():
            expected = layer.self_attn(x, x, x, attn_mask=mask, average_attn_weights=False)[1]
        torch.testing.assert_close(attentions["block_01"], expected, atol=1e-6, rtol=0)
    else:
        assert found.attention == {}


class Wrapped(Own):
    """A user's module around a model of transformers, without a forward that names anything."""

    def forward(self, **batch):
        return self.net(**batch)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit's own, as torch.compile is first used
@pytest.mark.parametrize("compile_blocks", [False, True])
def test_a_compiled_model_has_the_sites_of_the_plain_one(compile_blocks):
    batch = H.example_batch("llama")
    plain, compiled = H.ARCHITECTURES["llama"](), H.ARCHITECTURES["llama"]()
    expected = find_sites(plain, batch)
    if compile_blocks:
        for i, block in enumerate(compiled.model.layers):
            compiled.model.layers[i] = torch.compile(block)
    else:
        compiled = torch.compile(compiled)
    found = find_sites(compiled, batch)
    assert found == expected
    here, here_attention, _ = captured(plain, expected, batch)
    there, there_attention, _ = captured(compiled, found, batch)
    for name in here:
        assert torch.equal(here[name], there[name])
    for name in here_attention:
        assert torch.equal(here_attention[name], there_attention[name])
    by_hand = resolve_sites(plain, {"h": "_orig_mod.model.layers.0"})  # what a compiled run may have recorded
    assert by_hand == {"h": plain.model.layers[0]}


@pytest.mark.slow
def test_peft_adapters_are_part_of_the_sites():
    import peft  # takes seconds

    batch = H.example_batch("llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT reads what transformers deprecates
        targets = ["q_proj", "down_proj", "embed_tokens", "lm_head"]
        model = peft.get_peft_model(
            H.ARCHITECTURES["llama"](), peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
        )
        found = find_sites(model, batch)
        activations, _, output = captured(model, found, batch)
    inner = "base_model.model.model"
    assert dict(found.sites) == {
        "embedding": f"{inner}.embed_tokens", "block_00": f"{inner}.layers.0", "block_01": f"{inner}.layers.1",
        "norm": f"{inner}.norm", "logits": "base_model.model.lm_head",
    }  # fmt: skip
    torch.testing.assert_close(activations["logits"], output.logits)
    plain = F.embedding(batch["input_ids"], model.get_submodule(f"{inner}.embed_tokens.base_layer").weight)
    assert not torch.allclose(activations["embedding"], plain)  # the adapter adds to it


def test_the_search_is_invisible():
    model, batch = Wrapped(H.NanoGPT(flash=False)).train(), H.example_batch("nanogpt")
    model.net.transformer.drop.p = 0.5
    model.net.lm_head.eval()
    model.forward = lambda input_ids: model.net(input_ids, input_ids)[0]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    first = find_sites(model, batch)
    assert first == find_sites(model, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert model.net.transformer.drop.training
    assert not model.net.lm_head.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_hooks_are_gone_and_the_error_is_its_own_when_forward_fails():
    class Fails(H.OwnLSTM):
        def forward(self, input_ids):
            self.lstm1(self.embed(input_ids))
            raise ZeroDivisionError("the user's own")

    model = Fails()
    with pytest.raises(ZeroDivisionError, match="the user's own"):
        find_sites(model, H.example_batch("own_lstm"))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Around(nn.Module):
    """Embedding, ``body`` (a function of the module and the vectors), head."""

    def __init__(self, body, head=True, **parts):
        super().__init__()
        self.embed = nn.Embedding(H.VOCABULARY, H.HIDDEN)
        self.body = body
        for name, part in parts.items():
            setattr(self, name, part)
        if head:
            self.head = nn.Linear(H.HIDDEN, H.VOCABULARY)

    def forward(self, input_ids):
        x = self.body(self, self.embed(input_ids))
        return self.head(x) if hasattr(self, "head") else x @ self.embed.weight.T


class Layer(nn.Module):
    """A block with parts."""

    def __init__(self, width=H.HIDDEN, out=None):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, out or width))

    def forward(self, x):
        y = self.mlp(self.norm(x))
        return x + y if y.shape == x.shape else y


class Other(Layer):
    """A block of another class."""


class Attending(nn.Module):
    """A block of a module that answers weights as well."""

    def __init__(self, attn):
        super().__init__()
        self.attn = attn

    def forward(self, x):
        return x + self.attn(x)[0]


def in_turn(*names):
    def body(model, x):
        for name in names:
            parts = getattr(model, name)
            for part in parts.values() if isinstance(parts, nn.ModuleDict) else parts:
                x = part(x)
        return x

    return body


@pytest.mark.parametrize(
    ("body", "parts", "expected"),
    [
        (in_turn("layers"), {"layers": nn.ModuleList([Layer(), Other()])}, ["layers.0", "layers.1"]),
        (in_turn("layers"), {"layers": nn.ModuleDict({"0": Layer(), "1": Layer()})}, ["layers.0", "layers.1"]),
        # attributes that differ by a number, but not what is inside them
        (lambda m, x: m.block2(m.block1(x)), {"block1": Layer(), "block2": Layer()}, ["block1", "block2"]),
    ],
)  # fmt: skip
def test_blocks_of_different_classes_or_with_numbers_are_blocks(body, parts, expected):
    assert block_paths(find_sites(Around(body, **parts), H.example_batch("llama"))) == expected


def test_looped_blocks_keep_one_name_each():
    def loop(model, x):
        for _ in range(3):
            x = in_turn("core")(model, x)
        return x

    model, batch = Around(loop, core=nn.ModuleList([Layer(), Layer()])), H.example_batch("llama")
    found = find_sites(model, batch)
    assert blocks(found) == ["block_00", "block_01"]
    activations, _, _ = captured(model, found, batch)
    assert [n for n in activations if "block" in n] == [f"block_0{i}@{j}" for i in (0, 1) for j in range(3)]

    parts = {name: nn.ModuleList([Layer()]) for name in ("prelude", "core", "coda")}
    deep = Around(lambda m, x: in_turn("coda")(m, loop(m, in_turn("prelude")(m, x))), **parts)
    found = find_sites(deep, batch)
    assert blocks(found) == ["prelude_block_00", "core_block", "coda_block_00"]


def test_towers_side_by_side_are_told_apart_and_heads_are_no_blocks():
    towers = nn.ModuleList([nn.Sequential(Layer(), Layer()), nn.Sequential(Layer(), Layer())])
    both = Around(lambda m, x: m.towers[0](x) + m.towers[1](x.flip(1)).flip(1), towers=towers)
    found = find_sites(both, H.example_batch("llama"))
    assert blocks(found) == [
        "towers_0_block_00", "towers_0_block_01", "towers_1_block_00", "towers_1_block_01"
    ]  # fmt: skip
    # the control: one feeds the other
    deep = Around(lambda m, x: m.towers[1](m.towers[0](x).clone()), towers=towers)
    assert block_paths(find_sites(deep, H.example_batch("llama"))) == ["towers.0", "towers.1"]

    heads = nn.ModuleList([Layer(out=H.VOCABULARY) for _ in range(2)])

    def several(m, x):
        x = in_turn("layers")(m, x)
        m.heads[0](x), m.heads[1](x)
        return x

    found = find_sites(
        Around(several, layers=nn.ModuleList([Layer(), Layer()]), heads=heads), H.example_batch("llama")
    )
    assert block_paths(found) == ["layers.0", "layers.1"]


@pytest.mark.parametrize("time", [2, 12])
def test_time_before_batch_is_left_out_with_the_remedy(time):
    batch = H.example_batch("deep_lstm", rows=2, length=time)
    found = find_sites(H.DeepRNN(batch_first=False), batch)
    assert list(found.sites) == ["embedding", "logits"]
    assert any("block_01" in s and "batch_first=True" in s for s in found.left_out)
    assert "block_01" in find_sites(H.DeepRNN(batch_first=True), batch).sites  # the control

    def turned(m, x):
        return m.encoder(x.transpose(0, 1)).transpose(0, 1)

    layer = nn.TransformerEncoderLayer(H.HIDDEN, 4, 64)
    found = find_sites(
        Around(turned, encoder=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)), batch
    )
    assert "block_00" not in found.sites
    assert any("block_00" in s and "batch_first=True" in s for s in found.left_out)


def test_what_cannot_be_seen_is_said():
    batch = H.example_batch("llama")

    found = find_sites(Around(lambda m, x: x, head=False), batch)  # no block, no output layer
    assert list(found.sites) == ["embedding"]
    assert "blocks:" in said(found)

    class Matrix(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(H.VOCABULARY, H.HIDDEN))
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, input_ids):
            return F.linear(in_turn("layers")(self, F.embedding(input_ids, self.weight)), self.weight)

    found = find_sites(Matrix(), batch)
    assert list(found.sites) == ["block_00", "block_01"]

    def in_place(m, x):
        x = m.layers[0](x)
        x += 1
        return m.layers[1](x)

    found = find_sites(Around(in_place, layers=nn.ModuleList([Layer(), Layer()])), batch)
    assert "block_00" not in found.sites
    assert "block_01" in found.sites
    assert "overwrites the output" in said(found)

    with pytest.raises(ValueError, match="input_ids"):
        find_sites(H.OwnLSTM(), {"idx": batch["input_ids"]})


def test_logits_that_are_scaled_afterwards_come_from_the_last_layer_of_their_width():
    class Capped(Around):
        def forward(self, input_ids):
            return 30 * torch.tanh(super().forward(input_ids) / 30)

    found = find_sites(Capped(in_turn("layers"), layers=nn.ModuleList([Layer()])), H.example_batch("llama"))
    assert found.sites["logits"] == "head"


def test_a_norm_of_the_head_is_not_the_final_norm():
    class Headed(Around):
        def __init__(self):
            head = nn.Sequential(
                nn.Linear(H.HIDDEN, H.HIDDEN), nn.LayerNorm(H.HIDDEN), nn.Linear(H.HIDDEN, H.VOCABULARY)
            )
            super().__init__(in_turn("layers"), layers=nn.ModuleList([Layer(), Layer()]))
            self.head, self.first_norm = head, nn.LayerNorm(H.HIDDEN)
            self.body = lambda m, x: in_turn("layers")(m, m.first_norm(x))

    found = find_sites(Headed(), H.example_batch("llama"))
    assert "norm" not in found.sites
    assert any(s.startswith("norm:") for s in found.left_out)
    model = Headed()
    model.last_norm = nn.LayerNorm(H.HIDDEN)
    model.body = lambda m, x: m.last_norm(in_turn("layers")(m, m.first_norm(x)))
    assert find_sites(model, H.example_batch("llama")).sites["norm"] == "last_norm"  # the control


def test_a_position_bias_is_no_attention():
    class Biased(nn.Module):
        def __init__(self, bias_only):
            super().__init__()
            self.linear, self.bias_only = nn.Linear(H.HIDDEN, H.HIDDEN), bias_only

        def forward(self, x):
            bias = torch.zeros(1, 2, x.size(1), x.size(1))
            return self.linear(x), bias if self.bias_only else bias.softmax(-1)

    batch = H.example_batch("llama")
    for bias_only in (True, False):
        model = Around(in_turn("layers"), layers=nn.ModuleList([Attending(Biased(bias_only))]))
        assert find_sites(model, batch).attention == ({} if bias_only else {"block_00": "layers.0.attn"})
        with capture(model, {}, attention_sites={"a": "layers.0.attn"}):
            if bias_only:
                with pytest.raises(RuntimeError, match="rows that add up to 1"):
                    model(batch["input_ids"])
            else:
                model(batch["input_ids"])


def test_a_pattern_names_the_blocks_however_deep_they_are():
    batch = H.example_batch("llama")
    model = H.ARCHITECTURES["llama"]()
    blocks = {"layers_00": "model.layers.0", "layers_01": "model.layers.1"}
    assert match_sites(model, "*.layers.*") == match_sites(model, "model.layers.*") == blocks
    assert match_sites(Wrapped(model), "*.layers.*") == {n: f"net.{p}" for n, p in blocks.items()}
    assert match_sites(model, "*.layers.*.mlp")["layers_01_mlp"] == "model.layers.1.mlp"
    assert match_sites(model, "*.layers.1") == {"layers_01": "model.layers.1"}
    assert list(match_sites(model, "*.*norm")) == list(match_sites(model, "*norm"))
    assert match_sites(model.model, "*.layers.*") == {"layers_00": "layers.0", "layers_01": "layers.1"}
    activations, _, _ = captured(model, find_sites(model, batch), batch)
    with torch.no_grad(), capture(model, match_sites(model, "*.layers.*")) as seen:
        model(batch["input_ids"])
        torch.testing.assert_close(seen.activations["layers_01"], activations["block_01"])
    t5 = match_sites(H.ARCHITECTURES["t5"](), "*.block.*")
    assert t5["encoder_block_00"] == "encoder.block.0"
    assert t5["decoder_block_01"] == "decoder.block.1"
    assert len(t5) == 4


def test_a_pattern_that_matches_nothing_or_hundreds_is_refused():
    model = H.ARCHITECTURES["llama"]()
    with pytest.raises(ValueError, match=re.escape("are model.layers.0.")):
        match_sites(model, "*.layer.*")
    with pytest.raises(ValueError, match="no module of LlamaForCausalLM"):
        match_sites(model, "layers.*")  # not from the beginning
    many = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(1, 1) for _ in range(120))})
    with pytest.raises(ValueError, match=r"matches 120 modules .* more than 100"):
        match_sites(many, "*.layers.*")


def test_the_decoder_reads_ids_made_of_labels():
    batch = H.example_batch("t5")
    del batch["decoder_input_ids"]
    found = find_sites(H.ARCHITECTURES["t5"](), batch)
    assert found.shapes["decoder_embedding"] == found.shapes["decoder_block_01"] == (2, 7, H.HIDDEN)


def test_vectors_of_positions_or_neighbours_are_no_token_embedding():
    class Positions(nn.Module):
        def __init__(self, positions):
            super().__init__()
            self.weight, self.positions = nn.Parameter(torch.randn(H.VOCABULARY, H.HIDDEN)), positions

        def forward(self, ids):
            x = F.embedding(ids, self.weight)
            return x + torch.arange(ids.size(1))[:, None] if self.positions else x

    batch = H.example_batch("llama")
    batch["input_ids"][0, :4] = 5  # equal ids
    for positions in (True, False):
        model = Around(in_turn("layers"), layers=nn.ModuleList([Layer()]))
        model.embed = Positions(positions)
        found = find_sites(model, batch)
        assert ("embedding" in found.sites) != positions
        assert ("different vectors for equal ids" in said(found)) == positions


def test_parts_of_layers_are_no_blocks():
    batch = H.example_batch("llama")

    def sublayers(m, x):
        for attention, feed_forward in m.layers:
            x = x + attention(x)
            x = x + feed_forward(x)
        return x

    nested = nn.ModuleList([nn.ModuleList([Layer(), Layer()]) for _ in range(2)])
    found = find_sites(Around(sublayers, layers=nested), batch)
    assert "block" not in found.kinds.values()
    assert "contain parts of layers" in said(found)

    def in_turns(m, x):
        for attention, feed_forward in zip(m.attentions, m.ffns, strict=True):
            x = feed_forward(x + attention(x)).clone()
        return x

    parts = {name: nn.ModuleList([Layer(), Layer()]) for name in ("attentions", "ffns")}
    found = find_sites(Around(in_turns, **parts), batch)
    assert "block" not in found.kinds.values()
    assert "attentions, ffns contain parts of layers" in said(found)

    def stages(m, x):  # the control: each is handed what the one before it answered
        for stage in m.layers:
            for part in stage:
                x = part(x)
        return x

    found = find_sites(Around(stages, layers=nested), batch)
    assert block_paths(found) == [f"layers.{i}.{j}" for i in (0, 1) for j in (0, 1)]


def test_weights_next_to_a_sink_and_attention_that_fails_are_said():
    class Attention(nn.Module):
        def __init__(self, sink):
            super().__init__()
            self.linear, self.sink = nn.Linear(H.HIDDEN, H.HIDDEN), sink
            self.config = SimpleNamespace(_attn_implementation="fused")

        def forward(self, x):
            weights = (torch.zeros(len(x), 1, x.size(1), x.size(1) + self.sink)).softmax(-1)[..., : x.size(1)]
            if self.sink > 1 and self.config._attn_implementation == "eager":
                raise RuntimeError("no eager attention here")
            return self.linear(x), weights

    for sink, sentence in (
        (0, ""),
        (1, "add up to less than 1 because of a sink"),
        (2, "fails under eager attention: no eager attention here"),
    ):
        found = find_sites(
            Around(in_turn("layers"), layers=nn.ModuleList([Attending(Attention(sink))])),
            H.example_batch("llama"),
        )
        assert list(found.attention) == (["block_00"] if sink == 0 else [])
        assert sentence in said(found)
        assert ("attention" in said(found)) == (sink > 0)
        assert "block_00" in found.sites

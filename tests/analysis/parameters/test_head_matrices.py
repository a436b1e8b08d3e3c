"""The matrices of heads, against the attention weights and outputs of the models that have them."""

import warnings
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from lmdyn.analysis.parameters.head_matrices import find_heads, head_matrices
from tests.helpers.architectures import NanoGPT, TorchTransformer

V, H = 31, 32
SIZES = {"vocab_size": V, "hidden_size": H, "num_hidden_layers": 2, "num_attention_heads": 4}
LONG = {**SIZES, "intermediate_size": 48, "max_position_embeddings": 32, "pad_token_id": 0}
GROUPED = {**LONG, "num_key_value_heads": 2}
SHORT = {"vocab_size": V, "n_positions": 32, "n_embd": H, "n_layer": 2, "n_head": 4}


def built(model, config, **arguments):
    """A model with random weights, all biases included."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{config}Config")(**arguments)
    config._attn_implementation = "eager"
    made = getattr(transformers, f"{config.__class__.__name__.removesuffix('Config')}{model}")(config).eval()
    with torch.no_grad():
        for name, p in made.named_parameters():
            p.normal_(1.0 if "norm" in name.lower() and p.ndim == 1 else 0.0, 0.3)
            if "relative_attention_bias" in name:
                p.zero_()
    return made if config.model_type == "mixtral" else made.double()  # its grouped products know no float64


DISTILLED = {"vocab_size": V, "dim": H, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
NEO = {
    "vocab_size": V, "hidden_size": H, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 32,
    "attention_types": [[["global"], 2]],
}  # fmt: skip
T5 = {"vocab_size": V, "d_model": H, "d_kv": 12, "d_ff": 48, "num_layers": 2, "num_heads": 4}
BERT, DENSE = "encoder.layer.0.attention.self", "encoder.layer.0.attention.output.dense"
ALBERT = "encoder.albert_layer_groups.0.albert_layers.0.attention"
FALCON = "h.0.self_attention"

# arguments, path of the first layer's module, its output projection, position ids 0: rotary encodings are the identity
FAMILIES = {
    "GPT2": (SHORT, "h.0.attn", "c_proj", False),
    "GPTBigCode": ({**SHORT, "multi_query": False}, "h.0.attn", "c_proj", False),
    "GPTBigCode, one key head": ({**SHORT, "multi_query": True}, "h.0.attn", "c_proj", False),
    "Bert": (LONG, BERT, DENSE, False),
    "Electra": ({**LONG, "embedding_size": 16}, BERT, DENSE, False),
    "Albert": ({**LONG, "embedding_size": 16}, ALBERT, "dense", False),
    "DistilBert": (DISTILLED, "transformer.layer.0.attention", "out_lin", False),
    "OPT": ({**LONG, "ffn_dim": 48, "word_embed_proj_dim": H}, "decoder.layers.0.self_attn", "out_proj", False),
    "Llama": ({**GROUPED, "attention_bias": True}, "layers.0.self_attn", "o_proj", True),
    "Llama, wide heads": ({**GROUPED, "head_dim": 12}, "layers.0.self_attn", "o_proj", True),
    "Qwen2": (GROUPED, "layers.0.self_attn", "o_proj", True),
    "Mistral": ({**GROUPED, "num_key_value_heads": 1}, "layers.0.self_attn", "o_proj", True),
    "Mixtral": ({**GROUPED, "num_local_experts": 2}, "layers.0.self_attn", "o_proj", True),
    "Phi3": (GROUPED, "layers.0.self_attn", "o_proj", True),
    "GPTNeoX": (LONG, "layers.0.attention", "dense", True),
    "Falcon": (
        {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}, FALCON, "dense", True
    ),
    "Falcon, one key head": ({**SIZES, "multi_query": True, "alibi": False}, FALCON, "dense", True),
    "Falcon, by head": ({**SIZES, "multi_query": False, "alibi": False}, FALCON, "dense", True),
    "ModernBert": ({**LONG, "attention_bias": True, "global_attn_every_n_layers": 1}, "layers.0.attn", "Wo", True),
    "Persimmon": ({**LONG, "qk_layernorm": False}, "layers.0.self_attn", "dense", True),
    "GPTNeo": (NEO, "h.0.attn.attention", "out_proj", False),
    "T5Encoder": (T5, "encoder.block.0.layer.0.SelfAttention", "o", False),
}  # fmt: skip


def seen(model, path, output, positions):
    """The input of an attention module, its weights and the output of its output projection."""
    modules, record = dict(model.named_modules()), {}
    attention, out = modules[path], modules.get(f"{path}.{output}", modules.get(output))

    def on_attention(module, args, kwargs, result):
        if "x" not in record:
            record["x"] = args[0] if args else kwargs["hidden_states"]
            record["p"] = [r for r in result if isinstance(r, torch.Tensor) and r.ndim == 4][-1]

    def on_output(module, args, result):
        record.setdefault("y", result)

    hooks = [
        attention.register_forward_hook(on_attention, with_kwargs=True),
        out.register_forward_hook(on_output),
    ]
    ids = torch.randint(3, V, (2, 6), generator=torch.Generator().manual_seed(1))
    extra = {"position_ids": torch.zeros_like(ids)} if positions else {}
    with torch.no_grad():
        model(input_ids=ids, output_attentions=True, **extra)
    for hook in hooks:
        hook.remove()
    return SimpleNamespace(**record)


def scores(found, x):
    q = torch.einsum("hdi,bti->bhtd", found.q, x)
    k = torch.einsum("gdi,bti->bgtd", found.k, x)
    q = q if found.q_bias is None else q + found.q_bias[:, None]
    k = k if found.k_bias is None else k + found.k_bias[:, None]
    return q @ k[:, found.query_group].mT


def outputs(found, x, p):
    v = torch.einsum("gdi,bti->bgtd", found.v, x)
    v = v if found.v_bias is None else v + found.v_bias[:, None]
    y = torch.einsum("hod,bhtd->bto", found.o, p @ v[:, found.query_group])
    return y if found.o_bias is None else y + found.o_bias


def of_path(model, path):
    found = find_heads(model)
    assert not found.left_out
    (layout,) = [one for one in found.layouts.values() if one.path == path]
    return layout.read()


def assert_weights(found, x, p, scale):
    """Weights are the softmax of the scores over the keys that a query may attend to."""
    s = (scores(found, x) * scale).masked_fill(p == 0, -torch.inf)
    torch.testing.assert_close(s.softmax(-1), p, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_give_the_weights_and_the_output_of_transformers_attention(family):
    arguments, path, output, positions = FAMILIES[family]
    name = family.partition(",")[0]
    kind, config = ("EncoderModel", "T5") if name == "T5Encoder" else ("Model", name)
    model = built(kind, config, **arguments)
    now = seen(model, path, output, positions)
    found = of_path(model, path)
    scale = 1.0 if name in ("T5Encoder", "GPTNeo") else found.q.shape[1] ** -0.5
    assert_weights(found, now.x, now.p, scale)
    torch.testing.assert_close(outputs(found, now.x, now.p), now.y, atol=1e-5, rtol=1e-4)
    turned = found.q.roll(1, 0)  # control: another order of heads
    with pytest.raises(AssertionError):
        assert_weights(SimpleNamespace(**{**vars(found), "q": turned}), now.x, now.p, scale)


@pytest.mark.parametrize(
    ("name", "path", "arguments"),
    [
        ("Bloom", "h.0.self_attention", {"vocab_size": V, "hidden_size": H, "n_layer": 2, "n_head": 4}),
        (
            "Mpt",
            "blocks.0.attn",
            {"vocab_size": V, "d_model": H, "n_layers": 2, "n_heads": 4, "max_seq_len": 32},
        ),
    ],
)
def test_agree_with_weights_up_to_a_bias_of_the_keys(name, path, arguments):
    """Differences over queries and keys of log weights do not contain ALiBi."""
    model = built("Model", name, **arguments)
    record = {}
    attention = dict(model.named_modules())[path]
    out = attention.dense if name == "Bloom" else attention.out_proj
    norm = dict(model.named_modules())[path.rpartition(".")[0]]
    norm = norm.input_layernorm if name == "Bloom" else norm.norm_1
    norm.register_forward_hook(lambda m, a, y: record.setdefault("x", y))
    out.register_forward_hook(lambda m, a, y: record.setdefault("y", y))
    ids = torch.randint(3, V, (2, 6), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        p = model(input_ids=ids, output_attentions=True).attentions[0]
    found = of_path(model, path)
    logs, s = p.log()[..., 3:, :3], (scores(found, record["x"]) * found.q.shape[1] ** -0.5)[..., 3:, :3]

    def twice(t):
        d = t - t[..., :1]
        return d - d[..., :1, :]

    torch.testing.assert_close(twice(logs), twice(s), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(outputs(found, record["x"], p), record["y"], atol=1e-5, rtol=1e-4)


def test_of_torchs_own_attention():
    torch.manual_seed(0)
    for sizes in ({}, {"kdim": 24, "vdim": 20}):
        attention = nn.MultiheadAttention(H, 4, batch_first=True, **sizes).double()
        nn.init.normal_(attention.in_proj_bias)
        nn.init.normal_(attention.out_proj.bias)
        x, keys, values = (
            torch.randn(2, 6, d).double() for d in (H, sizes.get("kdim", H), sizes.get("vdim", H))
        )
        if not sizes:
            keys = values = x
        y, p = attention(x, keys, values, average_attn_weights=False)
        (found,) = head_matrices(attention).values()
        torch.testing.assert_close(outputs(found, values, p), y)
        q = torch.einsum("hdi,bti->bhtd", found.q, x) + found.q_bias[:, None]
        k = torch.einsum("hdi,bti->bhtd", found.k, keys) + found.k_bias[:, None]
        torch.testing.assert_close((q @ k.mT * 8**-0.5).softmax(-1), p)


def test_of_nanogpt():
    torch.manual_seed(0)
    model = NanoGPT(flash=False).double()
    attention = model.transformer["h"][0].attn
    record = {}
    attention.attn_dropout.register_forward_hook(lambda m, a, y: record.setdefault("p", y))
    x = torch.randn(2, 6, 32).double()
    y = attention(x)
    found = head_matrices(model)["layer1"]
    assert_weights(found, x, record["p"], found.q.shape[1] ** -0.5)
    torch.testing.assert_close(outputs(found, x, record["p"]), y)


def test_names_are_those_of_attention_sites_or_paths():
    assert list(head_matrices(TorchTransformer())) == ["layer1", "layer2"]
    model = NanoGPT()
    assert list(head_matrices(model, {"b0": "transformer.h.0"})) == ["b0", "transformer.h.1.attn"]
    shared = transformers.AlbertModel(transformers.AlbertConfig(**LONG, embedding_size=16))
    assert list(head_matrices(shared)) == ["layer"]
    t5 = transformers.T5Model(transformers.T5Config(**T5))
    found = find_heads(t5)
    assert [one.path.split(".")[-1] for one in found.layouts.values()].count("EncDecAttention") == 2


def test_queries_and_keys_that_are_normed_are_said_to_be():
    qwen = transformers.Qwen3Model(transformers.Qwen3Config(**GROUPED, head_dim=8))
    assert all(found.normed for found in head_matrices(qwen).values())
    albert = transformers.AlbertModel(transformers.AlbertConfig(**LONG, embedding_size=16))
    assert not any(found.normed for found in head_matrices(albert).values())  # its norm is that of the output


class Unnamed(nn.Module):
    """Attention with projections of unusual names."""

    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)


class OwnAttention(Unnamed):
    """A stranger's attention."""


def linears(**shapes):
    return {name: nn.Linear(i, o) for name, (o, i) in shapes.items()}


SQUARE = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), (8, 8))


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (OwnAttention(**linears(a=(8, 8), b=(8, 8))), "no names that lmdyn knows"),
        (OwnAttention(**linears(**SQUARE)), "declares neither the number of its heads"),
        (OwnAttention(**linears(**SQUARE), num_heads=3), "do not fit 3 heads"),
        (
            OwnAttention(**linears(**{**SQUARE, "q_proj": (16, 8)}), head_dim=4),
            "do not fit 4 heads of width 4",
        ),
        (OwnAttention(**linears(**SQUARE), num_heads=2, lam=nn.Parameter(torch.ones(2))), "lam"),
        (OwnAttention(**linears(**SQUARE, gate_proj=(8, 8)), num_heads=2), "gate_proj"),
        (OwnAttention(**linears(query_key_value=(24, 8), dense=(8, 8)), num_heads=2), "order of queries"),
        (
            OwnAttention(**linears(q_proj=(8, 8), k_proj=(8, 8), v_proj=(8, 8)), num_heads=2),
            "no output projection",
        ),
        (nn.MultiheadAttention(8, 2, add_bias_kv=True), "add_bias_kv"),
    ],
)
def test_an_unknown_layout_is_left_out_with_the_reason(module, why):
    found = find_heads(nn.ModuleDict({"attn": module}))
    assert not found.layouts
    assert list(found.left_out) == ["attn"]
    assert why in found.left_out["attn"]


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("CodeGenModel", transformers.CodeGenConfig(**{**SHORT, "rotary_dim": 4, "n_ctx": 32})),
        ("DiffLlamaModel", transformers.DiffLlamaConfig(**GROUPED)),
        ("XLNetModel", transformers.XLNetConfig(vocab_size=V, d_model=H, n_layer=1, n_head=4, d_inner=32)),
    ],
)
def test_attention_of_another_kind_is_left_out(model, config):
    found = find_heads(getattr(transformers, model)(config))
    assert not found.layouts
    assert found.left_out


def test_models_without_attention_have_none():
    config = transformers.MambaConfig(vocab_size=V, hidden_size=H, num_hidden_layers=1)
    for module in (transformers.MambaModel(config), nn.LSTM(4, 4)):
        found = find_heads(nn.ModuleDict({"body": module, "out": nn.Linear(4, 4)}))
        assert not found.layouts
        assert not found.left_out


@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_of_lora_adapters_are_part_of_the_matrices(family):
    import peft  # takes seconds

    arguments, path, output, positions = FAMILIES[family]
    model = built("Model", family, **arguments)
    gpt2 = family == "GPT2"
    targets = ["c_attn", "c_proj"] if gpt2 else ["q_proj", "v_proj", "o_proj"]
    config = peft.LoraConfig(target_modules=targets, r=2, init_lora_weights=False, fan_in_fan_out=gpt2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of an attribute that peft reads
        adapted = peft.get_peft_model(model, config).eval()
    now = seen(adapted.base_model.model, path, output, positions)
    (found,) = [
        layout.read() for layout in find_heads(adapted).layouts.values() if layout.path.endswith(path)
    ]
    assert_weights(found, now.x, now.p, found.q.shape[1] ** -0.5)
    torch.testing.assert_close(outputs(found, now.x, now.p), now.y, atol=1e-5, rtol=1e-4)
    with adapted.disable_adapter():
        plain = head_matrices(adapted).popitem()[1]
    assert not torch.equal(plain.v, head_matrices(adapted).popitem()[1].v)

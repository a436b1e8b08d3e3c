"""Tiny models that iterate a core, as transformers and as users build them; ``depth`` says how often."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

VOCABULARY = 256
HIDDEN = 32

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip


def looped_llama(depth: int = 4, group: int = 1) -> LlamaForCausalLM:
    """transformers' own Llama, whose list of layers holds the same group of layers several times."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=group, pad_token_id=0)).eval()
    model.config.use_cache = False  # of which the same layers would keep their own past
    return at_depth(model, depth)


def at_depth(model: LlamaForCausalLM, depth: int) -> LlamaForCausalLM:
    unit = list(dict.fromkeys(model.model.layers))
    model.model.layers = nn.ModuleList(unit * depth)
    model.model.config.num_hidden_layers = len(unit) * depth
    return model


class RecurrentDepth(nn.Module):
    """Prelude, core × depth, coda, each of Llama's layers, with the prelude's output injected at each step.

    Args:
        injection: ``concat`` (an adapter of state and input), ``add``, or ``none``.
        initial: the state at depth 0: ``zeros``, ``random`` (drawn by the global generator) or ``prelude``.
        inside: add within the first layer of the core, as an argument of its own, and not before it.
        depth_embedding: add a vector that differs from step to step.
        core_norm: a LayerNorm, with a bias, at the end of each iteration.
    """

    def __init__(
        self,
        injection="concat",
        initial="zeros",
        inside=False,
        depth_embedding=False,
        depth=4,
        core_norm=False,
    ):
        super().__init__()
        self.config = LlamaConfig(**SIZES, attn_implementation="sdpa")
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.rotary = LlamaRotaryEmbedding(self.config)
        layer = lambda i: LlamaDecoderLayer(self.config, i)  # noqa: E731
        self.prelude = nn.ModuleList([layer(0)])
        self.core = nn.ModuleList([_Injected(layer(1)) if inside else layer(1), layer(2)])
        self.coda = nn.ModuleList([layer(3)])
        self.adapter = nn.Linear(2 * HIDDEN, HIDDEN, bias=False) if injection == "concat" else None
        self.steps = nn.Embedding(16, HIDDEN) if depth_embedding else None
        self.core_norm = nn.LayerNorm(HIDDEN) if core_norm else nn.Identity()
        self.norm, self.head = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY)
        self.injection, self.initial, self.inside, self.depth = injection, initial, inside, depth
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.2)
        if core_norm:
            nn.init.normal_(self.core_norm.bias, std=0.2)

    def forward(self, input_ids, depth: int | None = None):
        e = self.embed(input_ids)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        given = {"position_embeddings": self.rotary(e, positions), "attention_mask": None}
        for layer in self.prelude:
            e = layer(e, **given)
        x = {"zeros": torch.zeros_like(e), "random": torch.randn_like(e), "prelude": e}[self.initial]
        for i in range(depth or self.depth):
            if self.injection == "concat":
                x = self.adapter(torch.cat([x, e], -1))
            elif self.injection == "add" and not self.inside:
                x = x + e
            if self.steps is not None:
                x = x + self.steps(torch.tensor(i))
            for layer in self.core:
                x = layer(x, e, **given) if isinstance(layer, _Injected) else layer(x, **given)
            x = self.core_norm(x)
        for layer in self.coda:
            x = layer(x, **given)
        return self.head(self.norm(x))


class _Injected(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, e, **given):
        return self.layer(x + e, **given)


class PlainLoop(nn.Module):
    """Nothing of transformers: a map of each token's vector with a causal mean over the earlier ones, iterated."""

    def __init__(self, depth=5):
        super().__init__()
        self.embed, self.out = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY)
        self.depth = depth
        self.block = nn.ModuleDict({"mix": nn.Linear(HIDDEN, HIDDEN), "own": nn.Linear(HIDDEN, HIDDEN)})
        self.step = _Step(self.block)

    def forward(self, input_ids, depth: int | None = None):
        x = self.embed(input_ids)
        for _ in range(depth or self.depth):
            x = self.step(x)
        return self.out(x)


class _Step(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.mix, self.own = parts["mix"], parts["own"]

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]
        return torch.tanh(self.own(x) + self.mix(x.cumsum(1) / count))


class LinearLoop(nn.Module):
    """x ↦ A x + B e from x = 0, with the token's vector e."""

    def __init__(self, size=4, depth=6):
        super().__init__()
        self.embed, self.depth = nn.Embedding(VOCABULARY, size), depth
        self.a, self.b = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        self.out = nn.Linear(size, VOCABULARY)

    def forward(self, input_ids, depth: int | None = None):
        e = self.embed(input_ids)
        x = torch.zeros_like(e)
        for _ in range(depth or self.depth):
            x = self.a(x) + self.b(e)
        return self.out(x)

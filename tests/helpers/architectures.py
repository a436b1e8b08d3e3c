"""Tiny models of what researchers train: random configurations of transformers, and modules as users write them.

``ARCHITECTURES[name]()`` builds one, in eval mode, on the CPU, with the same weights each time (the global generator
is left as it was); all read ``VOCABULARY`` ids, have 2 blocks, and know at least 64 positions. ``example_batch(name)``
is a batch in Hugging Face's names.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.nn.functional as F
import transformers
from torch import nn

from tests.helpers.loops import HIDDEN, VOCABULARY, RecurrentDepth, looped_llama

_SIZES = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED = {**_HEADS, "num_key_value_heads": 2}


class NanoGPT(nn.Module):
    """A GPT as nanoGPT writes one: ``forward(idx, targets=None) -> (logits, loss)``; without targets, the last logits.

    Args:
        flash: fused attention; else softmax and dropout by hand, whose modules answer the weights.
    """

    def __init__(self, flash: bool = True) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, HIDDEN),
                "wpe": nn.Embedding(64, HIDDEN),
                "drop": nn.Dropout(0.0),
                "h": nn.ModuleList([_Block(flash) for _ in range(2)]),
                "ln_f": nn.LayerNorm(HIDDEN),
            }
        )
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        parts = self.transformer
        x = parts.drop(parts.wte(idx) + parts.wpe(torch.arange(idx.size(1), device=idx.device)))
        for block in parts.h:
            x = block(x)
        x = parts.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


class _Block(nn.Module):
    def __init__(self, flash: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attn = _CausalSelfAttention(flash)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class _CausalSelfAttention(nn.Module):
    def __init__(self, flash: bool, heads: int = 4) -> None:
        super().__init__()
        self.flash, self.heads = flash, heads
        self.c_attn, self.c_proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.attn_dropout = nn.Dropout(0.0)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1)
        )
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
            future = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
            y = self.attn_dropout(scores.masked_fill(future, -torch.inf).softmax(-1)) @ v
        return self.c_proj(y.transpose(1, 2).flatten(-2))


class OwnLSTM(nn.Module):
    """Two LSTMs as attributes of their own, called one after the other; answers the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.lstm1 = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.lstm2 = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, input_ids):
        h, _ = self.lstm1(self.embed(input_ids))
        h, _ = self.lstm2(h)
        return self.out(h)


class DeepRNN(nn.Module):
    """One recurrent module of two layers, ``kind`` LSTM, GRU or RNN; answers (logits, state)."""

    def __init__(self, kind: str = "LSTM", batch_first: bool = True) -> None:
        super().__init__()
        self.encoder = nn.Embedding(VOCABULARY, HIDDEN)
        self.rnn = getattr(nn, kind)(HIDDEN, HIDDEN, num_layers=2, batch_first=batch_first)
        self.decoder = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, input_ids):
        x = self.encoder(input_ids)
        if self.rnn.batch_first:
            h, state = self.rnn(x)
        else:
            h, state = self.rnn(x.transpose(0, 1))
            h = h.transpose(0, 1)
        return self.decoder(h), state


class TorchTransformer(nn.Module):
    """A causal language model around ``nn.TransformerEncoder``; answers an object with ``.logits``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(64, HIDDEN)
        layer = nn.TransformerEncoderLayer(HIDDEN, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(HIDDEN), enable_nested_tensor=False)
        self.head = nn.Linear(HIDDEN, VOCABULARY)
        for p in self.encoder.layers.parameters():  # copies of one layer: give each its own weights
            if p.ndim > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, input_ids):
        x = self.embedding(input_ids) + self.positions(
            torch.arange(input_ids.size(1), device=input_ids.device)
        )
        mask = nn.Transformer.generate_square_subsequent_mask(input_ids.size(1), device=x.device)
        return SimpleNamespace(logits=self.head(self.encoder(x, mask=mask, is_causal=True)))


def _pretrained(model: str, config: str, **arguments) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        return getattr(transformers, model)(getattr(transformers, config)(**arguments))

    return build


CAUSAL: dict[str, Callable[[], nn.Module]] = {
    "gpt2": _pretrained(
        "GPT2LMHeadModel", "GPT2Config",
        vocab_size=VOCABULARY, n_embd=HIDDEN, n_layer=2, n_head=4, n_positions=64, **_IDS,
    ),
    "gpt_neox": _pretrained("GPTNeoXForCausalLM", "GPTNeoXConfig", **_SIZES, **_HEADS, **_IDS),
    "opt": _pretrained(
        "OPTForCausalLM", "OPTConfig", **_SIZES, **_IDS,
        num_attention_heads=4, ffn_dim=64, max_position_embeddings=64, word_embed_proj_dim=HIDDEN,
    ),
    "llama": _pretrained("LlamaForCausalLM", "LlamaConfig", **_SIZES, **_GROUPED, **_IDS),
    "qwen3": _pretrained("Qwen3ForCausalLM", "Qwen3Config", **_SIZES, **_GROUPED, **_IDS, head_dim=8),
    "olmo2": _pretrained("Olmo2ForCausalLM", "Olmo2Config", **_SIZES, **_GROUPED, **_IDS),
    "gemma3": _pretrained(
        "Gemma3ForCausalLM", "Gemma3TextConfig", **_SIZES, **_GROUPED, **_IDS,
        head_dim=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"],
    ),
    "mamba": _pretrained("MambaForCausalLM", "MambaConfig", **_SIZES, **_IDS, state_size=8),
    "mamba2": _pretrained(
        "Mamba2ForCausalLM", "Mamba2Config", **_SIZES, **_IDS,
        state_size=8, num_heads=8, head_dim=8, n_groups=2, chunk_size=8,
    ),
    "rwkv": _pretrained(
        "RwkvForCausalLM", "RwkvConfig", **_SIZES, **_IDS, attention_hidden_size=HIDDEN, context_length=64
    ),
    "jamba": _pretrained(
        "JambaForCausalLM", "JambaConfig", **_SIZES, **_IDS,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, attn_layer_period=2, attn_layer_offset=1,
        expert_layer_period=2, expert_layer_offset=1, num_experts=2, mamba_d_state=8, mamba_dt_rank=4,
    ),
    "mixtral": _pretrained(
        "MixtralForCausalLM", "MixtralConfig", **_SIZES, **_GROUPED, **_IDS, num_local_experts=4
    ),
    "looped_llama": lambda: looped_llama(2),
}  # fmt: skip
"""Models of transformers that predict the next token: input_ids, attention_mask in, `.logits` out."""

MASKED: dict[str, Callable[[], nn.Module]] = {
    "bert": _pretrained("BertForMaskedLM", "BertConfig", **_SIZES, **_HEADS),
    "modernbert": _pretrained(
        "ModernBertForMaskedLM", "ModernBertConfig", **_SIZES, **_HEADS, **_IDS,
        cls_token_id=1, sep_token_id=2, local_attention=8, global_attn_every_n_layers=2,
    ),
    "deberta": _pretrained(
        "DebertaV2ForMaskedLM", "DebertaV2Config", **_SIZES, **_HEADS, relative_attention=True,
        pos_att_type=["p2c", "c2p"], max_relative_positions=16, position_buckets=8, share_att_key=True,
        norm_rel_ebd="layer_norm", type_vocab_size=0, position_biased_input=False,
    ),
    "albert": _pretrained("AlbertForMaskedLM", "AlbertConfig", **_SIZES, **_HEADS, embedding_size=16),
    "electra": _pretrained("ElectraForMaskedLM", "ElectraConfig", **_SIZES, **_HEADS, embedding_size=16),
}  # fmt: skip
"""Models of transformers that fill masked tokens in (ELECTRA: its generator)."""

ENCODER_DECODER: dict[str, Callable[[], nn.Module]] = {
    "t5": _pretrained(
        "T5ForConditionalGeneration", "T5Config",
        vocab_size=VOCABULARY, d_model=HIDDEN, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0,
    ),
}  # fmt: skip
"""Models of transformers that read input_ids and predict the next of decoder_input_ids."""

OWN: dict[str, Callable[[], nn.Module]] = {
    "nanogpt": NanoGPT,
    "nanogpt_slow": lambda: NanoGPT(flash=False),
    "own_lstm": OwnLSTM,
    "deep_lstm": DeepRNN,
    "deep_gru": lambda: DeepRNN("GRU"),
    "torch_transformer": TorchTransformer,
    "recurrent_depth": lambda: RecurrentDepth(depth=2),
}
"""Causal models as users write them, each called and answering in its own way."""


def _with_fixed_weights(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def built() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build().eval()

    return built


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    name: _with_fixed_weights(build) for name, build in {**CAUSAL, **MASKED, **ENCODER_DECODER, **OWN}.items()
}
"""All of them by name."""


def example_batch(name: str, rows: int = 2, length: int = 12) -> dict[str, torch.Tensor]:
    """Random ids and labels of 4 and above (0 to 3 are special tokens), no padding; T5's decoder reads 7 of its own."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, VOCABULARY, (rows, length), generator=generator)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if name in ENCODER_DECODER:
        batch["decoder_input_ids"] = torch.randint(4, VOCABULARY, (rows, 7), generator=generator)
    read = batch.get("decoder_input_ids", ids)
    return {**batch, "labels": torch.randint(4, VOCABULARY, read.shape, generator=generator)}

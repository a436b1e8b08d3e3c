"""Several parallel encoders of one configuration, the parts of a two-tower model."""

from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import BertConfig, GPT2Config
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.pytorch_utils import Conv1D

from lmdyn.models.stacked_lstm import run_lstm


class TowerLinear(nn.Module):
    """Linear maps of K towers as one batched product: rows of tower k are multiplied by map k.

    Args:
        towers: number K of towers.
        in_features: number of input features of each map.
        out_features: number of output features of each map.
        init_range: standard deviation of the weights, drawn from a normal distribution that is cut at two deviations;
            biases are 0.

    Example:
        >>> TowerLinear(2, 3, 5, init_range=0.02)(torch.zeros(2 * 4, 7, 3)).shape  # 4 rows of 7 vectors for each tower
        torch.Size([8, 7, 5])
    """

    def __init__(self, towers: int, in_features: int, out_features: int, init_range: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(towers, in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(towers, 1, out_features))
        nn.init.trunc_normal_(self.weight, std=init_range, a=-2 * init_range, b=2 * init_range)

    def forward(self, x: Float[Tensor, "rows *time in"]) -> Float[Tensor, "rows *time out"]:
        """Apply map k to the k-th part of the rows."""
        towers, in_features, out_features = self.weight.shape
        y = torch.baddbmm(self.bias, x.reshape(towers, -1, in_features), self.weight)
        return y.view(*x.shape[:-1], out_features)


class TowerNorm(nn.Module):
    """Layer normalisation with scales and shifts of K towers: rows of tower k use those of tower k.

    Args:
        towers: number K of towers.
        size: size of the vectors.
        eps: constant added to the variance.

    Example:
        >>> TowerNorm(2, 3, eps=1e-5)(torch.zeros(8, 7, 3)).shape
        torch.Size([8, 7, 3])
    """

    def __init__(self, towers: int, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(towers, 1, size))
        self.bias = nn.Parameter(torch.zeros(towers, 1, size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "rows *time size"]) -> Float[Tensor, "rows *time size"]:
        """Return normalised vectors, scaled and shifted by their tower's parameters."""
        towers, _, size = self.weight.shape
        plain = F.layer_norm(x, (size,), eps=self.eps).view(towers, -1, size)
        return torch.addcmul(self.bias, plain, self.weight).view_as(x)


def side_by_side(module: nn.Module, towers: int, init_range: float) -> nn.Module:
    """Turn an encoder's block into the same block of K towers, in place: each of its linear maps and norms into K.

    The block then takes (K × batch, time, d), with the rows of the first tower first. Attention, activations and
    dropout process each row separately, and are not changed.

    Args:
        module: a block of transformers whose weights are all in linear maps and norms.
        towers: number K of towers.
        init_range: see :class:`TowerLinear`.

    Example:
        >>> sum(p.numel() for p in side_by_side(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)), 2, 0.02).parameters())
        30
    """
    for name, child in module.named_children():
        new: nn.Module | None = None
        if isinstance(child, nn.Linear):
            new = TowerLinear(towers, child.in_features, child.out_features, init_range)
        elif isinstance(child, Conv1D):  # GPT-2's linear map
            new = TowerLinear(towers, child.nx, child.nf, init_range)
        elif isinstance(child, nn.LayerNorm):
            new = TowerNorm(towers, child.normalized_shape[0], child.eps)
        if new is None:
            side_by_side(child, towers, init_range)
        else:
            setattr(module, name, new)
    assert not list(module.parameters(recurse=False))
    return module


class TransformerTowers(nn.Module):
    """K stacks of GPT-2's or BERT's blocks from transformers, run as one batched program.

    GPT: pre-norm blocks that attend to the past and the token itself, and a norm at the end. BERT: a norm and dropout
    first, then post-norm blocks that attend to the whole row. Attention is the fused one of PyTorch (SDPA, with flash
    attention if available).

    Args:
        kind: ``gpt`` or ``bert``.
        towers: number K of towers.
        sizes: ``hidden_size`` d, ``num_hidden_layers``, blocks of a stack, and ``num_attention_heads`` of a block.
        intermediate_size: number of units of the feed-forward layer.
        dropout: dropout rate of activations and attention weights.
        init_range: see :class:`TowerLinear`.
    """

    def __init__(
        self,
        kind: Literal["gpt", "bert"],
        towers: int,
        sizes: Mapping[str, int],
        *,
        intermediate_size: int,
        dropout: float,
        init_range: float,
    ) -> None:
        super().__init__()
        self.kind, self.towers = kind, towers
        gpt = kind == "gpt"
        given = cast(dict[str, Any], {"vocab_size": 1, **sizes})
        if gpt:
            given |= {"bos_token_id": None, "eos_token_id": None, "n_inner": intermediate_size}
            given |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        else:
            given |= {"intermediate_size": intermediate_size}
            given |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
        self.config: Any = GPT2Config(**given) if gpt else BertConfig(**given)
        eps = float(self.config.layer_norm_epsilon if gpt else self.config.layer_norm_eps)
        make: Any = GPT2Block if gpt else BertLayer
        blocks = [make(self.config, layer_idx=i) for i in range(sizes["num_hidden_layers"])]
        self.config._attn_implementation = "sdpa"
        self.blocks = nn.ModuleList([side_by_side(block, towers, init_range) for block in blocks])
        self.norm = TowerNorm(towers, sizes["hidden_size"], eps)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "towers batch time d"], attention_mask: Int[Tensor, "batch time"] | None
    ) -> Float[Tensor, "towers batch time d"]:
        """Encode the word vectors of each tower; padding (0 in the mask) is masked in all."""
        hidden = x.flatten(0, 1)
        if attention_mask is not None:
            attention_mask = attention_mask.repeat(self.towers, 1)
        if self.kind == "gpt":
            mask = create_causal_mask(self.config, hidden, attention_mask, past_key_values=None)
            hidden = self.dropout(hidden)
        else:
            mask = create_bidirectional_mask(self.config, hidden, attention_mask)
            hidden = self.dropout(self.norm(hidden))
        for block in self.blocks:
            hidden = block(hidden, attention_mask=mask)
        if self.kind == "gpt":
            hidden = self.norm(hidden)
        return cast(Tensor, hidden.view_as(x))


class LSTMTowers(nn.Module):
    """K pairs of LSTM stacks as in ELMo, one that reads forward and one that reads backward.

    The forward stack reads the tokens before a position and the backward stack those after it: inputs are shifted by
    one, so no position depends on its own token. States are projected to d in each layer, and an encoding is the sum
    of the two directions, not their concatenation as in ELMo: it is therefore as wide as a word vector's share, as
    equation 1 requires, and still a linear map of both states. The input at the first (last) position is a zero
    vector.

    The fused LSTMs of PyTorch take one set of weights per call, so towers and directions run one after the other.

    Args:
        towers: number K of towers.
        hidden_size: width d of word vectors and encodings.
        lstm_size: number of units of a layer; projected to d if it differs from d.
        num_layers: number of layers of a stack.
        dropout: dropout rate between layers.
    """

    def __init__(
        self, towers: int, hidden_size: int, lstm_size: int, num_layers: int, dropout: float
    ) -> None:
        super().__init__()
        projected = 0 if lstm_size == hidden_size else hidden_size
        between = dropout if num_layers > 1 else 0.0

        def stack() -> nn.Module:
            return nn.LSTM(
                hidden_size, lstm_size, num_layers, batch_first=True, dropout=between, proj_size=projected
            )

        self.forwards = nn.ModuleList(stack() for _ in range(towers))
        self.backwards = nn.ModuleList(stack() for _ in range(towers))

    def forward(
        self, x: Float[Tensor, "towers batch time d"], attention_mask: Int[Tensor, "batch time"] | None
    ) -> Float[Tensor, "towers batch time d"]:
        """Encode the word vectors of each tower; padding, on the right, is never read before text."""
        backwards = _reversal(x, attention_mask)
        encodings = []
        for vectors, ahead, back in zip(x, self.forwards, self.backwards, strict=True):
            before, _ = run_lstm(ahead, _shifted(vectors))
            after, _ = run_lstm(back, _shifted(vectors.gather(1, backwards)))
            encodings.append(before + after.gather(1, backwards))
        return torch.stack(encodings)


def _shifted(x: Tensor) -> Tensor:
    """Give each position the vector of the position before, and the first position zeros."""
    return F.pad(x, (0, 0, 1, -1))


def _reversal(x: Tensor, attention_mask: Tensor | None) -> Int[Tensor, "batch time d"]:
    """Return the index of each position's vector in rows that are read from their last token; its own inverse."""
    _, batch, length, size = x.shape
    time = torch.arange(length, device=x.device)
    if attention_mask is None:
        index = (length - 1 - time).expand(batch, -1)
    else:
        index = attention_mask.sum(1, keepdim=True) - 1 - time
        index = torch.where(index < 0, time, index)  # padding keeps its position, after the text
    return index[..., None].expand(-1, -1, size)

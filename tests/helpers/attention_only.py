"""Attention-only transformers, small enough to set their weights by hand; no norms, no MLPs."""

import torch
from torch import nn

VOCABULARY, POSITIONS = 14, 24
WIDTH = 2 * VOCABULARY + POSITIONS
TOKEN, BEFORE, PLACE = slice(0, VOCABULARY), slice(VOCABULARY, 2 * VOCABULARY), slice(2 * VOCABULARY, WIDTH)
"""Parts of the residual stream: the token, the token before it, the position; one dimension for each."""


class Attention(nn.Module):
    """Causal attention that answers its weights."""

    def __init__(self, width: int, heads: int, d_head: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, d_head
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(width, heads * d_head, bias=False) for _ in range(3)
        )
        self.o_proj = nn.Linear(heads * d_head, width, bias=False)

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(-2, -1)).masked_fill(future, -torch.inf).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(-2)), weights


class Block(nn.Module):
    """One attention module on the residual stream."""

    def __init__(self, width: int, heads: int, d_head: int) -> None:
        super().__init__()
        self.self_attn = Attention(width, heads, d_head)

    def forward(self, x):
        return x + self.self_attn(x)[0]


class AttentionOnly(nn.Module):
    """Embedding, optional positions, blocks of attention, output layer.

    Args:
        layers: number of blocks.
        heads: heads of each.
        positions: whether there are position vectors.
    """

    def __init__(self, layers: int = 2, heads: int = 2, *, positions: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH) if positions else None
        self.layers = nn.ModuleList([Block(WIDTH, heads, POSITIONS) for _ in range(layers)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        if self.positions is not None:
            x = x + self.positions.weight[: input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def induction_model(sharpness: float = 60.0, strength: float = 3.0) -> AttentionOnly:
    """Two layers: head 0 of the first attends to the token before, head 0 of the second continues; others do nothing.

    Head 0 of the first layer compares a position with the one after it, and writes the token that it finds into the
    part of the token before. Head 0 of the second layer compares its token with the tokens before, and adds the token
    that it finds to the logits, ``strength`` times as strongly as the token itself.
    """
    model = AttentionOnly()
    for p in model.parameters():
        nn.init.zeros_(p)
    tokens, places = torch.eye(VOCABULARY), torch.eye(POSITIONS)
    with torch.no_grad():
        model.embedding.weight[:, TOKEN] = tokens
        model.positions.weight[:, PLACE] = places
        first, second = (layer.self_attn for layer in model.layers)
        # row j responds to position j + 1
        first.q_proj.weight[:POSITIONS, PLACE] = sharpness * places.roll(-1, 0)
        first.k_proj.weight[:POSITIONS, PLACE] = places
        first.v_proj.weight[:VOCABULARY, TOKEN] = tokens
        first.o_proj.weight[BEFORE, :VOCABULARY] = tokens
        second.q_proj.weight[:VOCABULARY, TOKEN] = sharpness * tokens
        second.k_proj.weight[:VOCABULARY, BEFORE] = tokens
        second.v_proj.weight[:VOCABULARY, TOKEN] = tokens
        second.o_proj.weight[TOKEN, :VOCABULARY] = strength * tokens
        model.head.weight[:, TOKEN] = 10.0 * tokens
    return model.eval()

"""Contextual decomposition of LSTMs: the contribution of some words to each hidden state, and the rest."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lmdyn.analysis.interdependence.lstm_layers import (
    LSTMLayer,
    State,
    check_inputs,
    initial_state,
    lstm_layers,
    real_steps,
    run_layers,
)

__all__ = ["Decomposition", "Variant", "contextual_decomposition"]

Variant = Literal["published", "released", "generalized"]
"""Which products of parts are relevant.

``published``: the text of the publications; a bias product is relevant if the step's own word is in focus.
``released``: the same, except at the last word in focus, whose bias product released code omits; the contribution of
a word then depends on the words after it.
``generalized``: Jumelet et al. 2019 with the set {rel-rel, rel-b, rel-irrel}: products of a relevant and an
irrelevant part are also relevant. The output gate is not split in any of them.
"""


@dataclass(frozen=True)
class Decomposition:
    """Hidden and cell states, split into the contribution of the words in focus and the rest.

    Each is a tuple over layers of (batch, time, hidden), or (masks, batch, time, hidden) if several sets of words were
    in focus; zero on padding.

    Attributes:
        relevant: h_β, the contribution of the words in focus alone.
        irrelevant: the rest: other words, the initial state, and interactions of both with the words in focus.
        relevant_cell: the same for the cell states.
        irrelevant_cell: the same for the cell states.
        completeness: max |relevant + irrelevant − h| over all entries, with h the hidden states that PyTorch computes.
    """

    relevant: tuple[Float[Tensor, "..."], ...]
    irrelevant: tuple[Float[Tensor, "..."], ...]
    relevant_cell: tuple[Float[Tensor, "..."], ...]
    irrelevant_cell: tuple[Float[Tensor, "..."], ...]
    completeness: Float[Tensor, ""]

    def logits(self, decoder: nn.Linear) -> Float[Tensor, "*shape classes"]:
        """Return v_β, the decoder's weights applied to the last layer's relevant part; the bias belongs to no word."""
        return F.linear(self.relevant[-1], decoder.weight.detach())

    def probabilities(self, decoder: nn.Linear) -> Float[Tensor, "*shape classes"]:
        """Return P(Y | x_β) = softmax(v_β); for a word, read it one step before (Saphra & Lopez 2020, section 2.1)."""
        return self.logits(decoder).softmax(-1)


@torch.no_grad()
def contextual_decomposition(
    lstm: nn.Module | Iterable[nn.Module],
    inputs: Float[Tensor, "batch time inputs"],
    focus: Bool[Tensor, "*masks batch time"],
    state: State | None = None,
    *,
    mask: Bool[Tensor, "batch time"] | Int[Tensor, "batch time"] | None = None,
    variant: Variant = "published",
) -> Decomposition:
    """Split the states of an LSTM into the contribution of the words in focus and the rest; their sum is exact.

    The nonlinearities are linearised by Shapley values. For f(r + i + b) with the bias b, L(b) = f(b), L(r) =
    ½[f(r + b) − f(b) + f(r + i + b) − f(i + b)], and L(i) likewise; for tanh(c) there is no bias and f(b) is 0.
    With gates and candidate split in this way, the relevant cell state is

        c_r' = i_r (g_r + g_b) + i_b g_r + (f_r + f_b) c_r, and i_b g_b if the step's own word is in focus.

    All other products are irrelevant. The output gate is not split: h_r = o · L(c_r). A layer above the first takes
    the relevant part of the layer below as relevant input; its bias products are never relevant, so in a stack even
    all words together leave an irrelevant part.

    Args:
        lstm: an ``nn.LSTM`` or a stack of them: see :func:`~lmdyn.analysis.interdependence.lstm_layers.lstm_layers`.
        inputs: word vectors, always batch first, whatever the module's ``batch_first``.
        focus: whether each word is in focus, (batch, time), or (masks, batch, time) for several sets at once.
        state: the state before the first word, as ``nn.LSTM`` takes it, or a pair for each layer. All of it is
            irrelevant. Zeros by default.
        mask: whether each step holds a word, for sentences of different lengths; padding is on the right.
        variant: which products are relevant: see :data:`Variant`.

    Returns:
        The parts, without gradients.

    Raises:
        TypeError: if ``lstm`` is not an LSTM.
        ValueError: if the kind of LSTM is not supported, if focus, mask or state have a wrong shape, or if the variant
            is unknown.

    Reference: Murdoch et al. 2018, section 3; Saphra & Lopez 2020, appendix A (the bias completes its two-term
    linearisation, so that the parts add up; the last σ(y₁) of its formula is a misprint of σ(y₂)).

    Example:
        >>> lstm = nn.LSTM(3, 4).double()
        >>> each_word = torch.eye(5, dtype=torch.bool)[:, None].expand(5, 2, 5)
        >>> parts = contextual_decomposition(lstm, torch.randn(2, 5, 3).double(), each_word)
        >>> parts.relevant[0].shape, bool(parts.completeness < 1e-12)
        (torch.Size([5, 2, 5, 4]), True)
    """
    layers = lstm_layers(lstm)
    check_variant(variant)
    check_inputs(layers, inputs)
    steps = real_steps(mask, inputs)
    before = initial_state(layers, inputs, state)
    several = focus.reshape(-1, *steps.shape) & steps
    masks, _, time = several.shape
    own_bias = several if variant != "released" else several & (several.flip(-1).cumsum(-1).flip(-1) > 1)
    projected = F.linear(inputs, layers[0].w_in)
    states = [_split_zero(h.expand(masks, *h.shape), c.expand(masks, *c.shape)) for h, c in before]
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in layers]
    for t in range(time):
        relevant = projected[:, t] * several[:, :, t, None]
        parts = torch.stack([relevant, projected[:, t] - relevant])  # (2, masks, batch, 4·hidden), exact
        for k, layer in enumerate(layers):
            h, c = states[k]
            above = F.linear(states[k - 1][0], layer.w_in) if k else parts
            bias_product = own_bias[:, :, t, None] if k == 0 else None
            states[k] = _step(layer, above + F.linear(h, layer.w_rec), c, bias_product, variant)
            kept[k].append(states[k])
    hidden = [torch.stack([h for h, _ in layer], -2) * steps[..., None] for layer in kept]
    cells = [torch.stack([c for _, c in layer], -2) * steps[..., None] for layer in kept]
    truth, _ = run_layers(layers, inputs, before)
    error = torch.stack(
        [(parts.sum(0) - h * steps[..., None]).abs().max() for parts, h in zip(hidden, truth, strict=True)]
    ).max()
    relevant_h, irrelevant_h, relevant_c, irrelevant_c = (
        tuple(part[side].view(*focus.shape, -1) for part in parts)
        for parts in (hidden, cells)
        for side in (0, 1)
    )
    return Decomposition(relevant_h, irrelevant_h, relevant_c, irrelevant_c, error)


def check_variant(variant: str) -> None:
    """Raise an error for an unknown variant."""
    if variant not in get_args(Variant):
        raise ValueError(f"expected variant published, released or generalized, got {variant!r}")


def _split_zero(h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return a state without a relevant part, as (2, …): the relevant part first."""
    return torch.stack([torch.zeros_like(h), h]), torch.stack([torch.zeros_like(c), c])


def _step(
    layer: LSTMLayer, parts: Tensor, c: Tensor, own_bias: Tensor | None, variant: Variant
) -> tuple[Tensor, Tensor]:
    """Compute one step of a layer; states and preactivations are (2, masks, batch, …): relevant, irrelevant.

    Args:
        layer: the layer.
        parts: preactivations without the bias.
        c: cell states before the step.
        own_bias: (masks, batch, 1) whether the bias product is relevant; None means never.
        variant: which products are relevant.
    """
    n = layer.hidden
    bias = layer.bias
    whole = parts[0] + parts[1] + bias
    alone = parts[..., : 3 * n] + bias[: 3 * n]  # f(r + b) and f(i + b)
    f_b, f_all, f_alone = (squash(z, n) for z in (bias[: 3 * n], whole[..., : 3 * n], alone))
    middle, half = (f_all - f_b) / 2, (f_alone[0] - f_alone[1]) / 2
    i_r, f_r, g_r = (middle + half).chunk(3, -1)
    i_i, f_i, g_i = (middle - half).chunk(3, -1)
    i_b, f_b, g_b = f_b.chunk(3, -1)
    c_r = i_r * (g_r + g_b) + i_b * g_r + (f_r + f_b) * c[0]
    c_i = i_i * (g_i + g_b) + i_b * g_i + (f_i + f_b) * c[1]
    mixed = i_r * g_i + i_i * g_r + f_r * c[1] + f_i * c[0]
    if variant == "generalized":
        c_r = c_r + mixed
    else:
        c_i = c_i + mixed
    product = i_b * g_b
    if own_bias is None:
        c_i = c_i + product
    else:
        c_r, c_i = c_r + product * own_bias, c_i + product * ~own_bias
    both = torch.stack([c_r, c_i])
    tanh, total = both.tanh(), (c_r + c_i).tanh()
    difference = (tanh[0] - tanh[1]) / 2
    h = whole[..., 3 * n :].sigmoid() * torch.stack([total / 2 + difference, total / 2 - difference])
    return h, both


def squash(z: Tensor, n: int) -> Tensor:
    """Apply σ to the input and forget gates and tanh to the candidate."""
    return torch.cat([z[..., : 2 * n].sigmoid(), z[..., 2 * n :].tanh()], -1)

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
    gates, hidden = gates_of(lstm, inputs, state, variant)
    steps = real_steps(mask, inputs)
    several = focus.reshape(-1, *steps.shape) & steps
    masks, batch, time = several.shape
    own_bias = several if variant != "released" else several & (several.flip(-1).cumsum(-1).flip(-1) > 1)
    entering = F.linear(inputs, gates[0].w_in).flatten(0, 1)
    states: States | None = None
    kept: list[States] = []
    for t in range(time):
        at = (torch.arange(batch, device=inputs.device) * time + t).repeat(masks)
        focused, bias = (of[:, :, t].reshape(-1, 1) for of in (several, own_bias))
        again = None if states is None else recurrent(gates, states)
        states = advance(gates, states, again, at, entering[at] * focused, variant, bias)
        kept.append(states)
    real = steps[..., None]
    parts: list[tuple[Tensor, ...]] = [(), (), (), ()]
    errors = []
    for k, gate in enumerate(gates):
        whole = gate.output * gate.after.tanh(), gate.after
        for side in (0, 1):
            of_words = torch.stack([states[k][side] for states in kept], 1)
            relevant = of_words.view(masks, batch, time, -1) * real
            irrelevant = whole[side].view(batch, time, -1) * real - relevant
            parts[2 * side] += (relevant.view(*focus.shape, -1),)
            parts[2 * side + 1] += (irrelevant.view(*focus.shape, -1),)
            if side == 0:
                errors.append((relevant + irrelevant - hidden[k] * real).abs().max())
    relevant_h, irrelevant_h, relevant_c, irrelevant_c = parts
    error = torch.stack(errors).max()
    return Decomposition(relevant_h, irrelevant_h, relevant_c, irrelevant_c, error)


def squash(z: Tensor, n: int) -> Tensor:
    """Apply σ to the input and forget gates and tanh to the candidate."""
    return torch.cat([z[..., : 2 * n].sigmoid(), z[..., 2 * n :].tanh()], -1)


States = list[tuple[Tensor, Tensor]]
"""Relevant (h, c) of each layer, each (rows, hidden)."""


@dataclass(frozen=True)
class Gates:
    """What a layer computes at each word of the batch, independent of the focus; n is batch · time, gates are i, f, g.

    Attributes:
        w_in: (3·hidden, inputs).
        rec: (3·hidden, hidden).
        bias: (3·hidden,).
        z: (n, 3·hidden) preactivations.
        gates: (n, 3·hidden) σ and tanh of the preactivations.
        output: (n, hidden) the output gate.
        before: (n, hidden) the cell state before the word.
        after: (n, hidden) the cell state after it.
    """

    w_in: Tensor
    rec: Tensor
    bias: Tensor
    z: Tensor
    gates: Tensor
    output: Tensor
    before: Tensor
    after: Tensor

    @classmethod
    def of(cls, layer: LSTMLayer, x: Tensor, h: Tensor, c: Tensor) -> tuple["Gates", Tensor]:
        """Run a layer over word vectors x from the state (h, c); also return its hidden states."""
        n = 3 * layer.hidden
        hidden, _, _ = layer.run(x, h, c)
        earlier = torch.cat([h[:, None], hidden[:, :-1]], 1)
        z = F.linear(x, layer.w_in, layer.bias) + F.linear(earlier, layer.w_rec)
        gates = squash(z[..., :n], layer.hidden)
        i, f, g = gates.chunk(3, -1)
        cells = [c]
        for forget, new in zip(f.unbind(1), (i * g).unbind(1), strict=True):
            cells.append(forget * cells[-1] + new)
        cell = torch.stack(cells, 1)
        by_step = (z[..., :n], gates, z[..., n:].sigmoid(), cell[:, :-1], cell[:, 1:])
        flat = (v.flatten(0, 1) for v in by_step)
        return cls(layer.w_in[:n], layer.w_rec[:n], layer.bias[:n], *flat), hidden

    def step(
        self, parts: Tensor, c: Tensor | None, at: Tensor, bias_product: Tensor | bool, variant: Variant
    ) -> tuple[Tensor, Tensor]:
        """Return the relevant (h, c) after words ``at``, from the relevant preactivations and the relevant cell."""
        n = self.output.shape[1]
        f_b = squash(self.bias, n)
        middle = (self.gates[at] - f_b) / 2
        half = (squash(parts + self.bias, n) - squash(self.z[at] - parts, n)) / 2
        i_r, f_r, g_r = (middle + half).chunk(3, -1)
        i_b, f_b, g_b = f_b.chunk(3, -1)
        c_r = i_r * (g_r + g_b) + i_b * g_r
        if bias_product is not False:
            c_r = c_r + i_b * g_b * bias_product
        if c is not None:
            c_r = c_r + (f_r + f_b) * c
        if variant == "generalized":
            i_i, f_i, g_i = (middle - half).chunk(3, -1)
            c = torch.zeros_like(c_r) if c is None else c
            c_r = c_r + i_r * g_i + i_i * g_r + f_r * (self.before[at] - c) + f_i * c
        whole = self.after[at]
        h_r = self.output[at] * (c_r.tanh() + whole.tanh() - (whole - c_r).tanh()) / 2
        return h_r, c_r


def gates_of(
    lstm: nn.Module | Iterable[nn.Module],
    inputs: Float[Tensor, "batch time inputs"],
    state: State | None,
    variant: str,
) -> tuple[list[Gates], list[Tensor]]:
    """Return what is known of each layer, and its hidden states, as PyTorch computes them.

    Raises:
        ValueError: for an unknown variant, or for words, a state or an LSTM that do not fit.
    """
    if variant not in get_args(Variant):
        raise ValueError(f"variant is {variant!r}: expected one of {', '.join(map(repr, get_args(Variant)))}")
    layers, x, known, hidden = lstm_layers(lstm), inputs, [], []
    check_inputs(layers, inputs)
    for layer, (h, c) in zip(layers, initial_state(layers, inputs, state), strict=True):
        found, x = Gates.of(layer, x, h, c)
        known.append(found)
        hidden.append(x)
    return known, hidden


def recurrent(known: list[Gates], states: States) -> list[Tensor]:
    """Return the recurrent products of hidden states."""
    return [F.linear(h, layer.rec) for layer, (h, _) in zip(known, states, strict=True)]


def advance(
    known: list[Gates],
    states: States | None,
    again: list[Tensor] | None,
    at: Tensor,
    entering: Tensor | None,
    variant: Variant,
    bias_product: Tensor | bool = False,
) -> States:
    """Advance all layers by one word in each row.

    Args:
        known: the layers.
        states: relevant states before the words; None if nothing is relevant yet.
        again: recurrent products of the relevant hidden states; None if ``states`` is.
        at: the words, as indices into the batch.
        entering: projected vectors of the words if they are in focus; None if they are not.
        variant: which products are relevant.
        bias_product: whether the bias product of the words is relevant, also for each row, (rows, 1).
    """
    after: States = []
    for k, layer in enumerate(known):
        below = F.linear(after[-1][0], layer.w_in) if k else entering
        parts = [p for p in (below, None if again is None else again[k]) if p is not None]
        total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        cell = None if states is None else states[k][1]
        after.append(layer.step(total, cell, at, bias_product if k == 0 else False, variant))
    return after

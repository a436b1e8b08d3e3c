"""LSTM layers as their weights, run step by step, for the nonlinear analyses of recurrence."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

__all__ = [
    "LSTMLayer",
    "State",
    "check_decoder",
    "check_inputs",
    "initial_state",
    "lstm_layers",
    "real_steps",
    "run_layers",
    "state_gradients",
]

State = tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
"""The state before the first word: as ``nn.LSTM`` takes it, or a pair (h, c) for each layer."""


@dataclass(frozen=True)
class LSTMLayer:
    """One LSTM layer: z = W x + U h + b, cut into i, f, g, o; c' = σ(f) c + σ(i) tanh(g); h' = σ(o) tanh(c').

    Attributes:
        w_in: W, (4·hidden, inputs), in PyTorch's order i, f, g, o.
        w_rec: U, (4·hidden, hidden).
        bias: b, (4·hidden,), the sum of PyTorch's two biases; zeros if the layer has none.
    """

    w_in: Float[Tensor, "gates inputs"]
    w_rec: Float[Tensor, "gates hidden"]
    bias: Float[Tensor, " gates"]

    @property
    def hidden(self) -> int:
        """Number of dimensions of the hidden state."""
        return self.w_rec.shape[1]

    def run(
        self,
        x: Float[Tensor, "batch time inputs"],
        h: Float[Tensor, "batch hidden"],
        c: Float[Tensor, "batch hidden"],
    ) -> tuple[
        Float[Tensor, "batch time hidden"], Float[Tensor, "batch hidden"], Float[Tensor, "batch hidden"]
    ]:
        """Compute the hidden states from the state (h, c), and the state after them, with PyTorch's own kernel."""
        zeros = torch.zeros_like(self.bias)
        weights = [self.w_in, self.w_rec, self.bias, zeros]
        found, h_n, c_n = torch.lstm(x, (h[None], c[None]), weights, True, 1, 0.0, False, False, True)
        return found, h_n[0], c_n[0]


def lstm_layers(lstm: nn.Module | Iterable[nn.Module]) -> list[LSTMLayer]:
    """Return the layers of an ``nn.LSTM``, or of a stack of them (``StackedLSTM`` of lmdyn, a list, a ``ModuleList``).

    Raises:
        TypeError: if a module is not an LSTM, such as a GRU.
        ValueError: if an LSTM is bidirectional or has projections, or if the sizes of consecutive layers do not match.

    Example:
        >>> [layer.hidden for layer in lstm_layers(nn.LSTM(3, 4, num_layers=2))]
        [4, 4]
    """
    stack = getattr(lstm, "layers", lstm)
    modules = (
        [stack] if isinstance(stack, nn.Module) and not isinstance(stack, nn.ModuleList) else list(stack)
    )
    if not modules:
        raise ValueError("expected at least one LSTM layer, got none")
    layers = []
    for module in modules:
        if not isinstance(module, nn.LSTM):
            raise TypeError(
                f"expected torch.nn.LSTM or a stack of LSTMs, whose gates lmdyn reads, got {type(module).__name__}: "
                "for interactions in other models, use pairwise_shapley_interaction"
            )
        if module.bidirectional or module.proj_size:
            raise ValueError(
                f"expected an LSTM of one direction without projections, got bidirectional={module.bidirectional}, "
                f"proj_size={module.proj_size}: pass another LSTM"
            )
        for k in range(module.num_layers):
            w_in, w_rec = (getattr(module, f"weight_{kind}_l{k}") for kind in ("ih", "hh"))
            biases = [getattr(module, f"bias_{kind}_l{k}") for kind in ("ih", "hh")] if module.bias else []
            layers.append(LSTMLayer(w_in, w_rec, sum(biases, torch.zeros_like(w_rec[:, 0]))))
    for below, above in pairwise(layers):
        if above.w_in.shape[1] != below.hidden:
            raise ValueError(
                f"a layer of {below.hidden} units comes before a layer that expects {above.w_in.shape[1]} inputs: pass "
                "the layers in order"
            )
    return layers


def check_inputs(layers: list[LSTMLayer], inputs: Tensor) -> None:
    """Raise an error if the size or precision of the word vectors does not match the weights."""
    weights = layers[0].w_in
    if weights.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected an LSTM in float32 or float64, got {weights.dtype}: convert the LSTM")
    if inputs.numel() == 0 or inputs.shape[-1] != weights.shape[1] or inputs.dtype != weights.dtype:
        raise ValueError(
            f"expected at least one word vector of {weights.shape[1]} dimensions in {weights.dtype}, like the LSTM, "
            f"got {tuple(inputs.shape)} in {inputs.dtype}"
        )


def initial_state(
    layers: list[LSTMLayer], inputs: Tensor, state: State | None
) -> list[tuple[Tensor, Tensor]]:
    """Return the pair (h, c) of each layer before the first word, each (batch, hidden)."""
    batch = len(inputs)
    if state is None:
        return [(inputs.new_zeros(batch, layer.hidden),) * 2 for layer in layers]
    given: list[Any] = list(state)
    if len(given) == 2 and isinstance(given[0], Tensor):  # as in nn.LSTM: each (layers, batch, hidden)
        given = list(zip(*(part.reshape(-1, *part.shape[-2:]) for part in given), strict=True))
    pairs = [(h.reshape(-1, h.shape[-1]).detach(), c.reshape(-1, c.shape[-1]).detach()) for h, c in given]
    expected = [f"{(batch, layer.hidden)} and {(batch, layer.hidden)}" for layer in layers]
    if (got := [f"{tuple(h.shape)} and {tuple(c.shape)}" for h, c in pairs]) != expected:
        raise ValueError(f"state has h and c of {'; '.join(got)}: expected {'; '.join(expected)}, per layer")
    return pairs


def run_layers(
    layers: list[LSTMLayer], x: Float[Tensor, "batch time inputs"], state: list[tuple[Tensor, Tensor]]
) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """Return the hidden states (batch, time, hidden) of each layer, and its pair (h, c) after the last step."""
    hidden, after = [], []
    for layer, (h, c) in zip(layers, state, strict=True):
        x, h, c = layer.run(x, h, c)
        hidden.append(x)
        after.append((h, c))
    return hidden, after


def check_decoder(decoder: nn.Module, layers: list[LSTMLayer]) -> None:
    """Raise an error if the decoder is not linear or does not match the last layer's hidden size or precision."""
    size = layers[-1].hidden
    dtype = layers[-1].w_rec.dtype
    if not isinstance(decoder, nn.Linear) or decoder.in_features != size or decoder.weight.dtype != dtype:
        raise ValueError(
            f"expected a linear decoder of {size} dimensions in {dtype}, like the LSTM, got "
            f"{str(decoder).splitlines()[0]} in {next((p.dtype for p in decoder.parameters()), 'no dtype')}"
        )


def real_steps(
    mask: Bool[Tensor, "batch time"] | Int[Tensor, "batch time"] | None,
    inputs: Float[Tensor, "batch time inputs"],
) -> Bool[Tensor, "batch time"]:
    """Return the mask of the steps that hold a word; without a mask, all steps do.

    Raises:
        ValueError: if padding comes before a word.
    """
    if mask is None:
        return inputs.new_ones(inputs.shape[:2], dtype=torch.bool)
    mask = mask.bool()  # those of transformers are integers
    if (mask[:, 1:] & ~mask[:, :-1]).any():
        raise ValueError("the mask has padding before a word: pad on the right")
    return mask


def state_gradients(
    lstm: nn.Module | Iterable[nn.Module],
    decoder: nn.Linear,
    inputs: Float[Tensor, "batch time inputs"],
    labels: Int[Tensor, "batch time"],
    state: State | None = None,
    of: Literal["hidden", "cell"] = "hidden",
) -> Float[Tensor, "batch time"]:
    """Compute ‖∂E/∂h_t‖₂ of the last layer: how much the loss of the following words depends on each hidden state.

    E is the cross-entropy of the labels, in nats, summed over each row. A hidden state affects the prediction at its
    own step and, through the recurrence, all later ones; the cell state of the same step is held fixed.

    For the cell state, the value is ‖dE/dc_t‖₂, a total derivative: c_t acts through c_{t+1} = f c_t + i g, and
    through h_t = o tanh(c_t), which changes with it: dE/dc_t = o (1 − tanh² c_t) ∂E/∂h_t + f_{t+1} dE/dc_{t+1}.

    Args:
        lstm: see :func:`lstm_layers`.
        decoder: linear layer from the last layer's hidden state to logits.
        inputs: word vectors.
        labels: the word to predict after each step, -100 for none.
        state: the state before the first step, as ``nn.LSTM`` takes it, or a pair for each layer; zeros by default.
        of: ``hidden`` or ``cell``.

    Returns:
        Tensor of shape (batch, time), in nats per unit of the state.

    Raises:
        ValueError: if the size of the decoder or the shape of labels or state does not match.

    Reference: Saphra & Lopez 2020, section 4.3 and appendix C (Saphra 2021, chapter 5).

    Example:
        >>> lstm, decoder = nn.LSTM(3, 4), nn.Linear(4, 5)
        >>> norms = state_gradients(lstm, decoder, torch.randn(2, 6, 3), torch.tensor([[-100] * 5 + [1]] * 2))
        >>> norms.shape
        torch.Size([2, 6])
    """
    layers = lstm_layers(lstm)
    check_inputs(layers, inputs)
    check_decoder(decoder, layers)
    if of not in ("hidden", "cell"):
        raise ValueError(f"of must be 'hidden' or 'cell', got {of!r}")
    *lower, (h, c) = initial_state(layers, inputs, state)
    top, hidden, cells = layers[-1], [], []
    with torch.no_grad():
        below, _ = run_layers(layers[:-1], inputs, lower)
        entering = F.linear(below[-1] if below else inputs, top.w_in, top.bias)
    with torch.enable_grad():
        for z in entering.unbind(1):
            i, f, g, o = (z + F.linear(h, top.w_rec.detach())).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            c = c if c.requires_grad else c.requires_grad_()
            h = o.sigmoid() * c.tanh()
            hidden.append(h)
            cells.append(c)
        bias = None if decoder.bias is None else decoder.bias.detach()
        logits = F.linear(torch.stack(hidden, 1), decoder.weight.detach(), bias)
        error = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        gradients = torch.autograd.grad(
            error, hidden if of == "hidden" else cells, allow_unused=True, materialize_grads=True
        )
    norms: Tensor = torch.linalg.vector_norm(torch.stack(gradients, 1), dim=-1)
    return norms

"""Contextual decomposition as the publications print it, one unit at a time, and small random LSTMs to try it on.

Murdoch et al. 2018, section 3; Saphra & Lopez 2020, equation 2 and appendix A. Nothing of lmdyn is used here.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import nn


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def linearised(f, r, i, b):
    """L(r), L(i), L(b) of f(r + i + b), by the printed formula."""
    return (
        (f(r + b) - f(b) + f(r + i + b) - f(i + b)) / 2,
        (f(i + b) - f(b) + f(r + i + b) - f(r + b)) / 2,
        f(b),
    )


class Parts(NamedTuple):
    """Relevant and irrelevant hidden states, relevant and irrelevant cells: each (time, hidden), for one layer."""

    h_r: np.ndarray
    h_i: np.ndarray
    c_r: np.ndarray
    c_i: np.ndarray


def weights(module):
    """W, U and b of each layer of an ``nn.LSTM`` or a list of them, b summed over PyTorch's two biases."""
    for one in [module] if isinstance(module, nn.LSTM) else module:
        for w, u, *biases in one.all_weights:
            b = [x.detach().double().numpy() for x in biases] or [np.zeros(len(u))]
            yield w.detach().double().numpy(), u.detach().double().numpy(), sum(b)


def decompose(module, words, focus, state=None, variant="published"):
    """The parts of each layer's states for one sentence.

    Args:
        module: an ``nn.LSTM`` or a list of them.
        words: (time, inputs).
        focus: (time,) of bool.
        state: pairs of (hidden,) for each layer.
        variant: published, released or generalized.
    """
    layers = list(weights(module))
    last_focus = max((t for t, inside in enumerate(focus) if inside), default=None)
    found = [Parts([], [], [], []) for _ in layers]
    for t, word in enumerate(np.asarray(words, dtype=np.float64)):
        zero = np.zeros_like(word)
        below_r, below_i = (word, zero) if focus[t] else (zero, word)
        for k, (w, u, b) in enumerate(layers):
            n = u.shape[1]
            if t:
                h_r, h_i, c_r, c_i = (part[-1] for part in found[k])
            else:
                h_r, c_r = np.zeros(n), np.zeros(n)
                h_i, c_i = (h_r, c_r) if state is None else (np.asarray(s, np.float64) for s in state[k])
            h_r, h_i, c_r, c_i = _step(
                (w, u, b), (below_r, below_i), (h_r, h_i), (c_r, c_i), variant,
                bias_product=k == 0 and focus[t] and not (variant == "released" and t == last_focus),
            )  # fmt: skip
            for values, new in zip(found[k], (h_r, h_i, c_r, c_i), strict=True):
                values.append(new)
            below_r, below_i = h_r, h_i
    return [Parts(*(np.array(values) for values in parts)) for parts in found]


def _step(layer, below, h, c, variant, bias_product):
    w, u, b = layer
    n = u.shape[1]
    new = np.zeros((4, n))
    for unit in range(n):
        r, i = ([w[row] @ below[side] + u[row] @ h[side] for row in range(unit, 4 * n, n)] for side in (0, 1))
        bias = b[unit::n]
        i_r, i_i, i_b = linearised(sigmoid, r[0], i[0], bias[0])
        f_r, f_i, f_b = linearised(sigmoid, r[1], i[1], bias[1])
        g_r, g_i, g_b = linearised(math.tanh, r[2], i[2], bias[2])
        output = sigmoid(r[3] + i[3] + bias[3])
        c_r, c_i = c[0][unit], c[1][unit]
        relevant = i_r * (g_r + g_b) + i_b * g_r + (f_r + f_b) * c_r
        irrelevant = i_i * (g_i + g_b) + i_b * g_i + (f_i + f_b) * c_i
        interactions = i_r * g_i + i_i * g_r + f_r * c_i + f_i * c_r
        if variant == "generalized":
            relevant += interactions
        else:
            irrelevant += interactions
        if bias_product:
            relevant += i_b * g_b
        else:
            irrelevant += i_b * g_b
        tanh_r, tanh_i, _ = linearised(math.tanh, relevant, irrelevant, 0.0)
        new[:, unit] = output * tanh_r, output * tanh_i, relevant, irrelevant
    return new


def interdependence(module, words, left, right, at=None, matrix=None, **settings):
    """DI_t(A, B) of one sentence; ``matrix`` maps hidden states to what is compared."""
    a, b, ab = (decompose(module, words, sets, **settings)[-1].h_r for sets in (left, right, left | right))
    t = int(np.flatnonzero(left | right).max()) if at is None else at
    a, b, ab = (v[t] if matrix is None else matrix @ v[t] for v in (a, b, ab))
    return math.sqrt(sum((ab - (a + b)) ** 2)) / math.sqrt(sum(ab**2))


def random_lstm(*sizes, seed=0, bias=True, gain=1.0, dtype=torch.float64):
    """Single layers, from ``sizes[0]`` inputs upwards, with weights and biases large enough to bend the gates."""
    g = torch.Generator().manual_seed(seed)
    stack = nn.ModuleList(
        nn.LSTM(a, b, bias=bias, batch_first=True, dtype=dtype) for a, b in itertools.pairwise(sizes)
    )
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.copy_(gain * torch.randn(parameter.shape, generator=g, dtype=dtype))
    return stack


def as_one(stack, **settings):
    """The ``nn.LSTM`` of several layers with the same weights."""
    first = stack[0]
    one = nn.LSTM(
        first.input_size, first.hidden_size, len(stack), bias=first.bias, dtype=first.weight_ih_l0.dtype, **settings
    )  # fmt: skip
    with torch.no_grad():
        for k, layer in enumerate(stack):
            for name, parameter in layer.named_parameters():
                getattr(one, name.replace("_l0", f"_l{k}")).copy_(parameter)
    return one


def random_decoder(hidden, classes, seed=4, bias=True):
    decoder = nn.Linear(hidden, classes, bias=bias, dtype=torch.float64)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return decoder


def random_words(batch, time, dim, seed=1, dtype=torch.float64):
    return torch.randn(batch, time, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_state(stack, batch, seed=2):
    """A pair (h, c) for each layer, each (1, batch, hidden), as lmdyn's StackedLSTM takes it."""
    g = torch.Generator().manual_seed(seed)
    return tuple(
        tuple(torch.randn(1, batch, one.hidden_size, generator=g, dtype=torch.float64) for _ in "hc")
        for one in stack
    )


def of_row(state, row):
    """What ``decompose`` takes of a state."""
    return None if state is None else [[part[0, row].numpy() for part in pair] for pair in state]


def right_padded(lengths, time):
    return torch.arange(time) < torch.tensor(lengths)[:, None]

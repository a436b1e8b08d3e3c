"""LSTM layers against nn.LSTM; gradients of hidden states against differences of the loss in a loop of their own."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from lmdyn.analysis import state_gradients
from lmdyn.analysis.interdependence.lstm_layers import LSTMLayer, lstm_layers, real_steps
from lmdyn.models import StackedLSTM
from tests.analysis.interdependence import lstm_oracle as O


class TestLayers:
    @pytest.mark.parametrize(
        ("form", "bias"),
        [
            *itertools.product(("list", "ModuleList", "nn.LSTM", "mixed"), (True, False)),
            ("StackedLSTM", True),  # which always has biases
        ],
    )
    def test_weights_are_those_of_the_layers_in_order(self, form, bias):
        stack = O.random_lstm(3, 4, 4, 4, bias=bias)
        stacked = StackedLSTM(3, 4, 3).double()
        lstm = {
            "list": list(stack),
            "ModuleList": stack,
            "StackedLSTM": stacked,
            "nn.LSTM": O.as_one(stack),
            "mixed": [stack[0], O.as_one(stack[1:])],
        }[form]
        if form == "StackedLSTM":
            stacked.layers.load_state_dict(stack.state_dict())
        layers = lstm_layers(lstm)
        assert len(layers) == 3
        for layer, expected in zip(layers, O.weights(stack), strict=True):
            assert isinstance(layer, LSTMLayer)
            for got, value in zip((layer.w_in, layer.w_rec, layer.bias), expected, strict=True):
                assert got.dtype == torch.float64
                np.testing.assert_array_equal(got.detach().numpy(), value)

    @pytest.mark.parametrize(
        ("lstm", "error", "match"),
        [
            (nn.GRU(3, 4), TypeError, "got GRU"),
            (nn.LSTMCell(3, 4), TypeError, "got LSTMCell"),
            ([nn.LSTM(3, 4), nn.Dropout()], TypeError, "got Dropout"),
            (nn.LSTM(3, 4, bidirectional=True), ValueError, "one direction"),
            ([nn.LSTM(3, 4), nn.LSTM(4, 4, proj_size=2)], ValueError, "without projections"),
            (nn.ModuleList(), ValueError, "got none"),
            ([nn.LSTM(3, 4), nn.LSTM(5, 4)], ValueError, "4 units comes before a layer that expects 5"),
        ],
    )
    @pytest.mark.usefixtures("unchecked")
    def test_errors(self, lstm, error, match):
        with pytest.raises(error, match=match):
            lstm_layers(lstm)

    def test_real_steps(self):
        words, mask = torch.zeros(4, 3, 2), O.right_padded([3, 2, 1, 0], 3)
        assert torch.equal(real_steps(mask, words), mask)
        assert torch.equal(real_steps(None, words), torch.ones(4, 3, dtype=torch.bool))
        for bad in ([[0, 1, 1]], [[1, 0, 1]], [[0, 0, 1]]):
            with pytest.raises(ValueError, match="pad on the right"):
                real_steps(torch.tensor(bad * 4).bool(), words)


def loss(stack, decoder, words, labels, step=None, change=0.0, of="hidden"):
    """Σ cross-entropy of each row, ``change`` added to the last layer's state at ``step``.

    To its hidden state with the cell kept, or to its cell, with which the hidden state changes.
    """
    layers = [[torch.from_numpy(part) for part in layer] for layer in O.weights(stack)]
    h, c = ([torch.zeros(len(words), u.shape[1], dtype=torch.float64) for _, u, _ in layers] for _ in "hc")
    total = torch.zeros(len(words), dtype=torch.float64)
    for t in range(words.shape[1]):
        below = words[:, t]
        for k, (w, u, b) in enumerate(layers):
            i, f, g, o = (below @ w.T + h[k] @ u.T + b).chunk(4, 1)
            c[k] = torch.sigmoid(f) * c[k] + torch.sigmoid(i) * torch.tanh(g)
            if (t, k, of) == (step, len(layers) - 1, "cell"):
                c[k] = c[k] + change
            below = h[k] = torch.sigmoid(o) * torch.tanh(c[k])
        if (t, of) == (step, "hidden"):
            below = h[-1] = h[-1] + change
        logits = decoder(below)
        scored = labels[:, t] != -100
        chosen = logits[scored, labels[scored, t]]
        total[scored] += logits[scored].logsumexp(1) - chosen
    return total


class TestStateGradients:
    @pytest.fixture
    def labels(self):
        n = -100
        return torch.tensor([[0, 1, 2, 3, 4], [n, 2, n, n, 1], [n, 0, n, 3, n], [4, n, n, n, n], [n] * 5])

    @pytest.mark.parametrize("of", ["hidden", "cell"])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("sizes", [(3, 4), (3, 4, 4), (3, 5, 2)])
    def test_equal_differences_of_the_loss(self, sizes, bias, labels, of):
        stack, words = O.random_lstm(*sizes, bias=bias), O.random_words(5, 5, 3)
        decoder = O.random_decoder(sizes[-1], 6, bias=bias)
        found = state_gradients(stack, decoder, words, labels, of=of)
        assert found.shape == (5, 5)
        epsilon, expected = 1e-5, torch.zeros(5, 5, dtype=torch.float64)
        with torch.no_grad():
            reference, _ = O.as_one(stack, batch_first=True)(words) if sizes[1] == sizes[-1] else (None, None)
            if reference is not None:  # the loop is an LSTM
                entropies = nn.functional.cross_entropy(
                    decoder(reference).transpose(1, 2), labels, reduction="none"
                )
                torch.testing.assert_close(loss(stack, decoder, words, labels), entropies.sum(1))
            for t in range(5):
                for change in epsilon * torch.eye(sizes[-1], dtype=torch.float64):
                    up, down = (loss(stack, decoder, words, labels, t, s * change, of) for s in (1, -1))
                    expected[:, t] += ((up - down) / (2 * epsilon)) ** 2
        torch.testing.assert_close(found, expected.sqrt(), rtol=0, atol=1e-8)
        assert float(found[:2].min()) > 1e-6

    @pytest.mark.usefixtures("unchecked")
    def test_errors(self):
        words, labels = torch.zeros(2, 5, 3), torch.zeros(2, 5).long()
        with pytest.raises(ValueError, match="a linear decoder of 4 dimensions"):
            state_gradients(nn.LSTM(3, 4), nn.Linear(5, 6), words, labels)
        with pytest.raises(ValueError, match="of must be 'hidden' or 'cell'"):
            state_gradients(nn.LSTM(3, 4), nn.Linear(4, 6), words, labels, of="gate")

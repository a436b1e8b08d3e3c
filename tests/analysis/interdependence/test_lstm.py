"""LSTM layers against nn.LSTM; gradients of hidden states against differences of the loss in a loop of their own."""

import itertools

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn

from lmdyn.analysis.interdependence.lstm import LSTMLayer, lstm_layers, real_steps, state_gradients
from lmdyn.models import StackedLSTM
from tests.analysis.interdependence.lstm_oracle import (
    as_one,
    random_decoder,
    random_lstm,
    random_state,
    random_words,
    right_padded,
    weights,
)


@pytest.fixture
def unchecked(monkeypatch):
    """As users run it: nothing checks annotations before the function's own checks."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


class TestLayers:
    @pytest.mark.parametrize("bias", [True, False])
    @torch.no_grad()
    def test_run_and_cell_equal_pytorch(self, bias):
        (lstm,) = random_lstm(3, 4, bias=bias)
        (layer,) = lstm_layers(lstm)
        words, (state,) = random_words(2, 5, 3), random_state([lstm], 2)
        expected, (_, last_cell) = lstm(words, state)
        h, c = (part[0] for part in state)
        found, _, c_n = layer.run(words, h, c)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
        torch.testing.assert_close(c_n, last_cell[0], rtol=0, atol=1e-14)
        hidden = []
        for word in words.unbind(1):
            h, c = layer.cell(word @ layer.w_in.T + h @ layer.w_rec.T + layer.bias, c)
            hidden.append(h)
        torch.testing.assert_close(torch.stack(hidden, 1), expected, rtol=0, atol=1e-14)
        torch.testing.assert_close(c, last_cell[0], rtol=0, atol=1e-14)
        assert layer.hidden == 4

    @pytest.mark.parametrize(
        ("form", "bias"),
        [
            *itertools.product(("list", "ModuleList", "nn.LSTM", "mixed"), (True, False)),
            ("StackedLSTM", True),  # which always has biases
        ],
    )
    def test_weights_are_those_of_the_layers_in_order(self, form, bias):
        stack = random_lstm(3, 4, 4, 4, bias=bias)
        stacked = StackedLSTM(3, 4, 3).double()
        lstm = {
            "list": list(stack),
            "ModuleList": stack,
            "StackedLSTM": stacked,
            "nn.LSTM": as_one(stack),
            "mixed": [stack[0], as_one(stack[1:])],
        }[form]
        if form == "StackedLSTM":
            stacked.layers.load_state_dict(stack.state_dict())
        layers = lstm_layers(lstm)
        assert len(layers) == 3
        for layer, expected in zip(layers, weights(stack), strict=True):
            assert isinstance(layer, LSTMLayer)
            for got, value in zip((layer.w_in, layer.w_rec, layer.bias), expected, strict=True):
                assert got.dtype == torch.float64
                np.testing.assert_array_equal(got.detach().numpy(), value)

    def test_layers_of_different_sizes(self):
        layers = lstm_layers(random_lstm(3, 5, 2))
        assert [(layer.w_in.shape[1], layer.hidden) for layer in layers] == [(3, 5), (5, 2)]

    @pytest.mark.parametrize(
        ("lstm", "error", "match"),
        [
            (nn.GRU(3, 4), TypeError, "got GRU"),
            (nn.RNN(3, 4), TypeError, "got RNN"),
            ([nn.LSTM(3, 4), nn.Dropout()], TypeError, "got Dropout"),
            (nn.LSTM(3, 4, bidirectional=True), ValueError, "one direction"),
            ([nn.LSTM(3, 4), nn.LSTM(4, 4, proj_size=2)], ValueError, "without projections"),
            (nn.ModuleList(), ValueError, "got none"),
            ([nn.LSTM(3, 4), nn.LSTM(5, 4)], ValueError, "4 units is followed by one that expects 5"),
        ],
    )
    @pytest.mark.usefixtures("unchecked")
    def test_errors(self, lstm, error, match):
        with pytest.raises(error, match=match):
            lstm_layers(lstm)

    def test_real_steps(self):
        words, mask = torch.zeros(4, 3, 2), right_padded([3, 2, 1, 0], 3)
        assert torch.equal(real_steps(mask, words), mask)
        assert torch.equal(real_steps(None, words), torch.ones(4, 3, dtype=torch.bool))
        for bad in ([[0, 1, 1]], [[1, 0, 1]], [[0, 0, 1]]):
            with pytest.raises(ValueError, match="pad on the right"):
                real_steps(torch.tensor(bad * 4).bool(), words)

    @pytest.mark.usefixtures("unchecked")
    def test_real_steps_of_another_shape(self):
        with pytest.raises(ValueError, match=r"mask of \(4, 3\) \(batch, time\), got \(4, 2\)"):
            real_steps(torch.ones(4, 2).bool(), torch.zeros(4, 3, 2))


def loss(stack, decoder, words, labels, step=None, change=0.0, of="hidden"):
    """Σ cross-entropy of each row, ``change`` added to the last layer's state at ``step``.

    To its hidden state with the cell kept, or to its cell, with which the hidden state changes.
    """
    layers = [[torch.from_numpy(part) for part in layer] for layer in weights(stack)]
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


def run_by_hand(stack, decoder, words, labels):
    """For each step ∂E/∂h_t with c_t held, c_t, the next step's forget gate and the output gate, of the last layer.

    The cell that goes on is a copy without history, so that nothing reaches h_t but through h_t itself.
    """
    found = []
    for step in range(words.shape[1]):
        layers = [[torch.from_numpy(part) for part in layer] for layer in weights(stack)]
        h, c = (
            [torch.zeros(len(words), u.shape[1], dtype=torch.float64) for _, u, _ in layers] for _ in "hc"
        )
        total, kept, forget_next = (
            torch.zeros((), dtype=torch.float64),
            None,
            torch.zeros(1, dtype=torch.float64),
        )
        for t in range(words.shape[1]):
            below = words[:, t]
            for k, (w, u, b) in enumerate(layers):
                i, f, g, o = (below @ w.T + h[k] @ u.T + b).chunk(4, 1)
                c[k] = torch.sigmoid(f) * c[k] + torch.sigmoid(i) * torch.tanh(g)
                below = h[k] = torch.sigmoid(o) * torch.tanh(c[k])
            if t == step:
                below = h[-1] = h[-1].detach().requires_grad_()
                c = [cell.detach() for cell in c]
                kept = (below, c[-1], torch.sigmoid(o).detach())
            if t == step + 1:
                forget_next = torch.sigmoid(f).detach()
            total = total + nn.functional.cross_entropy(decoder(below), labels[:, t], reduction="sum")
        hidden, cell, output = kept
        (gradient,) = torch.autograd.grad(total, hidden)
        found.append((gradient, cell, forget_next, output))
    return found


class TestStateGradients:
    @pytest.fixture
    def labels(self):
        return torch.tensor(
            [
                [0, 1, 2, 3, 4],
                [-100, 2, -100, -100, 1],
                [-100, 0, -100, 3, -100],
                [4, -100, -100, -100, -100],
                [-100] * 5,
            ]
        )

    @pytest.mark.parametrize("of", ["hidden", "cell"])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("sizes", [(3, 4), (3, 4, 4), (3, 5, 2)])
    def test_equal_differences_of_the_loss(self, sizes, bias, labels, of):
        stack, words = random_lstm(*sizes, bias=bias), random_words(5, 5, 3)
        decoder = random_decoder(sizes[-1], 6, bias=bias)
        found = state_gradients(stack, decoder, words, labels, of=of)
        assert found.shape == (5, 5)
        epsilon, expected = 1e-5, torch.zeros(5, 5, dtype=torch.float64)
        with torch.no_grad():
            reference, _ = as_one(stack, batch_first=True)(words) if sizes[1] == sizes[-1] else (None, None)
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

    @pytest.mark.parametrize("sizes", [(3, 4), (3, 4, 4)])
    def test_the_cell_by_the_equations_of_the_lstm(self, sizes, labels):
        """dE/dc_t = o (1 − tanh² c_t) ∂E/∂h_t + f_{t+1} dE/dc_{t+1}, backwards from the last step.

        ∂E/∂h_t, with its vector and not its norm, by autograd with c_t cut off from it.
        """
        stack, words = random_lstm(*sizes), random_words(5, 5, 3)
        decoder = random_decoder(sizes[-1], 6)
        steps = run_by_hand(stack, decoder, words, labels)
        expected, later = [], torch.zeros(5, sizes[-1], dtype=torch.float64)
        for hidden, cell, forget_next, output in reversed(steps):
            later = output * (1 - cell.tanh() ** 2) * hidden + forget_next * later
            expected.append(later.norm(dim=1))
        found = state_gradients(stack, decoder, words, labels, of="cell")
        torch.testing.assert_close(found, torch.stack(expected[::-1], 1), rtol=0, atol=1e-12)
        hidden = state_gradients(stack, decoder, words, labels)
        norms = torch.stack([h.norm(dim=1) for h, *_ in steps], 1)
        torch.testing.assert_close(hidden, norms, rtol=0, atol=1e-12)
        assert float((found - hidden).abs().max()) > 0.01

    def test_after_the_last_label_there_is_none(self, labels):
        stack, words = random_lstm(3, 4, 4), random_words(5, 5, 3)
        found = state_gradients(stack, random_decoder(4, 6), words, labels)
        last = torch.tensor([4, 4, 3, 0, -1])  # of no label in the last row, where all are 0
        before = torch.arange(5) <= last[:, None]
        assert torch.equal(found != 0, before)

    def test_a_single_label_through_a_single_step(self):
        """By hand: without recurrence ∂E/∂h = Wᵀ (softmax(W h + b) - onehot), at the label's own step alone."""
        (lstm,), words = random_lstm(3, 4), random_words(2, 4, 3)
        decoder = random_decoder(4, 6)
        with torch.no_grad():
            lstm.weight_hh_l0.zero_()
            hidden, _ = lstm(words)
            error = decoder(hidden[:, 2]).softmax(1) - nn.functional.one_hot(torch.tensor([5, 0]), 6)
            expected = (error @ decoder.weight).norm(dim=1)
        labels = torch.full((2, 4), -100)
        labels[:, 2] = torch.tensor([5, 0])
        found = state_gradients(lstm, decoder, words, labels)
        torch.testing.assert_close(found[:, 2], expected, rtol=0, atol=1e-13)
        assert not found[:, [0, 1, 3]].any()

    @pytest.mark.parametrize("form", ["nn.LSTM in training", "StackedLSTM", "under no_grad", "frozen"])
    def test_forms_are_one_and_no_gradient_is_left(self, form, labels):
        stack, words = random_lstm(3, 4, 4), random_words(5, 5, 3).requires_grad_()
        decoder = random_decoder(4, 6)
        expected = state_gradients(stack, decoder, words, labels)
        lstm = stack
        if form == "nn.LSTM in training":
            lstm = as_one(stack, dropout=0.5).train()
        elif form == "StackedLSTM":
            lstm = StackedLSTM(3, 4, 2).double()
            lstm.layers.load_state_dict(stack.state_dict())
        elif form == "frozen":
            stack.requires_grad_(False)
        with torch.set_grad_enabled(form != "under no_grad"):
            found = state_gradients(lstm, decoder, words, labels)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
        assert not found.requires_grad
        for tensor in (*lstm.parameters(), *decoder.parameters(), words):
            assert tensor.grad is None

    @pytest.mark.usefixtures("unchecked")
    def test_errors(self):
        with pytest.raises(ValueError, match="a linear decoder of 4 dimensions"):
            state_gradients(nn.LSTM(3, 4), nn.Linear(5, 6), torch.zeros(2, 5, 3), torch.zeros(2, 5).long())
        with pytest.raises(ValueError, match=r"expected labels of \(2, 5\) .*, got \(2, 4\)"):
            state_gradients(nn.LSTM(3, 4), nn.Linear(4, 6), torch.zeros(2, 5, 3), torch.zeros(2, 4).long())

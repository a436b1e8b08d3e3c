"""Contextual decomposition: a naive implementation as oracle, Shapley values by their definition."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from lmdyn.analysis import contextual_decomposition
from tests.analysis.interdependence import lstm_oracle as O

VARIANTS = ("published", "released", "generalized")
PARTS = ("relevant", "irrelevant", "relevant_cell", "irrelevant_cell")


def random_focus(*shape, seed=3):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.5


def differences(a, b):
    """Largest difference over all layers, for each kind of part."""
    return [
        max(float((x - y).abs().max()) for x, y in zip(getattr(a, part), getattr(b, part), strict=True))
        for part in PARTS
    ]


class TestNaive:
    @pytest.mark.parametrize("carried", [False, True])
    @pytest.mark.parametrize("variant", VARIANTS)
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("sizes", [(3, 4), (3, 4, 4), (3, 4, 4, 4), (3, 5, 2)])
    def test_equals_the_naive_implementation(self, sizes, bias, variant, carried):
        lengths, time = (5, 3, 1), 5
        stack = O.random_lstm(*sizes, bias=bias)
        words = O.random_words(3, time, sizes[0])
        state = O.random_state(stack, 3) if carried else None
        mask = O.right_padded(lengths, time)
        focus = random_focus(4, 3, time) & mask
        focus[0], focus[1] = False, mask
        found = contextual_decomposition(stack, words, focus, state, mask=mask, variant=variant)
        for m, row in itertools.product(range(4), range(3)):
            n = lengths[row]
            expected = O.decompose(stack, words[row, :n], focus[m, row, :n], O.of_row(state, row), variant)
            for k, parts in enumerate(expected):
                for name, values in zip(PARTS, parts, strict=True):
                    got = getattr(found, name)[k][m, row]
                    np.testing.assert_allclose(got[:n].numpy(), values, rtol=0, atol=1e-12, err_msg=name)
                    assert not got[n:].any()


class TestTheory:
    @pytest.mark.parametrize("variant", VARIANTS)
    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
    @torch.no_grad()
    def test_parts_add_up_to_the_states_of_pytorch(self, dtype, tolerance, variant):
        stack = O.random_lstm(6, 16, 16, 16, gain=0.5, dtype=dtype)
        words, focus = O.random_words(4, 12, 6, dtype=dtype), random_focus(3, 4, 12)
        found = contextual_decomposition(stack, words, focus, variant=variant)
        assert 0 < float(found.completeness) < tolerance  # rounding is there
        whole = [h_r + h_i for h_r, h_i in zip(found.relevant, found.irrelevant, strict=True)]
        cells = [c_r + c_i for c_r, c_i in zip(found.relevant_cell, found.irrelevant_cell, strict=True)]
        hidden, errors = words, []
        for k, layer in enumerate(stack):
            hidden, _ = layer(hidden)
            errors.append(float((whole[k] - hidden).abs().max()))
            assert float(whole[k].abs().max()) > 0.5
        top, (h, c) = O.as_one(stack, batch_first=True)(words)
        for got, expected in [(whole[-1], top), *((whole[k][:, :, -1], h[k]) for k in range(3))]:
            errors.append(float((got - expected).abs().max()))
        errors += [float((cells[k][:, :, -1] - c[k]).abs().max()) for k in range(3)]
        assert max(errors) < tolerance
        assert float(found.completeness) == pytest.approx(max(errors[:3]), abs=tolerance / 10)

    @pytest.mark.parametrize("gate", ["i", "f", "g", "tanh of the cell"])
    def test_the_parts_of_a_gate_are_shapley_values(self, gate):
        """The average over both orders in which r and i join the bias, in LSTMs whose other gates are constant.

        Units do not see each other. The first word, in focus, moves the candidate alone; at the second the word is
        irrelevant and the hidden state relevant, and both move ``gate`` alone.
        """
        units, z = 50, {"i": 0, "f": 1, "g": 2, "tanh of the cell": 2}[gate]
        g = torch.Generator().manual_seed(0)
        w_first, w, u, *b = torch.randn(7, units, generator=g, dtype=torch.float64)
        lstm = nn.LSTM(2, units, dtype=torch.float64)
        with torch.no_grad():
            for parameter in lstm.parameters():
                parameter.zero_()
            lstm.weight_ih_l0.view(4, units, 2)[2, :, 0] = w_first
            lstm.weight_ih_l0.view(4, units, 2)[z, :, 1] = w
            lstm.weight_hh_l0.view(4, units, units)[z] = u.diag()
            lstm.bias_ih_l0.copy_(torch.cat(b))
        focus = torch.tensor([[True, False]])
        found = contextual_decomposition(lstm, torch.eye(2, dtype=torch.float64)[None], focus)
        h_r, h_i, c_r, c_i = (getattr(found, name)[0][0] for name in PARTS)
        assert float(h_i[0].abs().max()) < 1e-15
        i_b, f_b, g_b, o = b[0].sigmoid(), b[1].sigmoid(), b[2].tanh(), b[3].sigmoid()
        r, i, bias, f = u * h_r[0], w, b[z], torch.sigmoid
        if gate == "i":
            got = (c_r[1] - f_b * c_r[0]) / g_b, c_i[1] / g_b - i_b
        elif gate == "f":
            got = c_r[1] / c_r[0] - f_b, (c_i[1] - i_b * g_b) / c_r[0]
        elif gate == "g":
            got, f = ((c_r[1] - f_b * c_r[0]) / i_b, c_i[1] / i_b - g_b), torch.tanh
        else:
            got, f = (h_r[1] / o, h_i[1] / o), torch.tanh
            r, i, bias = c_r[1], c_i[1], torch.zeros(units)
        expected = {"r": torch.zeros(units), "i": torch.zeros(units)}
        for order in itertools.permutations(expected):
            total = bias
            for name in order:
                more = total + {"r": r, "i": i}[name]
                expected[name] = expected[name] + (f(more) - f(total)) / 2
                total = more
        for part, name in zip(got, "ri", strict=True):
            torch.testing.assert_close(part, expected[name], rtol=0, atol=1e-12)
        # one order alone is not it
        assert float((expected["r"] - (f(r + bias) - f(bias))).abs().max()) > 1e-2


class TestForms:
    def test_focus_on_padding_is_no_word(self):
        stack, words, mask = O.random_lstm(3, 4, 4), O.random_words(3, 6, 3), O.right_padded((6, 4, 2), 6)
        focus = torch.ones(3, 6, dtype=torch.bool)  # everything
        found = contextual_decomposition(stack, words, focus & mask, mask=mask, variant="released")
        again = contextual_decomposition(stack, words, focus, mask=mask, variant="released")
        assert max(differences(found, again)) == 0

    @pytest.mark.parametrize("shape", [(2, 5), (3, 2, 5)])
    def test_probabilities_are_of_the_relevant_part_without_the_decoders_bias(self, shape):
        stack, words, focus = O.random_lstm(3, 4, 4), O.random_words(2, 5, 3), random_focus(*shape)
        decoder = nn.Linear(4, 7).double()
        found = contextual_decomposition(stack, words, focus)
        logits, probabilities = found.logits(decoder), found.probabilities(decoder)
        assert logits.shape == probabilities.shape == (*shape, 7)
        expected = found.relevant[-1].numpy() @ decoder.weight.detach().numpy().T
        np.testing.assert_allclose(logits.numpy(), expected, rtol=0, atol=1e-13)
        powers = np.exp(expected)
        np.testing.assert_allclose(
            probabilities.numpy(), powers / powers.sum(-1, keepdims=True), rtol=0, atol=1e-13
        )
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(shape, dtype=torch.float64))
        with torch.no_grad():
            decoder.bias += 10 * torch.arange(7)
        assert torch.equal(found.probabilities(decoder), probabilities)

"""Contextual decomposition: a naive implementation, an LSTM computed by hand, Shapley values by their definition."""

import itertools
import math

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn

from lmdyn.analysis.interdependence.decomposition import contextual_decomposition
from lmdyn.models import StackedLSTM
from tests.analysis.interdependence.lstm_oracle import (
    as_one,
    decompose,
    of_row,
    random_decoder,
    random_lstm,
    random_state,
    random_words,
    right_padded,
)

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


@pytest.fixture
def unchecked(monkeypatch):
    """As users run it: nothing checks annotations before the function's own checks."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


class TestNaive:
    @pytest.mark.parametrize("carried", [False, True])
    @pytest.mark.parametrize("variant", VARIANTS)
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("sizes", [(3, 4), (3, 4, 4), (3, 4, 4, 4), (3, 5, 2)])
    def test_equals_the_naive_implementation(self, sizes, bias, variant, carried):
        lengths, time = (5, 3, 1), 5
        stack = random_lstm(*sizes, bias=bias)
        words = random_words(3, time, sizes[0])
        state = random_state(stack, 3) if carried else None
        mask = right_padded(lengths, time)
        focus = random_focus(4, 3, time) & mask
        focus[0], focus[1] = False, mask
        found = contextual_decomposition(stack, words, focus, state, mask=mask, variant=variant)
        for m, row in itertools.product(range(4), range(3)):
            n = lengths[row]
            expected = decompose(stack, words[row, :n], focus[m, row, :n], of_row(state, row), variant)
            for k, parts in enumerate(expected):
                for name, values in zip(PARTS, parts, strict=True):
                    got = getattr(found, name)[k][m, row]
                    np.testing.assert_allclose(got[:n].numpy(), values, rtol=0, atol=1e-12, err_msg=name)
                    assert not got[n:].any()

    def test_the_axis_of_masks_is_one_call_each(self):
        stack, words, focus = random_lstm(3, 4, 4), random_words(2, 5, 3), random_focus(3, 2, 5)
        several = contextual_decomposition(stack, words, focus)
        for m in range(3):
            one = contextual_decomposition(stack, words, focus[m])
            for name, k in itertools.product(PARTS, range(2)):
                assert getattr(one, name)[k].shape == (2, 5, 4)
                torch.testing.assert_close(
                    getattr(several, name)[k][m], getattr(one, name)[k], rtol=0, atol=1e-14
                )
        assert min(differences(one, contextual_decomposition(stack, words, focus[0]))) > 1e-2


class TestByHand:
    """Words 1 and -0.5; z = (1, -1, 2, 0.5) x + (0.5, 1, -1, 0) h + (0.1, 1, -0.3, 0.2) for i, f, g, o."""

    @pytest.fixture
    def found(self):
        lstm = nn.LSTM(1, 1, dtype=torch.float64)
        with torch.no_grad():
            for name, gates in {
                "weight_ih_l0": (1, -1, 2, 0.5),
                "weight_hh_l0": (0.5, 1, -1, 0),
                "bias_ih_l0": (0.3, 0.5, -0.3, 0),
                "bias_hh_l0": (-0.2, 0.5, 0, 0.2),
            }.items():
                parameter = getattr(lstm, name)
                parameter.copy_(torch.tensor(gates, dtype=torch.float64).view_as(parameter))
        words = torch.tensor([[[1.0], [-0.5]]], dtype=torch.float64)
        focus = torch.eye(2, dtype=torch.bool)[:, None]

        def parts(variant):
            found = contextual_decomposition(lstm, words, focus, variant=variant)
            return {name: getattr(found, name)[0][:, 0, :, 0].tolist() for name in PARTS}

        return parts

    def test_first_word_in_focus(self, found):
        sigma, tanh = (lambda x: 1 / (1 + math.exp(-x))), math.tanh
        i_b, f_b, g_b = sigma(0.1), sigma(1), tanh(-0.3)  # 0.5250, 0.7311, -0.2913
        # first step: r = (1, -1, 2, 0.5), nothing irrelevant, so that L(r) = f(r + b) - f(b)
        i_r, g_r = sigma(1.1) - i_b, tanh(1.7) - g_b  # 0.2253, 1.2267
        c1 = i_r * (g_r + g_b) + i_b * g_r + i_b * g_b  # 0.7018: σ(1.1) tanh(1.7)
        h1 = sigma(0.7) * tanh(c1)  # 0.4046
        # second step: r = (0.5, 1, -1, 0) h1 and, of the word -0.5, i = (-0.5, 0.5, -1, -0.25)
        i_r = (sigma(0.5 * h1 + 0.1) - i_b + sigma(0.5 * h1 - 0.4) - sigma(-0.4)) / 2  # 0.0497
        i_i = (sigma(-0.4) - i_b + sigma(0.5 * h1 - 0.4) - sigma(0.5 * h1 + 0.1)) / 2  # -0.1241
        f_r = (sigma(h1 + 1) - f_b + sigma(h1 + 1.5) - sigma(1.5)) / 2  # 0.0621
        f_i = (sigma(1.5) - f_b + sigma(h1 + 1.5) - sigma(h1 + 1)) / 2  # 0.0762
        g_r = (tanh(-h1 - 0.3) - g_b + tanh(-h1 - 1.3) - tanh(-1.3)) / 2  # -0.1944
        g_i = (tanh(-1.3) - g_b + tanh(-h1 - 1.3) - tanh(-h1 - 0.3)) / 2  # -0.4497
        c_r = i_r * (g_r + g_b) + i_b * g_r + (f_r + f_b) * c1  # 0.4302
        own = i_i * (g_i + g_b) + i_b * g_i + i_b * g_b  # -0.2971: the second word's own
        mixed = i_r * g_i + i_i * g_r + f_i * c1  # 0.0559
        for variant in ("published", "generalized"):
            relevant, irrelevant = (c_r, own + mixed) if variant == "published" else (c_r + mixed, own)
            assert relevant + irrelevant == pytest.approx(
                sigma(h1 + 1.5) * c1 + sigma(0.5 * h1 - 0.4) * tanh(-h1 - 1.3)
            )
            h_r = (
                sigma(-0.05) * (tanh(relevant) + tanh(relevant + irrelevant) - tanh(irrelevant)) / 2
            )  # 0.2020
            h_i = (
                sigma(-0.05) * (tanh(irrelevant) + tanh(relevant + irrelevant) - tanh(relevant)) / 2
            )  # -0.1110
            got = found(variant)
            assert got["relevant_cell"][0] == pytest.approx([c1, relevant], abs=1e-14)
            assert got["irrelevant_cell"][0] == pytest.approx([0, irrelevant], abs=1e-14)
            assert got["relevant"][0] == pytest.approx([h1, h_r], abs=1e-14)
            assert got["irrelevant"][0] == pytest.approx([0, h_i], abs=1e-14)
        # the word is the last in focus: released code leaves i_b g_b = -0.1529 out of the first step
        got = found("released")
        assert got["relevant_cell"][0][0] == pytest.approx(c1 - i_b * g_b, abs=1e-14)
        assert got["irrelevant_cell"][0][0] == pytest.approx(i_b * g_b, abs=1e-14)

    def test_second_word_in_focus(self, found):
        sigma, tanh = (lambda x: 1 / (1 + math.exp(-x))), math.tanh
        i_b, g_b = sigma(0.1), tanh(-0.3)
        c1 = sigma(1.1) * tanh(1.7)  # 0.7018, all of it irrelevant
        h1 = sigma(0.7) * tanh(c1)  # 0.4046
        # second step: r = (-0.5, 0.5, -1, -0.25) and i = (0.5, 1, -1, 0) h1; there is no c_r to forget
        i_r = (sigma(-0.4) - i_b + sigma(0.5 * h1 - 0.4) - sigma(0.5 * h1 + 0.1)) / 2  # -0.1241
        g_r = (tanh(-1.3) - g_b + tanh(-h1 - 1.3) - tanh(-h1 - 0.3)) / 2  # -0.4497
        c_r = i_r * (g_r + g_b) + i_b * g_r  # -0.1442
        whole = sigma(h1 + 1.5) * c1 + sigma(0.5 * h1 - 0.4) * tanh(-h1 - 1.3)  # 0.1890
        for variant, relevant in (("published", c_r + i_b * g_b), ("released", c_r)):
            got = found(variant)
            h_r = (
                sigma(-0.05) * (tanh(relevant) + tanh(whole) - tanh(whole - relevant)) / 2
            )  # -0.1348, -0.0677
            assert got["relevant_cell"][1] == pytest.approx([0, relevant], abs=1e-14)
            assert got["irrelevant_cell"][1] == pytest.approx([c1, whole - relevant], abs=1e-14)
            assert got["relevant"][1] == pytest.approx([0, h_r], abs=1e-14)
            assert got["irrelevant"][1] == pytest.approx([h1, sigma(-0.05) * tanh(whole) - h_r], abs=1e-14)


class TestTheory:
    @pytest.mark.parametrize("variant", VARIANTS)
    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
    @torch.no_grad()
    def test_parts_add_up_to_the_states_of_pytorch(self, dtype, tolerance, variant):
        stack = random_lstm(6, 16, 16, 16, gain=0.5, dtype=dtype)
        words, focus = random_words(4, 12, 6, dtype=dtype), random_focus(3, 4, 12)
        found = contextual_decomposition(stack, words, focus, variant=variant)
        assert 0 < float(found.completeness) < tolerance  # rounding is there
        whole = [h_r + h_i for h_r, h_i in zip(found.relevant, found.irrelevant, strict=True)]
        cells = [c_r + c_i for c_r, c_i in zip(found.relevant_cell, found.irrelevant_cell, strict=True)]
        hidden, errors = words, []
        for k, layer in enumerate(stack):
            hidden, _ = layer(hidden)
            errors.append(float((whole[k] - hidden).abs().max()))
            assert float(whole[k].abs().max()) > 0.5
        top, (h, c) = as_one(stack, batch_first=True)(words)
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
        assert not h_i[0].any()
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
        assert (
            float((expected["r"] - (f(r + bias) - f(bias))).abs().max()) > 1e-2
        )  # one order alone is not it

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_no_focus_leaves_nothing_relevant(self, variant):
        stack, words = random_lstm(3, 4, 4), random_words(2, 5, 3)
        state, focus = random_state(stack, 2), torch.zeros(2, 5, dtype=torch.bool)
        found = contextual_decomposition(stack, words, focus, state, variant=variant)
        for part in (*found.relevant, *found.relevant_cell):
            assert not part.any()
        focus[1, 3] = True
        found = contextual_decomposition(stack, words, focus, state, variant=variant)
        for part in (*found.relevant, *found.relevant_cell):  # from the first word in focus on
            assert not part[0].any()
            assert not part[1, :3].any()
            assert part[1, 3:].all()

    @pytest.mark.parametrize("variant", ["published", "generalized"])
    def test_full_focus_leaves_the_bias_products_above_the_first_layer(self, variant):
        """With i = 0 all of L(i) are 0: the irrelevant cell is c' = f_b c + i_b g_b above, 0 in the first layer.

        Above, the first step has this alone; a layer without biases has g_b = 0, so that nothing is irrelevant.
        """
        words, focus = random_words(2, 5, 3), torch.ones(2, 5, dtype=torch.bool)
        for bias in (True, False):
            stack = random_lstm(3, 4, 4, bias=bias)
            found = contextual_decomposition(stack, words, focus, variant=variant)
            with torch.no_grad():
                top, (_, cells) = as_one(stack, batch_first=True)(words)
            for part in (found.irrelevant[0], found.irrelevant_cell[0]):
                assert float(part.abs().max()) < 1e-15
            torch.testing.assert_close(found.relevant_cell[0][:, -1], cells[0], rtol=0, atol=1e-13)
            if bias:
                b_i, _, b_g, _ = (stack[1].bias_ih_l0 + stack[1].bias_hh_l0).detach().chunk(4)
                product = (b_i.sigmoid() * b_g.tanh()).expand(2, 4)
                torch.testing.assert_close(found.irrelevant_cell[1][:, 0], product, rtol=0, atol=1e-13)
                assert float(found.irrelevant_cell[1].abs().min()) > 1e-4
            else:
                assert float(found.irrelevant_cell[1].abs().max()) < 1e-15
                torch.testing.assert_close(found.relevant[1], top, rtol=0, atol=1e-13)

    def test_released_leaves_out_the_bias_product_of_the_last_word_in_focus(self):
        """Of the relevant part this is all, and from this word on."""
        (lstm,), words = random_lstm(3, 4), random_words(3, 6, 3)
        focus = torch.tensor([[1, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]).bool()
        published, released = (contextual_decomposition(lstm, words, focus, variant=v) for v in VARIANTS[:2])
        b_i, _, b_g, _ = (lstm.bias_ih_l0 + lstm.bias_hh_l0).detach().chunk(4)
        difference = published.relevant_cell[0] - released.relevant_cell[0]
        for row, last in enumerate((3, 0, 5)):
            assert not difference[row, :last].any()
            torch.testing.assert_close(difference[row, last], b_i.sigmoid() * b_g.tanh())

    @pytest.mark.parametrize(("sizes", "bias"), [((3, 4), True), ((3, 4, 4), False)])
    def test_generalized_is_the_complement_of_published(self, sizes, bias):
        """What is irrelevant once interactions are relevant is what the other words contribute alone.

        From a zero state; above the first layer without biases, whose products are never relevant there.
        """
        stack, words, focus = random_lstm(*sizes, bias=bias), random_words(2, 6, 3), random_focus(2, 6)
        published = contextual_decomposition(stack, words, focus)
        generalized = contextual_decomposition(stack, words, ~focus, variant="generalized")
        for a, b in (("relevant", "irrelevant"), ("relevant_cell", "irrelevant_cell")):
            for k in range(len(stack)):
                torch.testing.assert_close(
                    getattr(published, a)[k], getattr(generalized, b)[k], rtol=0, atol=1e-13
                )
        swapped = contextual_decomposition(stack, words, ~focus)  # interactions belong to neither
        assert float((published.relevant[0] - swapped.irrelevant[0]).abs().max()) > 1e-2

    def test_what_comes_later_changes_nothing(self):
        stack, words, focus = random_lstm(3, 4, 4), random_words(2, 6, 3), random_focus(2, 6)
        changed = words.clone()
        changed[:, 4:] += 1
        later = focus.clone()
        later[:, 4:] ^= True
        before = contextual_decomposition(stack, words, focus)
        after = contextual_decomposition(stack, changed, later)
        for name, k in itertools.product(PARTS, range(2)):
            a, b = getattr(before, name)[k], getattr(after, name)[k]
            assert torch.equal(a[:, :4], b[:, :4])
            assert float((a - b)[:, 4:].abs().min()) > 1e-5


class TestForms:
    @pytest.mark.parametrize(
        "form", ["StackedLSTM", "list", "tuple", "generator", "time first", "batch first"]
    )
    def test_all_forms_of_a_stack_are_one(self, form):
        stack, words, focus = random_lstm(3, 4, 4), random_words(2, 5, 3), random_focus(2, 5)
        stacked = StackedLSTM(3, 4, num_layers=2).double()
        stacked.layers.load_state_dict(stack.state_dict())
        lstm = {
            "StackedLSTM": stacked,
            "list": list(stack),
            "tuple": tuple(stack),
            "generator": (layer for layer in stack),
            "time first": as_one(stack),
            "batch first": as_one(stack, batch_first=True),
        }[form]
        state = random_state(stack, 2)
        expected = contextual_decomposition(stack, words, focus, state)
        got = contextual_decomposition(lstm, words, focus, state)
        assert max(differences(got, expected)) < 1e-14
        assert min(differences(contextual_decomposition(stack, words, focus), expected)) > 1e-2

    @pytest.mark.parametrize("layers", [1, 2, 3])
    def test_all_forms_of_a_state_are_one(self, layers):
        stack, words, focus = random_lstm(3, *[4] * layers), random_words(3, 5, 3), random_focus(3, 5)
        state = random_state(stack, 3)
        expected = contextual_decomposition(stack, words, focus, state)
        as_lstm = tuple(
            torch.cat(part) for part in zip(*state, strict=True)
        )  # (layers, batch, hidden) of each
        flat = [(h[0], c[0]) for h, c in state]
        for form in (as_lstm, list(state), flat, (pair for pair in state)):
            assert max(differences(contextual_decomposition(stack, words, focus, form), expected)) == 0
        one = as_one(stack, batch_first=True)
        whole = expected.relevant[-1] + expected.irrelevant[-1]
        torch.testing.assert_close(whole, one(words, as_lstm)[0], rtol=0, atol=1e-13)
        _, carried = one(words[:, :2], as_lstm)  # what nn.LSTM answers can be handed on
        rest = contextual_decomposition(one, words[:, 2:], focus[:, 2:], carried)
        torch.testing.assert_close(rest.relevant[-1] + rest.irrelevant[-1], whole[:, 2:], rtol=0, atol=1e-13)

    @pytest.mark.parametrize("kind", ["nn.LSTM", "StackedLSTM"])
    def test_dropout_of_training_is_not_applied(self, kind):
        words, focus = random_words(2, 5, 3), random_focus(2, 5)
        if kind == "nn.LSTM":
            lstm = nn.LSTM(3, 4, 2, dropout=0.5, dtype=torch.float64)
        else:
            lstm = StackedLSTM(3, 4, 2, dropout=0.5).double()
        training = contextual_decomposition(lstm.train(), words, focus)
        assert lstm.training
        assert max(differences(contextual_decomposition(lstm.eval(), words, focus), training)) == 0

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_padding_is_zero_and_without_influence(self, variant):
        stack, words, mask = random_lstm(3, 4, 4), random_words(3, 6, 3), right_padded((6, 4, 0), 6)
        focus = random_focus(2, 3, 6) & mask
        found = contextual_decomposition(stack, words, focus, mask=mask, variant=variant)
        for part in (part for name in PARTS for part in getattr(found, name)):
            assert not part[:, ~mask].any()
        other = torch.where(mask[..., None], words, 5.0)
        again = contextual_decomposition(stack, other, focus, mask=mask, variant=variant)
        assert max(differences(found, again)) == 0
        unmasked = contextual_decomposition(stack, words, focus, variant=variant)
        assert min(differences(found, unmasked)) > 1e-2

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_focus_on_padding_is_no_word(self, variant):
        stack, words, mask = random_lstm(3, 4, 4), random_words(3, 6, 3), right_padded((6, 4, 2), 6)
        focus = torch.ones(3, 6, dtype=torch.bool)  # everything
        found = contextual_decomposition(stack, words, focus & mask, mask=mask, variant=variant)
        again = contextual_decomposition(stack, words, focus, mask=mask, variant=variant)
        assert max(differences(found, again)) == 0

    def test_nothing_has_gradients_and_none_are_touched(self):
        stack, focus = random_lstm(3, 4, 4), random_focus(2, 5)
        words = random_words(2, 5, 3).requires_grad_()
        decoder = random_decoder(4, 7)
        state = tuple((h.requires_grad_(), c.requires_grad_()) for h, c in random_state(stack, 2))
        with torch.enable_grad():
            found = contextual_decomposition(stack, words, focus, state)
            tensors = [part for name in PARTS for part in getattr(found, name)]
            tensors += [found.completeness, found.logits(decoder), found.probabilities(decoder)]
        assert not any(tensor.requires_grad for tensor in tensors)
        assert all(parameter.requires_grad and parameter.grad is None for parameter in stack.parameters())

    @pytest.mark.parametrize("shape", [(2, 5), (3, 2, 5)])
    def test_probabilities_are_of_the_relevant_part_without_the_decoders_bias(self, shape):
        stack, words, focus = random_lstm(3, 4, 4), random_words(2, 5, 3), random_focus(*shape)
        decoder = random_decoder(4, 7)
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


@pytest.mark.usefixtures("unchecked")
class TestErrors:
    @pytest.mark.parametrize(
        ("lstm", "error", "match"),
        [
            (nn.GRU(3, 4), TypeError, "got GRU"),
            (nn.LSTMCell(3, 4), TypeError, "got LSTMCell"),
            ([nn.LSTM(3, 4), nn.Linear(4, 4)], TypeError, "got Linear"),
            (nn.LSTM(3, 4, bidirectional=True), ValueError, "bidirectional=True"),
            (nn.LSTM(3, 4, proj_size=2), ValueError, "proj_size=2"),
            ([], ValueError, "at least one LSTM layer"),
            (
                [nn.LSTM(3, 4), nn.LSTM(3, 4)],
                ValueError,
                "layer of 4 units is followed by one that expects 3",
            ),
        ],
    )
    def test_module(self, lstm, error, match):
        with pytest.raises(error, match=match):
            contextual_decomposition(lstm, torch.zeros(2, 5, 3), torch.zeros(2, 5).bool())

    @pytest.mark.parametrize(
        "focus",
        [
            torch.zeros(2, 5),
            torch.zeros(2, 5, dtype=torch.int64),
            torch.zeros(2, 6).bool(),
            torch.zeros(1, 5).bool(),
            torch.zeros(5).bool(),
            torch.zeros(1, 3, 2, 5).bool(),
        ],
    )
    def test_focus(self, focus):
        with pytest.raises(ValueError, match=r"expected a boolean focus of \(batch, time\) = \(2, 5\)"):
            contextual_decomposition(nn.LSTM(3, 4), torch.zeros(2, 5, 3), focus)

    @pytest.mark.parametrize(
        "state",
        [
            torch.zeros(2, 1, 2, 4).unbind(),  # one layer
            torch.zeros(2, 3, 2, 4).unbind(),  # three
            torch.zeros(2, 2, 3, 4).unbind(),  # a batch of three
            torch.zeros(2, 2, 2, 5).unbind(),  # another size
            (torch.zeros(2, 2, 4), torch.zeros(2, 2, 5)),
            (torch.zeros(2, 2, 4), torch.zeros(1, 2, 4)),
            [torch.zeros(2, 1, 2, 4).unbind()],
            [torch.zeros(2, 1, 2, 4).unbind(), torch.zeros(2, 1, 3, 4).unbind()],
        ],
    )
    def test_state(self, state):
        with pytest.raises(ValueError, match=r"\[\(2, 4\), \(2, 4\)\]"):
            contextual_decomposition(nn.LSTM(3, 4, 2), torch.zeros(2, 5, 3), torch.zeros(2, 5).bool(), state)

    @pytest.mark.parametrize(
        ("mask", "match"),
        [
            (torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]).bool(), "pad on the right"),
            (torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0]]).bool(), "pad on the right"),
            (torch.ones(2, 6).bool(), r"expected a mask of \(2, 5\) \(batch, time\), got \(2, 6\)"),
        ],
    )
    def test_mask(self, mask, match):
        with pytest.raises(ValueError, match=match):
            contextual_decomposition(nn.LSTM(3, 4), torch.zeros(2, 5, 3), torch.zeros(2, 5).bool(), mask=mask)

    @pytest.mark.parametrize(
        ("words", "match"),
        [
            (
                torch.zeros(2, 5, 3, dtype=torch.float64),
                "of 3 dimensions in torch.float32, got 3 in torch.float64",
            ),
            (torch.zeros(2, 5, 4), "of 3 dimensions in torch.float32, got 4"),
        ],
    )
    def test_inputs(self, words, match):
        with pytest.raises(ValueError, match=match):
            contextual_decomposition(nn.LSTM(3, 4), words, torch.zeros(2, 5).bool())

    def test_variant(self):
        with pytest.raises(ValueError, match="published, released or generalized, got 'printed'"):
            contextual_decomposition(
                nn.LSTM(3, 4), torch.zeros(2, 5, 3), torch.zeros(2, 5).bool(), variant="printed"
            )

"""Interdependence: the naive decomposition, pairs one by one, and a cell that is linear, where contributions add up."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from lmdyn.analysis import decompositional_interdependence, pairwise_interdependence
from tests.analysis.interdependence import lstm_oracle as O


def sets(time, *words):
    """(1, time) for each tuple of words."""
    return [torch.tensor([[t in inside for t in range(time)]]) for inside in words]


class TestDirect:
    @pytest.mark.parametrize("layers", [1, 2])
    @pytest.mark.parametrize("variant", ["published", "released", "generalized"])
    @pytest.mark.parametrize("logits", [False, True])
    def test_equals_the_naive_implementation(self, variant, layers, logits):
        lengths, time = (7, 5, 2), 7
        stack, words = O.random_lstm(3, *[4] * layers), O.random_words(3, time, 3)
        mask, state = O.right_padded(lengths, time), O.random_state(stack, 3)
        left, right = torch.zeros(2, 2, 3, time, dtype=torch.bool)
        for row, (a, b) in enumerate((((0, 3), (2, 4)), ((1,), (0, 3)), ((1,), (0,)))):
            left[0, row, list(a)] = right[0, row, list(b)] = True
        left[1, :, 0] = right[1, :, 1] = True
        decoder = O.random_decoder(4, 6) if logits else None
        matrix = decoder.weight.detach().numpy() if logits else None
        settings = {"state": state, "mask": mask, "decoder": decoder, "variant": variant}
        found = decompositional_interdependence(stack, words, left, right, **settings)
        assert found.shape == (2, 3)
        assert not found.requires_grad
        ends = torch.tensor(lengths) - 1
        later = decompositional_interdependence(stack, words, left, right, ends.expand(2, 3), **settings)
        for got, at in ((found, [None] * 3), (later, ends.tolist())):
            for pair, row in itertools.product(range(2), range(3)):
                n = lengths[row]
                expected = O.interdependence(
                    stack, words[row, :n], left[pair, row, :n].numpy(), right[pair, row, :n].numpy(),
                    at=at[row], matrix=matrix, state=O.of_row(state, row), variant=variant,
                )  # fmt: skip
                assert float(got[pair, row]) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("decoded", [False, True])
class TestLinearCell:
    """Gates constant: c' = σ(b_f) c + σ(b_i) tanh(W x + U h)."""

    @staticmethod
    def linear_cell(layers):
        stack = O.random_lstm(3, *[4] * layers)
        with torch.no_grad():
            for parameter in stack.parameters():
                i, f, g, o = parameter.chunk(4)
                for gate in (i, f, o) if parameter.ndim == 2 else (g,):
                    gate.zero_()
        return stack

    def test_contributions_of_tiny_inputs_add_up(self, layers, decoded):
        """Linear but for tanh x = x - x³/3: DI falls with the square of the inputs."""
        stack, words = self.linear_cell(layers), O.random_words(2, 5, 3)
        decoder = O.random_decoder(4, 6) if decoded else None
        left, right = (part.expand(2, 5) for part in sets(5, (0, 2), (1, 4)))
        found = []
        for scale in (1e-2, 5e-3, 2.5e-3):
            direct = decompositional_interdependence(stack, scale * words, left, right, decoder=decoder)
            pairs = pairwise_interdependence(stack, scale * words, 4, decoder=decoder)
            # words 0 and 1 are all there is: next test
            pairs = (pairs.logits if decoded else pairs.hidden)[:, 1:]
            found.append(torch.cat([direct, pairs[~pairs.isnan()]]))
        assert float(found[0].min()) > 1e-8
        assert float(found[0].max()) < 1e-3
        for larger, smaller in itertools.pairwise(found):
            torch.testing.assert_close(smaller / larger, torch.full_like(larger, 0.25), rtol=1e-2, atol=0)
        bent = O.random_lstm(3, *[4] * layers)
        control = [
            decompositional_interdependence(bent, scale * words, left, right, decoder=decoder)
            for scale in (1e-2, 5e-3)
        ]
        assert float((control[1] / control[0] - 0.25).abs().min()) > 0.1


class TestPairwise:
    @pytest.mark.slow
    @pytest.mark.parametrize("carried", [False, True])
    @pytest.mark.parametrize("variant", ["published", "released", "generalized"])
    @pytest.mark.parametrize(
        ("sizes", "bias", "classes"), [((3, 4), True, 9), ((3, 4, 4), False, None), ((3, 5, 2), True, 4)]
    )
    def test_equals_the_pairs_one_by_one(self, sizes, bias, classes, variant, carried):
        lengths, time = (6, 4, 1, 2), 6
        stack, words = O.random_lstm(*sizes, bias=bias), O.random_words(4, time, 3)
        mask, state = O.right_padded(lengths, time), O.random_state(stack, 4) if carried else None
        decoder = None if classes is None else O.random_decoder(sizes[-1], classes)
        hidden, logits = torch.full((2, 4, time, time), torch.nan, dtype=torch.float64)
        words_alone = torch.eye(time, dtype=torch.bool)
        for n in range(2, time + 1):  # all pairs that end at n: of the sentences that are long enough
            rows = [row for row in range(4) if lengths[row] >= n]
            if not rows:
                continue
            left = words_alone[: n - 1, None, :n].expand(-1, len(rows), -1)
            right = words_alone[n - 1, :n].expand_as(left)
            before = None if state is None else [(h[:, rows], c[:, rows]) for h, c in state]
            for where, on in ((hidden, None), (logits, decoder)):
                di = decompositional_interdependence(
                    stack, words[rows, :n], left, right, state=before, decoder=on, variant=variant
                )
                for k, row in enumerate(rows):
                    for l in range(n - 1):  # noqa: E741
                        where[row, l, n - 1 - l - 1] = di[l, k]
        assert int((~hidden.isnan()).sum()) == sum(n * (n - 1) // 2 for n in lengths)
        settings = {"mask": mask, "state": state, "decoder": decoder, "variant": variant}
        for max_distance, max_rows in ((1, 4096), (3, 4096), (6, 4096), (3, 5), (6, 1)):
            found = pairwise_interdependence(stack, words, max_distance, max_rows=max_rows, **settings)
            assert found.hidden.shape == (4, time, max_distance)
            np.testing.assert_allclose(found.hidden, hidden[..., :max_distance], rtol=1e-10, atol=0)
            if decoder is None:
                assert found.logits is None
            else:
                np.testing.assert_allclose(found.logits, logits[..., :max_distance], rtol=1e-10, atol=0)
                assert not found.logits.requires_grad
            assert not found.hidden.requires_grad


@pytest.mark.usefixtures("unchecked")
class TestErrors:
    @pytest.mark.parametrize(
        ("left", "right", "settings", "match"),
        [
            ((0, 2), (2, 3), {}, r"1 in all, the first at index \(0, 2\)"),
            ((), (1,), {}, "an empty set"),
            ((1,), (3,), {"mask": O.right_padded([3], 5)}, "contains padding"),
            ((0,), (1,), {"at": 5}, "expected 0 to the sentence's length"),
            ((0,), (1,), {"at": 3, "mask": O.right_padded([3], 5)}, "expected 0 to the sentence's"),
            ((0,), (1,), {"mask": ~O.right_padded([3], 5)}, "pad on the right"),
            ((0,), (1,), {"variant": "printed"}, "variant is 'printed': expected"),
            ((0,), (1,), {"state": torch.zeros(2, 1, 2, 4).unbind()}, "expected"),
            ((0,), (1,), {"decoder": nn.Linear(5, 7)}, "a linear decoder of 4 dimensions"),
        ],
    )
    def test_direct(self, left, right, settings, match):
        with pytest.raises(ValueError, match=match):
            decompositional_interdependence(
                nn.LSTM(3, 4), torch.randn(1, 5, 3), *sets(5, left, right), **settings
            )

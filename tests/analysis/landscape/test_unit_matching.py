import pytest
import torch
from torch import nn

from lmdyn.analysis.landscape.unit_groups import unit_groups
from lmdyn.analysis.landscape.unit_matching import _products, match_units
from lmdyn.analysis.parameters.at_point import at_point, parameter_values
from lmdyn.analysis.parameters.exchangeable_units import (
    UnitAxis,
    UnitGroup,
    exchange_error,
    permuted_units,
    random_permutations,
)
from lmdyn.models import LSTMLanguageModel


class Recurrent(nn.Module):
    def __init__(self, kind, layers=1, bias=True):
        super().__init__()
        self.embedding = nn.Embedding(11, 5)
        self.rnn = kind(5, 6, num_layers=layers, bias=bias, batch_first=True)
        self.output = nn.Linear(6, 11)

    def forward(self, input_ids):
        return self.output(self.rnn(self.embedding(input_ids))[0])


MODULES = {
    "lstm": lambda: Recurrent(nn.LSTM, layers=2),
    "gru": lambda: Recurrent(nn.GRU),
    "rnn_without_bias": lambda: Recurrent(nn.RNN, layers=3, bias=False),
    "ours": lambda: LSTMLanguageModel(vocab_size=11, embedding_size=5, hidden_size=6),
    "tied": lambda: LSTMLanguageModel(vocab_size=11, embedding_size=6, hidden_size=6, tie_weights=True),
}
IDS = torch.tensor([[1, 4, 9, 3, 3, 7], [0, 10, 2, 5, 6, 8]])


def logits(module):
    out = module(IDS)
    return getattr(out, "logits", out)


@pytest.fixture(params=MODULES)
def module(request):
    torch.manual_seed(0)
    return MODULES[request.param]().double().eval()


def test_permuted_units_compute_the_same(module):
    groups, values = unit_groups(module), parameter_values(module)
    expected = logits(module).detach()
    with at_point(module, permuted_units(values, groups, random_permutations(groups, 1))):
        torch.testing.assert_close(logits(module), expected, rtol=0, atol=1e-12)


def test_each_axis_matters(module):
    """The control: leaving any axis out of the permutation changes the output."""
    groups, values = unit_groups(module), parameter_values(module)
    expected = logits(module).detach()
    for group in groups:
        for axis in group.axes:
            moved = permuted_units(values, groups, random_permutations(groups, 1), leave=axis)
            with at_point(module, moved):
                assert (logits(module) - expected).abs().max() > 1e-5, (group.name, axis)


def test_the_check_finds_each_missing_axis(module):
    groups, values = unit_groups(module), parameter_values(module)
    assert exchange_error(module, values, groups, lambda: logits(module)) < 1e-12
    for group in groups:
        for axis in group.axes:
            less = UnitGroup(group.name, group.size, tuple(a for a in group.axes if a != axis))
            kept = [less if g is group else g for g in groups]
            assert exchange_error(module, values, kept, lambda: logits(module), draws=1) > 1e-3, (
                group.name,
                axis,
            )


def test_a_permuted_copy_is_matched_exactly(module):
    groups, own = unit_groups(module), parameter_values(module)
    drawn = random_permutations(groups, 1)
    other = permuted_units(own, groups, drawn)
    found = match_units(own, other, groups)
    assert found.after == pytest.approx(1, abs=1e-12)
    assert found.before < 0.9
    matched = permuted_units(other, groups, found.permutations)
    assert all(torch.equal(matched[name], own[name]) for name in own)


def test_matching_never_makes_worse_and_is_its_own_end(module):
    groups, own = unit_groups(module), parameter_values(module)
    torch.manual_seed(5)
    other = {name: torch.randn_like(value) for name, value in own.items()}
    found = match_units(own, other, groups)
    assert found.after >= found.before
    again = match_units(own, permuted_units(other, groups, found.permutations), groups)
    assert again.before == pytest.approx(found.after, abs=1e-12)


def test_small_networks_are_matched_as_by_trying_all():
    """Oracle: all permutations of four units, for one group whose assignment is exact."""
    from itertools import permutations

    torch.manual_seed(3)
    module = Recurrent(nn.RNN)
    (words, _) = unit_groups(module)
    own = parameter_values(module)
    other = {name: torch.randn_like(value) for name, value in own.items()}
    found = match_units(own, other, [words])
    names = {axis.parameter for axis in words.axes}

    def product(order):
        moved = permuted_units(other, [words], {words.name: torch.tensor(order)})
        return sum(float((own[name] * moved[name]).sum()) for name in names)

    best = max(permutations(range(5)), key=product)
    assert found.permutations[words.name].tolist() == list(best)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(3, 3), "expected an embedding, recurrent layers and one linear output layer"),
        (lambda: Recurrent(lambda *a, **k: nn.LSTM(*a, **k, bidirectional=True)), "bidirectional"),
        (lambda: Recurrent(lambda *a, **k: nn.LSTM(*a, **k, proj_size=4)), "projected"),
    ],
)
def test_other_networks_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        unit_groups(make())


def test_recurrent_weights_count_with_their_other_axis_in_its_current_order():
    """By the definition: of a matrix W that has the units on both axes, rows are compared with columns permuted."""
    torch.manual_seed(0)
    group = UnitGroup("units", 4, (UnitAxis("w", 0), UnitAxis("w", 1)))
    own, other, order = torch.randn(4, 4).double(), torch.randn(4, 4).double(), torch.tensor([2, 0, 3, 1])
    rows, columns = (
        _products({"w": own}, {"w": other}, [group], {"units": order}, group, axis) for axis in group.axes
    )
    torch.testing.assert_close(rows, own @ other[:, order].T)
    torch.testing.assert_close(columns, own.T @ other[order])

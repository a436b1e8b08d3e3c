import pytest
import torch
from torch import nn

from lmdyn.analysis.landscape.unit_groups import unit_groups
from lmdyn.analysis.landscape.unit_matching import _products, match_units
from lmdyn.analysis.parameters.at_point import at_point, parameter_values
from lmdyn.analysis.parameters.exchangeable_units import (
    UnitAxis,
    UnitGroup,
    permuted_units,
    random_permutations,
)
from tests.analysis.landscape.recurrent_models import MODULES, Recurrent

IDS = torch.tensor([[1, 4, 9, 3, 3, 7], [0, 10, 2, 5, 6, 8]])


def logits(module):
    out = module(IDS)
    return getattr(out, "logits", out)


@pytest.fixture(params=MODULES)
def module(request):
    torch.manual_seed(0)
    return MODULES[request.param]().double().eval()


def test_each_axis_matters(module):
    """The control: leaving any axis out of the permutation changes the output."""
    groups, values = unit_groups(module), parameter_values(module)
    expected = logits(module).detach()
    for group in groups:
        for axis in group.axes:
            moved = permuted_units(values, groups, random_permutations(groups, 1), leave=axis)
            with at_point(module, moved):
                assert (logits(module) - expected).abs().max() > 1e-5, (group.name, axis)


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

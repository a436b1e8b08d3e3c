import pytest
import torch
from torch import nn

from lmdyn.analysis.landscape.unit_groups import unit_groups
from lmdyn.analysis.landscape.unit_matching import match_units
from lmdyn.analysis.parameters.at_point import parameter_values
from lmdyn.analysis.parameters.exchangeable_units import permuted_units
from tests.analysis.landscape.recurrent_models import MODULES, Recurrent


@pytest.fixture(params=MODULES)
def module(request):
    torch.manual_seed(0)
    return MODULES[request.param]().double().eval()


def test_matching_never_makes_worse_and_is_its_own_end(module):
    groups, own = unit_groups(module), parameter_values(module)
    torch.manual_seed(5)
    other = {name: torch.randn_like(value) for name, value in own.items()}
    found = match_units(own, other, groups)
    assert found.after >= found.before
    again = match_units(own, permuted_units(other, groups, found.permutations), groups)
    assert again.before == pytest.approx(found.after, abs=1e-12)


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

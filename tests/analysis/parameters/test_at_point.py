import pytest
import torch
from torch import nn

from lmdyn.analysis.parameters.at_point import at_point, parameter_values


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(3, 2), nn.Linear(2, 3)
        self.output.weight = self.embedding.weight


def test_the_module_is_at_the_point_and_back_bit_by_bit():
    torch.manual_seed(0)
    module = nn.LSTM(3, 4)
    before = parameter_values(module)
    addresses = [p.data_ptr() for p in module.parameters()]
    point = {name: torch.randn_like(value) for name, value in before.items()}
    with at_point(module, point):
        assert all(torch.equal(p, point[name]) for name, p in module.named_parameters())
        assert [p.data_ptr() for p in module.parameters()] == addresses
    assert all(torch.equal(p, before[name]) for name, p in module.named_parameters())
    assert all(p.grad is None for p in module.parameters())


def test_back_after_an_error():
    module = nn.Linear(2, 2)
    before = parameter_values(module)
    with pytest.raises(KeyError), at_point(module, {"weight": torch.zeros(2, 2)}):
        raise KeyError
    assert torch.equal(module.weight, before["weight"])


def test_tied_parameters_are_one():
    module = Tied()
    values = parameter_values(module)
    assert list(values) == ["embedding.weight", "output.bias"]
    with at_point(module, {"output.weight": torch.ones(3, 2)}):
        assert module.embedding.weight.sum() == 6
    one = torch.ones(3, 2)
    with at_point(module, {"embedding.weight": one, "output.weight": one.clone()}):
        assert module.embedding.weight.sum() == 6
    other = {"embedding.weight": one, "output.weight": 2 * one}
    with pytest.raises(ValueError, match=r"tied parameter 'output\.weight'"), at_point(module, other):
        pass


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"wieght": torch.zeros(2, 2)}, "no parameter 'wieght'"),
        ({"weight": torch.zeros(2)}, r"a value of shape \(2, 2\) for parameter 'weight'"),
    ],
)
def test_other_names_and_shapes_are_refused(values, message):
    module = nn.Linear(2, 2)
    before = module.weight.detach().clone()
    with pytest.raises(ValueError, match=message), at_point(module, values):
        pass
    assert torch.equal(module.weight, before)

import copy

import pytest
import torch
from torch import nn

from lmdyn.analysis.landscape.next_update import next_update

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.02),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.02),
}


def trained(make, steps=3):
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    optimizer = make(layer.parameters())
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)  # wraps the optimizer's step
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.randn(5, 4)).pow(2).sum().backward()
        optimizer.step()
        scheduler.step()
    optimizer.zero_grad()
    return layer, optimizer


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 3])
def test_it_is_the_update_that_the_optimizer_makes(make, steps):
    layer, optimizer = trained(make, steps)
    gradients = {p: torch.randn_like(p) for p in layer.parameters()}
    values = {p: p.detach().clone() for p in layer.parameters()}
    state = copy.deepcopy(optimizer.state_dict())
    found = next_update(optimizer, gradients)
    assert all(torch.equal(p, values[p]) and p.grad is None for p in layer.parameters())
    after = optimizer.state_dict()
    assert after["param_groups"] == state["param_groups"]
    for number, kept in state["state"].items():
        for name, value in kept.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(after["state"][number][name]))
    for p, gradient in gradients.items():
        p.grad = gradient
    rate = optimizer.param_groups[0]["lr"]
    optimizer.step()
    for p, update in found.items():
        torch.testing.assert_close(values[p] - rate * update, p.detach(), rtol=1e-5, atol=1e-6)


def test_groups_keep_their_relative_rates_and_a_rate_of_zero_counts_as_one():
    a, b = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    gradients = {a: torch.ones(2), b: torch.ones(2)}
    found = next_update(torch.optim.SGD([{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.01}]), gradients)
    assert [found[p][0].item() for p in (a, b)] == pytest.approx([1, 0.1])
    found = next_update(torch.optim.SGD([a, b], lr=0.0), gradients)
    assert [found[p][0].item() for p in (a, b)] == [1, 1]


def test_what_has_no_such_update_is_refused():
    weight = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="LBFGS computes the loss several times"):
        next_update(torch.optim.LBFGS([weight]), {weight: torch.ones(2)})
    with pytest.raises(ValueError, match="expected an optimizer of parameters that have gradients"):
        next_update(torch.optim.SGD([weight], lr=0.1), {})


def test_hooks_of_the_optimizer_do_not_run():
    weight = nn.Parameter(torch.zeros(2))
    optimizer, calls = torch.optim.SGD([weight], lr=0.1), []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    next_update(optimizer, {weight: torch.ones(2)})
    assert not calls

"""The update that an optimizer would make."""

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["next_update"]

_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def next_update(optimizer: Optimizer, gradients: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    """Compute the direction Δ of an optimizer's next update, θ − ηΔ for the learning rate η, without making it.

    A copy of the optimizer makes the update on copies of the parameters. Neither the parameters, their ``.grad`` nor
    the optimizer's state change. Clipping and other changes of gradients outside the optimizer are not included.

    Args:
        optimizer: optimizer with its state. The learning rates of its groups only matter relative to the largest; if
            all are 0, as before a warm-up, they count as equal.
        gradients: gradient by parameter; parameters without one are not updated.

    Returns:
        Direction by parameter, for those of the optimizer that have a gradient.

    Raises:
        ValueError: if the optimizer has no parameter with a gradient, or if its update needs several losses (LBFGS).

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> sgd = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        >>> next_update(sgd, {weight: torch.tensor([1.0, 2.0])})[weight]
        tensor([1., 2.])
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS computes the loss several times in an update: expected another optimizer")
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    largest = max(rates, default=0.0)
    twins: dict[Tensor, Tensor] = {}
    groups = []
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        own = [p for p in group["params"] if p in gradients]
        for p in own:
            twins[p] = p.detach().clone()
            twins[p].grad = gradients[p].detach().to(p.dtype).clone()
        options = {k: copy.deepcopy(v) for k, v in group.items() if k != "params"}
        groups.append(
            {**options, "params": [twins[p] for p in own], "lr": rate / largest if largest else 1.0}
        )
    if not twins:
        raise ValueError("expected an optimizer of parameters that have gradients, got none")
    state = defaultdict(
        dict, {t: copy.deepcopy(optimizer.state[p]) for p, t in twins.items() if p in optimizer.state}
    )
    trial = object.__new__(type(optimizer))
    left = {"state": state, "param_groups": groups, **{key: OrderedDict() for key in _HOOKS}}
    trial.__dict__.update(
        {k: v for k, v in vars(optimizer).items() if k != "step"} | left
    )  # schedulers wrap `step`
    type(optimizer).step(trial)
    return {p: p.detach() - twin for p, twin in twins.items()}

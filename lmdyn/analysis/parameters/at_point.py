"""A module at other values of its parameters."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.attributes import nearest_first

__all__ = ["at_point", "parameter_values", "running_statistics"]


def running_statistics(module: nn.Module) -> str:
    """Return the path of the first batch normalisation; empty if there is none.

    Its running statistics are of the activations at weights that a training went through: they belong to no other
    point, and change with each batch besides the parameters.

    Example:
        >>> running_statistics(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))), running_statistics(nn.Linear(2, 2))
        ('1', '')
    """
    found = (name for name, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    return next(found, "")


def parameter_values(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters by name, without gradients; a shared parameter appears once, by its first name.

    Example:
        >>> {name: tuple(value.shape) for name, value in parameter_values(nn.Linear(2, 3)).items()}
        {'weight': (3, 2), 'bias': (3,)}
    """
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


@contextmanager
def at_point(module: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Give parameters of ``module`` other values in this context.

    The parameters remain the same objects in the same memory, so that hooks, compiled graphs, optimizers and tied
    weights are unaffected. On exit, also after an error, they have their previous values bit by bit.

    Args:
        module: the module.
        values: tensors by name of ``module.named_parameters()``, of any floating type; the other parameters keep
            theirs. A name of a tied parameter that is not its first is allowed if the values agree.

    Raises:
        ValueError: for a name that is not a parameter, a tensor of another shape, or two values of one parameter.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> before = layer.weight.item()
        >>> with at_point(layer, {"weight": torch.tensor([[2.0]])}):
        ...     layer(torch.tensor([3.0])).item()
        6.0
        >>> layer.weight.item() == before
        True
    """
    own = dict(module.named_parameters(remove_duplicate=False))
    changed: dict[int, tuple[nn.Parameter, Tensor]] = {}
    for name, value in values.items():
        if name not in own:
            raise ValueError(
                f"{type(module).__name__} has no parameter {name!r}; the parameters are: {nearest_first(name, own)}"
            )
        if value.shape != own[name].shape:
            raise ValueError(
                f"expected a value of shape {tuple(own[name].shape)} for parameter {name!r}, got {tuple(value.shape)}"
            )
        known = changed.setdefault(id(own[name]), (own[name], value))[1]
        if known is not value and not torch.equal(known, value):
            raise ValueError(f"expected one value for the tied parameter {name!r}, got two different values")
    before = [(parameter, parameter.detach().clone()) for parameter, _ in changed.values()]
    try:
        with torch.no_grad():
            for parameter, value in changed.values():
                parameter.copy_(value)
        yield
    finally:
        with torch.no_grad():
            for parameter, value in before:
                parameter.copy_(value)

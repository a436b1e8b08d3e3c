"""Units of a network that can be exchanged: where they are in its parameters, and their permutation."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lmdyn.analysis.parameters.at_point import at_point

__all__ = ["Permutations", "UnitAxis", "UnitGroup", "exchange_error", "permuted_units"]


@dataclass(frozen=True)
class UnitAxis:
    """Axis of a parameter along which units of a group are enumerated.

    From ``start`` on, the axis has ``blocks`` times all units of the group, one after the other, each of ``width``
    entries, which stay together and in order. Entries before and after are not affected.

    Attributes:
        parameter: name of the parameter.
        axis: number of the axis.
        blocks: how often the units are enumerated along it, one block after the other, such as 4 for gates.
        width: number of entries of a unit, such as the width of an attention head.
        start: first entry of the first unit.
    """

    parameter: str
    axis: int
    blocks: int = 1
    width: int = 1
    start: int = 0


@dataclass(frozen=True)
class UnitGroup:
    """Units that may be permuted together.

    Attributes:
        name: display name.
        size: number of units.
        axes: all axes that enumerate them.
    """

    name: str
    size: int
    axes: tuple[UnitAxis, ...]


Permutations = Mapping[str, Int[Tensor, " units"]]
"""Permutation by name of a group."""


def permuted_units(
    values: Mapping[str, Tensor],
    groups: Sequence[UnitGroup],
    permutations: Permutations,
    leave: UnitAxis | None = None,
) -> dict[str, Tensor]:
    """Return parameters with permuted units: unit i becomes what was unit ``permutation[i]``.

    Args:
        values: values by name of parameter.
        groups: groups of units.
        permutations: permutation by name of a group; groups without one are unchanged.
        leave: an axis that is not permuted.

    Example:
        >>> group = UnitGroup("units", 2, (UnitAxis("w", 0),))
        >>> permuted_units({"w": torch.tensor([1.0, 2.0])}, [group], {"units": torch.tensor([1, 0])})["w"]
        tensor([2., 1.])
    """
    found = dict(values)
    for group in groups:
        if group.name not in permutations:
            continue
        for axis in group.axes:
            if axis != leave and axis.parameter in found:
                value = found[axis.parameter]
                index = _index(axis, group.size, permutations[group.name], value.shape[axis.axis])
                found[axis.parameter] = value.index_select(axis.axis, index.to(value.device))
    return found


def _index(axis: UnitAxis, size: int, order: Tensor, length: int) -> Tensor:
    """Return the entries of an axis in their new order."""
    index = torch.arange(length, device=order.device)
    end = axis.start + axis.blocks * size * axis.width
    units = index[axis.start : end].clone().view(axis.blocks, size, axis.width)
    index[axis.start : end] = units[:, order].flatten()
    return index


@torch.no_grad()
def exchange_error(
    module: nn.Module,
    values: Mapping[str, Tensor],
    groups: Sequence[UnitGroup],
    run: Callable[[], Tensor],
    seed: int = 0,
    draws: int = 2,
) -> float:
    """Return how much a permutation of all units changes the output, over its largest magnitude.

    The permutation of a group is a random cycle, which moves each unit. The output is computed at random weights, since
    those of an untrained model hide errors: its norms have weights of 1 and no biases, and its attention is nearly
    uniform. Matrices are Gaussian with the variance 4 / (shorter side), with recurrent layers a quarter of it, since
    these are chaotic beyond; biases and other vectors have the mean 0 and 1 and the standard deviation 0.3. Axes that
    have no effect on the output, such as that of the biases of keys without rotary positions, are not tested.

    Args:
        module: the module, in eval mode; on return it has its own weights.
        values: the module's parameters by name, for their shapes.
        groups: groups of units.
        run: a forward pass of the module that returns the output.
        seed: seed of weights and permutations.
        draws: number of draws of both.

    Returns:
        The largest change over the largest magnitude, over all draws, about 1e-6 to 1e-5 in float32 if the units are
        exchangeable; infinite if an output is not finite.

    Example:
        >>> layers = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
        >>> axes = (UnitAxis("0.weight", 0), UnitAxis("0.bias", 0), UnitAxis("2.weight", 1))
        >>> run, own = lambda: layers(torch.ones(1, 2)), dict(layers.named_parameters())
        >>> exchange_error(layers, own, [UnitGroup("hidden", 3, axes)], run) < 1e-6
        True
        >>> exchange_error(layers, own, [UnitGroup("hidden", 3, axes[:2])], run) > 1e-2
        True
    """
    generator = torch.Generator().manual_seed(seed)
    gain = 1.0 if any(isinstance(m, nn.RNNBase) for m in module.modules()) else 2.0
    largest = 0.0
    for _ in range(draws):
        drawn = {name: _drawn(name, value, gain, generator) for name, value in values.items()}
        with at_point(module, drawn):
            own = run().double()
        cycles = {group.name: _cycle(group.size, generator) for group in groups}
        with at_point(module, permuted_units(drawn, groups, cycles)):
            moved = run().double()
        error = float((moved - own).abs().max() / own.abs().max().clamp_min(1e-300))
        largest = max(largest, error if error == error else math.inf)
    return largest


def _drawn(name: str, value: Tensor, gain: float, generator: torch.Generator) -> Tensor:
    if not value.is_floating_point():
        return value
    noise = torch.randn(value.shape, generator=generator)
    scale = gain / math.sqrt(max(1, min(value.shape))) if value.ndim > 1 else 0.3
    mean = float(value.ndim < 2 and "bias" not in name)
    return (scale * noise + mean).to(value)


def _cycle(size: int, generator: torch.Generator) -> Tensor:
    """Return a random permutation that is one cycle."""
    order = torch.randperm(size, generator=generator)
    return torch.empty_like(order).scatter_(0, order, order.roll(1))

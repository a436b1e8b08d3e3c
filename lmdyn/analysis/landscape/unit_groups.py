"""Hidden units that can be exchanged without changing what a network computes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor, nn

__all__ = ["UnitAxis", "UnitGroup", "permuted_units", "random_permutations", "unit_groups"]

_GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}


@dataclass(frozen=True)
class UnitAxis:
    """Axis of a parameter along which units of a group are enumerated.

    Attributes:
        parameter: name of the parameter.
        axis: number of the axis.
        blocks: how often the units are enumerated along it, one block after the other, such as 4 for gates.
    """

    parameter: str
    axis: int
    blocks: int = 1


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


def unit_groups(module: nn.Module) -> tuple[UnitGroup, ...]:
    """Return the exchangeable units of a recurrent network: of its word vectors, and of each layer.

    The network is an embedding, one or more ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` in the order of the module, and a
    linear output layer, which may use the embedding's weights.

    Raises:
        ValueError: for any other module; bidirectional layers and projected states are not supported.

    Example:
        >>> network = nn.ModuleDict({"in": nn.Embedding(9, 2), "rnn": nn.LSTM(2, 3), "out": nn.Linear(3, 9)})
        >>> [(group.name, group.size, len(group.axes)) for group in unit_groups(network)]
        [('word vectors', 2, 2), ('layer 1', 3, 6)]
    """
    names = {id(p): name for name, p in module.named_parameters()}  # the first name of a tied one
    embeddings = [m for m in module.modules() if isinstance(m, nn.Embedding)]
    layers = list(_layers(module))
    outputs = [m for m in module.modules() if isinstance(m, nn.Linear)]
    if len(embeddings) != 1 or not layers or len(outputs) != 1:
        raise ValueError(
            "expected an embedding, recurrent layers and one linear output layer, whose exchangeable units are known, "
            f"got {len(embeddings)} embeddings, {len(layers)} recurrent layers and {len(outputs)} linear layers in "
            f"{type(module).__name__}"
        )
    (embedding,), (output,) = embeddings, outputs
    sizes = [embedding.embedding_dim, *(size for _, _, size in layers)]
    axes: list[list[UnitAxis]] = [[UnitAxis(names[id(embedding.weight)], 1)]]
    for (weights, gates, _), before in zip(layers, range(len(layers)), strict=True):
        into = weights["ih"]
        if into.shape[1] != sizes[before]:
            raise ValueError(
                f"expected layers one after the other, got one of {into.shape[1]} inputs after {sizes[before]} units"
            )
        axes[before].append(UnitAxis(names[id(into)], 1))
        own = [UnitAxis(names[id(w)], 0, gates) for w in weights.values()]
        axes.append([*own, UnitAxis(names[id(weights["hh"])], 1)])
    if output.in_features != sizes[-1]:
        raise ValueError(f"expected an output layer of {sizes[-1]} inputs, got {output.in_features}")
    axes[-1].append(UnitAxis(names[id(output.weight)], 1))
    labels = ["word vectors", *(f"layer {i}" for i in range(1, len(layers) + 1))]
    groups = [UnitGroup(n, s, tuple(a)) for n, s, a in zip(labels, sizes, axes, strict=True)]
    return tuple(_tied(groups))


def _layers(module: nn.Module) -> Iterator[tuple[dict[str, Tensor], int, int]]:
    """Yield weights by kind, number of gates and number of units of each recurrent layer."""
    for m in module.modules():
        if not isinstance(m, nn.RNNBase):
            continue
        if m.bidirectional or m.proj_size:
            raise ValueError("units of bidirectional layers and of projected states are not supported")
        gates = next(n for kind, n in _GATES.items() if isinstance(m, kind))
        kinds = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if m.bias else ()))
        for number in range(m.num_layers):
            found = {kind.replace("weight_", ""): getattr(m, f"{kind}_l{number}") for kind in kinds}
            yield found, gates, m.hidden_size


def _tied(groups: Sequence[UnitGroup]) -> Iterator[UnitGroup]:
    """Merge the first and the last group if one axis belongs to both, as in a tied output layer."""
    first, *between, last = groups
    if set(first.axes) & set(last.axes):
        axes = (*first.axes, *(axis for axis in last.axes if axis not in first.axes))
        yield UnitGroup(f"{first.name} and {last.name}", first.size, axes)
        yield from between
    else:
        yield from groups


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
        order = permutations[group.name]
        for axis in group.axes:
            if axis != leave and axis.parameter in found:
                value = found[axis.parameter]
                offsets = group.size * torch.arange(axis.blocks, device=order.device)
                index = (offsets[:, None] + order).flatten().to(value.device)
                found[axis.parameter] = value.index_select(axis.axis, index)
    return found


def random_permutations(groups: Sequence[UnitGroup], seed: int) -> dict[str, Int[Tensor, " units"]]:
    """Draw a permutation for each group.

    Example:
        >>> sorted(random_permutations([UnitGroup("units", 3, ())], 0)["units"].tolist())
        [0, 1, 2]
    """
    generator = torch.Generator().manual_seed(seed)
    return {group.name: torch.randperm(group.size, generator=generator) for group in groups}

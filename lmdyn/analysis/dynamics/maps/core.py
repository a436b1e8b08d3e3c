"""The modules that a model iterates: the layers of its core, in order, and how often they run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import observing, paths_of
from lmdyn.analysis.inspection.blocks import is_leaf
from lmdyn.analysis.inspection.forward_trace import Call, trace_forward, within

__all__ = [
    "Core",
    "RecurrentError",
    "core_of",
    "refuse_recurrent",
    "repeated_modules",
    "shortest_unit",
]


@dataclass(frozen=True)
class Core:
    """The iterated layers.

    Attributes:
        unit: paths of the layers of one iteration, in order; all layers for a model that iterates nothing.
        n: number of iterations of the model itself.
    """

    unit: tuple[str, ...]
    n: int


def shortest_unit(order: list[str]) -> list[str]:
    """Return the shortest beginning of which the whole is a repetition.

    Example:
        >>> shortest_unit(["a", "b", "a", "b"]), shortest_unit(["a", "a", "b", "b"])
        (['a', 'b'], ['a', 'a', 'b', 'b'])
    """
    for length in range(1, len(order)):
        if order == order[:length] * (len(order) // length):
            return order[:length]
    return order


def core_of(order: list[str]) -> Core:
    """Return the core, by the order in which layers ran: all of them, or those repeated between a prelude and a coda.

    Layers without a common period (two groups one after the other) have no iteration: time is depth.

    Example:
        >>> core_of(["p", "a", "b", "a", "b", "c"]), core_of(["a", "a", "b", "b"])
        (Core(unit=('a', 'b'), n=2), Core(unit=('a', 'a', 'b', 'b'), n=1))
    """
    unit = shortest_unit(order)
    if len(unit) < len(order):
        return Core(tuple(unit), len(order) // len(unit))
    again = [i for i, path in enumerate(order) if order.count(path) > 1]
    middle = order[again[0] : again[-1] + 1] if again else []
    unit = shortest_unit(middle)
    if middle and len(unit) < len(middle) and len(middle) == len(again):
        return Core(tuple(unit), len(middle) // len(unit))
    return Core(tuple(order), 1)


def repeated_modules(
    module: nn.Module, run: Callable[[], Any], ids: Mapping[str, Tensor]
) -> list[dict[str, nn.Module]]:
    """Find candidates for the layers of a core: the outermost modules that a forward pass calls repeatedly.

    Each has parameters, and takes and returns (batch, tokens, width) vectors that differ from call to call. Modules
    that are called equally often belong together. Layers of torch are used only if there are no others, or if their
    input is the output of one of the others.

    Args:
        module: any module.
        run: runs the forward pass.
        ids: ids of the batch, see ``trace_forward``.

    Returns:
        Groups of modules by path; the group with the most parameters first.
    """
    with observing(module), torch.no_grad():
        trace = trace_forward(module, run, ids)
    paths = paths_of(module)
    found = [
        (path, m)
        for path, m in paths.items()
        if path and len(trace.of(m)) > 1 and next(m.parameters(), None) is not None and _moves(trace.of(m))
    ]
    found = [(p, m) for p, m in found if not any(n is not m and within(m, n) for _, n in found)]
    whole = [(p, m) for p, m in found if not is_leaf(m)] or found
    groups: dict[int, dict[str, nn.Module]] = {}
    for path, m in whole:
        groups.setdefault(len(trace.of(m)), {})[path] = m
    for path, m in found:  # a norm at the end of each iteration belongs to the core: its output is the state
        group = groups.get(len(trace.of(m)), {})
        answers = {call.number for layer in group.values() for call in trace.of(layer)}
        if path not in group and all(call.x_number in answers for call in trace.of(m)):
            group[path] = m
    return sorted(
        groups.values(), key=lambda group: -sum(p.numel() for m in group.values() for p in m.parameters())
    )


def _moves(calls: list[Call]) -> bool:
    vectors = all(
        c.x_shape is not None and c.shape is not None and len(c.shape) == 3 and c.floating for c in calls
    )
    written = any(c.number == c.x_number for c in calls)  # written in place
    return vectors and (written or len({c.x_number for c in calls}) > 1)


class RecurrentError(ValueError):
    """Raised for layers whose state runs over the tokens."""


def refuse_recurrent(layers: Mapping[str, nn.Module], module: nn.Module) -> None:
    """Raise :class:`RecurrentError` if one of the layers is an RNN, LSTM or GRU of torch."""
    recurrent = [path for path, layer in layers.items() if isinstance(layer, nn.RNNBase)]
    if recurrent:
        raise RecurrentError(
            "expected the blocks of a transformer or of a state-space model, got recurrent layers, whose state runs "
            f"over the tokens, in {type(module).__name__}: {', '.join(recurrent)}"
        )

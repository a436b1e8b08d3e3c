"""Where a model holds modules that repeat: lists, sequences, and attributes that differ by a number."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from lmdyn.analysis.inspection.activations import paths_of

__all__ = ["BlockList", "block_lists", "is_leaf", "repeated", "static_blocks", "within"]


@dataclass(frozen=True)
class BlockList:
    """Modules that may be the blocks of a model.

    Attributes:
        path: of the list, or of the module whose attributes they are.
        kind: ``list`` (``ModuleList``, or ``ModuleDict`` with numbers as keys), ``sequence`` (``Sequential``) or
            ``numbered`` (attributes of one class, such as ``lstm1`` and ``lstm2``).
        modules: display of the model's own order; a module that stands there several times is named once.
    """

    path: str
    kind: Literal["list", "sequence", "numbered"]
    modules: tuple[nn.Module, ...]


def block_lists(module: nn.Module) -> Iterator[BlockList]:
    """All lists, sequences and numbered attributes within ``module``, the outer before the inner.

    Example:
        >>> [(b.path, b.kind, len(b.modules)) for b in block_lists(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))]
        [('', 'sequence', 2)]
    """
    for path, m in sorted(paths_of(module).items(), key=lambda item: item[0].count(".") + bool(item[0])):
        children = {name: _unwrapped(child) for name, child in m._modules.items() if child is not None}
        if not children:
            continue
        if isinstance(m, nn.Sequential):
            yield BlockList(path, "sequence", _unique(children.values()))
        elif isinstance(m, (nn.ModuleList, nn.ModuleDict)) and all(name.isdigit() for name in children):
            yield BlockList(path, "list", _unique(children.values()))
        elif not isinstance(m, nn.ModuleList):
            alike: dict[tuple[str, type], list[nn.Module]] = {}
            for name, child in children.items():
                if match := re.fullmatch(r"(.*?)_?\d+", name):
                    alike.setdefault((match[1], type(child)), []).append(child)
            for modules in alike.values():
                if len(modules) > 1:
                    yield BlockList(path, "numbered", _unique(modules))


def _unwrapped(module: nn.Module) -> nn.Module:
    while isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
        module = inner
    return module


def _unique(modules: Iterable[nn.Module]) -> tuple[nn.Module, ...]:
    return tuple({id(m): m for m in modules}.values())


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is one of torch's own layers, such as a linear map, and not a recurrent one.

    Example:
        >>> is_leaf(nn.Linear(2, 2)), is_leaf(nn.LSTM(2, 2)), is_leaf(nn.Sequential(nn.Linear(2, 2)))
        (True, False, False)
    """
    own = type(module).__module__.startswith("torch.nn")
    return own and not isinstance(module, nn.RNNBase) and not any(True for _ in module.children())


def repeated(modules: list[nn.Module]) -> list[nn.Module]:
    """Those modules whose class occurs more than once.

    Example:
        >>> len(repeated([nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)]))
        2
    """
    counts = Counter(type(m) for m in modules)
    return [m for m in modules if counts[type(m)] > 1]


def within(module: nn.Module, outer: nn.Module) -> bool:
    """Whether ``module`` is ``outer`` or part of it.

    Example:
        >>> within(net := nn.Linear(2, 2), nn.Sequential(net))
        True
    """
    return any(m is module for m in outer.modules())


def static_blocks(module: nn.Module) -> list[list[str]]:
    """The outermost lists of blocks, by structure alone: where a model cannot be run, or need not be.

    A list's children of which none is one of torch's own layers; of a sequence, those whose class is repeated.

    Returns:
        For each list the paths of its modules.

    Example:
        >>> static_blocks(nn.ModuleDict({"layers": nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(2))}))
        [['layers.0', 'layers.1']]
    """
    path_of = {id(m): path for path, m in paths_of(module).items()}
    found: list[list[nn.Module]] = []
    for candidate in block_lists(module):
        blocks = [
            m
            for m in candidate.modules
            if not is_leaf(m) and not isinstance(m, (nn.ModuleList, nn.ModuleDict))
        ]
        if candidate.kind == "sequence" and len(blocks) < len(candidate.modules):
            blocks = repeated(blocks)
        if candidate.kind != "list" and len(blocks) < 2:
            continue
        if blocks and not any(within(blocks[0], outer) for known in found for outer in known):
            found.append(blocks)
    return [[path_of[id(m)] for m in blocks] for blocks in found]

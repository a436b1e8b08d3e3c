"""The blocks of a model: repeated modules, found by structure, and, in a forward pass, by their inputs."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise, takewhile
from typing import Any, Literal

from torch import nn
from torch.nn import Module

from lmdyn.analysis.inspection.activations import paths_of
from lmdyn.analysis.inspection.forward import uncompiled
from lmdyn.analysis.inspection.forward_trace import Trace, feeds, within

__all__ = [
    "BlockGroup",
    "BlockList",
    "block_groups",
    "block_lists",
    "is_leaf",
    "repeated",
    "static_blocks",
    "within",
]


@dataclass(frozen=True)
class BlockList:
    """Modules that may be the blocks of a model.

    Attributes:
        path: path of the list, or of the module whose attributes they are.
        kind: ``list`` (``ModuleList``, or ``ModuleDict`` with numbers as keys), ``sequence`` (``Sequential``) or
            ``numbered`` (attributes of one class, such as ``lstm1`` and ``lstm2``).
        modules: the modules in the model's own order; a module that occurs several times is listed once.
    """

    path: str
    kind: Literal["list", "sequence", "numbered"]
    modules: tuple[Module, ...]


def block_lists(module: Module) -> Iterator[BlockList]:
    """Yield all lists, sequences and numbered attributes within ``module``, outer ones before inner ones.

    Example:
        >>> [(b.path, b.kind, len(b.modules)) for b in block_lists(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))]
        [('', 'sequence', 2)]
    """
    for path, m in sorted(paths_of(module).items(), key=lambda item: item[0].count(".") + bool(item[0])):
        children = {name: uncompiled(child) for name, child in m._modules.items() if child is not None}
        if not children:
            continue
        if isinstance(m, nn.Sequential):
            yield BlockList(path, "sequence", _unique(children.values()))
        elif isinstance(m, (nn.ModuleList, nn.ModuleDict)) and all(name.isdigit() for name in children):
            yield BlockList(path, "list", _unique(children.values()))
        elif not isinstance(m, nn.ModuleList):
            alike: dict[tuple[str, type], list[Module]] = {}
            for name, child in children.items():
                if match := re.fullmatch(r"(.*?)_?\d+", name):
                    alike.setdefault((match[1], type(child)), []).append(child)
            for modules in alike.values():
                if len(modules) > 1:
                    yield BlockList(path, "numbered", _unique(modules))


def _unique(modules: Iterable[Module]) -> tuple[Module, ...]:
    return tuple({id(m): m for m in modules}.values())


def is_leaf(module: Module) -> bool:
    """Return whether a module is a layer of torch, such as a linear map, and not a recurrent one.

    Example:
        >>> is_leaf(nn.Linear(2, 2)), is_leaf(nn.LSTM(2, 2)), is_leaf(nn.Sequential(nn.Linear(2, 2)))
        (True, False, False)
    """
    own = type(module).__module__.startswith("torch.nn")
    return own and not isinstance(module, nn.RNNBase) and not any(True for _ in module.children())


def repeated(modules: list[Module]) -> list[Module]:
    """Return the modules whose class occurs more than once.

    Example:
        >>> len(repeated([nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)]))
        2
    """
    counts = Counter(type(m) for m in modules)
    return [m for m in modules if counts[type(m)] > 1]


def static_blocks(module: Module) -> list[list[str]]:
    """Return the outermost lists of blocks by structure only, for a model that is not run.

    These are a list's children none of which is a layer of torch, and the modules of a sequence whose class is
    repeated.

    Returns:
        The paths of the modules of each list.

    Example:
        >>> static_blocks(nn.ModuleDict({"layers": nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(2))}))
        [['layers.0', 'layers.1']]
    """
    path_of = {id(m): path for path, m in paths_of(module).items()}
    found: list[list[Module]] = []
    for candidate in block_lists(module):
        holders = (nn.ModuleList, nn.ModuleDict)
        blocks = [m for m in candidate.modules if not is_leaf(m) and not isinstance(m, holders)]
        if candidate.kind == "sequence" and len(blocks) < len(candidate.modules):
            blocks = repeated(blocks)
        if candidate.kind != "list" and len(blocks) < 2:
            continue
        if blocks and not any(within(blocks[0], outer) for known in found for outer in known):
            found.append(blocks)
    return [[path_of[id(m)] for m in blocks] for blocks in found]


@dataclass
class BlockGroup:
    """Consecutive blocks, in the order in which they first ran.

    Attributes:
        path: path of the module that contains them.
        blocks: the block modules.
        prefix: prefix of the names of its sites; empty if a model has one group.
        sites: blocks that return one vector for each token, by name.
    """

    path: str
    blocks: list[Module]
    prefix: str = ""
    sites: dict[str, Module] = field(default_factory=dict)

    @property
    def norm_name(self) -> str:
        """Name of the norm that follows the blocks."""
        return f"{self.prefix}_norm" if self.prefix else "norm"


def block_groups(module: Module, trace: Trace, run: Callable[[], Any]) -> tuple[list[BlockGroup], list[str]]:
    """Group and name the blocks of a model.

    Args:
        module: the model.
        trace: trace of a forward pass.
        run: runs the forward pass again, to test whether one module feeds another.

    Returns:
        The groups in the order in which they ran (a group whose blocks return no token vectors has no names), and
        sentences about what was left out.

    Example:
        >>> import torch
        >>> from lmdyn.analysis.inspection.forward_trace import trace_forward
        >>> model = nn.Sequential(nn.Embedding(9, 4), *(nn.TransformerEncoderLayer(4, 1, 4) for _ in range(2)))
        >>> run = lambda: model(torch.tensor([[1, 2, 3]]))
        >>> groups, _ = block_groups(model, trace_forward(model, run, {"input_ids": torch.tensor([[1, 2, 3]])}), run)
        >>> list(groups[0].sites)
        ['block_00', 'block_01']
    """
    finder = _Grouping(module, trace, run)
    candidates = list(block_lists(module))
    groups = finder.lists(candidates, leaves=False)
    groups += finder.recurrent(groups)
    if not groups:
        groups = finder.lists(candidates, leaves=True)
    groups.sort(key=lambda g: trace.first(g.blocks[0]).start)
    parts = finder.parts_of_layers(groups)
    groups = [g for g in groups if g not in parts]
    for group, prefix in zip(groups, _prefixes([g.path for g in groups]), strict=True):
        group.prefix = prefix
    left_out = [sentence for group in groups for sentence in finder.named(group)]
    if parts:
        left_out.append(
            f"blocks: {', '.join(g.path for g in parts[:3])}{' …' if len(parts) > 3 else ''} contain parts of "
            "layers, and no module computes a whole layer: make each layer a module, or name sites explicitly"
        )
    elif not groups:
        left_out.append(
            "blocks: the forward pass ran no ModuleList, Sequential or recurrent layer from (batch, time, width) to "
            "the same shape: name sites explicitly, `sites: {h1: path.of.a.module}`"
        )
    return groups, left_out


class _Grouping:
    def __init__(self, module: Module, trace: Trace, run: Callable[[], Any]) -> None:
        self.module, self.trace = module, trace
        self._feeds = cache(partial(feeds, forward=run))

    def lists(self, candidates: list[BlockList], leaves: bool) -> list[BlockGroup]:
        groups: list[BlockGroup] = []
        inside: set[int] = set()
        for candidate in candidates:
            if any(id(m) in inside for m in candidate.modules):
                continue
            if blocks := self._blocks(candidate, leaves):
                parts = {id(m) for b in blocks for m in b.modules()}
                groups = [g for g in groups if id(g.blocks[0]) not in parts]
                inside |= parts
                groups.append(BlockGroup(candidate.path, blocks))
        return groups

    def _blocks(self, candidate: BlockList, leaves: bool) -> list[Module]:
        """Return the consecutive modules of a list that take and return vectors."""
        blocks = [m for m in candidate.modules if self._takes_and_answers_vectors(m, leaves)]
        if candidate.kind == "sequence":
            same = all(self.trace.first(m).x_shape == self.trace.first(m).shape for m in blocks)
            if len(blocks) < len(candidate.modules) or not same:
                blocks = repeated(blocks)
        if not blocks or (candidate.kind == "numbered" and len(blocks) < 2):
            return []
        blocks.sort(key=lambda m: self.trace.first(m).start)
        calls = [self.trace.first(m) for m in blocks]
        if len({call.x_number for call in calls}) < len(calls):  # parallel modules
            return []
        pairs = list(pairwise(calls))
        if any(a.shape is None or b.x_shape is None or a.shape[-1] != b.x_shape[-1] for a, b in pairs):
            return []
        chained = all(self._hands_on(a, b) for a, b in pairwise(blocks))
        towers = all(isinstance(m, nn.RNNBase) for m in blocks) or all(self._holds_lists(m) for m in blocks)
        if not chained and towers:  # parallel modules?
            return blocks if all(self._reaches(a, b) for a, b in pairwise(blocks)) else []
        return blocks

    def _reaches(self, a: Module, b: Module) -> bool:
        return self._hands_on(a, b) or self._feeds(a, b)

    def _hands_on(self, a: Module, b: Module) -> bool:
        """Return whether the output of ``a`` is the input of ``b``."""
        return self.trace.first(a).number == self.trace.first(b).x_number

    def parts_of_layers(self, groups: list[BlockGroup]) -> list[BlockGroup]:
        """Find lists that alternate, and lists within a list, unless the input of each module is the output before."""
        found = []
        start = {id(m): self.trace.first(m).start for g in groups for m in g.blocks}
        lists = {path for path, m in paths_of(self.module).items() if isinstance(m, nn.ModuleList)}
        for i, group in enumerate(groups):
            first = start[id(group.blocks[0])]
            last = start[id(group.blocks[-1])]
            turns = any(
                other is not group
                and first < start[id(other.blocks[-1])]
                and start[id(other.blocks[0])] < last
                for other in groups
            )
            nested = group.path in lists and group.path.rpartition(".")[0] in lists
            following = group.blocks[1:] or [g.blocks[0] for g in groups[i + 1 : i + 2]]
            recurrent = all(isinstance(m, nn.RNNBase) for m in group.blocks)
            hands_on = self._reaches if recurrent else self._hands_on
            whole = all(hands_on(a, b) for a, b in pairwise([group.blocks[0], *following]))
            if (turns or nested) and not whole:
                found.append(group)
        if any(g in found for g in groups[:-1]) and groups[-1].path.rpartition(".")[0] in lists:
            found += [g for g in groups[-1:] if g not in found]  # the last one has no successor
        return found

    def _takes_and_answers_vectors(self, m: Module, leaves: bool) -> bool:
        if not self.trace.of(m) or next(m.parameters(), None) is None or is_leaf(m) > leaves:
            return False
        call = self.trace.first(m)
        vectors = call.x_shape is not None and call.floating and len(call.shape or ()) == 3
        return vectors and (not leaves or call.x_shape == call.shape)

    def _holds_lists(self, m: Module) -> bool:
        return any(
            len(b.modules) > 1 and all(self._takes_and_answers_vectors(child, False) for child in b.modules)
            for b in block_lists(m)
        )

    def recurrent(self, lists: list[BlockGroup]) -> list[BlockGroup]:
        """Group recurrent layers that are not in lists, those that feed each other in one group."""
        groups: list[BlockGroup] = []
        taken = {id(m) for g in lists for b in g.blocks for m in b.modules()}
        layers = [m for m in self.module.modules() if isinstance(m, nn.RNNBase) and self.trace.of(m)]
        layers = [m for m in layers if id(m) not in taken]
        for m in sorted(layers, key=lambda m: self.trace.first(m).start):
            before = [g for g in groups if self._hands_on(g.blocks[-1], m)]
            before = before or [g for g in groups if self._reaches(g.blocks[-1], m)]
            path = self.trace.path_of[id(m)]
            if before:
                max(before, key=lambda g: _shared(g.path, path)).blocks.append(m)
            else:
                groups.append(BlockGroup(path, [m]))
        return groups

    def named(self, group: BlockGroup) -> list[str]:
        """Name the blocks, and leave out those that do not return one vector for each token."""
        numbers, n = [], 0
        for m in group.blocks:
            n += m.num_layers if isinstance(m, nn.RNNBase) else 1
            numbers.append(n - 1)
        single = len(group.blocks) == 1 and len(self.trace.of(group.blocks[0])) > 1
        names = ["block" if single else f"block_{i:02d}" for i in numbers]
        names = [f"{group.prefix}_{name}" if group.prefix else name for name in names]
        reasons = {name: self.trace.no_site(m) for m, name in zip(group.blocks, names, strict=True)}
        group.sites = {n: m for m, n in zip(group.blocks, names, strict=True) if reasons[n] is None}
        wrong = [name for name in names if reasons[name] is not None]
        shown = f"{', '.join(wrong[:2])}{f' … {wrong[-1]}' if wrong[2:] else ''}"
        left_out = [f"{shown}: {reasons[wrong[0]]}"] if wrong else []
        return left_out + [
            f"{name}: {self.trace.show(m)} computes {m.num_layers} layers at once and returns only the last: to "
            "observe the other layers, make each layer a separate module"
            for name, m in group.sites.items()
            if isinstance(m, nn.RNNBase) and m.num_layers > 1
        ]


def _shared(first: str, second: str) -> int:
    """Return the number of leading segments in which two paths agree."""
    pairs = zip(first.split("."), second.split("."), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _prefixes(paths: list[str]) -> list[str]:
    """Return for each path the segments in which it differs from the others; empty for a single one.

    Example:
        >>> _prefixes(["model.encoder.layers", "model.decoder.layers"]), _prefixes(["h"])
        (['encoder', 'decoder'], [''])
    """
    if len(paths) < 2:
        return [""] * len(paths)
    split = [path.split(".") if path else [] for path in paths]
    shared = 0
    while len({tuple(s[: shared + 1]) for s in split}) == 1:
        shared += 1
    for depth in range(1, max(map(len, split)) + 1):
        names = ["_".join(s[shared : shared + depth]) for s in split]
        if len(set(names)) == len(names):
            break
    return [f"{split[i][shared - 1]}_{n}" if n[:1].isdigit() and shared else n for i, n in enumerate(names)]

"""The blocks of a model, as a forward pass shows them: which modules take and answer vectors, one after the other."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torch import nn

from lmdyn.analysis.inspection.block_lists import BlockList, block_lists, is_leaf, repeated, within
from lmdyn.analysis.inspection.forward_trace import Trace, feeds

__all__ = ["BlockGroup", "block_groups"]


@dataclass
class BlockGroup:
    """Blocks that follow each other, in the order in which they first ran.

    Attributes:
        path: of what holds them.
        blocks: the modules.
        prefix: what the names of its sites begin with; empty where a model has one group.
        names: of the blocks.
    """

    path: str
    blocks: list[nn.Module]
    prefix: str = ""
    names: list[str] = field(default_factory=list)

    @property
    def norm_name(self) -> str:
        """The name of the norm that follows the blocks."""
        return f"{self.prefix}_norm" if self.prefix else "norm"


def block_groups(
    module: nn.Module, trace: Trace, run: Callable[[], Any]
) -> tuple[list[BlockGroup], list[str]]:
    """Group and name the blocks of a model.

    Args:
        module: the model.
        trace: of a forward pass.
        run: makes the forward pass again, where it has to be tried whether one module feeds another.

    Returns:
        The groups in the order in which they ran, and sentences about what was left out.

    Example:
        >>> import torch
        >>> from lmdyn.analysis.inspection.forward_trace import trace_forward
        >>> model = nn.Sequential(nn.Embedding(9, 4), *(nn.TransformerEncoderLayer(4, 1, 4) for _ in range(2)))
        >>> run = lambda: model(torch.tensor([[1, 2, 3]]))
        >>> groups, _ = block_groups(model, trace_forward(model, run, {"input_ids": torch.tensor([[1, 2, 3]])}), run)
        >>> groups[0].names
        ['block_00', 'block_01']
    """
    finder = _Grouping(module, trace, run)
    candidates = list(block_lists(module))
    groups = finder.lists(candidates, leaves=False) + finder.recurrent(candidates)
    if not groups:
        groups = finder.lists(candidates, leaves=True)
    groups.sort(key=lambda g: trace.first(g.blocks[0]).start)
    for group, prefix in zip(groups, _prefixes([g.path for g in groups]), strict=True):
        group.prefix = prefix
    left_out = [sentence for group in groups for sentence in finder.named(group)]
    if not groups:
        left_out.append(
            "blocks: no ModuleList, Sequential or recurrent layer of modules that take and answer "
            "(batch, time, width) ran: name sites yourself, `sites: {h1: path.of.a.module}`"
        )
    return [g for g in groups if g.blocks], left_out


class _Grouping:
    def __init__(self, module: nn.Module, trace: Trace, run: Callable[[], Any]) -> None:
        self.module, self.trace, self.run = module, trace, run

    def lists(self, candidates: list[BlockList], leaves: bool) -> list[BlockGroup]:
        groups: list[BlockGroup] = []
        for candidate in candidates:
            blocks = self._blocks(candidate, leaves)
            if blocks and not any(within(blocks[0], b) for g in groups for b in g.blocks):
                groups = [g for g in groups if not any(within(g.blocks[0], b) for b in blocks)]
                groups.append(BlockGroup(candidate.path, blocks))
        return groups

    def _blocks(self, candidate: BlockList, leaves: bool) -> list[nn.Module]:
        """Those of a list that follow each other, each taking and answering vectors."""
        blocks = [m for m in candidate.modules if self._takes_and_answers_vectors(m, leaves)]
        if candidate.kind == "sequence":
            same = all(self.trace.first(m).x_shape == self.trace.first(m).shape for m in blocks)
            if len(blocks) < len(candidate.modules) or not same:
                blocks = repeated(blocks)
        if not blocks or (candidate.kind == "numbered" and len(blocks) < 2):
            return []
        blocks.sort(key=lambda m: self.trace.first(m).start)
        calls = [self.trace.first(m) for m in blocks]
        if len({call.x_number for call in calls}) < len(calls):  # side by side
            return []
        pairs = list(pairwise(calls))
        if any(a.shape is None or b.x_shape is None or a.shape[-1] != b.x_shape[-1] for a, b in pairs):
            return []
        if len(blocks) > 1 and all(self._holds_lists(m) for m in blocks):  # towers?
            for a, b in pairwise(blocks):
                if self.trace.first(a).number != self.trace.first(b).x_number and not feeds(a, b, self.run):
                    return []
        return blocks

    def _takes_and_answers_vectors(self, m: nn.Module, leaves: bool) -> bool:
        if not self.trace.of(m) or next(m.parameters(), None) is None or is_leaf(m) > leaves:
            return False
        call = self.trace.first(m)
        vectors = (
            call.x_shape is not None and call.floating and call.shape is not None and len(call.shape) == 3
        )
        return vectors and (not leaves or call.x_shape == call.shape)

    def _holds_lists(self, m: nn.Module) -> bool:
        return any(
            len(b.modules) > 1 and all(self._takes_and_answers_vectors(child, False) for child in b.modules)
            for b in block_lists(m)
        )

    def recurrent(self, candidates: list[BlockList]) -> list[BlockGroup]:
        """Recurrent layers that stand for themselves, those that feed each other in one group."""
        groups: list[BlockGroup] = []
        taken = {id(m) for c in candidates for b in self._blocks(c, False) for m in b.modules()}
        layers = [m for m in self.module.modules() if isinstance(m, nn.RNNBase) and self.trace.of(m)]
        layers = [m for m in layers if id(m) not in taken]
        for m in sorted(layers, key=lambda m: self.trace.first(m).start):
            last = groups[-1].blocks[-1] if groups else None
            if last is not None and (
                self.trace.first(last).number == self.trace.first(m).x_number or feeds(last, m, self.run)
            ):
                groups[-1].blocks.append(m)
            else:
                groups.append(BlockGroup(self.trace.path_of[id(m)], [m]))
        return groups

    def named(self, group: BlockGroup) -> list[str]:
        """Name the blocks, and leave those out that answer no vector for each token."""
        numbers, n = [], 0
        for m in group.blocks:
            n += m.num_layers if isinstance(m, nn.RNNBase) else 1
            numbers.append(n - 1)
        single = len(group.blocks) == 1 and len(self.trace.of(group.blocks[0])) > 1
        names = ["block" if single else f"block_{i:02d}" for i in numbers]
        kept, kept_names, left_out = [], [], []
        for m, name in zip(group.blocks, names, strict=True):
            name = f"{group.prefix}_{name}" if group.prefix else name
            if (why := self.trace.no_site(m)) is not None:
                left_out.append(f"{name}: {why}")
                continue
            kept.append(m)
            kept_names.append(name)
            if isinstance(m, nn.RNNBase) and m.num_layers > 1:
                left_out.append(
                    f"{name}: {self.trace.show(m)} computes {m.num_layers} layers at once and answers the last "
                    "only: to see the others, make each a module of its own"
                )
        group.blocks, group.names = kept, kept_names
        return left_out


def _prefixes(paths: list[str]) -> list[str]:
    """For each path the segments in which it differs from the others; nothing for a single one.

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

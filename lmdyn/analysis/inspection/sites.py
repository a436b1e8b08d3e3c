"""Sites of any language model, found by a forward pass, or by a pattern of module paths."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import Module

from lmdyn.analysis.inspection.activations import capture, observing, paths_of
from lmdyn.analysis.inspection.attention_weights import readable_attention
from lmdyn.analysis.inspection.attributes import nearest
from lmdyn.analysis.inspection.batches import rows_at, seen
from lmdyn.analysis.inspection.blocks import BlockGroup, block_groups
from lmdyn.analysis.inspection.forward import Batch, Forward, call_module, decoder_ids, logits_of
from lmdyn.analysis.inspection.forward_trace import AttentionTrace, Call, trace_forward, within

__all__ = ["FoundSites", "Kind", "find_sites", "match_sites", "names_of_paths"]

Kind = Literal["embedding", "block", "norm", "logits"]

_MOST = 100


@dataclass(frozen=True)
class FoundSites:
    """Result of :func:`find_sites`.

    Attributes:
        sites: module path by display name, in the order of the model: ``embedding``, ``block_00`` …, ``norm``,
            ``logits``. Paths omit the parts that ``torch.compile`` inserts: ``resolve_sites`` finds them in the
            compiled and in the plain model.
        kinds: kind of each site.
        shapes: shape of the output of each site in the forward pass, (batch, time, width).
        attention: for each name of a block, the path of its module with attention weights (batch, heads, query, key).
        left_out: sentences on what was not found or is not accessible, and why.
    """

    sites: Mapping[str, str]
    kinds: Mapping[str, Kind]
    shapes: Mapping[str, tuple[int, ...]]
    attention: Mapping[str, str]
    left_out: tuple[str, ...]


def find_sites(module: Module, batch: Batch, forward: Forward | None = None) -> FoundSites:
    """Find the token embedding, the blocks, the final norm, the output layer and the attention of a language model.

    The model is run on the batch and observed, invisibly to its training, without gradients:

    - ``embedding``: the module that gets the ids themselves and returns a vector for each.
    - ``block_00`` …: the children of the outermost ``ModuleList`` or ``Sequential`` that ran one after the other, or
      attributes that differ by a number (``block1``, ``block2``), and each ``nn.LSTM``, ``GRU`` or ``RNN``. A single
      one that ran several times (ALBERT) is ``block``, captured as ``block@0`` …. If a model has several such lists,
      the names begin with the segment in which their paths differ: ``encoder_block_00``, ``decoder_block_00``.
    - ``norm``: the last norm next to the blocks, or next to the module that contains them, that ran after them.
    - ``logits``: the innermost module that returns the logits, or the last one before logits that are scaled.
    - attention weights: the innermost module in the block that calls PyTorch's fused attention, or that returns weights
      (batch, heads, query, key) with rows of sum 1. This requires a second forward pass.

    Args:
        module: the model, wrapped or not.
        batch: an example batch with ``input_ids`` (batch, time). If it has as many rows as tokens, the last row is
            left out, so that the two axes can be distinguished.
        forward: how the module is called, see ``call_module``.

    Returns:
        The sites, and sentences on what was not found.

    Raises:
        ValueError: if the batch has no ids, or if the module cannot be called with it.

    Example:
        >>> class Model(Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 9)
        ...         self.lstm = nn.LSTM(4, 4, batch_first=True)
        ...     def forward(self, input_ids):
        ...         return self.out(self.lstm(self.embed(input_ids))[0])
        >>> found = find_sites(Model(), {"input_ids": torch.ones(2, 3, dtype=torch.long)})
        >>> dict(found.sites), found.shapes["logits"]
        ({'embedding': 'embed', 'block_00': 'lstm', 'logits': 'out'}, (2, 3, 9))
    """
    if not isinstance(batch.get("input_ids"), Tensor) or batch["input_ids"].ndim != 2:
        raise ValueError(
            "lmdyn finds sites with a forward pass over `input_ids` (batch, time), but the batch is "
            f"{seen(batch)}: add `input_ids`, or name modules in `sites`"
        )
    rows, time = batch["input_ids"].shape
    if rows == time and rows > 1:  # the two axes are to be distinguished
        batch = rows_at(batch, slice(rows - 1))

    def run() -> Any:
        return call_module(module, batch, forward=forward)

    with observing(module), torch.no_grad():
        return _Finder(module, batch, run).found()


def match_sites(module: Module, pattern: str) -> dict[str, str]:
    """Return the modules whose path matches a pattern, as sites.

    A pattern is matched segment by segment, each like a file name (``*``, ``?``, ``[02]``). A pattern that begins with
    ``*`` may begin anywhere in the path: ``"*.layers.*"`` matches the modules of the outermost lists named ``layers``,
    at any depth, but not the modules within these; ``"*norm*"`` matches each norm. Modules that never run themselves
    (``ModuleList``, ``ModuleDict``) are not matched. A site is named after the last segments of its path, as many as
    are required to distinguish all sites and not to begin with a number; numbers have at least two digits.

    Args:
        module: the model, wrapped or not.
        pattern: pattern of module paths, such as ``"*.layers.*"``.

    Returns:
        Module path by display name, in the order of the model.

    Raises:
        ValueError: if no module matches (the message gives the nearest paths), or if more than 100 do.

    Example:
        >>> layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(2))
        >>> match_sites(nn.ModuleDict({"model": nn.ModuleDict({"layers": layers})}), "*.layers.*")
        {'layers_00': 'model.layers.0', 'layers_01': 'model.layers.1'}
    """
    anywhere = pattern.startswith("*")
    tail = pattern.removeprefix("*.").split(".")
    paths = [
        p for p, m in paths_of(module).items() if p and not isinstance(m, (nn.ModuleList, nn.ModuleDict))
    ]
    matched: list[str] = []
    for path in paths:
        end = path.split(".")[-len(tail) :]
        if len(end) < len(tail) or (not anywhere and path != ".".join(end)):
            continue
        if all(fnmatchcase(segment, wanted) for segment, wanted in zip(end, tail, strict=True)) and not (
            len(tail) > 1 and any(path.startswith(f"{outer}.") for outer in matched)
        ):
            matched.append(path)
    if not matched:
        near_ends = {".".join(path.split(".")[-len(tail) :]): path for path in reversed(paths)}
        near = nearest(".".join(tail).replace("*", "0"), near_ends, cutoff=0.0)
        raise ValueError(
            f"the pattern {pattern!r} matches no module of {type(module).__name__}; the nearest paths are "
            f"{', '.join(near_ends[end] for end in near)}. lmdyn matches patterns segment by segment; a pattern that "
            "begins with `*` may begin anywhere, such as '*.layers.*'"
        )
    if len(matched) > _MOST:
        raise ValueError(
            f"the pattern {pattern!r} matches {len(matched)} modules of {type(module).__name__}, more than {_MOST}: "
            f"{', '.join(matched[:3])} … {matched[-1]}; use a longer part of the path"
        )
    return names_of_paths(matched)


def names_of_paths(paths: Sequence[str]) -> dict[str, str]:
    """Name module paths after their last segments, as many as distinguish all and do not begin with a number.

    Args:
        paths: different paths.

    Returns:
        Path by display name, in the order of the paths; numbers have at least two digits.

    Example:
        >>> names_of_paths(["model.layers.0.act", "model.layers.1.act"])
        {'layers_00_act': 'model.layers.0.act', 'layers_01_act': 'model.layers.1.act'}
    """
    split = [path.split(".") for path in paths]
    width = max((len(s) for path in split for s in path if s.isdigit()), default=0)
    names: list[str] = []
    for depth in range(1, max(map(len, split), default=0) + 1):
        ends = [path[-depth:] for path in split]
        names = ["_".join(s.zfill(max(2, width)) if s.isdigit() else s for s in end) for end in ends]
        if len(set(names)) == len(names) and not any(end[0].isdigit() for end in ends):
            break
    return dict(zip(names, paths, strict=True))


class _Finder:
    """Record of the forward pass, and the sites found in it."""

    def __init__(self, module: Module, batch: Batch, run: Callable[[], Any]) -> None:
        self.module, self.run = module, run
        ids = _ids(module, batch)
        self.trace = trace_forward(module, run, ids)
        if len(self.trace.of(paths_of(module)[""])) > 1:  # called again, with labels, to obtain all logits
            self.trace = trace_forward(module, run, ids)
        self.groups, self.left_out = block_groups(module, self.trace, run)
        self.blocks = {name: m for group in self.groups for name, m in group.sites.items()}
        self.places: dict[str, tuple[Kind, Call]] = {
            name: ("block", self.trace.first(m)) for name, m in self.blocks.items()
        }
        self._find_embedding()
        self._find_logits()
        self._find_norms()

    def _add(self, name: str, kind: Kind, call: Call) -> bool:
        """Add a site, or say why the output of the module is none."""
        why = self.trace.no_site(call.module)
        if why is None:
            self.places[name] = kind, call
        else:
            self.left_out.append(f"{name}: {why}")
        return why is None

    def _find_embedding(self) -> None:
        by_key: dict[str, Module] = {}
        rest = [self.module, *(m for group in self.groups for m in group.blocks)]
        given = [c for c in self.trace.calls if c.ids and c.floating and c.shape and len(c.shape) == 3]
        given = [c for c in given if not any(within(m, c.module) for m in rest)]
        given = [c for c in given if not any(inner.ids == c.ids and inner.inside(c) for inner in given)]
        for call in sorted(given, key=lambda c: not c.by_ids):
            by_key.setdefault(call.ids or "", self._around_adapter(call.module))
        if not by_key:
            self.left_out.append(
                "embedding: no module maps ids to vectors (the model gets vectors, or looks up vectors with "
                "F.embedding or a matrix product): name the embedding, `sites: {embedding: path.of.a.module}`"
            )
        several = len({id(m) for m in by_key.values()}) > 1
        for key, m in by_key.items():
            name = "embedding"
            if several:
                name = "decoder_embedding" if key.startswith("decoder") else "encoder_embedding"
            if name in self.places:
                continue
            if self.trace.no_site(m) or all(c.by_ids for c in given if c.module is m):
                self._add(name, "embedding", self.trace.first(m))
            else:
                self.left_out.append(
                    f"{name}: {self.trace.show(m)} returns different vectors for equal ids (positions or neighbours "
                    "have an effect), so this module is not the token embedding: name the embedding, `sites: "
                    f"{{{name}: path}}`"
                )

    def _around_adapter(self, m: Module) -> Module:
        path = self.trace.path_of[id(m)]
        if path.endswith(".base_layer"):  # PEFT adds to its output
            return paths_of(self.module)[path.removesuffix(".base_layer")]
        return m

    def _find_logits(self) -> None:
        self.end_of_blocks = len(self.trace.calls)
        try:
            logits = logits_of(self.trace.output)
        except ValueError:
            self.left_out.append("logits: the module returns no logits")
            return
        call = self._logits_call(logits)
        if call is None or any(call.module is m for m in self.blocks.values()):
            self.left_out.append(
                "logits: no module returns the logits (F.linear or a matrix product computes the logits, as with tied "
                "weights)"
            )
            return
        self.end_of_blocks = call.start
        if self._add("logits", "logits", self.trace.first(call.module)):
            answer = call.answer()
            if answer is None or not _same_memory(answer, logits):
                self.left_out.append(
                    f"logits: the model scales, caps or casts the output of {self.trace.show(call.module)} to compute "
                    "the logits"
                )

    def _logits_call(self, logits: Tensor) -> Call | None:
        """Return the call that returned the logits, or the last one of their width by a leaf module with weights."""
        last = max((c.end for m in self.blocks.values() for c in self.trace.of(m)), default=-1)
        inner = [place.module for _, place in self.places.values()]
        whole = paths_of(self.module)[""]
        wide = None
        for call in sorted(self.trace.calls, key=lambda c: c.end):
            around = any(within(m, call.module) and m is not call.module for m in inner)
            if call.end <= last or around or call.module is whole:
                continue
            answer = call.answer()
            if answer is not None and answer.numel() == logits.numel() and _same_memory(answer, logits):
                return call
            leaf = next(call.module.children(), None) is None
            weights = next(call.module.parameters(), None) is not None
            if leaf and weights and call.floating and (call.shape or ())[-1:] == logits.shape[-1:]:
                wide = call
        return wide

    def _find_norms(self) -> None:
        for group, following in zip(self.groups, [*self.groups[1:], None], strict=False):
            if not group.sites:
                continue
            last = max(c.end for m in group.blocks for c in self.trace.of(m))
            begun = max(c.start for m in group.blocks for c in self.trace.of(m) if c.end == last)
            until = self.end_of_blocks
            if following is not None:
                until = min(until, self.trace.first(following.blocks[0]).start)
            after = [c for c in self.trace.calls if c.end > last and c.start < until]
            # a module with weights that is not a norm begins a head
            begins = [c for c in after if c.start > begun and not _is_norm(c.module)]
            heads = (c.start for c in begins if next(c.module.parameters(recurse=False), None) is not None)
            head = min(heads, default=until)
            norms = [c for c in after if c.start < head and _is_norm(c.module)]
            found = [c for c in norms if self._beside(c.module, group)]
            if found:
                self._add(group.norm_name, "norm", found[-1])
            elif not isinstance(group.blocks[-1], nn.RNNBase):
                self.left_out.append(f"{group.norm_name}: no norm follows the last block")

    def _beside(self, m: Module, group: BlockGroup) -> bool:
        """Return whether a module is a sibling of the blocks, of their list, or of the module that contains it."""
        parent = self.trace.path_of[id(m)].rpartition(".")[0]
        block = self.trace.path_of[id(group.blocks[-1])]
        return not any(within(m, b) for g in self.groups for b in g.blocks) and (
            not parent or block.startswith(f"{parent}.")
        )

    def found(self) -> FoundSites:
        places = sorted(self.places.items(), key=lambda place: place[1][1].end)
        named = [(name, kind, call.module) for name, (kind, call) in places]
        for name, kind, m in named:
            runs = len(self.trace.of(m))
            if kind != "block" and runs > 1:
                self.left_out.append(
                    f"{name}: {self.trace.show(m)} runs {runs} times: lmdyn captures {name}@0 … {name}@{runs - 1}"
                )
        sites = {name: self.trace.path_of[id(m)] for name, _, m in named}
        attention, overwritten = self._second_pass(sites)
        for name in overwritten:
            self.left_out.append(f"{name}: `x += y` overwrites the output of {sites[name]}: use `x = x + y`")
        kept = [entry for entry in named if entry[0] not in overwritten]
        return FoundSites(
            sites={name: sites[name] for name, _, _ in kept},
            kinds={name: kind for name, kind, _ in kept},
            shapes={name: self.trace.first(m).shape or () for name, _, m in kept},
            attention=attention,
            left_out=tuple(self.left_out),
        )

    def _second_pass(self, sites: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        """Return attention modules by block, and the sites whose output is overwritten."""
        attention = AttentionTrace(self.trace, self.blocks)
        with capture(self.module, sites) as seen:
            try:
                with readable_attention(self.module), attention.watch():
                    self.run()
            except Exception as error:  # the model has no eager attention
                seen.clear()
                self.run()  # raises the model's own error, if it is not that of the attention
                self.left_out.append(f"attention weights: the model fails under eager attention: {error}")
                return {}, seen.overwritten
            self.left_out += attention.left_out()
            return attention.found, seen.overwritten


def _ids(module: Module, batch: Batch) -> dict[str, Tensor]:
    """Return the ids that the model reads; those of a decoder are created from the labels if the batch has none."""
    named = {name: batch.get(name) for name in ("input_ids", "decoder_input_ids")}
    if named["decoder_input_ids"] is None and isinstance(batch.get("labels"), Tensor):
        named |= decoder_ids(module, batch["labels"])
    return {name: ids for name, ids in named.items() if isinstance(ids, Tensor) and ids.ndim == 2}


def _is_norm(module: Module) -> bool:
    return bool(re.search(r"norm|rms", type(module).__name__, re.IGNORECASE))


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a is b or a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()

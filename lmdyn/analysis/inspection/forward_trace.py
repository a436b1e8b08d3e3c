"""Trace of a forward pass: the modules that ran, their order, their inputs and their outputs."""

import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.utils.weak import WeakTensorKeyDictionary

from lmdyn.analysis.inspection.activations import first_tensor, paths_of
from lmdyn.analysis.inspection.attention_weights import watch_attention
from lmdyn.analysis.inspection.batches import of_ids

__all__ = ["AttentionTrace", "Call", "Trace", "feeds", "trace_forward", "within"]


@dataclass
class Call:
    """One call of one module.

    Attributes:
        module: the module that was called.
        start: number of the call, in the order in which calls began.
        end: number in the order in which calls ended; −1 while it runs.
        ids: key of the batch whose ids were passed to it, unchanged or (``ids_transposed``) time first.
        ids_transposed: see ``ids``.
        by_ids: for a module that got ids, whether it returned equal vectors for equal ids.
        x_shape: shape of the first floating (·, ·, ·) tensor among its arguments.
        x_number: number of that tensor; equal numbers are the same tensor.
        shape: shape of the first tensor in its output.
        number: number of that tensor.
        floating: whether that tensor is floating-point.
        kind: type of its output, for messages.
        answer: output tensor, while it exists.
    """

    module: Module
    start: int
    end: int = -1
    ids: str | None = None
    ids_transposed: bool = False
    by_ids: bool = False
    x_shape: tuple[int, ...] | None = None
    x_number: int | None = None
    shape: tuple[int, ...] | None = None
    number: int | None = None
    floating: bool = False
    kind: str = ""
    answer: Callable[[], Tensor | None] = field(default=lambda: None, repr=False)

    def inside(self, other: "Call") -> bool:
        """Return whether the call ran within another one."""
        return other.start < self.start and self.end < other.end


class Trace:
    """The calls of a forward pass.

    Attributes:
        calls: the calls, in the order in which they began.
        output: output of the whole module.
        path_of: path of each module by its ``id``.
        axes: the (batch, time) of the ids.
    """

    def __init__(
        self, calls: list[Call], output: Any, paths: Mapping[str, Module], axes: set[tuple[int, ...]]
    ) -> None:
        self.calls, self.output, self.axes = calls, output, axes
        self.path_of = {id(m): path for path, m in paths.items()}
        self._of: dict[int, list[Call]] = {}
        for call in calls:
            self._of.setdefault(id(call.module), []).append(call)

    def of(self, module: Module) -> list[Call]:
        """Return the calls of one module."""
        return self._of.get(id(module), [])

    def first(self, module: Module) -> Call:
        """Return the first call of a module that ran."""
        return self._of[id(module)][0]

    def show(self, module: Module) -> str:
        """Return path and class, for messages."""
        return f"{self.path_of[id(module)]} ({type(module).__name__})"

    def no_site(self, module: Module) -> str | None:
        """Return why the output of a module is not one vector for each token; None if it is."""
        wrong = [c for c in self.of(module) if c.shape is None or c.shape[:2] not in self.axes]
        time_first = isinstance(module, nn.RNNBase) and not module.batch_first
        if not wrong and not (time_first and all(a == b for a, b in self.axes)):
            return None
        shape = wrong[0].shape if wrong else self.first(module).shape
        if shape is None:
            return f"{self.show(module)} returns a {wrong[0].kind} without a (batch, time, width) tensor"
        if time_first or tuple(reversed(shape[:2])) in self.axes:
            switch = any(getattr(m, "batch_first", True) is False for m in module.modules())
            remedy = "create the layer with batch_first=True" if switch else "expected (batch, time, width)"
            return f"{self.show(module)} returns {shape}, time before batch: {remedy}"
        return f"{self.show(module)} returns {shape}, which is not (batch, time, width)"


def trace_forward(module: Module, forward: Callable[[], Any], ids: Mapping[str, Tensor]) -> Trace:
    """Record the calls of all modules within ``module`` while ``forward`` runs.

    Args:
        module: the model.
        forward: runs the forward pass.
        ids: integer tensors (batch, time) that arguments are compared with.

    Example:
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))
        >>> batch = {"input_ids": torch.tensor([[1, 2, 3]])}
        >>> seen = trace_forward(model, lambda: model(batch["input_ids"]), batch)
        >>> [(type(c.module).__name__, c.ids, c.shape) for c in seen.calls[1:]]
        [('Embedding', 'input_ids', (1, 3, 4)), ('Linear', None, (1, 3, 2))]
    """
    modules = paths_of(module)
    calls: list[Call] = []
    running: list[Call] = []
    ended, next_number = count(), count()
    numbers = WeakTensorKeyDictionary()  # equal ones of equal tensors

    def number(tensor: Tensor) -> int:
        found: int = numbers.setdefault(tensor, next(next_number))
        return found

    def before(m: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = Call(m, start=len(calls))
        given = (*args, *kwargs.values())
        for key, tensor in ids.items():
            for t in given:
                if of_ids(t) and t.device == tensor.device:
                    if torch.equal(t.to(tensor.dtype), tensor):
                        call.ids = call.ids or key
                    elif torch.equal(t.to(tensor.dtype), tensor.T):
                        call.ids = call.ids or key
                        call.ids_transposed = True
        x = next((t for t in map(first_tensor, given) if t is not None and _is_vectors(t)), None)
        if x is not None:
            call.x_shape, call.x_number = tuple(x.shape), number(x)
        calls.append(call)
        running.append(call)

    def after(m: Module, _: Any, output: Any) -> None:
        while running and running[-1].module is not m:
            running.pop()  # left by an error that the model caught
        call = running.pop()
        call.end, call.kind = next(ended), type(output).__name__
        tensor = first_tensor(output)
        if tensor is not None and not tensor.is_nested:
            call.shape, call.number = tuple(tensor.shape), number(tensor)
            call.floating, call.answer = tensor.is_floating_point(), weakref.ref(tensor)
            if call.ids is not None and call.floating and tensor.ndim == 3:
                read = ids[call.ids].T if call.ids_transposed else ids[call.ids]
                call.by_ids = tensor.shape[:2] == read.shape and _equal_for_equal(read, tensor)
        elif tensor is not None:
            call.kind = "nested tensor"

    with ExitStack() as stack:
        for m in modules.values():
            stack.callback(m.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(m.register_forward_hook(after).remove)
        output = forward()
    calls = [call for call in calls if call.end >= 0]
    return Trace(calls, output, modules, {tuple(t.shape) for t in ids.values()})


def _equal_for_equal(ids: Tensor, vectors: Tensor) -> bool:
    _, which = torch.unique(ids.flatten(), return_inverse=True)
    rows = torch.nan_to_num(vectors.detach()).flatten(0, 1)
    places = torch.arange(len(which), device=which.device)
    first = torch.full_like(which, len(which)).scatter_reduce_(0, which, places, "amin")
    return bool(((rows - rows[first[which]]).abs() <= 1e-6 * rows.abs().amax()).all())


def _is_vectors(tensor: Tensor) -> bool:
    return not tensor.is_nested and tensor.ndim == 3 and tensor.is_floating_point()


def feeds(first: Module, second: Module, forward: Callable[[], Any]) -> bool:
    """Return whether the output of ``first`` reaches ``second``: it is changed, and the input of ``second`` compared.

    Example:
        >>> a, b = nn.Linear(2, 2), nn.Linear(2, 2)
        >>> x = torch.ones(1, 1, 2)
        >>> feeds(a, b, lambda: b(a(x))), feeds(a, b, lambda: (a(x), b(x)))
        (True, False)
    """
    given: list[Tensor] = []

    def keep(_: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        vectors = [
            t for t in map(first_tensor, (*args, *kwargs.values())) if t is not None and _is_vectors(t)
        ]
        given.append((vectors or [torch.zeros(0)])[0].detach().clone())

    def change(_: Module, __: Any, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None and tensor.is_floating_point():
            tensor.detach().add_(1.0)

    seen = []
    for changed in (False, True):
        given.clear()
        with ExitStack() as stack:
            stack.callback(second.register_forward_pre_hook(keep, with_kwargs=True).remove)
            if changed:
                stack.callback(first.register_forward_hook(change).remove)
            forward()
        seen.append(given[0] if given else torch.zeros(0))
    return seen[0].shape != seen[1].shape or not torch.equal(*seen)


def within(module: Module, outer: Module) -> bool:
    """Return whether ``module`` is ``outer`` or part of it.

    Example:
        >>> within(net := nn.Linear(2, 2), nn.Sequential(net))
        True
    """
    return any(m is module for m in outer.modules())


class AttentionTrace:
    """The module in each block that returns attention weights in a forward pass.

    Attributes:
        found: path of the module by name of the block.
    """

    def __init__(self, trace: Trace, blocks: Mapping[str, Module]) -> None:
        self._trace, self._blocks = trace, blocks
        self._times = {time for _, time in trace.axes}
        self._names = {id(block): name for name, block in blocks.items()}
        self._answered: list[tuple[Module, bool, Tensor]] = []
        self.found: dict[str, str] = {}
        self._others: dict[str, None] = {}

    def watch(self) -> AbstractContextManager[None]:
        """Record the blocks in this context."""
        return watch_attention((m for block in self._blocks.values() for m in block.modules()), self._see)

    def _see(self, m: Module, output: Any, weights: Tensor | None, within: list[Tensor]) -> None:
        by_output = weights is not None and isinstance(output, Tensor)
        if weights is None:  # of a fused call, by the innermost module around it
            own = [w for w in within if all(w is not found for *_, found in self._answered)]
            weights = own[0] if len(own) == 1 else None
        if weights is not None and weights.shape[2] in self._times:
            self._answered.append((m, by_output, weights))
        if id(m) in self._names:
            self._end_of_block(m)

    def _end_of_block(self, block: Module) -> None:
        answered, self._answered = self._answered, []
        if not answered:
            return
        # prefer a module that returns weights in addition to its result to a dropout that they pass through
        chosen, _, weights = next((a for a in answered if not a[1]), answered[0])
        self.found[self._names[id(block)]] = self._trace.path_of[id(chosen)]
        apart = [m for m, _, w in answered if w.shape != weights.shape or not torch.equal(w, weights)]
        apart = [m for m in apart if not any(n is not m and within(n, m) for n in apart)]
        self._others |= dict.fromkeys(self._trace.path_of[id(m)] for m in apart)

    def left_out(self) -> list[str]:
        """Return sentences on what was not found in the blocks that are not recurrent, and why."""
        said = []
        if self._others:
            said.append(
                f"attention weights: {_enumerated(list(self._others))} also return attention weights, as in cross "
                "attention: name these modules with `attention_sites`"
            )
        others = [name for name, m in self._blocks.items() if not isinstance(m, nn.RNNBase)]
        without = [name for name in others if name not in self.found]
        if without:
            said.append(
                f"no module of {_enumerated(without)} returns attention weights (no attention, another kernel, or rows "
                "that add up to less than 1 because of a sink)"
            )
        return said


def _enumerated(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]} … {names[-1]} ({len(names)} in all)"

"""Passages of a state through a module's forward: inserted at the end of one iteration, read at the next."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_map_only

from lmdyn.analysis.dynamics.maps.copies import with_first_tensor
from lmdyn.analysis.inspection.activations import first_tensor, observing
from lmdyn.analysis.inspection.forward import Forward, StopForward, call_module, called_module

__all__ = ["Call", "NoMapError", "Passage", "Recorded", "is_vectors"]


class NoMapError(ValueError):
    """Raised if the computation between two states is not a map of the state; the message gives the reason."""


class Call:
    """A call of a layer: its token vectors and the name of their argument, its other arguments, and its output.

    Attributes:
        path: path of the layer.
        given: all arguments.
        x: the vectors (batch, tokens, hidden); None if the arguments contain none.
        name: name of their argument; None for the first positional one.
        args: further positional arguments.
        kwargs: further arguments by name.
        answer: output (batch, tokens, hidden), if the layer returned.
    """

    def __init__(self, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.path, self.given = path, (*args, *kwargs.values())
        self.args, self.kwargs = args, dict(kwargs)
        self.name: str | None = None
        self.x: Tensor | None = None
        self.answer: Tensor | None = None
        if args and is_vectors(args[0]):
            self.x, self.args = args[0].clone(), args[1:]
            return
        names = [name for name, value in kwargs.items() if is_vectors(value)]
        if names and not args:
            self.name = "hidden_states" if "hidden_states" in names else names[0]
            self.x = self.kwargs.pop(self.name).clone()


def is_vectors(value: Any) -> bool:
    """Return whether a value is token vectors (batch, tokens, hidden)."""
    return isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()


@dataclass
class Recorded:
    """Recording of a forward pass.

    Attributes:
        batch: input of the pass.
        calls: calls of the layers, in order.
        outputs: each outermost module that ran, with its output; those before the end of the first iteration, or all.
        output: output of the module, if the pass was completed.
    """

    batch: Mapping[str, Tensor]
    calls: list[Call] = field(default_factory=list)
    outputs: list[tuple[Module, Any]] = field(default_factory=list)
    output: Any = None


_Handler = Callable[["_Place", Callable[[], Any], tuple[Any, ...], Mapping[str, Any]], Any]
"""Called instead of each outermost module, with a function that runs it and its arguments; returns its output."""


@dataclass
class _Place:
    """Where a pass is: the module that is called, its number among the calls, and how many layers have begun.

    Its methods stand in for modules. They are not functions within a function, which would be made in each pass.
    """

    handle: _Handler
    begin: Callable[[], None]
    path_of: Mapping[int, str]
    m: Module | None = None
    path: str | None = None
    number: int = -1
    count: int = 0
    running: bool = False

    def whole(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the whole module: the pass begins."""
        self.number, self.count = -1, 0
        self.begin()
        return plain(*args, **kwargs)

    def part(self, m: Module, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an outermost module through the handler; modules within one that runs are called unchanged."""
        if self.running:
            return plain(*args, **kwargs)
        self.m, self.path, self.running = m, self.path_of.get(id(m)), True
        self.number, self.count = self.number + 1, self.count + (self.path is not None)
        try:
            return self.handle(self, partial(plain, *args, **kwargs), args, kwargs)
        finally:
            self.running = False


def _nothing() -> None: ...


class Passage:
    """The forward of a module, entered and left at its layers.

    Modules before the entry return their recorded outputs for this batch, at no cost; what lies between entry and exit
    (the injection of an input, positions, masks) is computed by the module itself.

    Args:
        module: a private copy, see :func:`~lmdyn.analysis.dynamics.maps.copies.private_copy`.
        layers: module path to layer, for the layers through which the state passes.
        forward: see ``call_module``.
        seed: seed of what the module draws in its forward pass.
    """

    def __init__(
        self,
        module: Module,
        layers: Mapping[str, Module],
        forward: Forward | None,
        seed: int = 0,
    ) -> None:
        self.module, self.layers, self._forward, self._seed = module, dict(layers), forward, seed
        self._path_of = {id(layer): path for path, layer in self.layers.items()}
        self._outer = list(_outermost(module, {*self._path_of}))
        self._called = None if forward is not None else called_module(module)

    def record(self, batch: Mapping[str, Tensor], *, until: int | None = None) -> Recorded:
        """Run the module and record the pass.

        Args:
            batch: tensors by name.
            until: stop after this many calls of layers; None runs to the end.
        """
        seen = Recorded(batch)

        def handle(at: _Place, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
            assert at.m is not None
            if at.path is not None:
                seen.calls.append(Call(at.path, args, kwargs))
            output = run()
            seen.outputs.append((at.m, _fresh(output)))
            if at.path is not None:
                tensor = first_tensor(output)
                seen.calls[-1].answer = None if tensor is None else tensor.clone()
                if at.count == until:
                    raise StopForward
            return output

        def begin() -> None:
            seen.calls.clear()
            seen.outputs.clear()

        with self._observed():
            seen.output = self._run(batch, handle, begin)
        return seen

    def through(self, seen: Recorded, x: Tensor, unit: int) -> Tensor:
        """Return the state at the end of the second iteration, if it is ``x`` at the end of the first one.

        Args:
            seen: recording of this batch, of at least the first iteration.
            x: (batch, tokens, hidden).
            unit: number of calls of layers in an iteration.

        Raises:
            NoMapError: if other modules run than in the recording.
        """
        found: list[Any] = []
        self._run(seen.batch, partial(_between, seen, x, unit, found, None))
        if not found or found[0] is None:
            raise NoMapError(_OTHER_MODULES)
        state: Tensor = found[0]
        return state

    def entering(self, seen: Recorded, x: Tensor, unit: int) -> list[tuple[Module, tuple[Any, ...]]]:
        """Return the modules that are called before :meth:`through` meets a layer, and it, with their arguments.

        Args:
            seen: recording of this batch, of at least the first iteration.
            x: the state at the end of the first iteration.
            unit: number of calls of layers in an iteration; 0 for the calls before the first iteration.
        """
        calls: list[tuple[Module, tuple[Any, ...]]] = []
        with self._observed():
            self._run(seen.batch, partial(_between, seen, x, unit, [], calls))
        return calls

    def finish(self, seen: Recorded, x: Tensor, unit: int, n: int, *, changed: bool = False) -> Any:
        """Return the output of the module if the state at the end of the last of n iterations is ``x``.

        Args:
            seen: recording of this batch, at least the first iteration, whose outputs replace those of all except the
                last.
            x: (batch, tokens, hidden).
            unit: number of calls of layers in an iteration.
            n: number of iterations.
            changed: change the outputs of the first iteration before the last iteration.
        """
        layers = [output for m, output in seen.outputs if id(m) in self._path_of]

        def handle(at: _Place, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
            if at.path is not None:
                output = layers[(at.count - 1) % len(layers)]
                if at.count == unit * n:
                    return with_first_tensor(output, x.clone())
                tensor = first_tensor(output) if changed else None
                return _fresh(output) if tensor is None else with_first_tensor(output, 1.5 * tensor + 0.5)
            if at.count == 0 and at.number < len(seen.outputs) and seen.outputs[at.number][0] is at.m:
                return _fresh(seen.outputs[at.number][1])
            return run()

        with self._observed():
            return self._run(seen.batch, handle)

    @contextmanager
    def _observed(self) -> Iterator[None]:
        with observing(self.module), torch.no_grad():
            torch.manual_seed(self._seed)
            yield

    def _run(
        self,
        batch: Mapping[str, Tensor],
        handle: _Handler,
        begin: Callable[[], None] = _nothing,
    ) -> Any:
        """Return the module's output, or None if the handler ended the pass.

        The module may be called again, with labels, to obtain all logits: then the pass begins anew.
        """
        at = _Place(handle, begin, self._path_of)
        with ExitStack() as stack:
            for m in self._outer:
                _stand_in(stack, m, partial(at.part, m, m.forward))
            if self._called is not None:
                _stand_in(stack, self._called, partial(at.whole, self._called.forward))
            try:
                return call_module(self.module, batch, forward=self._forward)
            except StopForward:
                return None


def _between(
    seen: Recorded,
    x: Tensor,
    unit: int,
    found: list[Any],
    calls: list[Any] | None,
    at: _Place,
    run: Callable[[], Any],
    args: Any,
    kwargs: Any,
) -> Any:
    """Answer from the recording up to the end of an iteration, whose state is ``x``; find the next one."""
    ends = at.count == unit and at.path is not None
    if at.count < unit or ends:
        known, output = seen.outputs[at.number]
        if known is not at.m:
            raise NoMapError(_OTHER_MODULES)
        return with_first_tensor(output, x.clone()) if ends else _fresh(output)
    if calls is not None:
        calls.append((at.m, _fresh((*args, *kwargs.values()))))
        if at.path is not None:
            raise StopForward
    output = run()
    if at.path is not None and at.count == 2 * unit:
        found.append(first_tensor(output))
        raise StopForward
    return output


_OTHER_MODULES = "which modules the model runs depends on the state: let it run a fixed number of iterations"


def _stand_in(stack: ExitStack, m: Module, forward: Callable[..., Any]) -> None:
    """Set the forward of a module until the stack ends."""
    own = {name: m.__dict__[name] for name in ("forward",) if name in m.__dict__}
    stack.callback(m.__dict__.update, own)
    stack.callback(m.__dict__.pop, "forward")
    m.__dict__["forward"] = update_wrapper(forward, m.forward)


def _outermost(m: Module, layers: set[int], done: set[int] | None = None) -> Iterator[Module]:
    """Yield the layers, and the largest modules that contain none of them, each once."""
    done = set() if done is None else done
    if id(m) in done:
        return
    done.add(id(m))
    holds = id(m) not in layers and any(id(part) in layers for part in m.modules())
    if not holds and type(m).forward is not Module.forward:  # which is that of module lists
        yield m
        return
    for child in m.children():
        yield from _outermost(child, layers, done)


def _fresh(value: Any) -> Any:
    """Return the output of a module with copies of its tensors, because the model may write into them."""
    return tree_map_only(Tensor, Tensor.clone, value)

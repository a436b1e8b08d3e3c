"""Passages of a state through a module's forward: inserted at the end of one layer, read at the end of another."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_map_only

from lmdyn.analysis.dynamics.maps.copies import with_first_tensor
from lmdyn.analysis.inspection.activations import first_tensor, observing
from lmdyn.analysis.inspection.forward import Forward, StopForward, call_module, called_module, stand_in

__all__ = ["Call", "NoMapError", "Passage", "Recorded", "is_vectors"]


class NoMapError(ValueError):
    """Raised if the computation between two states is not a map of the state; the message gives the reason."""


def is_vectors(value: Any) -> bool:
    """Return whether a value is token vectors (batch, tokens, hidden)."""
    return isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()


@dataclass(eq=False)
class Call:
    """A call of a module, with copies of its arguments and its output.

    Attributes:
        m: the module.
        path: its path, if it is a layer.
        args: its arguments.
        kwargs: those by name.
        output: its output; None if it did not return.
    """

    m: Module
    path: str | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None

    @property
    def given(self) -> tuple[Any, ...]:
        """All arguments."""
        return *self.args, *self.kwargs.values()

    @property
    def x(self) -> Tensor | None:
        """The vectors (batch, tokens, hidden) that are given: the first argument, or the first one by name."""
        at = self._place()
        return None if at is None else self.args[0] if at == 0 else self.kwargs[str(at)]

    @property
    def answer(self) -> Tensor | None:
        """The first tensor of the output."""
        return first_tensor(self.output)

    def called_with(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with other vectors."""
        at = self._place()
        return ((x, *self.args[1:]), self.kwargs) if at == 0 else (self.args, {**self.kwargs, str(at): x})

    def _place(self) -> int | str | None:
        if self.args:
            return 0 if is_vectors(self.args[0]) else None
        names = [name for name, value in self.kwargs.items() if is_vectors(value)]
        return "hidden_states" if "hidden_states" in names else next(iter(names), None)


class Recorded:
    """Recording of a forward pass: the outermost modules that ran, up to the last required layer or to the end.

    Attributes:
        batch: input of the pass.
        calls: their calls, in order.
        layers: those of the layers.
        output: output of the module, if the pass was completed.
    """

    def __init__(self, batch: Mapping[str, Tensor], calls: list[Call], output: Any) -> None:
        self.batch, self.calls, self.output = batch, calls, output
        self.layers = [call for call in calls if call.path is not None]


@dataclass
class _Run:
    """A pass: how many outermost modules, and layers among them, were called, and their calls from its entry on.

    Its methods stand in for modules. They are not functions within a function, which would be made in each pass.

    Attributes:
        path_of: path of each layer by its id.
        until: ends the pass after this many calls of layers.
        seen: a recording of at least the first layers, which answer from it up to the entry; None enters at once.
        start: number of calls of layers before the entry.
        x: the state at the entry.
    """

    path_of: Mapping[int, str]
    until: int | None = None
    seen: Recorded | None = None
    start: int = 0
    x: Tensor | None = None
    calls: list[Call] = field(default_factory=list)
    number: int = 0
    count: int = 0
    running: bool = False

    def whole(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the whole module: the pass begins."""
        self.calls.clear()
        self.number = self.count = 0
        return plain(*args, **kwargs)

    def part(self, m: Module, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an outermost module, or answer for it; modules within one that runs are called unchanged."""
        if self.running:
            return plain(*args, **kwargs)
        self.running = True
        try:
            return self._answered(m, plain, args, kwargs)
        finally:
            self.running = False

    def _answered(self, m: Module, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        path = self.path_of.get(id(m))
        number = self.number
        begun = self.count
        self.number, self.count = number + 1, begun + (path is not None)
        if self.seen is not None and (begun < self.start or self.count == 0):
            # iterations beyond the recorded ones repeat its layers
            calls = (
                self.seen.calls[number:]
                if path is None
                else self.seen.layers[begun % len(self.seen.layers) :]
            )
            if not calls:
                return plain(*args, **kwargs)
            if calls[0].m is not m:
                raise NoMapError(_OTHER_MODULES)
            if self.x is not None and path is not None and self.count == self.start:
                return with_first_tensor(calls[0].output, self.x.clone())
            return _fresh(calls[0].output)
        if self.seen is not None and self.until is None:  # the rest of the model, whose logits are large
            return plain(*args, **kwargs)
        call = Call(m, path, *_fresh((args, kwargs)))
        self.calls.append(call)
        if self.x is not None and begun == self.start == 0:
            args, kwargs = call.called_with(self.x.clone())
        output = plain(*args, **kwargs)
        call.output = _fresh(output)
        if path is not None and self.count == self.until:
            raise StopForward
        return output


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
        run = _Run(self._path_of, until)
        with self._observed():
            output = self._run(batch, run)
        return Recorded(batch, run.calls, output)

    def after(self, seen: Recorded, x: Tensor, start: int, until: int) -> list[Call]:
        """Return the calls from a state on; the last one is that of the layer at which the pass ends.

        Args:
            seen: recording of this batch, of at least the first ``start`` calls of layers.
            x: (batch, tokens, hidden), the state after these; for 0, the input of the first layer.
            start: number of calls of layers before the state.
            until: number of calls of layers before the end.

        Raises:
            NoMapError: if other modules run than in the recording.
        """
        run = _Run(self._path_of, until, seen, start, x)
        self._run(seen.batch, run)
        if run.count < until:
            raise NoMapError(_OTHER_MODULES)
        return run.calls

    def finish(self, seen: Recorded, x: Tensor, start: int) -> Any:
        """Return the output of the module if ``x`` is the state after ``start`` calls of layers.

        Args:
            seen: recording of this batch, at least the first iteration, whose outputs replace those of all later ones.
            x: (batch, tokens, hidden).
            start: number of calls of layers.
        """
        with self._observed():
            return self._run(seen.batch, _Run(self._path_of, None, seen, start, x))

    @contextmanager
    def _observed(self) -> Iterator[None]:
        with observing(self.module), torch.no_grad():
            torch.manual_seed(self._seed)
            yield

    def _run(self, batch: Mapping[str, Tensor], run: _Run) -> Any:
        """Return the module's output, or None if the pass was ended.

        The module may be called again, with labels, to obtain all logits: then the pass begins anew.
        """
        with ExitStack() as stack:
            for m in self._outer:
                stand_in(stack, m, partial(run.part, m, m.forward))
            if self._called is not None:
                stand_in(stack, self._called, partial(run.whole, self._called.forward))
            try:
                return call_module(self.module, batch, forward=self._forward)
            except StopForward:
                return None


_OTHER_MODULES = "the state determines which modules the model runs: set a fixed number of iterations"


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
    """Return arguments or an output with copies of their tensors, because the model may write into them."""
    return tree_map_only(Tensor, Tensor.clone, value)

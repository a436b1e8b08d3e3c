"""Passages of a state through a module's forward: inserted at the end of one iteration, read at the next."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from lmdyn.analysis.dynamics.maps.copies import with_first_tensor
from lmdyn.analysis.inspection.activations import first_tensor, observing
from lmdyn.analysis.inspection.forward import Forward, StopForward, call_module, called_module

__all__ = ["Call", "Passage", "Recorded"]


class Call:
    """A call of a layer: its token vectors and the name of their argument, its other arguments, and its output.

    Attributes:
        path: path of the layer.
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
        if args and _is_vectors(args[0]):
            self.x, self.args = args[0].clone(), args[1:]
            return
        names = [name for name, value in kwargs.items() if _is_vectors(value)]
        if names and not args:
            self.name = "hidden_states" if "hidden_states" in names else names[0]
            self.x = self.kwargs.pop(self.name).clone()


def _is_vectors(value: Any) -> bool:
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
    outputs: list[tuple[nn.Module, Any]] = field(default_factory=list)
    output: Any = None


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
        self, module: nn.Module, layers: Mapping[str, nn.Module], forward: Forward | None, seed: int = 0
    ) -> None:
        self.module, self.layers, self._forward, self._seed = module, dict(layers), forward, seed
        self._path_of = {id(layer): path for path, layer in self.layers.items()}
        self._outer = list(_outermost(module, {*self._path_of}))
        self._called = None if forward is not None else called_module(module)

    def record(
        self, batch: Mapping[str, Tensor], *, until: int | None = None, entered: bool = False
    ) -> Recorded:
        """Run the module and record the pass.

        Args:
            batch: tensors by name.
            until: stop after this many calls of layers; None runs to the end.
            entered: stop at the start of that call, not at its end.
        """
        recorder = _Recorder(self._path_of, Recorded(batch), until, entered)
        with self._observed():
            recorder.seen.output = self._run(batch, recorder)
        return recorder.seen

    def tensors_before(
        self, batch: Mapping[str, Tensor], shape: tuple[int, ...], last: int | None = None
    ) -> list[Tensor]:
        """Return tensors of a shape in the order of their creation before the first layer: all, or the last ones."""
        watch = _Watch(torch.Size(shape), last)
        with self._observed(), watch:
            self._run(batch, _Until(self._path_of, watch))
        return list(watch.made)

    def through(
        self, seen: Recorded, x: Tensor, unit: int, i: int = 0, *, entered: bool = False
    ) -> Tensor | Call:
        """Return the state at the end of iteration i + 1 (from 0), if it is ``x`` at the end of iteration i.

        Args:
            seen: recording of this batch, with all outputs if i is above 0.
            x: (batch, tokens, hidden).
            unit: number of calls of layers in an iteration.
            i: number of the iteration.
            entered: return the input of the first layer of iteration i + 1 instead.

        Raises:
            ValueError: if other modules run than in the recording.
        """
        replay = _Replay(self._path_of, seen, x, (i + 1) * unit, unit, entered)
        self._run(seen.batch, replay)
        if replay.found is None:
            raise ValueError(_OTHER_MODULES)
        return replay.found

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
        with self._observed():
            return self._run(seen.batch, _Ending(self._path_of, seen, x, unit * n, changed))

    @contextmanager
    def _observed(self) -> Iterator[None]:
        with observing(self.module), torch.no_grad():
            torch.manual_seed(self._seed)
            yield

    def _run(self, batch: Mapping[str, Tensor], handler: "_Handler") -> Any:
        """Return the module's output, or None if the handler ended the pass."""
        handler.begin()
        with ExitStack() as stack:
            for m in self._outer:
                stack.callback(_restored, m, m.__dict__.get("forward"))
                m.__dict__["forward"] = update_wrapper(partial(handler.run, m, m.forward), m.forward)
            if self._called is not None:  # it may be called again, with labels, to obtain all logits
                called = self._called
                stack.callback(_restored, called, called.__dict__.get("forward"))
                called.__dict__["forward"] = update_wrapper(
                    partial(_beginning, handler, called.forward), called.forward
                )
            try:
                return call_module(self.module, batch, forward=self._forward)
            except StopForward:
                return None


class _Handler:
    """Called instead of each outermost module; modules within a module that runs are called unchanged."""

    def __init__(self, path_of: Mapping[int, str]) -> None:
        self.path_of, self._running = path_of, False

    def begin(self) -> None:
        """Handle a call of the module, the first or a later one."""
        self.at, self.count = -1, 0  # index of outermost modules, number of layer calls

    def run(self, m: nn.Module, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the output of the module, computed or replaced."""
        if self._running:
            return plain(*args, **kwargs)
        self._running = True
        try:
            path = self.path_of.get(id(m))
            self.at, self.count = self.at + 1, self.count + (path is not None)
            return self.handle(m, path, plain, args, kwargs)
        finally:
            self._running = False

    def handle(
        self, m: nn.Module, path: str | None, plain: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Handle :meth:`run`, with the path of a layer."""
        raise NotImplementedError


class _Recorder(_Handler):
    def __init__(self, path_of: Mapping[int, str], seen: Recorded, until: int | None, entered: bool) -> None:
        super().__init__(path_of)
        self.seen, self._until, self._entered = seen, until, entered

    def begin(self) -> None:
        super().begin()
        self.seen.calls.clear()
        self.seen.outputs.clear()

    def handle(
        self, m: nn.Module, path: str | None, plain: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        if path is not None:
            self.seen.calls.append(Call(path, args, kwargs))
            if self._entered and self.count == self._until:
                raise StopForward
        output = plain(*args, **kwargs)
        self.seen.outputs.append((m, _fresh(output)))
        if path is not None:
            tensor = first_tensor(output)
            self.seen.calls[-1].answer = None if tensor is None else tensor.clone()
            if self.count == self._until:
                raise StopForward
        return output


class _Until(_Handler):
    """Ends the pass at the first layer."""

    def __init__(self, path_of: Mapping[int, str], watch: "_Watch") -> None:
        super().__init__(path_of)
        self._watch = watch

    def begin(self) -> None:
        super().begin()
        self._watch.made.clear()

    def handle(
        self, m: nn.Module, path: str | None, plain: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        if path is not None:
            raise StopForward
        return plain(*args, **kwargs)


class _Replay(_Handler):
    """Replays the recording up to the layer that returns the state; then a whole iteration runs."""

    def __init__(
        self, path_of: Mapping[int, str], seen: Recorded, x: Tensor, end: int, unit: int, entered: bool
    ) -> None:
        super().__init__(path_of)
        self._seen, self._x, self._end, self._unit, self._entered = seen, x, end, unit, entered
        self.found: Tensor | Call | None = None

    def handle(
        self, m: nn.Module, path: str | None, plain: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        ends = self.count == self._end and path is not None
        if self.count < self._end or ends:
            known, output = self._seen.outputs[self.at]
            if known is not m:
                raise ValueError(_OTHER_MODULES)
            return with_first_tensor(output, self._x.clone()) if ends else _fresh(output)
        if self._entered and path is not None:
            self.found = Call(path, args, kwargs)
            raise StopForward
        output = plain(*args, **kwargs)
        if path is not None and self.count == self._end + self._unit:
            self.found = first_tensor(output)
            raise StopForward
        return output


class _Ending(_Handler):
    """Layers return their outputs of the first iteration, the last layer returns the state; all other modules run."""

    def __init__(
        self, path_of: Mapping[int, str], seen: Recorded, x: Tensor, end: int, changed: bool
    ) -> None:
        super().__init__(path_of)
        self._seen, self._x, self._end, self._changed = seen, x, end, changed
        self._layers = [output for m, output in seen.outputs if id(m) in path_of]

    def handle(
        self, m: nn.Module, path: str | None, plain: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        if path is not None:
            output = self._layers[(self.count - 1) % len(self._layers)]
            if self.count == self._end:
                return with_first_tensor(output, self._x.clone())
            tensor = first_tensor(output) if self._changed else None
            return _fresh(output) if tensor is None else with_first_tensor(output, 1.5 * tensor + 0.5)
        before = self.count == 0 and self.at < len(self._seen.outputs)
        if before and self._seen.outputs[self.at][0] is m:
            return _fresh(self._seen.outputs[self.at][1])
        return plain(*args, **kwargs)


def _beginning(handler: _Handler, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    handler.begin()
    return plain(*args, **kwargs)


_OTHER_MODULES = (
    "the model runs other modules, or fewer of them, than before for the same batch: which ones depends on the "
    "state, so there is no map to iterate; let it run a fixed number of iterations"
)


def _restored(m: nn.Module, forward: Any) -> None:
    if forward is None:
        m.__dict__.pop("forward", None)
    else:
        m.__dict__["forward"] = forward


def _outermost(module: nn.Module, layers: set[int]) -> Iterator[nn.Module]:
    """Yield the layers, and the largest modules that contain none of them, each once."""
    done: set[int] = set()

    def walk(m: nn.Module) -> Iterator[nn.Module]:
        if id(m) in done:
            return
        done.add(id(m))
        holds = id(m) not in layers and any(id(part) in layers for part in m.modules())
        if not holds and type(m).forward not in _NEVER_RUN:
            yield m
            return
        for child in m.children():
            yield from walk(child)

    yield from walk(module)


_NEVER_RUN = (nn.Module.forward,)  # forward of module lists


def _fresh(value: Any) -> Any:
    """Return the output of a module with copies of its tensors, because the model may write into them."""
    return tree_map_only(Tensor, Tensor.clone, value)


class _Watch(TorchDispatchMode):
    def __init__(self, shape: torch.Size, last: int | None) -> None:
        super().__init__()
        self.shape, self.made = shape, deque[Tensor](maxlen=last)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, Tensor) and tensor.shape == self.shape and tensor.is_floating_point():
                self.made.append(tensor.clone())  # the model may write into it
        return output

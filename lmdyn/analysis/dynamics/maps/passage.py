"""A state on its way through a module's own forward: put in where one iteration ends, read where the next one does."""

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
    """A call of a layer: the token vectors it was given, and by which name; its other arguments; what it answered.

    Attributes:
        path: of the layer.
        x: the vectors (batch, tokens, hidden); None where there are none among its arguments.
        name: of the argument that they are; None: the first one.
        args: further positional arguments.
        kwargs: further arguments by name.
        answer: (batch, tokens, hidden), of a layer that returned.
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
    """What a forward pass did.

    Attributes:
        batch: what it was of.
        calls: of the layers, in order.
        outputs: each outermost module that ran with what it answered; those before the end of the first iteration,
            or all.
        output: of the module, if it came to its end.
    """

    batch: Mapping[str, Tensor]
    calls: list[Call] = field(default_factory=list)
    outputs: list[tuple[nn.Module, Any]] = field(default_factory=list)
    output: Any = None


class Passage:
    """The forward of a module, entered and left where its layers are.

    All that lies before the place of entrance answers what it answered for this batch before, so that it costs nothing;
    what lies between (the injection of an input, positions, masks) is the module's own computation.

    Args:
        module: a copy of its own, see :func:`~lmdyn.analysis.dynamics.maps.copies.private_copy`.
        layers: module path to layer: those through which the state passes.
        forward: see ``call_module``.
        seed: of what the module draws in its forward pass.
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
        """Run the module and keep what it did.

        Args:
            batch: tensors by name.
            until: end with so many calls of layers; None: run to the end.
            entered: end with the entrance to that call, not with its answer.
        """
        recorder = _Recorder(self._path_of, Recorded(batch), until, entered)
        with self._observed():
            recorder.seen.output = self._run(batch, recorder)
        return recorder.seen

    def tensors_before(
        self, batch: Mapping[str, Tensor], shape: tuple[int, ...], last: int | None = None
    ) -> list[Tensor]:
        """Tensors of a shape as they were made before the first layer was called, in order: all, or the last ones."""
        watch = _Watch(torch.Size(shape), last)
        with self._observed(), watch:
            self._run(batch, _Until(self._path_of, watch))
        return list(watch.made)

    def through(
        self, seen: Recorded, x: Tensor, unit: int, i: int = 0, *, entered: bool = False
    ) -> Tensor | Call:
        """The state at the end of the iteration after i (from 0), if it is ``x`` at the end of iteration i.

        Args:
            seen: of this batch, with all outputs where i is above 0.
            x: (batch, tokens, hidden).
            unit: calls of layers in an iteration.
            i: number of the iteration.
            entered: answer instead with what the first layer of the iteration after i was given.

        Raises:
            ValueError: other modules ran than for the same batch before.
        """
        replay = _Replay(self._path_of, seen, x, (i + 1) * unit, unit, entered)
        self._run(seen.batch, replay)
        if replay.found is None:
            raise ValueError(_OTHER_MODULES)
        return replay.found

    def finish(self, seen: Recorded, x: Tensor, unit: int, n: int, *, changed: bool = False) -> Any:
        """What the module answers if the state at the end of the last of n iterations is ``x``.

        Args:
            seen: of this batch, the first iteration at least, whose answers stand for those of all but the last.
            x: (batch, tokens, hidden).
            unit: calls of layers in an iteration.
            n: how many there are.
            changed: answer something else than the first iteration before the last.
        """
        with self._observed():
            return self._run(seen.batch, _Ending(self._path_of, seen, x, unit * n, changed))

    @contextmanager
    def _observed(self) -> Iterator[None]:
        with observing(self.module), torch.no_grad():
            torch.manual_seed(self._seed)
            yield

    def _run(self, batch: Mapping[str, Tensor], handler: "_Handler") -> Any:
        """The module's output, or None where the handler ended the pass."""
        handler.begin()
        with ExitStack() as stack:
            for m in self._outer:
                stack.callback(_restored, m, m.__dict__.get("forward"))
                m.__dict__["forward"] = update_wrapper(partial(handler.run, m, m.forward), m.forward)
            if self._called is not None:  # it may be called again, with labels, to have all logits
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
    """Is called in the place of each outermost module; modules within one that runs are called as they are."""

    def __init__(self, path_of: Mapping[int, str]) -> None:
        self.path_of, self._running = path_of, False

    def begin(self) -> None:
        """The module is called, for the first time or again."""
        self.at, self.count = -1, 0  # of outermost modules, and of layers

    def run(self, m: nn.Module, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the module answers, or is to answer."""
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
        """As :meth:`run`, with the path of a layer."""
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
    """Ends the pass with the first layer."""

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
    """Answers what was recorded up to the layer that answers the state; then a whole iteration runs."""

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
    """Layers answer what they did in the first iteration, the last one the state; all others run."""

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
    "the model runs other modules, or fewer of them, than it did for the same batch before: which ones depends on the "
    "state, and there is no map to iterate; let it run a fixed number of iterations"
)


def _restored(m: nn.Module, forward: Any) -> None:
    if forward is None:
        m.__dict__.pop("forward", None)
    else:
        m.__dict__["forward"] = forward


def _outermost(module: nn.Module, layers: set[int]) -> Iterator[nn.Module]:
    """The layers, and the largest modules that hold none of them, each once."""
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


_NEVER_RUN = (nn.Module.forward,)  # of lists


def _fresh(value: Any) -> Any:
    """What a module answered, with copies of its tensors: the model may write into them."""
    return tree_map_only(Tensor, Tensor.clone, value)


class _Watch(TorchDispatchMode):
    def __init__(self, shape: torch.Size, last: int | None) -> None:
        super().__init__()
        self.shape, self.made = shape, deque[Tensor](maxlen=last)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, Tensor) and tensor.shape == self.shape and tensor.is_floating_point():
                self.made.append(tensor.clone())  # it may be written into
        return output

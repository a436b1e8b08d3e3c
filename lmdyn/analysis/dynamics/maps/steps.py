"""One iteration as a function of the state: layers called with the arguments that their model passes to them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmdyn.analysis.dynamics.maps.copies import apart, same_values
from lmdyn.analysis.dynamics.maps.passage import Call, Passage, Recorded
from lmdyn.analysis.inspection.activations import first_tensor

__all__ = ["CalledLayers", "LayerStep", "NoMapError", "Passages", "check_rows_first", "tolerance"]

log = logging.getLogger(__name__)

State = Float[Tensor, "batch tokens hidden"]


class NoMapError(ValueError):
    """Raised if the computation between two states is not a map of the state; the message gives the reason."""


def tolerance(dtype: torch.dtype) -> float:
    """Return the relative difference (to the largest entry) due to rounding between two ways to compute a step."""
    return {torch.float64: 1e-8}.get(dtype, 1e-4)


def check_rows_first(state: Tensor, rows: int, model: str) -> None:
    """Raise an error for a state (tokens, batch, hidden), whose tokens the map would treat as rows.

    Example:
        >>> check_rows_first(torch.zeros(2, 5, 8), 2, "GPT")
    """
    if state.shape[0] != rows:
        raise NoMapError(
            f"the state of {model} is {tuple(state.shape)} for {rows} rows: expected (batch, tokens, hidden); use "
            "batch-first layers, such as `batch_first=True` in torch"
        )


class LayerStep:
    """A layer with the arguments that its model passes to it, except a cache.

    Args:
        layer: copy of the layer.
        call: call of the layer in its model.
        writes: whether it writes into its input, and therefore gets a copy.
    """

    def __init__(self, layer: nn.Module, call: Call, writes: bool = False) -> None:
        self._layer, self._name, self._writes = layer, call.name, writes
        self._args = tuple(None if _is_cache(a) else a for a in call.args)
        self._kwargs = {n: v for n, v in call.kwargs.items() if n not in _CACHES and not _is_cache(v)}

    def __call__(self, x: State) -> State:
        """Return the output of the layer."""
        if self._writes:
            x = x.clone()
        output = (
            self._layer(x, *self._args, **self._kwargs)
            if self._name is None
            else self._layer(**{self._name: x}, **self._kwargs)
        )
        return cast(Tensor, output if isinstance(output, Tensor) else first_tensor(output))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of the layer other than the state."""
        return self._args, self._kwargs


_CACHES = (
    "past_key_value", "past_key_values", "use_cache", "layer_past", "cache_position", "cache_params", "cache", "state",
)  # fmt: skip


def _is_cache(value: Any) -> bool:
    return hasattr(value, "get_seq_length") or type(value).__name__.endswith("Cache")


class CalledLayers:
    """Layers that pass the state on unchanged: an iteration calls one after the other.

    Args:
        passage: passage of the module.
        unit: paths of the layers of an iteration.
        n: number of iterations of the module.

    Raises:
        NoMapError: for the example, if the state is changed between layers, if arguments differ between iterations, or
            if the output of a layer called alone differs from that in the module.
    """

    def __init__(self, passage: Passage, unit: Sequence[str], n: int, example: Recorded) -> None:
        self._passage, self.unit, self.n = passage, tuple(unit), n
        model = type(passage.module).__name__
        _check_chain(example.calls, model)
        calls = example.calls
        for i, call in enumerate(calls):
            first = calls[i % len(unit)]
            if not same_values((call.name, call.args, call.kwargs), (first.name, first.args, first.kwargs)):
                raise NoMapError(
                    f"{model} calls layer {call.path!r} with other arguments in iteration {i // len(unit)} than "
                    "in the first"
                )
        self._writes: set[str] = set()
        self.any_rows = self._answers_alone(calls, model)

    def bind(self, batch: Mapping[str, Tensor]) -> list[LayerStep]:
        """Return the layers of one iteration, with the arguments for rows of a batch."""
        return self._steps(self._passage.record(batch, until=len(self.unit)).calls)

    @torch.no_grad()
    def depend_on_text(self, texts: Sequence[Mapping[str, Tensor]]) -> bool:
        """Return whether the arguments of layers change with another text of the same length.

        Args:
            texts: texts with equal numbers of rows and tokens; the first one is the example.

        Raises:
            NoMapError: for a text other than the example, if the state is changed between layers, or if the output of
                a layer depends on the previous text.
        """
        seen = [self._passage.record(text) for text in texts]
        steps = [self._steps(text.calls) for text in seen]
        # the layers now hold data of the last text
        for text, of_text in zip(seen[:-1], steps, strict=False):
            self._check_called_alone(text.calls, of_text)
        _check_chain(seen[-1].calls, type(self._passage.module).__name__)
        arguments = [[step.arguments for step in of_text] for of_text in steps]
        return not all(same_values(arguments[0], other) for other in arguments[1:])

    def _check_called_alone(self, calls: Sequence[Call], steps: Sequence[LayerStep]) -> None:
        model = type(self._passage.module).__name__
        _check_chain(calls, model)
        for i, call in enumerate(calls):
            found = steps[i % len(steps)](cast(Tensor, call.x).clone())
            off = apart(found, cast(Tensor, call.answer))
            if off > tolerance(found.dtype):
                raise NoMapError(
                    f"the output of layer {call.path!r} of {model}, called alone after another text, differs "
                    "from that in "
                    f"the model (by {off:.1e}): it stores something of a text in addition to its arguments, such as an "
                    "attribute that the model sets: pass it to the layer as an argument"
                )

    def start(self, batch: Mapping[str, Tensor]) -> State:
        """Return the input of the first layer."""
        return cast(Tensor, self._passage.record(batch, until=1, entered=True).calls[0].x)

    def _steps(self, calls: Sequence[Call]) -> list[LayerStep]:
        layers = self._passage.layers
        return [
            LayerStep(layers[path], call, path in self._writes)
            for path, call in zip(self.unit, calls, strict=False)
        ]

    @torch.no_grad()
    def _answers_alone(self, calls: Sequence[Call], model: str) -> bool:
        """Return whether the arguments of one row are valid for others, for layers whose outputs alone are correct."""
        steps, any_rows = self._steps(calls), True
        for i, call in enumerate(calls):
            step = steps[i % len(steps)]
            for times in (1, 2)[: 2 if i < len(steps) else 1]:
                x = torch.cat([cast(Tensor, call.x)] * times)
                written = x._version
                try:
                    found = step(x)
                except Exception as error:
                    if times == 2:
                        any_rows = False
                        continue
                    raise NoMapError(
                        f"layer {call.path!r} of {model} cannot be called alone ({type(error).__name__}: {error}): it "
                        "is not a map of token vectors"
                    ) from error
                if x._version != written:
                    self._writes.add(call.path)
                off = apart(found, torch.cat([cast(Tensor, call.answer)] * times))
                if off > tolerance(found.dtype):
                    raise NoMapError(
                        f"the output of layer {call.path!r} of {model}, called alone, differs from that in the model "
                        f"(by {off:.1e}): it depends on more than its arguments, so it is not a map of token vectors"
                    )
        return any_rows


def _check_chain(calls: Sequence[Call], model: str) -> None:
    """Check that the input of each layer is the output of the layer before it, in the same width."""
    for call in calls:
        if call.x is None:
            raise NoMapError(
                f"layer {call.path!r} is called with {[type(a).__name__ for a in call.args]} and {sorted(call.kwargs)}"
                ": expected token vectors (batch, tokens, hidden) as its first argument"
            )
        if call.answer is None or call.answer.shape != call.x.shape:
            raise NoMapError(
                f"layer {call.path!r} of {model} takes {tuple(call.x.shape)} and returns "
                f"{None if call.answer is None else tuple(call.answer.shape)}: expected the same shape, "
                "a map of token vectors"
            )
    for first, second in pairwise(calls):
        if not same_values(first.answer, second.x):
            raise NoMapError(
                f"{model} changes the token vectors between {first.path!r} and {second.path!r}, so its layers "
                "alone are "
                "not the map that it computes, and there is no map to iterate"
            )


class Passages:
    """The module's own forward from the end of one iteration to the end of the next, with all it computes in between.

    The state is the output of the last layer of an iteration. The state at depth 0 is searched: it is the tensor,
    among all that the module creates before its first iteration, that leads to the input of the first layer; or zeros;
    or, if the input is added to the state, the difference that leads to this input.

    Args:
        passage: passage of the module.
        unit: paths of the layers of an iteration.
        n: number of iterations of the module, at least 2.
        example: the whole recording of the forward of one example.

    Raises:
        NoMapError: if the step depends on the number of the iteration or on more than the state, such as data that
            layers keep from one iteration to the next; or if the layers do not carry the state.
    """

    any_rows = False

    def __init__(self, passage: Passage, unit: Sequence[str], n: int, example: Recorded) -> None:
        self._passage, self.unit, self.n = passage, tuple(unit), n
        self._model = type(passage.module).__name__
        ends = [cast(Tensor, call.answer) for call in example.calls[len(unit) - 1 :: len(unit)]]
        shapes = {None if end is None else tuple(end.shape) for end in ends}
        if len(shapes) != 1 or any(end is None or end.ndim != 3 for end in ends):
            raise NoMapError(
                f"the last layer of an iteration, {unit[-1]!r} of {self._model}, returns {shapes}: expected token "
                "vectors (batch, tokens, hidden) of one shape, the state"
            )
        self._check(example, ends)
        self._initial = self._found_start(example, ends)
        if n == 2:
            _warn_of_two(self._model)

    # ---------------------------------------------------------------- the step

    def bind(self, batch: Mapping[str, Tensor]) -> list[Callable[[Tensor], Tensor]]:
        """Return the step of rows of a batch."""
        seen = self._passage.record(batch, until=len(self.unit))
        return [lambda x: self._after(seen, x)]

    def _after(self, seen: Recorded, x: Tensor, i: int = 0) -> Tensor:
        return cast(Tensor, self._passage.through(seen, x, len(self.unit), i))

    @torch.no_grad()
    def _check(self, example: Recorded, ends: list[Tensor]) -> None:
        """Check that steps from one state do not depend on the number of the iteration, and depend on the state."""
        some = ends[0]
        noise = torch.randn(some.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        scale = float(some.double().square().mean().sqrt()) or 1.0
        other = some + (scale * noise).to(some)
        first = self._after(example, other)
        again = self._after(example, other)
        if apart(again, first) > 0:
            raise NoMapError(
                f"two passes of {self._model} from one state give different results: random numbers are drawn in each "
                "iteration, so there is no map to iterate"
            )
        if apart(self._after(example, some), first) == 0:
            raise NoMapError(
                f"the output of {self.unit[-1]!r} of {self._model} is not the start of the next iteration: name the "
                "layers of the core in order by `sites`, the last of which returns the state"
            )
        for i in _some_of(range(1, self.n - 1)):
            off = apart(self._after(example, other, i), first)
            if off > tolerance(other.dtype):
                raise NoMapError(
                    f"the step of {self._model} depends on the number of the iteration, or on more than the output of "
                    f"{self.unit[-1]!r}: from one state, the results of iterations 1 and {i + 1} differ by "
                    f"{off:.1e} of "
                    "the largest entry (a number or embedding of the depth, different layers, a memory next to the "
                    "state), so there is no map to iterate; name by `sites` a core that carries the whole "
                    "state, or leave "
                    "the number out"
                )

        # data that layers keep in addition to the state have an effect only in the module's own run
        for i in _some_of(range(self.n - 1)):
            off = apart(self._after(example, ends[i]), ends[i + 1])
            if off > tolerance(some.dtype):
                raise NoMapError(
                    f"the end of iteration {i + 2} of {self._model} differs from its step from the previous state (by "
                    f"{off:.1e} of the largest entry): layers keep data from one iteration to the next in "
                    "addition to the "
                    "state, such as a cache of keys and values shared by all iterations, so there is no map to iterate"
                )

    # ---------------------------------------------------------------- the state at depth 0

    def start(self, batch: Mapping[str, Tensor]) -> State:
        """Return the state at depth 0.

        Raises:
            ValueError: if it was found for the example, but not for this batch.
        """
        seen = self._passage.record(batch, until=len(self.unit))
        if self._initial is None:
            return self._added(seen)
        state = cast(Tensor, seen.calls[-1].answer)
        made = [torch.zeros_like(state)]
        if self._initial:
            made += self._passage.tensors_before(batch, tuple(state.shape), self._initial)
        if len(made) <= self._initial or not self._leads_to(seen, made[-self._initial]):
            raise ValueError(
                f"the state at depth 0 of {self._model} was found for the example, but not for this batch: create the "
                "map with an example of its kind"
            )
        return made[-self._initial]

    @torch.no_grad()
    def _found_start(self, example: Recorded, ends: list[Tensor]) -> int | None:
        """Return the index from the end of the state among earlier tensors; 0 for zeros, None for subtraction."""
        made = [torch.zeros_like(ends[0]), *self._passage.tensors_before(example.batch, tuple(ends[0].shape))]
        back = next((i for i in (*range(1, len(made)), 0) if self._leads_to(example, made[-i])), None)
        x = self._added(example) if back is None else made[-back]
        off = apart(self._after(example, x), ends[0])
        if off > tolerance(x.dtype):
            raise NoMapError(
                f"the first iteration of {self._model} differs from the others: from the state that leads to the same "
                f"input of {self.unit[0]!r}, its end differs by {off:.1e} of the largest entry: the step depends on "
                "the number of the iteration, so there is no map to iterate"
            )
        return back

    def _leads_to(self, seen: Recorded, state: Tensor) -> bool:
        """Return whether a state leads to the first input of the first layer."""
        return _same_input(self._entered(seen, state).given, seen.calls[0].given)

    def _entered(self, seen: Recorded, state: Tensor) -> Call:
        return cast(Call, self._passage.through(seen, state, len(self.unit), entered=True))

    @torch.no_grad()
    def _added(self, seen: Recorded) -> State:
        """Return the state at depth 0 if the model adds a function of the batch to the state, by subtracting it."""
        shape = cast(Tensor, seen.calls[-1].answer)
        noise = torch.randn(shape.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        noise = noise.to(shape)
        added, moved = (self._entered(seen, x).x for x in (torch.zeros_like(shape), noise))
        first = seen.calls[0].x
        if (
            first is None
            or added is None
            or moved is None
            or first.shape != shape.shape
            or apart(moved, noise + added) > tolerance(shape.dtype)
        ):
            raise NoMapError(
                f"the state at depth 0 of {self._model} was not found: no tensor {tuple(shape.shape)} created before "
                f"{self.unit[0]!r} leads to the first input of this layer, nor do zeros, and nothing is added to the "
                "state, so the first iteration differs from the others; name by `sites` a core whose last layer "
                "returns the start of the next iteration"
            )
        return first - added


@cache
def _warn_of_two(model: str) -> None:
    log.warning(
        "%s iterates its core twice: whether its step depends on the number of the iteration, or on more than the "
        "state, is measured from three iterations on, and is assumed not to be so; use three to measure it",
        model,
    )


def _some_of(numbers: range) -> list[int]:
    """Return at most 16 of them, including the first and the last.

    Example:
        >>> _some_of(range(1, 4)), len(_some_of(range(100)))
        ([1, 2, 3], 16)
    """
    if len(numbers) <= 16:
        return list(numbers)
    return [numbers[round(i * (len(numbers) - 1) / 15)] for i in range(16)]


def _same_input(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Return whether input tensors are equal, except for the last digits."""
    pairs = [(a, b) for a, b in zip(found, expected, strict=False) if isinstance(b, Tensor)]
    return all(
        isinstance(a, Tensor)
        and a.shape == b.shape
        and (same_values(a, b) if not b.is_floating_point() else apart(a, b) <= tolerance(b.dtype) / 100)
        for a, b in pairs
    )

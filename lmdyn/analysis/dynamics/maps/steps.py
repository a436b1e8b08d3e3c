"""One iteration of a core as a function of the state, for the rows of a batch."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from itertools import pairwise
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmdyn.analysis.dynamics.maps.copies import apart
from lmdyn.analysis.dynamics.maps.passage import Call, NoMapError, Passage, Recorded
from lmdyn.analysis.inspection.activations import first_tensor

__all__ = ["Steps", "tolerance"]

log = logging.getLogger(__name__)

State = Float[Tensor, "batch tokens hidden"]
Map = Callable[[Tensor], Tensor]


def tolerance(dtype: torch.dtype) -> float:
    """Return the relative difference (to the largest entry) due to rounding between two ways to compute a step."""
    return {torch.float64: 1e-8}.get(dtype, 1e-4)


class _LayerStep:
    """A layer with the arguments that its model passes to it, except a cache."""

    def __init__(self, layer: nn.Module, call: Call) -> None:
        self._layer, self._name = layer, call.name
        self._args = tuple(None if _is_cache(a) else a for a in call.args)
        self._kwargs = {n: v for n, v in call.kwargs.items() if n not in _CACHES and not _is_cache(v)}

    def __call__(self, x: State) -> State:
        x = x.clone()  # the layer may write into it
        args, named = ((x, *self._args), {}) if self._name is None else ((), {self._name: x})
        return cast(Tensor, first_tensor(self._layer(*args, **named, **self._kwargs)))


_CACHES = (
    "past_key_value",
    "past_key_values",
    "use_cache",
    "layer_past",
    "cache_position",
    "cache_params",
    "cache",
    "state",
)


def _is_cache(value: Any) -> bool:
    return hasattr(value, "get_seq_length") or type(value).__name__.endswith("Cache")


class Steps:
    """The steps of a module: one iteration of its core, or its layers if they differ.

    If layers pass the state on unchanged, they are called one after the other with the arguments that the module
    passes to them. Otherwise, the module's own forward is run from the end of one iteration to the end of the next,
    with all that it computes in between. In both cases the steps must lead to the states of the module's own run, for
    several texts, and from another state to the same next state in each iteration.

    The state is the output of the last layer of an iteration. The state at depth 0 is searched: it is the input of the
    first layer if this is the state; or the tensor, among all that the module creates before its first iteration, that
    leads to this input; or zeros; or, if an input is added to the state, the difference that leads to it.

    Args:
        passage: passage of the module.
        unit: paths of the layers of an iteration.
        n: number of iterations of the module; 1 for layers that differ.
        texts: batches of one row; the first one is the example.
        chained: whether to refuse layers that do not pass the state on unchanged.

    Attributes:
        injected: whether a step depends on the text beyond the state.
        width: size of a token's vector.

    Raises:
        NoMapError: if a step depends on the number of the iteration or on more than the state, such as data that
            layers keep from one iteration to the next; or if the layers do not carry the state.
    """

    @torch.no_grad()
    def __init__(
        self,
        passage: Passage,
        unit: Sequence[str],
        n: int,
        texts: Sequence[Mapping[str, Tensor]],
        *,
        chained: bool = False,
    ) -> None:
        self.passage, self.unit, self.n = passage, tuple(unit), n
        self._model = type(passage.module).__name__
        seen = [passage.record(text) for text in texts]
        example, self._chained = seen[0], True
        ends = self._ends(example)
        self.width = ends[0].shape[2]
        broken = next(filter(None, (self._broken_chain(text.calls) for text in seen)), None)
        broken = broken or self._away_from_own_run(seen)
        if broken and (chained or n == 1):
            raise NoMapError(broken)
        if broken:
            self._chained = False
            self._check_iterations(example, ends[0])
            if away := self._away_from_own_run(seen):
                raise NoMapError(away)
            self._initial = self._found_start(example, ends)
            if n == 2:
                _warn_of_two(self._model)
        self.injected = self._depends_on_text(seen)

    def bind(self, batch: Mapping[str, Tensor]) -> list[Map]:
        """Return the layers of one iteration, or the whole step, for rows of a batch."""
        return self._bound(self.passage.record(batch, until=len(self.unit)))

    def _bound(self, seen: Recorded) -> list[Map]:
        if not self._chained:
            return [lambda x: self._after(seen, x)]
        layers = self.passage.layers
        return [_LayerStep(layers[path], call) for path, call in zip(self.unit, seen.calls, strict=False)]

    def _maps(self, seen: Recorded) -> list[Map]:
        """Return the map of one iteration, or those of layers that differ."""
        steps = self._bound(seen)
        return steps if self.n == 1 else [lambda x: reduce(lambda state, step: step(state), steps, x)]

    def _after(self, seen: Recorded, x: Tensor, i: int = 0) -> Tensor:
        return cast(Tensor, self.passage.through(seen, x, len(self.unit), i))

    # ---------------------------------------------------------------- what must hold

    def _ends(self, example: Recorded) -> list[Tensor]:
        """Return the states at the end of each iteration."""
        ends = [call.answer for call in example.calls[len(self.unit) - 1 :: len(self.unit)]]
        shapes = {None if end is None else tuple(end.shape) for end in ends}
        shape = shapes.pop() if shapes else None
        if shapes or shape is None or len(shape) != 3 or shape[0] != 1:
            raise NoMapError(
                f"the state of {self._model} is {shape} for 1 rows, the output of {self.unit[-1]!r}: expected (batch, "
                "tokens, hidden) of one shape; use batch-first layers, such as `batch_first=True` in torch"
            )
        return cast(list[Tensor], ends)

    def _broken_chain(self, calls: Sequence[Call]) -> str | None:
        """Return why the input of each layer is not the output of the layer before it, in the same width."""
        for call in calls:
            if call.x is None:
                return f"layer {call.path!r} is called without token vectors (batch, tokens, hidden)"
            if call.answer is None or call.answer.shape != call.x.shape:
                returned = None if call.answer is None else tuple(call.answer.shape)
                taken = tuple(call.x.shape)
                return f"layer {call.path!r} of {self._model} takes {taken} and returns {returned}, not one shape"
        for first, second in pairwise(calls):
            if not _equal(first.answer, second.x):
                between = f"between {first.path!r} and {second.path!r}"
                return (
                    f"{self._model} changes the token vectors {between}, so its layers alone are not its map"
                )
        return None

    def _away_from_own_run(self, seen: Sequence[Recorded]) -> str | None:
        """Return where the steps do not lead to the states of the module's own runs, all of which were made before.

        They do not if layers read more than their arguments, or keep data from one iteration or text to the next.
        """
        unit = len(self.unit)
        for text in seen if self._chained else seen[:1]:
            maps = self._maps(text)
            size = 1 if self.n == 1 else unit
            ends = [cast(Tensor, call.answer) for call in text.calls[size - 1 :: size]]
            starts = [cast(Tensor, text.calls[i * size].x) for i in range(len(ends))]
            if not self._chained:
                starts, ends = ends[:-1], ends[1:]
            for i in _some_of(range(len(ends))):
                path = self.unit[i if self.n == 1 else -1]
                try:
                    off = apart(maps[i % len(maps)](starts[i]), ends[i])
                except NoMapError:
                    raise
                except Exception as error:
                    return f"layer {path!r} of {self._model} cannot be called alone: {type(error).__name__}: {error}"
                if off <= tolerance(ends[i].dtype):
                    continue
                if self._chained:
                    return (
                        f"the output of layer {path!r} of {self._model}, called alone, differs from that in the model "
                        f"(by {off:.1e}): it depends on more than its arguments"
                    )
                return (
                    f"the end of iteration {i + 2} of {self._model} differs from its step from the previous state (by "
                    f"{off:.1e} of the largest entry): layers keep data from one iteration or text to the next in "
                    "addition to the state, such as a cache shared by all iterations, so there is no map to iterate"
                )
        return None

    def _check_iterations(self, example: Recorded, some: Tensor) -> None:
        """Check that steps from one state do not depend on the number of the iteration, and depend on the state."""
        scale = float(some.double().square().mean().sqrt()) or 1.0
        other = some + scale * _noise(some)
        first = self._after(example, other)
        if apart(self._after(example, other), first) > 0:
            raise NoMapError(f"{self._model} is no map: random numbers are drawn in each iteration")
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
                    f"{self.unit[-1]!r} (from one state, iterations 1 and {i + 1} differ by {off:.1e} of the largest "
                    "entry), so there is no map to iterate; name by `sites` a core that carries the whole state"
                )

    def _depends_on_text(self, seen: Sequence[Recorded]) -> bool:
        """Return whether another text of the same length changes a step."""
        maps = [self._maps(text) for text in seen]
        for i in range(len(maps[0])):
            own = cast(Tensor, seen[0].calls[i if self.n == 1 else len(self.unit) - 1].answer)
            for x in (own, _noise(own), torch.zeros_like(own)):
                expected, *found = (of_text[i](x) for of_text in maps)
                if any(apart(y, expected) > 0 for y in found):
                    return True
        return len(seen) == 1

    # ---------------------------------------------------------------- the state at depth 0

    def start(self, batch: Mapping[str, Tensor]) -> State:
        """Return the state at depth 0.

        Raises:
            ValueError: if it was found for the example, but not for this batch.
        """
        if self._chained:
            return cast(Tensor, self.passage.record(batch, until=1).calls[0].x)
        seen = self.passage.record(batch, until=len(self.unit))
        if self._initial is None:
            return self._added(seen)
        state = cast(Tensor, seen.calls[-1].answer)
        made = [torch.zeros_like(state)]
        if self._initial:
            made += self.passage.tensors_before(batch, tuple(state.shape), self._initial)
        if len(made) <= self._initial or not self._leads_to(seen, made[-self._initial]):
            raise ValueError(
                f"the state at depth 0 of {self._model} was found for the example, but not for this batch: create the "
                "map with an example of its kind"
            )
        return made[-self._initial]

    def _found_start(self, example: Recorded, ends: list[Tensor]) -> int | None:
        """Return the index from the end of the state among earlier tensors; 0 for zeros, None for subtraction."""
        made = [torch.zeros_like(ends[0]), *self.passage.tensors_before(example.batch, tuple(ends[0].shape))]
        back = next((i for i in (*range(1, len(made)), 0) if self._leads_to(example, made[-i])), None)
        x = self._added(example) if back is None else made[-back]
        off = apart(self._after(example, x), ends[0])
        if off > tolerance(x.dtype):
            raise NoMapError(
                f"the first iteration of {self._model} differs from the others (by {off:.1e} of the largest entry): "
                "the step depends on the number of the iteration, so there is no map to iterate"
            )
        return back

    def _leads_to(self, seen: Recorded, state: Tensor) -> bool:
        """Return whether a state leads to the first input of the first layer, except for the last digits."""
        pairs = zip(self._entered(seen, state).given, seen.calls[0].given, strict=False)
        return all(_equal(found, expected, 0.01) for found, expected in pairs if isinstance(expected, Tensor))

    def _entered(self, seen: Recorded, state: Tensor) -> Call:
        return cast(Call, self.passage.through(seen, state, len(self.unit), entered=True))

    @torch.no_grad()
    def _added(self, seen: Recorded) -> State:
        """Return the state at depth 0 if the model adds a function of the batch to the state, by subtracting it."""
        like, first = cast(Tensor, seen.calls[-1].answer), seen.calls[0].x
        noise = _noise(like)
        added, moved = (self._entered(seen, x).x for x in (torch.zeros_like(like), noise))
        if (
            first is None
            or added is None
            or moved is None
            or first.shape != like.shape
            or apart(moved, noise + added) > tolerance(like.dtype)
        ):
            raise NoMapError(
                f"the state at depth 0 of {self._model} was not found before {self.unit[0]!r}: the first iteration "
                "differs from the others; name by `sites` a core whose last layer returns the start of the next one"
            )
        return first - added


def _noise(like: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=draw, dtype=torch.float64).to(like)


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


def _equal(found: Any, expected: Any, rounding: float = 0.0) -> bool:
    """Return whether two tensors are equal, or floating ones within a share of the tolerance."""
    if not isinstance(found, Tensor) or not isinstance(expected, Tensor) or found.shape != expected.shape:
        return False
    if rounding and expected.is_floating_point():
        return apart(found, expected) <= rounding * tolerance(expected.dtype)
    return bool(torch.equal(torch.nan_to_num(found), torch.nan_to_num(expected)))

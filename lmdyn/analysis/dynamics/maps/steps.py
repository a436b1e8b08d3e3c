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
from lmdyn.analysis.dynamics.maps.passage import Call, NoMapError, Passage, Recorded, is_vectors
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
    several texts.

    The state is the output of the last layer of an iteration. The state at depth 0 is the input of the first layer if
    this is the state; otherwise, that which leads to this input.

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
            off = apart(self._after(example, self._before(example)), ends[0])
            if off > tolerance(ends[0].dtype):
                raise NoMapError(
                    f"the first iteration of {self._model} differs from the others (by {off:.1e} of the largest "
                    "entry): the step depends on the number of the iteration, so there is no map to iterate"
                )
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

    def _after(self, seen: Recorded, x: Tensor) -> Tensor:
        return self.passage.through(seen, x, len(self.unit))

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
            if not torch.equal(*(cast(Tensor, t).nan_to_num() for t in (first.answer, second.x))):
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
                    f"{off:.1e} of the largest entry): it depends on the number of the iteration, or on more than the "
                    f"output of {path!r}, or layers keep data from one iteration or text to the next, such as a cache; "
                    "so there is no map to iterate: name by `sites` a core that carries the whole state"
                )
        return None

    def _check_iterations(self, example: Recorded, some: Tensor) -> None:
        """Check that a step draws no random numbers, and depends on the state."""
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

    @torch.no_grad()
    def start(self, batch: Mapping[str, Tensor]) -> State:
        """Return the state at depth 0."""
        if self._chained:
            return cast(Tensor, self.passage.record(batch, until=1).calls[0].x)
        return self._before(self.passage.record(batch, until=len(self.unit)))

    def _before(self, seen: Recorded) -> State:
        """Return the state that leads to the first iteration, from how states enter the modules of an iteration.

        These are zeros if they lead to it; otherwise, the first module that is given a state is given it in a part of
        an argument, plus a function of the text, for each token (one that has halted does not depend on the state).
        """
        like, unit = cast(Tensor, seen.calls[-1].answer), len(self.unit)
        zeros, noise, d = torch.zeros_like(like), _noise(like), like.shape[2]
        begins = dict(reversed(self.passage.entering(seen, like, 0)))  # the first call of each
        entered = (self.passage.entering(seen, x, unit) for x in (zeros, noise))
        parts = [
            part
            for (m, of_text), (_, of_both) in zip(*entered, strict=False)
            for given in zip(begins.get(m, ()), of_text, of_both, strict=False)
            if all(map(is_vectors, given)) and given[0].shape[:2] == like.shape[:2]
            for part in zip(*(t.split(d, 2) for t in given), strict=True)
            if part[0].shape == like.shape
        ]
        if all(apart(text, first) <= 0.01 * tolerance(like.dtype) for first, text, _ in parts):
            return zeros
        for first, text, both in parts:
            there = (both != text).any(2, keepdim=True)
            if bool(there.any()) and apart(both - text, noise * there) <= tolerance(like.dtype):
                return torch.where(there, first - text, first)
        raise NoMapError(
            f"the state at depth 0 of {self._model} was not found before {self.unit[0]!r}: the first iteration "
            "differs from the others; name by `sites` a core whose last layer returns the start of the next one"
        )


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

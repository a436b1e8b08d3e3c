"""One iteration of a core as a function of the state, for the rows of a batch."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.dynamics.maps.copies import apart
from lmdyn.analysis.dynamics.maps.passage import Call, NoMapError, Passage, Recorded, is_vectors

__all__ = ["Steps", "tolerance"]

log = logging.getLogger(__name__)

State = Float[Tensor, "batch tokens hidden"]
Map = Callable[[Tensor], Tensor]


def tolerance(dtype: torch.dtype) -> float:
    """Return the relative difference (to the largest entry) due to rounding between two ways to compute a step."""
    return {torch.float64: 1e-8}.get(dtype, 1e-4)


class Steps:
    """The steps of a module: one iteration of its core, or its layers if they differ.

    The module's own forward is run from the end of one iteration to the end of the next, or through one layer, with all
    that it computes in between. The steps must lead to the states of the module's own run.

    The state is the output of the last layer of an iteration. The state at depth 0 is the input of the first layer if
    layers pass the state on unchanged; otherwise, that which leads to this input.

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
        self._size = 1 if n == 1 else len(self.unit)  # number of layers of a step
        seen = [passage.record(text) for text in texts]
        ends = self._ends(seen[0])
        self.width = ends[0].shape[2]
        broken = next(filter(None, (self._broken_chain(text.layers) for text in seen)), None)
        self._chained = broken is None
        if broken and (chained or n == 1):
            raise NoMapError(broken)
        if broken:
            self._check_iterations(seen[0], ends[0])
        self._check_own_run(seen[0], ends)
        if broken and n == 2:
            _warn_of_two(self._model)
        self.injected = self._depends_on_text(seen, ends)

    def bind(self, batch: Mapping[str, Tensor]) -> list[Map]:
        """Return the layers of a module whose layers differ, or the step, for rows of a batch."""
        return self._bound(self.passage.record(batch, until=len(self.unit)))

    def _bound(self, seen: Recorded) -> list[Map]:
        starts = range(len(self.unit)) if self.n == 1 else [self._size]
        return [partial(self._after, seen, start) for start in starts]

    def _after(self, seen: Recorded, start: int, x: Tensor) -> Tensor:
        return cast(Tensor, self.passage.after(seen, x, start, start + self._size)[-1].answer)

    # ---------------------------------------------------------------- what must hold

    def _ends(self, example: Recorded) -> list[Tensor]:
        """Return the states at the end of each step."""
        ends = [call.answer for call in example.layers[self._size - 1 :: self._size]]
        shapes = {None if end is None else tuple(end.shape) for end in ends}
        shape = shapes.pop() if shapes else None
        if shapes or shape is None or len(shape) != 3 or shape[0] != 1:
            raise NoMapError(
                f"{self.unit[-1]!r} of {self._model} returns {shape or 'no tensor'} for one row: expected (1, tokens, "
                "hidden) in each iteration. Use batch-first layers, such as `batch_first=True` in torch"
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
                return f"layer {call.path!r} of {self._model} takes {taken} but returns {returned}: expected one shape"
        for first, second in pairwise(calls):
            if not torch.equal(*(cast(Tensor, t).nan_to_num() for t in (first.answer, second.x))):
                between = f"between {first.path!r} and {second.path!r}"
                return (
                    f"{self._model} changes the token vectors {between}, so the layers alone are not the map"
                )
        return None

    def _check_iterations(self, example: Recorded, some: Tensor) -> None:
        """Check that a step draws no random numbers, and depends on the state."""
        step = self._bound(example)[0]
        scale = float(some.double().square().mean().sqrt()) or 1.0
        other = some + scale * _noise(some)
        first = step(other)
        if apart(step(other), first) > 0:
            raise NoMapError(f"each iteration of {self._model} draws random numbers: remove the noise")
        if apart(step(some), first) == 0:
            raise NoMapError(
                f"the output of {self.unit[-1]!r} of {self._model} is not the start of the next iteration: set "
                "`sites` to the layers of one iteration; the last layer must return the input of the next iteration"
            )

    def _check_own_run(self, example: Recorded, ends: Sequence[Tensor]) -> None:
        """Check that the steps lead to the states of the module's own run, after which other texts were run.

        They do not if layers keep data from one iteration or text to the next.
        """
        steps = self._bound(example)
        # the first iteration last: it differs for more reasons
        for i in (*range(1, len(ends), -(-len(ends) // 16)), 0):
            start = ends[i - 1] if i else self._before(example)
            off = apart(steps[i % len(steps)](start), ends[i])
            if off <= tolerance(ends[i].dtype):
                continue
            if i or self.n == 1:
                end = (
                    f"the end of iteration {i + 1}" if self.n > 1 else f"the output of layer {self.unit[i]!r}"
                )
                raise NoMapError(
                    f"{end} of {self._model} differs from a step from the previous state alone (by {off:.1e} of the "
                    "largest entry), so there is no map to iterate. The iteration's number or an earlier state may "
                    "have an effect, or layers may keep data between iterations or texts, such as a cache. Set `sites` "
                    "to layers that carry the whole state"
                )
            raise NoMapError(
                f"the first iteration of {self._model} differs from later iterations (by {off:.1e} of the largest "
                "entry), so there is no map to iterate: expected a step that does not depend on the iteration's number"
            )

    def _depends_on_text(self, seen: Sequence[Recorded], ends: Sequence[Tensor]) -> bool:
        """Return whether another text of the same length changes a step."""
        for own, *steps in zip(ends, *map(self._bound, seen), strict=False):
            for x in (own, _noise(own), torch.zeros_like(own)):
                expected, *found = (step(x) for step in steps)
                if any(apart(y, expected) > 0 for y in found):
                    return True
        return len(seen) == 1

    # ---------------------------------------------------------------- the state at depth 0

    @torch.no_grad()
    def start(self, batch: Mapping[str, Tensor]) -> State:
        """Return the state at depth 0."""
        return self._before(self.passage.record(batch, until=1 if self._chained else len(self.unit)))

    def _before(self, seen: Recorded) -> State:
        """Return the state that leads to the first iteration, from how states enter the modules of an iteration.

        These are zeros if they lead to it; otherwise, the first module that is given a state is given it in a part of
        an argument, plus a function of the text, for each token (one that has halted does not depend on the state).
        """
        if self._chained:
            return cast(Tensor, seen.layers[0].x)
        like = cast(Tensor, seen.layers[-1].answer)
        unit = len(self.unit)
        zeros = torch.zeros_like(like)
        noise = _noise(like)
        d = like.shape[2]
        before = seen.calls[: seen.calls.index(seen.layers[0]) + 1]
        begins = {call.m: call.given for call in reversed(before)}  # the first call of each
        entered = (self.passage.after(seen, x, unit, unit + 1) for x in (zeros, noise))
        parts = [
            part
            for of_text, of_both in zip(*entered, strict=False)
            for given in zip(begins.get(of_text.m, ()), of_text.given, of_both.given, strict=False)
            if all(map(is_vectors, given)) and given[0].shape[:2] == like.shape[:2]
            for part in zip(*(t.split(d, 2) for t in given), strict=True)
            if part[0].shape == like.shape
        ]
        if all(apart(text, first) <= 0.01 * tolerance(like.dtype) for first, text, _ in parts):
            return zeros
        for first, text, both in parts:
            there = (both != text).any(2, keepdim=True)
            if there.any() and apart(both - text, noise * there) <= tolerance(like.dtype):
                return torch.where(there, first - text, first)
        raise NoMapError(
            f"lmdyn did not find the state of {self._model} before {self.unit[0]!r}: the first iteration receives its "
            "input unlike later iterations. Set `sites` to layers whose output is the input of the next iteration"
        )


def _noise(like: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=draw, dtype=torch.float64).to(like)


@cache
def _warn_of_two(model: str) -> None:
    log.warning(
        "%s runs two iterations, too few to measure whether a step depends on the iteration's number or on more than "
        "the state. lmdyn assumes that a step depends only on the state. Set three iterations to check the assumption",
        model,
    )

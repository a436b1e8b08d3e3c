"""Which observations a worker makes, in which order, and their outcome."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lmdyn.callbacks.observing.observer import Observer
from lmdyn.cli.parsing.errors import one_line

log = logging.getLogger(__name__)

_GIVE_UP = 3  # consecutive failures of something that never succeeded
_SHOWN = 3
_WORKS = -(10**9)


def order_of(steps: Sequence[int], shard: tuple[int, int]) -> list[int]:
    """Return the steps in the order of a worker: its own share, then those of the other workers from their ends.

    Example:
        >>> order_of([0, 1, 2, 3, 4, 5], (1, 2))
        [1, 3, 5, 4, 2, 0]
    """
    i, n = shard
    own, *others = (steps[(i + k) % n :: n] for k in range(n))
    return [*own, *(step for share in others for step in reversed(share))]


@dataclass
class Work:
    """The requested observations, of which a worker makes what is missing when it arrives there.

    Any number of workers share a folder without locks: if two make the same observation, the first one is kept.

    Attributes:
        asked: by step, the observers called at it.
        known: function that returns whether the weights of a step are recorded.
        shard: (i, n): this is the i-th of n workers, see :func:`order_of`.
        strict: whether to raise the first failure.
        source_may_fail: whether three consecutive checkpoints that cannot be read indicate a failure of their source.
        made: number of observations made.
        left: steps with possibly missing observations.
    """

    asked: Mapping[int, Sequence[Observer]]
    known: Callable[[int], bool]
    shard: tuple[int, int]
    strict: bool
    source_may_fail: bool
    made: int = 0
    _failures: dict[tuple[int, str], Exception] = field(default_factory=dict)
    _in_a_row: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = order_of(list(self.asked), self.shard)

    @property
    def observers(self) -> list[Observer]:
        """Observers with a missing observation."""
        return list(dict.fromkeys(o for step in self.left for o in self.missing(step)[0]))

    def take(self) -> int | None:
        """Return the next checkpoint of which something is missing; None if none is left."""
        while self.left:
            step = self.left.pop(0)
            if any(self.missing(step)):
                return step
        return None

    def missing(self, step: int) -> tuple[list[Observer], bool]:
        """Return the observers whose observation of a checkpoint is missing now, and whether to record its weights."""
        missing = [o for o in self.asked[step] if not o.store.path(step).exists()]
        return missing, not self.known(step)

    def failed(self, step: int, error: Exception, observer: Observer | None = None) -> None:
        """Record that a checkpoint could not be read, or not be observed by one of the observers.

        Raises:
            ValueError: if ``strict`` is set; or if the same has failed several times in a row without any success.
        """
        whose = "" if observer is None else observer.name
        self._failures[step, whose] = error
        what = f"{_named(step, whose)} failed: {_message(error)}"
        self._in_a_row[whose] = self._in_a_row.get(whose, 0) + 1
        if self.strict:
            raise ValueError(f"{what} (--strict)") from error
        if self._in_a_row[whose] == _GIVE_UP:
            raise ValueError(
                f"{what}. The replay stops, since the {_GIVE_UP - 1} steps before also failed. lmdyn keeps all "
                "observations; to continue, run the same command"
            ) from error
        log.error("%s; lmdyn continues with the other checkpoints", what)

    def stored(self, observer: Observer, *, first: bool) -> None:
        """Record that an observation exists, and whether this worker's was the first."""
        self.made += first
        self._in_a_row[observer.name] = _WORKS

    def read(self) -> None:
        """Record that a checkpoint could be read."""
        self._in_a_row[""] = 0 if self.source_may_fail else _WORKS

    def raise_failures(self) -> None:
        """Raise an error about what has failed here, and was not made by another worker either.

        Raises:
            ValueError: if there is any; the message has the first reasons.
        """
        failures = {
            (step, whose): error
            for (step, whose), error in sorted(self._failures.items())
            if any(whose in ("", o.name) for o in self.missing(step)[0]) or not (whose or self.known(step))
        }
        if not failures:
            return
        said = [f"{_named(*where)}: {_message(error)}" for where, error in failures.items()]
        more = f" (and {len(said) - _SHOWN} more, see --status)" if len(said) > _SHOWN else ""
        raise ValueError(
            f"{len({step for step, _ in failures})} of {len(self.asked)} checkpoints could not be observed: "
            f"{'; '.join(said[:_SHOWN])}{more}. To retry only these checkpoints, run the same command"
        ) from next(iter(failures.values()))


def _named(step: int, whose: str) -> str:
    return f"step {step}{whose and f', {whose}'}"


def _message(error: Exception) -> str:
    """Return an error in one line."""
    said = one_line(error)
    return said if isinstance(error, ValueError) else f"{type(error).__name__}: {said}"

"""Which observations must be made, which of them this worker makes, and their outcome."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.training.atomic_files import remove_unfinished
from lmdyn.cli.replay.failures import clear_failure, message_of, note_failure, read_failure
from lmdyn.cli.replay.leases import Lease, Leases

__all__ = ["Task", "Work"]

log = logging.getLogger(__name__)

_LOOK_S = (0.2, 5.0)  # seconds between looks, initially and later
_SAY_S = 60.0
_GIVE_UP = 3  # consecutive failures of something that never succeeded
_SHOWN = 3
_WORKS = -(10**9)


@dataclass
class Task:
    """A checkpoint, and this worker's part of it.

    Attributes:
        step: its step.
        observers: observers whose observation this worker makes.
        notes_weights: whether to record its weights for the audit.
    """

    step: int
    observers: list[Observer]
    notes_weights: bool
    leases: dict[Path, Lease]


class Work:
    """The requested observations, shared among any number of workers by :class:`Leases`.

    A worker takes the next checkpoint with a missing observation that no worker makes. If none is left, it takes what
    others have only read ahead; then it waits until the others are done, to take over what a dead one leaves.

    Args:
        asked: by step, the observers called at it.
        weights: by step, the file that records its weights, and whether it does.
        leases: leases of this worker.
        began: time at which this worker started, by the file system's clock: later failures are not retried.
        first: index of the first step.
        strict: whether to raise the first failure.
        source_may_fail: whether three consecutive checkpoints that cannot be read indicate a failure of their source.

    Attributes:
        made: number of observations made.
        dropped: number of those that another worker had made in the meantime.
        failures: failures by step.
    """

    def __init__(
        self,
        asked: Mapping[int, Sequence[Observer]],
        weights: Mapping[int, tuple[Path, Callable[[], bool]]],
        leases: Leases,
        *,
        began: float,
        first: int = 0,
        strict: bool = False,
        source_may_fail: bool = False,
    ) -> None:
        self.made = self.dropped = 0
        self.failures: dict[int, list[tuple[str, BaseException]]] = {}
        self._asked, self._weights, self._leases = asked, weights, leases
        self._began, self._strict, self._source_may_fail = began, strict, source_may_fail
        steps = list(asked)
        self._left = [*steps[first:], *steps[:first]]
        self._next = 0
        self._in_a_row: dict[str, int] = {}

    @property
    def observers(self) -> list[Observer]:
        """Observers with a missing observation."""
        return list(
            dict.fromkeys(
                o for step in self._left for o in self._asked[step] if not o.store.path(step).exists()
            )
        )

    @property
    def n_left(self) -> int:
        """Number of checkpoints with possibly missing observations."""
        return len(self._left)

    @property
    def n_failed(self) -> int:
        """Number of failed observations, of this worker and of others since it started."""
        return sum(
            self._has_failed(o.store.path(step)) for step, observers in self._asked.items() for o in observers
        )

    def raise_failures(self) -> None:
        """Raise an error about all failures, after everything else is done.

        Raises:
            ValueError: if something has failed; the message has the first reasons.
        """
        if not self.failures:
            return
        said = [
            f"step {step}{whose and f', {whose}'}: {message_of(error)}"
            for step, failed in sorted(self.failures.items())
            for whose, error in failed
        ]
        more = f" (and {len(said) - _SHOWN} more, see --status)" if len(said) > _SHOWN else ""
        raise ValueError(
            f"{len(self.failures)} of {len(self._asked)} checkpoints could not be observed: {'; '.join(said[:_SHOWN])}"
            f"{more}. The others are done; the same command retries these"
        ) from next(iter(self.failures.values()))[0][1]

    def take(self, *, ahead: bool = False) -> Task | None:
        """Return the next checkpoint; None if none is left.

        Args:
            ahead: whether to return only one that is free now, without starting it.
        """
        task = self._take_free(ahead=ahead)
        if task is not None or ahead:
            return task
        wait, said = _LOOK_S[0], time.monotonic()
        while self._left:
            self._next = 0
            task = self._take_free(from_those_ahead=True)
            if task is not None:
                return task
            if self._left and time.monotonic() - said > _SAY_S:
                said = time.monotonic()
                log.info("waiting for other workers: %s", "; ".join(self._holders()))
            if self._left:
                time.sleep(wait)
            wait = min(1.5 * wait, _LOOK_S[1])
        return None

    def begin(self, task: Task) -> bool:
        """Start a task that was taken ahead; return False if others have started all of it."""
        task.leases = {path: lease for path, lease in task.leases.items() if self._leases.begin(lease)}
        self._fit(task)
        return bool(task.leases)

    def failed(self, task: Task, error: Exception, observer: Observer | None = None) -> None:
        """Record that a checkpoint could not be read, or not be observed by one of the observers.

        Raises:
            ValueError: if ``strict`` is set; or if the same has failed several times in a row without any success.
        """
        whose = "" if observer is None else observer.name
        paths = list(task.leases) if observer is None else [observer.store.path(task.step)]
        try:
            for path in paths:
                note_failure(path, error)
        except OSError as unwritten:
            log.warning("%s: the failure of step %d cannot be recorded: %s", paths[0], task.step, unwritten)
        self.failures.setdefault(task.step, []).append((whose, error))
        what = f"step {task.step}{whose and f', {whose}'} failed: {message_of(error)}"
        self._in_a_row[whose] = self._in_a_row.get(whose, 0) + 1
        if self._strict:
            raise ValueError(f"{what} (--strict)") from error
        if self._in_a_row[whose] == _GIVE_UP:
            raise ValueError(
                f"{what}; so did {_GIVE_UP - 1} before it: the replay stops. Existing observations are kept, and the "
                "same command continues"
            ) from error
        log.error("%s; continuing with the others", what)

    def stored(self, task: Task, observer: Observer, *, first: bool) -> None:
        """Record that an observation exists, and whether this worker's was the first."""
        self.made += first
        self.dropped += not first
        self._in_a_row[observer.name] = _WORKS
        clear_failure(observer.store.path(task.step))

    def read(self, task: Task) -> None:
        """Record that a checkpoint could be read."""
        self._in_a_row[""] = 0 if self._source_may_fail else _WORKS
        if task.notes_weights:
            clear_failure(self._weights[task.step][0])

    def release(self, task: Task) -> None:
        """Release a task that is done or has failed."""
        for lease in task.leases.values():
            self._leases.release(lease)
        task.leases = {}

    def tidy(self) -> None:
        """Remove files that killed workers have left next to existing observations."""
        stores = {
            observer.name: observer.store for observers in self._asked.values() for observer in observers
        }
        folders = {store.folder for store in stores.values()} | {
            path.parent for path, _ in self._weights.values()
        }
        for folder in folders:
            if folder.is_dir():
                remove_unfinished(folder)
                self._leases.tidy(folder)

    # -------------------------------------------------------------------------------------------- looking

    def _missing(self, step: int) -> Iterator[tuple[Path, Callable[[], bool]]]:
        """Yield the files to make for a step, each with a function that returns whether it exists."""
        path, there = self._weights[step]
        for target, is_there in [
            (o.store.path(step), o.store.path(step).exists) for o in self._asked[step]
        ] + [(path, there)]:
            if not is_there() and not self._has_failed(target):
                yield target, is_there

    def _has_failed(self, target: Path) -> bool:
        """Return whether some worker has failed since this one started."""
        failure = read_failure(target)
        return failure is not None and failure.noted >= self._began

    def _take_free(self, *, ahead: bool = False, from_those_ahead: bool = False) -> Task | None:
        while self._next < len(self._left):
            step = self._left[self._next]
            missing = list(self._missing(step))
            if not missing:
                del self._left[self._next]
                continue
            leases = {}
            for target, there in missing:
                lease = self._leases.take(target, there=there, ahead=ahead, from_those_ahead=from_those_ahead)
                if lease is not None:
                    leases[target] = lease
            self._next += 1
            if leases:
                task = Task(step, list(self._asked[step]), notes_weights=True, leases=leases)
                self._fit(task)
                return task
        return None

    def _fit(self, task: Task) -> None:
        task.observers = [o for o in task.observers if o.store.path(task.step) in task.leases]
        task.notes_weights = self._weights[task.step][0] in task.leases

    def _holders(self) -> list[str]:
        found: dict[str, list[int]] = {}
        for step in self._left:
            for target, _ in self._missing(step):
                state = self._leases.look(target)
                if state is not None:
                    found.setdefault(state.holder, []).append(step)
        return [
            f"{holder}, at step{'s' * (len(set(steps)) > 1)} {', '.join(map(str, sorted(set(steps))))}"
            for holder, steps in found.items()
        ]

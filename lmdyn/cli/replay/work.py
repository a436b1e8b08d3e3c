"""Which observations are to be made, which of them are this worker's, and what becomes of each."""

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

_LOOK_S = (0.2, 5.0)  # how often, at first and after a while
_SAY_S = 60.0
_GIVE_UP = 3  # in a row, of what never worked
_SHOWN = 3
_WORKS = -(10**9)


@dataclass
class Task:
    """A checkpoint, and what this worker makes of it.

    Attributes:
        step: its step.
        observers: whose observation of it is this worker's.
        notes_weights: whether its weights are to be noted for the audit.
    """

    step: int
    observers: list[Observer]
    notes_weights: bool
    leases: dict[Path, Lease]


class Work:
    """The observations that are asked for, shared among any number of workers by :class:`Leases`.

    A worker takes the next checkpoint of which something is missing that nobody makes; when none is left, what others
    have only read ahead; then it waits until the others are done, to take what a dead one leaves.

    Args:
        asked: by step, the observers that are asked at it.
        weights: by step, the file that notes its weights, and whether it does.
        leases: of this worker.
        began: when this worker began, by the file system's clock: what has failed since is not tried again.
        first: index of the step to begin with.
        strict: raise the first failure.
        source_may_fail: three checkpoints in a row that cannot be read are the fault of where they come from.

    Attributes:
        made: number of observations.
        dropped: number of those that another worker had made meanwhile.
        failures: by step, what failed.
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
        """Those of whose observations one is missing."""
        return list(
            dict.fromkeys(
                o for step in self._left for o in self._asked[step] if not o.store.path(step).exists()
            )
        )

    @property
    def n_left(self) -> int:
        """Number of checkpoints of which something may be missing."""
        return len(self._left)

    @property
    def n_failed(self) -> int:
        """Number of observations that failed, this worker's and those that others have noted since it began."""
        return sum(
            self._has_failed(o.store.path(step)) for step, observers in self._asked.items() for o in observers
        )

    def raise_failures(self) -> None:
        """Say what has failed, once everything else is done.

        Raises:
            ValueError: something has, with the first reason.
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
            f"{more}. The others are done; the same command tries these again"
        ) from next(iter(self.failures.values()))[0][1]

    def take(self, *, ahead: bool = False) -> Task | None:
        """The next checkpoint; None where there is none left.

        Args:
            ahead: only if one is free now, and without beginning it.
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
        """Begin with a task that was taken ahead; False where others have begun all of it."""
        task.leases = {path: lease for path, lease in task.leases.items() if self._leases.begin(lease)}
        self._fit(task)
        return bool(task.leases)

    def failed(self, task: Task, error: Exception, observer: Observer | None = None) -> None:
        """Note that a checkpoint could not be read, or not be observed with one of the observers.

        Raises:
            ValueError: under ``strict``; or the same has failed several times in a row, and never worked.
        """
        whose = "" if observer is None else observer.name
        paths = list(task.leases) if observer is None else [observer.store.path(task.step)]
        try:
            for path in paths:
                note_failure(path, error)
        except OSError as unwritten:
            log.warning("%s: the failure of step %d cannot be noted: %s", paths[0], task.step, unwritten)
        self.failures.setdefault(task.step, []).append((whose, error))
        what = f"step {task.step}{whose and f', {whose}'} failed: {message_of(error)}"
        self._in_a_row[whose] = self._in_a_row.get(whose, 0) + 1
        if self._strict:
            raise ValueError(f"{what} (--strict)") from error
        if self._in_a_row[whose] == _GIVE_UP:
            raise ValueError(
                f"{what}; so did {_GIVE_UP - 1} before it: nothing more is tried. What is there stays, and the same "
                "command goes on"
            ) from error
        log.error("%s; going on with the others", what)

    def stored(self, task: Task, observer: Observer, *, first: bool) -> None:
        """Note that an observation is there, and whether this worker's was the first."""
        self.made += first
        self.dropped += not first
        self._in_a_row[observer.name] = _WORKS
        clear_failure(observer.store.path(task.step))

    def read(self, task: Task) -> None:
        """Note that a checkpoint could be read."""
        self._in_a_row[""] = 0 if self._source_may_fail else _WORKS
        if task.notes_weights:
            clear_failure(self._weights[task.step][0])

    def release(self, task: Task) -> None:
        """What there was to do is done, or has failed."""
        for lease in task.leases.values():
            self._leases.release(lease)
        task.leases = {}

    def tidy(self) -> None:
        """Remove what killed workers have left beside what is there."""
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
        """What is to be made of a step, and how to know that it is there."""
        path, there = self._weights[step]
        for target, is_there in [
            (o.store.path(step), o.store.path(step).exists) for o in self._asked[step]
        ] + [(path, there)]:
            if not is_there() and not self._has_failed(target):
                yield target, is_there

    def _has_failed(self, target: Path) -> bool:
        """Whether some worker has tried since this one began."""
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

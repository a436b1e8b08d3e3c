"""Observation with several observers at one step: shared passes, storage and logging."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import lightning as L
from pandas import DataFrame
from torch.nn import Module

from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.observing.loggers import LiveFigures, publish
from lmdyn.callbacks.training.lightning_internals import continues_from, write_out
from lmdyn.callbacks.training.resume import progress
from lmdyn.callbacks.training.updates import updates
from lmdyn.runs.schedule import Progress

_RECORDINGS: "WeakKeyDictionary[L.Trainer, Recording]" = WeakKeyDictionary()


class Passes:
    """Measurements of observers at one step: those of one key are made together when the first is observed.

    Args:
        observers: attached observers.
        module: the module, to which all are bound first: this determines which share a pass, and how it is read.
    """

    def __init__(self, observers: Sequence[Any], module: Module) -> None:
        self._groups: dict[Hashable, list[Any]] = {}
        for observer in observers:
            observer.ensure_bound(module)
            self._groups.setdefault(observer.pass_key, []).append(observer)
        self._tables: dict[int, DataFrame] = {}

    def table(self, observer: Any, module: Module, step: int) -> DataFrame:
        """Return the measurement of one of the observers."""
        if id(observer) not in self._tables:
            group = self._groups[observer.pass_key]
            measured = observer.measure_together(group, module, step)
            self._tables |= {id(o): table for o, table in zip(group, measured, strict=True)}
        return self._tables.pop(id(observer))


def observe_together(observers: Sequence[Any], module: Module, step: int | Progress) -> list[DataFrame]:
    """Observe ``module`` with several observers, with shared passes if possible. Values equal those of each alone.

    Args:
        observers: attached observers.
        module: the module.
        step: optimizer updates done, or the whole :class:`Progress`.

    Returns:
        One table per observer: see :meth:`Observer.observe`.
    """
    passes = Passes(observers, module)
    return [observer.observe(module, step, passes) for observer in observers]


def record(
    observers: Sequence[Any],
    module: Module,
    at: Progress,
    loggers: Sequence[Any],
) -> None:
    """Observe, store and publish, in training and in replay. Every rank must call it; rank 0 writes.

    Args:
        observers: attached observers that are due.
        module: the module.
        at: progress of the training.
        loggers: loggers for scalars and figures.
    """
    passes = Passes(observers, module)
    for observer in observers:
        table = observer.observe(module, at, passes)
        if rank_and_world_size()[0] == 0:
            observer.store.write(at.step, table)
            publish(observer, table, loggers, at.step)
            write_out(loggers)  # the observation exists, so a resumed run does not repeat it


def continue_after(observer: Any, step: int, loggers: Sequence[Any], *, writes: bool) -> None:
    """Note that ``step`` was observed before; give TensorBoard the points that a killed process did not write."""
    observer.seen_step = step
    continued = [logger for logger in loggers if continues_from(logger) == step]
    if writes and continued:
        publish(observer, observer.store.read(steps=frozenset([step])), continued, step)


class Recording:
    """Records the observations of one training, whatever loop trains: Lightning, transformers' Trainer, or the user's.

    Args:
        loggers: loggers for scalars and figures; none on other ranks than 0.
    """

    def __init__(self, loggers: Sequence[Any]) -> None:
        self.loggers = loggers
        self._figures = LiveFigures()

    def observe(
        self,
        observers: Sequence[Any],
        module: Module,
        step: int,
        at: Callable[[], Progress],
        due: Callable[[Any], bool],
    ) -> None:
        """Record with all observers that are due and have not seen this step. Every rank must call it.

        Args:
            observers: all attached observers.
            module: the module.
            step: optimizer updates done.
            at: function that returns the progress, called if an observer is due.
            due: whether an observer is due.
        """
        now = [o for o in observers if o.seen_step != step and due(o)]
        if not now:
            return
        for observer in now:
            observer.seen_step = step
        record(now, module, at(), self.loggers)
        self._figures.observed(now, self.loggers, step)

    def finish(self, observer: Any) -> None:
        """Draw the figures of an observer at the end of training."""
        self._figures.finish(observer, self.loggers)


def observe_due(
    observers: Sequence[Any], trainer: L.Trainer, module: L.LightningModule, due: Callable[[Any], bool]
) -> None:
    """Record with the observers of a trainer that are due; the first caller does it for all."""
    recording = _RECORDINGS.setdefault(trainer, Recording([]))
    recording.loggers = trainer.loggers if trainer.is_global_zero else []
    recording.observe(observers, module, updates(trainer), lambda: progress(trainer), due)


def finish_figures(observer: Any, trainer: L.Trainer) -> None:
    """Draw the figures of an observer at the end of training."""
    if trainer in _RECORDINGS:
        _RECORDINGS[trainer].finish(observer)


def check_names(observers: Sequence[Any]) -> None:
    """Raise an error for observers that would share a folder.

    Raises:
        ValueError: if two have the same name.
        TypeError: if one is a class, or something else without a name.
    """
    for one in observers:
        if isinstance(one, type):
            raise TypeError(f"{one.__name__} is a class: expected an observer, {one.__name__}()")
        if not hasattr(one, "name"):
            raise TypeError(f"expected observers, such as LearningCurves(), got {one!r}")
    names = [o.name for o in observers]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"{names.count(name)} observers have the name {name!r}: give each observer its own `name`"
            )

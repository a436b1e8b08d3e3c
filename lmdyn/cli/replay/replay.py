"""One worker's pass over the checkpoints of a replay."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import pandas as pd
from lightning.pytorch.loggers import Logger
from rich.console import Console
from rich.progress import Progress as Bar

from lmdyn.callbacks.observing.loggers import publish
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.recording import Passes
from lmdyn.cli.replay.read_ahead import ReadAhead
from lmdyn.cli.replay.weights_record import WeightsRecord
from lmdyn.cli.replay.work import Work
from lmdyn.runs.atomic_files import UnwritableError
from lmdyn.runs.checkpoint_files import COUNTED, load_weights
from lmdyn.runs.hub_checkpoints import check_same_model
from lmdyn.runs.schedule import Progress

log = logging.getLogger(__name__)


class Backlog:
    """Existing observations, for loggers that receive all, in the order of steps together with the new ones.

    Args:
        there: by step, the observers whose observation exists.
        worker: (i, n): this is the i-th of n workers that share them.
    """

    def __init__(self, there: Mapping[int, Sequence[Observer]], worker: tuple[int, int]) -> None:
        own = list(there)[worker[0] :: worker[1]]
        self._left = {step: there[step] for step in own if there[step]}

    def __bool__(self) -> bool:
        return bool(self._left)

    def publish(self, loggers: Sequence[Logger], until: int | None = None) -> None:
        """Publish those up to a step; default: all."""
        for step in [s for s in self._left if until is None or s <= until]:
            for observer in self._left.pop(step):
                publish(observer, pd.read_parquet(observer.store.path(step)), loggers, step)


@dataclass
class Replay:
    """Observes one checkpoint after the other.

    Attributes:
        work: the observations to make.
        reading: reads checkpoints.
        module: receives their weights.
        loggers: receive the observations.
        backlog: existing observations that loggers also receive.
        weights: record of the checkpoints' weights.
        stamps: stamps of the checkpoints' files, by step.
        amounts: tokens, words and stages in the checkpoints' names, by step; used where a checkpoint does not say.
        first: the checkpoint with whose configuration the module was built.
    """

    work: Work
    reading: ReadAhead
    module: L.LightningModule
    loggers: Sequence[Logger]
    backlog: Backlog
    weights: WeightsRecord
    stamps: Mapping[int, str]
    amounts: Mapping[int, Mapping[str, int]]
    first: Path
    _loaded: str | None = None  # digest of the weights that the module has, if known
    _bound: bool = False

    def run(self) -> None:
        """Make the missing observations, and read the next checkpoint at the same time.

        Raises:
            ValueError: if an observer cannot observe this module, or a disk is full; see also :meth:`Work.failed`.
        """
        work, reading = self.work, self.reading
        total = len(work.left)
        with Bar(*Bar.get_default_columns(), console=Console(stderr=True), transient=True) as bar:
            shown = bar.add_task("replay", total=total)
            following = work.take()
            while (step := following) is not None:
                bar.update(shown, completed=total - len(work.left) - 1)
                reading.start(step)
                following = work.take()
                if following is not None:
                    reading.start(following)
                observers, notes_weights = work.missing(step)  # others may have made it while it was read
                if not (observers or notes_weights):
                    reading.drop(step)
                    continue
                try:
                    self._observe(step, observers, notes_weights)
                finally:
                    reading.done(step)

    def _observe(self, step: int, observers: Sequence[Observer], notes_weights: bool) -> None:
        """Observe a checkpoint with the observers whose observation is missing; record its weights."""
        try:
            read = self.reading.get(step)
        except Exception as error:
            self.work.failed(step, error)
            return
        if notes_weights and read.seen is not None:
            with _written(self.weights.file(step)):
                self.weights.add(step, self.stamps[step], read.seen)
        digest = self.weights.digest(step, self.stamps[step]) if read.seen is None else read.seen.digest
        if observers and (digest is None or digest != self._loaded):
            self._loaded = None
            try:
                load_weights(self.module, read.content["state_dict"], read.path)
                check_same_model(self.module, read.path, self.first)
            except Exception as error:
                self.work.failed(step, error)
                return
            self._loaded = digest
        self.work.read()
        about = read.content.get("lmdyn", {})
        if about.items() >= COUNTED.items() and about.get("step") != step:
            log.warning(
                "%s contains step %s; lmdyn uses step %d from the file name", read.path, about["step"], step
            )
        known = {**self.amounts[step], **{k: v for k, v in about.items() if v is not None}}
        at = Progress(step, *(known.get(name) for name in ("tokens", "learning_rate", "words", "stage")))
        del read  # so that at most one other is in memory
        met = self._meet(step, observers)
        passes = Passes(met, self.module)
        for observer in met:
            try:
                table = observer.observe(self.module, at, passes)
            except Exception as error:
                self.work.failed(step, error, observer)
                continue
            with _written(observer.store.path(step)):
                self.work.stored(observer, first=observer.store.add(step, table))
            self.backlog.publish(self.loggers, until=step)
            publish(observer, table, self.loggers, step)

    def _meet(self, step: int, observers: Sequence[Observer]) -> Sequence[Observer]:
        """Set up observers with the module: initially all that have work, so that none fails after an hour."""
        if observers and not self._bound:
            for observer in dict.fromkeys([*observers, *self.work.observers]):
                observer.bind(self.module)
            self._bound = True
            return observers
        met = []
        for observer in observers:
            try:
                observer.bind(self.module)
            except Exception as error:
                self.work.failed(step, error, observer)
            else:
                met.append(observer)
        return met


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Within the context, convert failures to write a file, which do not concern the checkpoint."""
    try:
        yield
    except OSError as error:
        remedy = "correct the cause and run the same command again; lmdyn keeps all observations"
        raise UnwritableError(path, error, remedy) from error

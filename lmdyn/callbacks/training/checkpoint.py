"""Checkpoints at scheduled steps: weights for replay, full states for resuming."""

import shutil
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from lmdyn.callbacks.training.lightning_internals import (
    accumulates_gradients,
    callbacks_of,
    checkpoint_contents,
    epoch_or_validation_follows,
)
from lmdyn.callbacks.training.resume import RunState, about_checkpoint, at_epoch_start, is_due
from lmdyn.callbacks.training.run_folder import run_folder
from lmdyn.callbacks.training.updates import count_updates, updates
from lmdyn.runs.atomic_files import UnwritableError
from lmdyn.runs.checkpoint_files import checkpoint_step
from lmdyn.runs.schedule import Steps
from lmdyn.runs.sharded_checkpoints import is_sharded_checkpoint, seal


class ScheduledCheckpoint(Checkpoint):
    """Write ``<log_dir>/<folder>/step=<step:09d>.ckpt`` at scheduled steps, step 0 included.

    A killed run leaves no incomplete checkpoint: each is written under another name in the same folder and renamed.

    Args:
        schedule: steps of checkpoints; by default ``Steps(per_decade=4, epochs=True)``: log-spaced with step 0, the
            ends of epochs and the last step.
        weights_only: True for weights and progress, for replay of observers. False for the complete state for exact
            resuming. Full checkpoints due in a batch that ends the epoch or triggers validation are written right
            after it, since Lightning would skip this on resuming.
        keep: number of the most recent checkpoints to keep; None for all.
        folder: subfolder of the run's folder; by default ``checkpoints`` for weights and ``resume`` for full ones.

    Raises:
        ValueError: if ``keep`` is below 1, if the folder is outside the run's folder, or for full checkpoints without a
            :class:`RunState`.
    """

    def __init__(
        self,
        schedule: Steps | None = None,
        weights_only: bool = True,
        keep: int | None = None,
        folder: str | None = None,
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep is {keep}: expected a number from 1, or null to keep all checkpoints")
        if folder is not None and (Path(folder).is_absolute() or ".." in Path(folder).parts):
            raise ValueError(f"folder is {folder!r}: expected a subfolder of the run, such as 'forks'")
        # not a default of the signature: yaml's partial settings would be merged into it
        self.schedule = Steps(per_decade=4, epochs=True) if schedule is None else schedule
        self.weights_only = weights_only
        self.keep = keep
        self.folder = folder or ("checkpoints" if weights_only else "resume")
        self._saved: int | None = None
        self._due = False

    @property
    def state_key(self) -> str:
        """Different for weights and full checkpoints: two instances of this class may be attached."""
        return f"{type(self).__qualname__}[{self.folder}]"

    def directory(self, trainer: L.Trainer) -> Path:
        """Return the folder of the checkpoints of this run."""
        return run_folder(trainer) / self.folder

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Raise an error for full checkpoints from which a run could not be resumed exactly."""
        self._saved, self._due = None, False  # reset for a new fit
        resumable = any(isinstance(c, RunState) for c in callbacks_of(trainer))
        if stage == "fit":
            count_updates(trainer)
        if stage == "fit" and not self.weights_only and not resumable:
            raise ValueError(
                "ScheduledCheckpoint(weights_only=False) requires a RunState among the callbacks: add "
                "lmdyn.callbacks.RunState(), so that a resumed run is exact"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the untrained model; after resuming, save weights of this step that are missing."""
        step = updates(trainer)
        if trainer.ckpt_path is None:
            if step == 0 and 0 in self.schedule:
                self._save(trainer)
            return
        due = is_due(trainer, self.schedule) or (self.schedule.epochs and at_epoch_start(trainer))
        # random states are restored at the first batch, so a full checkpoint would be wrong here; ranks must agree
        if due and self.weights_only and not trainer.strategy.broadcast(self._path(trainer, step).exists()):
            self._save(trainer)
        self._saved = step

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if the schedule contains this step, possibly with a delay."""
        step = updates(trainer)
        if step == self._saved or not is_due(trainer, self.schedule):
            return
        if not self.weights_only and epoch_or_validation_follows(trainer):
            self._due = True
        elif not accumulates_gradients(trainer):
            self._save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save after validation within an epoch if a checkpoint was delayed."""
        if self._due and not trainer.sanity_checking and not trainer.is_last_batch:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save if a checkpoint was delayed until the end of the epoch, or if epochs are scheduled."""
        if self._due or (self.schedule.epochs and updates(trainer) != self._saved):
            self._save(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the last step if it is scheduled."""
        if self.schedule.last and updates(trainer) != self._saved:
            self._save(trainer)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the untrained model if Lightning has skipped the hooks of training, as with ``max_steps: 0``."""
        if trainer.global_step == 0 and self._saved is None and (0 in self.schedule or self.schedule.last):
            self._save(trainer)

    def _path(self, trainer: L.Trainer, step: int) -> Path:
        return self.directory(trainer) / f"step={step:09d}.ckpt"

    def _save(self, trainer: L.Trainer) -> None:
        """Write for all ranks; every rank must call it."""
        step = self._saved = updates(trainer)
        self._due = False
        path = self._path(trainer, step)
        # Lightning writes to the system's temporary folder and moves the file: a copy if that is another file system
        partial = path.with_name(f".{path.name}.tmp")
        checkpoint = checkpoint_contents(trainer, weights_only=self.weights_only)
        if self.weights_only:
            checkpoint["lmdyn"] = about_checkpoint(trainer)
        try:
            trainer.strategy.save_checkpoint(checkpoint, partial)
        except (OSError, RuntimeError) as error:  # RuntimeError is raised by torch for a full disk
            _remove(partial)
            raise UnwritableError(path, error) from error
        trainer.strategy.barrier("ScheduledCheckpoint")
        if not trainer.is_global_zero:
            return
        if is_sharded_checkpoint(partial):
            seal(partial)
        before = path.with_name(f".{path.name}.old.tmp")
        # a file is replaced atomically, a folder through another name: one is complete at any time
        if path.is_dir():
            _remove(before)
            path.rename(before)
        partial.replace(path)
        _remove(before)
        if self.keep is not None:
            steps = {p: checkpoint_step(p) for p in path.parent.glob("step=*.ckpt")}
            older = sorted((there, p) for p, there in steps.items() if there is not None and there < step)
            for _, old in older[: max(0, len(older) + 1 - self.keep)]:
                _remove(old)


def _remove(path: Path) -> None:
    """Remove a file, or a folder as sharded strategies write."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

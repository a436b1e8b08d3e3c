"""Checkpoints at scheduled steps: weights to replay, full states to resume from."""

import re
import shutil
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from lmdyn.callbacks.training.atomic_files import UnwritableError
from lmdyn.callbacks.training.lightning_internals import (
    accumulates_gradients,
    callbacks_of,
    checkpoint_contents,
    epoch_or_validation_follows,
)
from lmdyn.callbacks.training.observation_schedule import Steps
from lmdyn.callbacks.training.resume import RunState, about_checkpoint, at_epoch_start
from lmdyn.callbacks.training.sharded_checkpoints import is_sharded_checkpoint, seal

__all__ = ["ScheduledCheckpoint", "checkpoint_step"]


def checkpoint_step(path: Path) -> int | None:
    """The step in a checkpoint's file name, ``step=000000123.ckpt``; None for other names.

    Example:
        >>> checkpoint_step(Path("checkpoints/step=000000123.ckpt"))
        123
    """
    match = re.fullmatch(r"step=(\d+)\.ckpt", path.name)
    return int(match[1]) if match else None


class ScheduledCheckpoint(Checkpoint):
    """Writes ``<log_dir>/<folder>/step=<step:09d>.ckpt`` at scheduled steps, step 0 included.

    Args:
        schedule: when; ``Steps(per_decade=4, epochs=True)`` by default: log-spaced with step 0, the ends of epochs
            and the last step.
        weights_only: True: weights and progress, to replay observers from. False: everything that exact resuming
            needs. Full checkpoints due in a batch that ends the epoch or triggers validation are written right
            after it, since Lightning would skip on resuming what follows the batch.
        keep: keep this many of the newest only; all by default.
        folder: below the run's folder; ``checkpoints`` for weights and ``resume`` for full ones by default.

    A killed run leaves no half checkpoint: each is written under another name in the same folder and renamed.

    Raises:
        ValueError: ``keep`` below 1; a folder that is not below the run's; full checkpoints without a
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
            raise ValueError(f"keep is {keep}: expected a number from 1, or null for all")
        if folder is not None and (Path(folder).is_absolute() or ".." in Path(folder).parts):
            raise ValueError(f"folder is {folder!r}: expected one below the run's folder, such as 'forks'")
        # no default of the signature: yaml's partial settings would be merged into it
        self.schedule = Steps(per_decade=4, epochs=True) if schedule is None else schedule
        self.weights_only = weights_only
        self.keep = keep
        self.folder = folder or ("checkpoints" if weights_only else "resume")
        self._saved: int | None = None
        self._due = False

    @property
    def state_key(self) -> str:
        """Distinct for weights and full checkpoints: two of one class may be attached."""
        return f"{type(self).__qualname__}[{self.folder}]"

    def directory(self, trainer: L.Trainer) -> Path:
        """Where the checkpoints of this run go."""
        return Path(trainer.log_dir or trainer.default_root_dir) / self.folder

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse full checkpoints from which no run could be resumed exactly."""
        self._saved, self._due = None, False  # of another fit
        resumable = any(isinstance(c, RunState) for c in callbacks_of(trainer))
        if stage == "fit" and not self.weights_only and not resumable:
            raise ValueError(
                "ScheduledCheckpoint(weights_only=False) expects a RunState among the callbacks, got none: without it "
                "a resumed run goes another way; add lmdyn.callbacks.RunState()"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the untrained model; after resuming, weights that were due at this very step and got lost."""
        step = trainer.global_step
        if trainer.ckpt_path is None:
            if step == 0 and 0 in self.schedule:
                self._save(trainer)
            return
        due = step in self.schedule or (self.schedule.epochs and at_epoch_start(trainer))
        # random states are restored with the first batch, so a full checkpoint would be wrong here
        if due and self.weights_only and not self._exists(trainer, step):
            self._save(trainer)
        self._saved = step

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save where the schedule names this step, or a little later."""
        if trainer.global_step == self._saved or trainer.global_step not in self.schedule:
            return
        if not self.weights_only and epoch_or_validation_follows(trainer):
            self._due = True
        elif not accumulates_gradients(trainer):
            self._save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save what was put off until after validation, in mid-epoch."""
        if self._due and not trainer.sanity_checking and not trainer.is_last_batch:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save what was put off until the end of the epoch, and where epochs are scheduled."""
        if self._due or (self.schedule.epochs and trainer.global_step != self._saved):
            self._save(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the last step where it is scheduled."""
        if self.schedule.last and trainer.global_step != self._saved:
            self._save(trainer)

    def _exists(self, trainer: L.Trainer, step: int) -> bool:
        path = self.directory(trainer) / f"step={step:09d}.ckpt"
        # ranks must agree, and only the first need see the folder
        return bool(trainer.strategy.broadcast(path.exists()))

    def _save(self, trainer: L.Trainer) -> None:
        """Write on every rank's behalf; every rank enters."""
        step = self._saved = trainer.global_step
        self._due = False
        path = self.directory(trainer) / f"step={step:09d}.ckpt"
        # Lightning writes to the system's temporary folder and moves: a copy, where that is another file system
        partial = path.with_name(f".{path.name}.tmp")
        checkpoint = checkpoint_contents(trainer, weights_only=self.weights_only)
        if self.weights_only:
            checkpoint["lmdyn"] = about_checkpoint(trainer)
        try:
            trainer.strategy.save_checkpoint(checkpoint, partial)
        except (OSError, RuntimeError) as error:  # the latter is torch's, of a disk that is full
            _remove(partial)
            raise UnwritableError(path, error) from error
        trainer.strategy.barrier("ScheduledCheckpoint")
        if not trainer.is_global_zero:
            return
        if is_sharded_checkpoint(partial):
            seal(partial)
        before = path.with_name(f".{path.name}.old.tmp")
        if (
            path.is_dir()
        ):  # a file is replaced in one go, a folder by another name: one of them is whole at any moment
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
    """Sharded strategies write folders."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

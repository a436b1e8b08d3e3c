"""The number of updates of a training, of one or several optimizers."""

from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn

from lmdyn.callbacks.training.lightning_internals import State, callbacks_of, set_logged_step
from lmdyn.runs.checkpoint_files import COUNTED, updates_in


class UpdateCount(L.Callback):
    """Counts updates: batches in which an optimizer stepped.

    Lightning's ``global_step`` counts the steps of all optimizers: under manual optimization with two of them, it rises
    by two in a batch. If gradients are accumulated, it does not rise in each batch.

    Lightning's own logging continues with this number.
    """

    def __init__(self) -> None:
        self._updates = 0  # before the current batch
        self._steps = 0  # Lightning's global_step then

    def updates(self, trainer: L.Trainer) -> int:
        """Return the number of updates done, including that of the current batch."""
        return self._updates + (trainer.global_step > self._steps)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Reset the count of a previous fit; a Trainer that fits again continues its count."""
        if stage == "fit" and trainer.global_step == 0:
            self._updates = self._steps = 0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count the update of the previous batch."""
        self._updates = self.updates(trainer)
        self._steps = trainer.global_step
        set_logged_step(trainer, self._updates)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: State) -> None:
        """Add the count to a full checkpoint."""
        checkpoint["lmdyn"] = {"step": self.updates(trainer), **COUNTED}

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: State) -> None:
        """Continue the count of a checkpoint."""
        if trainer.state.fn == TrainerFn.FITTING:
            self._updates, self._steps = updates_in(checkpoint), checkpoint["global_step"]


def count_updates(trainer: L.Trainer) -> None:
    """Count the updates of a fit, unless a callback already does. Called in ``setup``."""
    if not any(isinstance(callback, UpdateCount) for callback in callbacks_of(trainer)):
        callbacks_of(trainer).append(UpdateCount())


def updates(trainer: L.Trainer) -> int:
    """Return the number of updates done: the step of observations, checkpoints and curves."""
    counter = next((c for c in callbacks_of(trainer) if isinstance(c, UpdateCount)), None)
    return trainer.global_step if counter is None else counter.updates(trainer)

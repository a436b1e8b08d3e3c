"""Progress of training as log lines, where no progress bar can be drawn: in a file or a queue's log."""

import logging
import math
import time
from typing import Any

import lightning as L

from lmdyn.callbacks.training.updates import updates
from lmdyn.cli.training.preflight import Plan

log = logging.getLogger(__name__)


class ProgressLines(L.Callback):
    """Logs step, losses and speed once per minute, on rank 0.

    Lightning's progress bar (Rich) writes nothing before its end if the output is not a terminal.

    Args:
        every: seconds between lines.
        first: seconds before the first line.
    """

    def __init__(self, every: float = 60.0, first: float = 10.0) -> None:
        self.every, self.first = every, first
        self._last = (0.0, 0)  # time and step of the last line
        # whether the speed predicts the remaining time: the first line includes early observations
        self._long = False
        self._due = math.inf

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._last = time.monotonic(), updates(trainer)
        self._due = self._last[0] + self.first

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log a line when it is due."""
        now = time.monotonic()
        if now < self._due or not trainer.is_global_zero:
            return
        before, step_before = self._last
        step = updates(trainer)
        total = Plan.of(trainer, trainer.num_training_batches).updates
        speed = (step - step_before) / (now - before)
        self._last, self._due = (now, step), now + self.every
        shown = {name: value for name, value in trainer.progress_bar_metrics.items() if name != "v_num"}
        numbers = "".join(f", {name} {value:.4g}" for name, value in shown.items())
        of_all = f" of {total:,}" if total else ""
        left = f", {_in_words((total - step) / speed)} left" if self._long and total and speed > 0 else ""
        at = f"step {step:,}{of_all}, epoch {trainer.current_epoch}"
        log.info("%s%s, %.3g updates per second%s", at, numbers, speed, left)
        self._long = True


def _in_words(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{max(minutes, 1)} min"

"""Training for a given time: the learning rate depends on the elapsed share of a budget of hours."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import lightning as L
from torch.optim import Optimizer

from lmdyn.analysis.checked_fields import Above, From, check_fields
from lmdyn.analysis.probing.warmup_decay import warmup_decay_factor
from lmdyn.callbacks.training.updates import updates

log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class TimeBudget(L.Callback):
    """Trains for a given time, with a learning rate that rises and then decreases to 0 at its end.

    The rate of each parameter group is the optimizer's initial rate times
    ``warmup_decay_factor`` of the elapsed share of the budget. The clock is read
    right before an update, after its gradient is computed, so that the first update includes its own time and has a
    rate above 0. When the budget is spent, the current update has rate 0 and training stops; do not set ``max_epochs``
    or ``max_steps`` that end it earlier (a warning is logged if they do).

    The time is the wall-clock time from the first batch to the end of training, including validation, observers and
    checkpoints, but without what precedes the first batch, such as the observation of step 0. A full
    checkpoint contains the elapsed time, and a resumed run continues from it: the time in between does not count. All
    ranks use the clock of rank 0, which is sent to them at the same updates.

    A run with a time budget is not bit-reproducible, resumed or not, since it depends on the clock: on a busy machine
    it has fewer updates with other rates. This also applies to added observers; to compare runs by
    their budget, observe them afterwards (``analyze``). No random numbers are drawn.

    It logs nothing; checkpoints and observers record the current rate.

    Args:
        hours: the budget in hours, above 0.
        warmup_share: share of the budget in which the rate rises, from 0 to 0.99.
        every_n_steps: number of updates between readings of the clock, from 1; the rate is constant in between. With
            several ranks, reading it requires communication.

    Raises:
        ValueError: for settings out of range, for a module with its own learning-rate schedulers or that changes its
            rate itself, and for resuming with another budget.

    Reference: He & Toyoizumi 2022, section 4.3, after Izsak, Berchansky & Levy 2021.

    Example:
        >>> budget = TimeBudget(hours=24)
        >>> budget.seconds_spent
        0.0
    """

    hours: Annotated[float, Above(0)]
    warmup_share: Annotated[float, From(0, 0.99)] = 0.06
    every_n_steps: Annotated[int, From(1)] = 10

    def __post_init__(self) -> None:
        check_fields(self)
        self._now: Callable[[], float] = time.monotonic
        self._forget()

    def _forget(self) -> None:
        self._before = 0.0  # seconds until the clock was last stopped
        self._began: float | None = None  # None while it is stopped
        self._rates: list[float] | None = None  # of each parameter group, at factor 1
        self._saved_budget: dict[str, float] | None = None
        self._set: list[float] | None = None  # current rates; None before the first update of a fit

    @property
    def state_key(self) -> str:
        """The same key for every budget, so that resuming with another one is detected."""
        return type(self).__qualname__

    @property
    def seconds_spent(self) -> float:
        """Seconds of training so far, by this process's clock, including those before resuming."""
        return self._before + (0.0 if self._began is None else self._now() - self._began)

    @property
    def _budget(self) -> dict[str, float]:
        return {"hours": float(self.hours), "warmup_share": float(self.warmup_share)}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Reset the state of another fit; a checkpoint, if any, is loaded afterwards."""
        if stage == "fit":
            self._forget()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Raise an error for a module with its own scheduler."""
        if trainer.lr_scheduler_configs:
            kinds = sorted({type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs})
            raise ValueError(
                f"TimeBudget sets the learning rate, but the module has a scheduler, {', '.join(kinds)}: remove the "
                "scheduler from configure_optimizers (lmdyn's modules: `decay_power: null`, `warmup_steps: 0`)"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Store the optimizer's own rates; end immediately if the budget was already spent."""
        if self._saved_budget and self._saved_budget != self._budget:
            raise ValueError(
                f"the saved run had hours {self._saved_budget['hours']:g} and warmup_share "
                f"{self._saved_budget['warmup_share']:g}, but this run has {self.hours:g} and {self.warmup_share:g}, "
                "which changes the learning rate. Resume with the saved budget, or start a new run from the weights"
            )
        if self._rates is None:
            self._rates = [float(group["lr"]) for group in _groups(trainer)]
        if self._before >= 3600 * self.hours:
            trainer.should_stop = True

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Start the clock at the first batch."""
        if self._began is None:
            self._began = self._now()

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        """Read rank 0's clock, set the rate of this update and the following ones, and stop at the end of the budget.

        Raises:
            ValueError: if something else changed the rate in the meantime.
        """
        if self._set is not None and updates(trainer) % self.every_n_steps:
            return
        groups = _groups(trainer)
        if self._set is not None and [float(group["lr"]) for group in groups] != self._set:
            raise ValueError(
                f"TimeBudget set the learning rates {', '.join(map('{:.6g}'.format, self._set))}, but other code "
                f"changed the rates to {', '.join(map('{:.6g}'.format, [g['lr'] for g in groups]))}: remove such code "
                "(lmdyn's LSTMs: `anneal_factor: null`)"
            )
        # every rank calls this at the same updates: the step is equal on all of them
        spent = float(trainer.strategy.broadcast(self.seconds_spent)) / (3600 * self.hours)
        factor = warmup_decay_factor(spent, self.warmup_share)
        assert self._rates is not None
        self._set = [rate * factor for rate in self._rates]
        for group, rate in zip(groups, self._set, strict=True):
            group["lr"] = rate
        if spent >= 1:
            trainer.should_stop = True
            if trainer.is_global_zero:
                log.info("the budget of %g h is spent after update %d", self.hours, updates(trainer) + 1)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the clock; warn if training ended before the rate reached 0."""
        self._before, self._began = self.seconds_spent, None
        if self._before < 3600 * self.hours and trainer.is_global_zero:
            log.warning(
                "training ended after %.3g of %.3g h, before the learning rate reached 0: raise max_epochs or "
                "max_steps (-1: no limit), or lower `hours`", self._before / 3600, self.hours,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Return the elapsed time, the optimizer's own rates and the budget."""
        return {"seconds": self.seconds_spent, "rates": self._rates, "budget": self._budget}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved time; the clock starts at the first batch."""
        self._before = float(state_dict["seconds"])
        self._began = None
        self._rates = state_dict["rates"]
        self._saved_budget = state_dict["budget"]


def _groups(trainer: L.Trainer) -> list[dict[str, Any]]:
    return [group for optimizer in trainer.optimizers for group in optimizer.param_groups]

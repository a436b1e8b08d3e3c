"""Training for a given time: the learning rate follows the share of a budget of hours that is spent."""

import logging
import time
from collections.abc import Callable
from typing import Any

import lightning as L
from torch.optim import Optimizer

from lmdyn.analysis.probing.warmup_decay import warmup_decay_factor

__all__ = ["TimeBudget"]

log = logging.getLogger(__name__)


class TimeBudget(L.Callback):
    """Trains for a given time, with a learning rate that rises and then falls to 0 at the end of it.

    The rate of each parameter group is the optimizer's own, as the module made it, times
    ``warmup_decay_factor`` of the share of the budget that is spent. The clock is read
    right before an update, when its gradient is there, so that the first update has the time that it took itself, and a
    rate above 0. When the budget is spent, the update at hand has rate 0 and training stops; so set no ``max_epochs``
    or ``max_steps`` that ends it sooner (a warning, if it did).

    The time is that of the wall clock from the first batch to the end of training, with validation, observers and
    checkpoints in between, but without what precedes the first batch, such as the observation of step 0. A full
    checkpoint holds the time spent, and a resumed run goes on from there: the time between does not count. All ranks
    follow the clock of rank 0, which is sent to them in the same updates.

    A run under a time budget is not reproducible bit by bit, resumed or not, since the clock decides: on a busy machine
    it has fewer updates, and other rates in them. This holds for added observers too; where runs are to be compared by
    their budget, observe them afterwards (``analyze``). Nothing random is drawn.

    Logs nothing; checkpoints and observers record the rate that is in force.

    Args:
        hours: the budget, above 0.
        warmup_share: share of the budget in which the rate rises, in [0, 1).
        every_n_steps: updates after which the clock is read again, from 1; the rate is constant in between. With
            several ranks, reading it costs a message.

    Raises:
        ValueError: settings out of range; a module with learning-rate schedulers of its own, or which changes its rate
            itself; resuming with another budget.

    Reference: He & Toyoizumi 2022, section 4.3, after Izsak, Berchansky & Levy 2021.

    Example:
        >>> budget = TimeBudget(hours=24)
        >>> budget.seconds_spent
        0.0
    """

    def __init__(self, hours: float, warmup_share: float = 0.06, every_n_steps: int = 10) -> None:
        if not hours > 0:
            raise ValueError(f"hours is {hours}: expected a number above 0")
        if not 0 <= warmup_share < 1:
            raise ValueError(
                f"warmup_share is {warmup_share}: expected a share of the budget, from 0 to below 1"
            )
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps is {every_n_steps}: expected a number from 1")
        self.hours = hours
        self.warmup_share = warmup_share
        self.every_n_steps = every_n_steps
        self._now: Callable[[], float] = time.monotonic
        self._forget()

    def _forget(self) -> None:
        self._before = 0.0  # seconds, up to the last time that the clock stood still
        self._began: float | None = None  # None while it stands still
        self._rates: list[float] | None = None  # of each parameter group, at factor 1
        self._saved_budget: dict[str, float] | None = None
        self._set: list[float] | None = None  # rates in force; None before the first update of a fit

    @property
    def state_key(self) -> str:
        """One for every budget, so that resuming with another one is noticed."""
        return type(self).__qualname__

    @property
    def seconds_spent(self) -> float:
        """Seconds of training so far, by this process's clock, those before a resumption included."""
        return self._before + (0.0 if self._began is None else self._now() - self._began)

    @property
    def _budget(self) -> dict[str, float]:
        return {"hours": float(self.hours), "warmup_share": float(self.warmup_share)}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Forget another fit; a checkpoint, if any, is read after this."""
        if stage == "fit":
            self._forget()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse a module that has a schedule of its own."""
        if trainer.lr_scheduler_configs:
            kinds = sorted({type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs})
            raise ValueError(
                f"TimeBudget sets the learning rate, so it expects a module without scheduler, got {kinds}: leave it "
                "out of configure_optimizers (lmdyn's modules: `decay_power: null`, `warmup_steps: 0`)"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Remember the optimizer's own rates; end at once where the budget was spent before."""
        if self._saved_budget not in (None, self._budget):
            raise ValueError(
                f"the saved run had the budget {self._saved_budget}, this one has {self._budget}: the rate follows the "
                "budget, so resuming needs the same; to train on, start anew from the weights"
            )
        if self._rates is None:
            self._rates = [float(group["lr"]) for group in _groups(trainer)]
        if self._before >= 3600 * self.hours:
            trainer.should_stop = True

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Start the clock with the first batch."""
        if self._began is None:
            self._began = self._now()

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        """Read rank 0's clock, set the rate of this update and those that follow, stop when the time is over.

        Raises:
            ValueError: something else changed the rate meanwhile.
        """
        if self._set is not None and trainer.global_step % self.every_n_steps:
            return
        groups = _groups(trainer)
        if self._set is not None and [float(group["lr"]) for group in groups] != self._set:
            raise ValueError(
                f"TimeBudget set the learning rates {self._set}, and something else changed them to "
                f"{[group['lr'] for group in groups]}: turn that off (lmdyn's LSTMs: `anneal_factor: null`)"
            )
        # every rank comes here in the same updates: the step is the same on all of them
        spent = float(trainer.strategy.broadcast(self.seconds_spent)) / (3600 * self.hours)
        factor = warmup_decay_factor(spent, self.warmup_share)
        assert self._rates is not None
        self._set = [rate * factor for rate in self._rates]
        for group, rate in zip(groups, self._set, strict=True):
            group["lr"] = rate
        if spent >= 1:
            trainer.should_stop = True
            if trainer.is_global_zero:
                log.info(
                    "the budget of %g hours is spent, after %d updates", self.hours, trainer.global_step + 1
                )

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the clock; warn if training ended before the rate came down."""
        self._before, self._began = self.seconds_spent, None
        if self._before < 3600 * self.hours and trainer.is_global_zero:
            log.warning(
                "training ended after %.3g of %.3g hours, before the learning rate came down to 0: raise max_epochs or "
                "max_steps (-1: no limit), or take a smaller budget",
                self._before / 3600,
                self.hours,
            )

    def state_dict(self) -> dict[str, Any]:
        """The time spent until now, the optimizer's own rates and the budget."""
        return {"seconds": self.seconds_spent, "rates": self._rates, "budget": self._budget}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved time; the clock stands still until the first batch."""
        self._before, self._began = float(state_dict["seconds"]), None
        self._rates = state_dict["rates"]
        self._saved_budget = state_dict["budget"]


def _groups(trainer: L.Trainer) -> list[dict[str, Any]]:
    return [group for optimizer in trainer.optimizers for group in optimizer.param_groups]

"""Warmup and decay of the learning rate in pretraining, and the parameters with weight decay."""

import math
from typing import Any, cast

import torch
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn

from lmdyn.models.module import LanguageModule


def decay_groups(module: nn.Module) -> list[dict[str, Any]]:
    """Return two groups of trainable parameters: with the optimizer's weight decay, and without (biases and norms).

    Example:
        >>> [len(group["params"]) for group in decay_groups(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))]
        [1, 3]
    """
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    norms = [part for part in module.modules() if "Norm" in type(part).__name__]
    of_norms = {id(p) for part in norms for p in part.parameters(recurse=False)}
    for name, p in module.named_parameters():
        if p.requires_grad:
            # biases and norms of several towers have more than one axis
            plain = p.ndim <= 1 or name.rpartition(".")[2] == "bias" or id(p) in of_norms
            (others if plain else decayed).append(p)
    return [{"params": decayed}, {"params": others, "weight_decay": 0.0}]


def warmup_decay(step: int, warmup_steps: int, total_steps: int, power: float | None) -> float:
    """Compute the factor of the learning rate for the update after ``step`` updates, in [0, 1].

    It is (t + 1) / warmup in the warmup, so that the first update is not 0; then ((N − t) / (N − warmup))^power.

    Example:
        >>> [warmup_decay(step, 2, 6, 1.0) for step in range(7)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if power is None:
        return 1.0
    left = max(0, total_steps - step) / max(1, total_steps - warmup_steps)
    return 1.0 if step == warmup_steps else float(left**power)


class ScheduledModule(LanguageModule):
    """A model whose optimizer has the groups of :func:`decay_groups`, and the rate of :func:`warmup_decay`.

    Args:
        vocab_size: number of token types; None uses that of the datamodule's tokenizer.
        optimizer: creates the optimizer from two groups of parameters.
        warmup_steps: number of updates of the warmup.
        decay_power: power of the decay; None keeps the rate constant.
        decay_steps: number of updates until the rate is 0; None uses the Trainer's number of updates.
        gradient_clip_val: maximum norm of the gradient; None does not clip. The Trainer's setting takes precedence.

    Raises:
        ValueError: if a number is out of range; at the second update, if the length of the training is unknown.
    """

    def __init__(
        self,
        *,
        vocab_size: int | None = None,
        optimizer: OptimizerCallable = lambda params: torch.optim.AdamW(params, lr=1e-3),
        warmup_steps: int = 0,
        decay_power: float | None = None,
        decay_steps: int | None = None,
        gradient_clip_val: float | None = 1.0,
    ) -> None:
        super().__init__(vocab_size=vocab_size, optimizer=optimizer, gradient_clip_val=gradient_clip_val)
        if warmup_steps < 0 or (decay_power is not None and decay_power <= 0) or (decay_steps or 1) < 1:
            raise ValueError(
                "expected warmup_steps >= 0, decay_power > 0 and decay_steps >= 1, got "
                f"warmup_steps {warmup_steps}, decay_power {decay_power} and decay_steps {decay_steps}"
            )
        self.warmup_steps = warmup_steps
        self.decay_power = decay_power
        self.decay_steps = decay_steps

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return the configured optimizer over two groups, and a schedule of the rate for each update."""
        optimizer = self.optimizer(cast(Any, decay_groups(self)))
        if not self.warmup_steps and self.decay_power is None:
            return optimizer

        def factor(step: int) -> float:
            # Lightning loses the position of the data of a resumed run if it has to count batches before it restores
            known = not step or self.decay_power is None  # a warmup alone needs no length
            total = self.decay_steps or (1 if known else self.trainer.estimated_stepping_batches)
            if math.isinf(total):
                raise ValueError("the length of training is unknown: set trainer.max_steps or decay_steps")
            return warmup_decay(step, self.warmup_steps, int(total), self.decay_power)

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

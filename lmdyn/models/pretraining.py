"""What pretraining a transformer takes beside the model: its first weights, its groups, its rate, its memory."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from lmdyn.models.module import IGNORED, LanguageModule

__all__ = [
    "check_schedule",
    "checkpoint_activations",
    "decay_groups",
    "gather_labelled",
    "labelled_positions",
    "scheduled_optimizer",
    "truncated_normal",
    "warmup_decay",
]


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Keep no activations within layers while training, but compute them again in the backward pass.

    transformers does it for BERT and ELECTRA; ALBERT's groups of layers are wrapped here.
    """
    if model.supports_gradient_checkpointing:
        model.activation_checkpointing_enable()
        return
    for group in cast(Any, model.base_model).encoder.albert_layer_groups:
        plain = group.forward
        group.forward = partial(_checkpointed, group, plain)


def _checkpointed(module: nn.Module, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return (
        checkpoint(plain, *args, use_reentrant=False, **kwargs) if module.training else plain(*args, **kwargs)
    )


@torch.no_grad()
def truncated_normal(model: PreTrainedModel) -> None:
    """Draw weights of matrices and tables anew: normal with the configuration's deviation, cut at two deviations.

    Biases and norms stay as transformers made them (0; 1 and 0), and the row of the padding token is 0.

    Example:
        >>> from transformers import BertConfig, BertForPreTraining
        >>> config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> model = BertForPreTraining(config)
        >>> truncated_normal(model)
        >>> model.bert.embeddings.word_embeddings.weight.abs().max().item() <= 0.04
        True
    """
    deviation = float(getattr(model.config, "initializer_range", 0.02))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    for module in model.modules():  # a decoder may share the table, and comes later
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx].zero_()


def decay_groups(module: nn.Module) -> list[dict[str, Any]]:
    """Two groups of trainable parameters: with the optimizer's weight decay, and without: biases and norms.

    Example:
        >>> [len(group["params"]) for group in decay_groups(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))]
        [1, 3]
    """
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    seen: set[int] = set()
    for part in module.modules():
        for name, p in part.named_parameters(recurse=False):
            if p.requires_grad and id(p) not in seen:
                seen.add(id(p))
                # those of several towers have more axes than one
                plain = p.ndim <= 1 or name == "bias" or "Norm" in type(part).__name__
                (others if plain else decayed).append(p)
    return [{"params": decayed}, {"params": others, "weight_decay": 0.0}]


def warmup_decay(step: int, warmup_steps: int, total_steps: int, power: float | None) -> float:
    """Factor of the learning rate for the update after ``step`` updates, in [0, 1].

    (t + 1) / warmup in the warmup, so that the first update does something; then ((N − t) / (N − warmup))^power.

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


def check_schedule(warmup_steps: int, decay_power: float | None, decay_steps: int | None) -> None:
    """Refuse numbers that :func:`scheduled_optimizer` cannot mean.

    Raises:
        ValueError: a number out of range.
    """
    if warmup_steps < 0 or (decay_power is not None and decay_power <= 0) or (decay_steps or 1) < 1:
        raise ValueError(
            "expected warmup_steps from 0, decay_power above 0 and decay_steps from 1, got "
            f"{warmup_steps}, {decay_power}, {decay_steps}"
        )


def scheduled_optimizer(
    module: LanguageModule, warmup_steps: int, decay_power: float | None, decay_steps: int | None
) -> OptimizerLRScheduler:
    """The optimizer that a module was asked for, over :func:`decay_groups`, with :func:`warmup_decay` at each update.

    Args:
        module: attached to a trainer when the rate is asked for.
        warmup_steps: updates of the warmup.
        decay_power: of the decay; None stays constant.
        decay_steps: updates until the rate is 0; None: the Trainer's own number of updates.

    Raises:
        ValueError: with the second update, where nobody knows how long training lasts.
    """
    optimizer = module.optimizer(cast(Any, decay_groups(module)))
    if not warmup_steps and decay_power is None:
        return optimizer

    def factor(step: int) -> float:
        # Lightning forgets where the data of a resumed run stood if it has to count batches before it restores
        total = decay_steps or (module.trainer.estimated_stepping_batches if step else 1)
        if math.isinf(total):
            raise ValueError(
                "how long training lasts is not known: give max_steps, decay_steps, or no decay_power"
            )
        return warmup_decay(step, warmup_steps, int(total), decay_power)

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def labelled_positions(labels: Int[Tensor, "batch time"]) -> Int[Tensor, "batch p"]:
    """Where the labels are in each row, −100 where a row has fewer than others; waits for the device.

    Example:
        >>> labelled_positions(torch.tensor([[-100, 5, 6], [7, -100, -100]]))
        tensor([[   1,    2],
                [   0, -100]])
    """
    there = labels != IGNORED
    most = int(there.sum(1).max())
    order = torch.argsort((~there).long(), dim=1, stable=True)[:, :most]
    return torch.where(there.gather(1, order), order, IGNORED)


def gather_labelled(
    hidden: Float[Tensor, "batch time d"],
    labels: Int[Tensor, "batch time"],
    positions: Int[Tensor, "batch p"],
) -> tuple[Float[Tensor, "batch p d"], Int[Tensor, "batch p"]]:
    """Vectors and labels at some positions of each row; the label is −100 where a row has fewer positions.

    Example:
        >>> labels = torch.tensor([[-100, 5, 6], [7, -100, -100]])
        >>> gather_labelled(torch.zeros(2, 3, 4), labels, labelled_positions(labels))[1]
        tensor([[   5,    6],
                [   7, -100]])
    """
    at = positions.clamp(min=0)
    wanted = labels.gather(1, at).masked_fill(positions == IGNORED, IGNORED)
    return hidden.gather(1, at[..., None].expand(-1, -1, hidden.shape[-1])), wanted

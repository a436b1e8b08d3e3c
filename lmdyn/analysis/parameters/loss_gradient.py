"""Loss of a text, and its gradient with respect to a module's parameters."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.batches import labels_of
from lmdyn.analysis.inspection.forward import IGNORED, Batch, is_sharded, logits_of, token_losses
from lmdyn.analysis.statistics.distributed import all_reduce_sum
from lmdyn.analysis.statistics.precision import at_least_float32, exact_float

__all__ = ["LossGradient", "loss_gradient", "losses_of", "mean_loss", "mean_of_sums", "requiring_grad"]


@dataclass(frozen=True)
class LossGradient:
    """Mean loss of a text and its gradient.

    Attributes:
        loss: mean cross entropy of the labelled tokens in nats.
        tokens: number of labelled tokens, over all ranks.
        gradients: gradient of ``loss`` by name and in the shape of each parameter, in float32, or float64 for
            parameters in float64; 0 for a parameter on which the loss does not depend.
    """

    loss: float
    tokens: int
    gradients: Mapping[str, Tensor]


def losses_of(output: Any, batch: Batch) -> Tensor:
    """Return the token losses (batch, time) of a module's output, in float32, or float64 for logits in float64.

    Example:
        >>> losses_of(torch.zeros(1, 1, 4, dtype=torch.float64), {"labels": torch.tensor([[3]])})
        tensor([[1.3863]], dtype=torch.float64)
    """
    logits = logits_of(output)
    return token_losses(logits.to(at_least_float32(logits)), labels_of(batch))


@contextmanager
def requiring_grad(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Let parameters require gradients in this context, also frozen ones."""
    frozen = [p for p in parameters if not p.requires_grad and p.is_floating_point()]
    try:
        for p in frozen:
            p.requires_grad_(True)
        yield
    finally:
        for p in frozen:
            p.requires_grad_(False)


@torch.no_grad()
def mean_loss(batches: Iterable[Batch], read: Callable[[Batch], Any]) -> float:
    """Compute the mean token loss of a text, over all ranks, in nats. Every rank must call it.

    Args:
        batches: batches of this rank, on the module's device, labels aligned with the logits.
        read: function that calls the module on a batch.

    Raises:
        ValueError: if no token has a label.

    Example:
        >>> batch = {"labels": torch.tensor([[1, -100]])}
        >>> round(mean_loss([batch], lambda batch: torch.zeros(1, 2, 4)), 4)
        1.3863
    """
    return mean_of_sums([_sums(losses_of(read(batch), batch), batch) for batch in batches])[0]


def _sums(losses: Tensor, batch: Batch) -> Tensor:
    """Return the sum of token losses and their number, on the device: no synchronization from batch to batch."""
    return torch.stack([exact_float(losses).sum(), exact_float(labels_of(batch) != IGNORED).sum()])


def mean_of_sums(sums: Sequence[Tensor]) -> tuple[float, int]:
    """Return the mean loss and the number of tokens of all ranks."""
    own = torch.stack(list(sums)).sum(0).cpu() if sums else torch.zeros(2, dtype=torch.float64)
    loss, tokens = all_reduce_sum(own).tolist()
    if not tokens:
        raise ValueError("no token of the text has a label: pass batches with at least one labelled token")
    return loss / tokens, int(tokens)


def loss_gradient(
    module: nn.Module,
    batches: Iterable[Batch],
    read: Callable[[Batch], Any],
    parameters: Mapping[str, Tensor] | None = None,
) -> LossGradient:
    """Compute the mean token loss of a text and its gradient with respect to parameters; ``.grad`` is unchanged.

    Sums over batches and ranks are divided by the number of labelled tokens, so that the result does not depend on
    how the text is divided into batches. Every rank must call it. Frozen parameters have gradients as well.

    Args:
        module: the module, in the mode in which its loss is to be computed.
        batches: batches of this rank, on the module's device, labels aligned with the logits.
        read: function that calls the module on a batch, such as a ``Reader``, which carries over a recurrent state.
        parameters: parameters by name; all of ``module.named_parameters()`` by default.

    Raises:
        ValueError: if no token has a label, or for a module whose weights are sharded over ranks: autograd computes
            gradients of its shards only in a training step.

    Example:
        >>> table = nn.Embedding(2, 2)  # logits by token
        >>> _ = table.weight.data.zero_()
        >>> batch = {"input_ids": torch.tensor([[0, 1]]), "labels": torch.tensor([[1, -100]])}
        >>> found = loss_gradient(table, [batch], lambda batch: table(batch["input_ids"]))
        >>> round(found.loss, 4), found.tokens, found.gradients["weight"]
        (0.6931, 1, tensor([[ 0.5000, -0.5000],
                [ 0.0000,  0.0000]]))
    """
    if is_sharded(module):
        raise ValueError(
            "lmdyn computes gradients of sharded weights only in training: observe checkpoints with `lmdyn analyze`"
        )
    parameters = dict(module.named_parameters()) if parameters is None else parameters
    sums = {name: torch.zeros_like(p, dtype=at_least_float32(p)) for name, p in parameters.items()}
    totals: list[Tensor] = []
    with requiring_grad(parameters.values()):
        for batch in batches:
            with torch.enable_grad():
                losses = losses_of(read(batch), batch)
            gradients = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
            for own, gradient in zip(sums.values(), gradients, strict=True):
                if gradient is not None:
                    own += gradient
            totals.append(_sums(losses, batch))
    loss, tokens = mean_of_sums(totals)
    return LossGradient(loss, tokens, {k: all_reduce_sum(v) / tokens for k, v in sums.items()})

"""Cross-entropy of a projection to a large vocabulary, for a bounded part of the logits at a time."""

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmdyn.analysis.inspection.forward import IGNORED, check_labels
from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = ["linear_cross_entropy", "target_log_probabilities"]

_CHUNK = {"cpu": 2**22, "other": 2**26}
"""Maximum number of logits at once: 16 MiB on CPU, where memory of more is new pages each time, 256 MiB elsewhere. Each
chunk is added to the gradient of the whole weight, so small chunks cost more than they save."""


def linear_cross_entropy(
    hidden: Float[Tensor, "n d"],
    weight: Float[Tensor, "vocab d"],
    bias: Float[Tensor, "vocab"] | None,
    labels: Int[Tensor, "n"],
) -> Float[Tensor, ""]:
    """Compute the sum over labelled positions of −ln softmax(W h + b)[label], in nats, by parts of the logits.

    Loss and gradients are those of ``F.cross_entropy(hidden @ weight.T + bias, labels, reduction="sum")``. The forward
    pass also computes the gradients, one chunk of positions after the other, so no logits are stored or computed
    twice; the backward pass scales them. Products use the dtype of autocast if it is on, softmax and sums use float32
    (float64 if ``hidden`` does).

    Args:
        hidden: (n, d) vectors to project.
        weight: (vocab, d) one row per token type.
        bias: (vocab,) or None.
        labels: (n,) token types; −100, and any negative number, is ignored, without synchronizing with the device.

    Returns:
        The sum, 0 without labels; divide it by the number of labels for the mean.

    Raises:
        ValueError: on the CPU, if a label is not a row of the weight.

    Example:
        >>> linear_cross_entropy(torch.eye(2), torch.zeros(4, 2), None, torch.tensor([3, -100]))
        tensor(1.3863)
    """
    wanted = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in (hidden, weight, bias)]
    total: Tensor = _LinearCrossEntropy.apply(hidden, weight, bias, labels, wanted)
    return total


def target_log_probabilities(
    hidden: Float[Tensor, "n d"],
    weight: Float[Tensor, "vocab d"],
    bias: Float[Tensor, "vocab"] | None,
    labels: Int[Tensor, "n"],
) -> Float[Tensor, "n"]:
    """Compute the log-probability ln softmax(W h + b)[label] of each position, 0 for no label, without gradients.

    Args:
        hidden: (n, d) vectors to project.
        weight: (vocab, d) one row per token type.
        bias: (vocab,) or None.
        labels: (n,) token types, or −100.

    Example:
        >>> target_log_probabilities(torch.eye(2), torch.zeros(4, 2), None, torch.tensor([3, -100]))
        tensor([-1.3863,  0.0000])
    """
    parts = _parts(hidden, weight, labels)
    with torch.no_grad():
        found = [0 - _losses(h, weight, bias, y, "none") for h, y in parts]  # 0, not -0
    return torch.cat(found)


def _parts(hidden: Tensor, weight: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Return vectors and labels of each chunk; of no positions, one chunk without any."""
    check_labels(labels, len(weight))
    rows = max(1, _CHUNK.get(hidden.device.type, _CHUNK["other"]) // len(weight))
    known = labels.where(labels >= 0, IGNORED)
    return zip(hidden.split(rows), known.split(rows), strict=True)


def _losses(h: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, reduction: str) -> Tensor:
    logits = F.linear(h, weight, bias).to(at_least_float32(h))
    return F.cross_entropy(logits, y, ignore_index=IGNORED, reduction=reduction)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        wanted: list[bool],
    ) -> Tensor:
        exact = at_least_float32(hidden)
        total = hidden.new_zeros((), dtype=exact)
        table, shift = (
            None if t is None else t.detach().requires_grad_(asked)
            for t, asked in zip((weight, bias), wanted[1:], strict=True)
        )
        of_hidden: list[Tensor] = []
        sums = [torch.zeros_like(t, dtype=exact) for t in (table, shift) if t is not None and t.requires_grad]
        for h, y in _parts(hidden, weight, labels):
            h = h.detach().requires_grad_(wanted[0])
            with torch.set_grad_enabled(any(wanted)):
                loss = _losses(h, cast(Tensor, table), shift, y, "sum")
            total += loss.detach()
            asked = [t for t in (h, table, shift) if t is not None and t.requires_grad]
            found = list(torch.autograd.grad(loss, asked)) if asked else []
            if wanted[0]:
                of_hidden.append(found.pop(0))
            for of_all, part in zip(sums, found, strict=True):
                of_all += part
        own = [torch.cat(of_hidden)] if wanted[0] else []
        ctx.save_for_backward(*own, *sums)
        ctx.wanted = wanted
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor) -> Any:
        saved = iter(ctx.saved_tensors)
        return (*(next(saved) * d_total if asked else None for asked in ctx.wanted), None, None)

"""Cross-entropy of a projection to a large vocabulary, for a bounded part of the logits at a time."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmdyn.analysis.inspection.forward import check_labels

__all__ = ["linear_cross_entropy", "target_log_probabilities"]

_CHUNK = {"cpu": 2**24, "other": 2**26}
"""Maximum number of logits at once: 64 MiB on CPU, 256 MiB elsewhere. Each chunk is added to the gradient of the
whole weight, so small chunks cost more than they save."""


def linear_cross_entropy(
    hidden: Float[Tensor, "n d"],
    weight: Float[Tensor, "vocab d"],
    bias: Float[Tensor, "vocab"] | None,
    labels: Int[Tensor, "n"],
    *,
    chunk: int | None = None,
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
        chunk: maximum number of logits at once; by default 16 Mi on CPU, 64 Mi elsewhere. At least those of one
            position.

    Returns:
        The sum, 0 without labels; divide it by the number of labels for the mean.

    Raises:
        ValueError: on the CPU, if a label is not a row of the weight.

    Example:
        >>> linear_cross_entropy(torch.eye(2), torch.zeros(4, 2), None, torch.tensor([3, -100]))
        tensor(1.3863)
    """
    wanted = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in (hidden, weight, bias)]
    total: Tensor = _LinearCrossEntropy.apply(hidden, weight, bias, labels, chunk, wanted)
    return total


def target_log_probabilities(
    hidden: Float[Tensor, "n d"],
    weight: Float[Tensor, "vocab d"],
    bias: Float[Tensor, "vocab"] | None,
    labels: Int[Tensor, "n"],
    *,
    chunk: int | None = None,
) -> Float[Tensor, "n"]:
    """Compute the log-probability ln softmax(W h + b)[label] of each position, 0 for no label, without gradients.

    Args:
        hidden: (n, d) vectors to project.
        weight: (vocab, d) one row per token type.
        bias: (vocab,) or None.
        labels: (n,) token types, or −100.
        chunk: see :func:`linear_cross_entropy`.

    Example:
        >>> target_log_probabilities(torch.eye(2), torch.zeros(4, 2), None, torch.tensor([3, -100]))
        tensor([-1.3863,  0.0000])
    """
    found = []
    with torch.no_grad():
        for y, z, _ in _logits(hidden, weight, bias, labels, chunk):
            log_p = z.log_softmax(1).gather(1, y.clamp(min=0)[:, None])[:, 0]
            found.append(torch.where(y < 0, 0, log_p))
    return torch.cat(found) if found else hidden.new_zeros(0)


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, chunk: int | None
) -> Iterator[tuple[Tensor, Tensor, tuple[Tensor, Tensor]]]:
    """Yield labels and logits of each chunk, and the factors of the logits, valid until the next chunk."""
    check_labels(labels, len(weight))
    device, exact = hidden.device.type, _exact(hidden)
    rows = max(1, (_CHUNK.get(device, _CHUNK["other"]) if chunk is None else chunk) // len(weight))
    autocast = torch.is_autocast_enabled(device) and exact is torch.float32
    product = torch.get_autocast_dtype(device) if autocast else hidden.dtype
    with torch.autocast(device, enabled=False):
        table = weight.to(product)
        # one piece of memory for all chunks: new memory pages cost as much as the softmax
        buffer = hidden.new_empty(min(rows, len(hidden)), len(weight), dtype=exact)
        for h, y in zip(hidden.split(rows), labels.split(rows), strict=True):
            h = h.to(product)
            z = buffer[: len(h)]
            if product == exact:
                torch.mm(h, table.T, out=z)
            else:
                z.copy_(h @ table.T)
            if bias is not None:
                z += bias
            yield y, z, (h, table)


def _exact(hidden: Tensor) -> torch.dtype:
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        chunk: int | None,
        wanted: list[bool],
    ) -> Tensor:
        exact = _exact(hidden)
        total = torch.zeros((), dtype=exact, device=hidden.device)
        d_hidden: list[Tensor] | None = [] if wanted[0] else None
        d_weight = torch.zeros_like(weight, dtype=exact) if wanted[1] else None
        d_bias = torch.zeros_like(bias, dtype=exact) if bias is not None and wanted[2] else None
        softmax: Tensor | None = None
        for y, z, (h, table) in _logits(hidden, weight, bias, labels, chunk):
            labelled, at = y >= 0, y.clamp(min=0)[:, None]
            if softmax is None:
                softmax = torch.empty_like(z)
            p = torch.softmax(z, 1, out=softmax[: len(z)])  # exp of underflowing values would be slow
            normalizer = z.amax(1) - p.amax(1).log()
            total += torch.where(labelled, normalizer - z.gather(1, at)[:, 0], 0).sum()
            if not any(wanted):
                continue
            # softmax minus one-hot, 0 for positions without a label
            p.scatter_add_(1, at, p.new_full((1, 1), -1).expand(len(p), 1))
            p.mul_(labelled[:, None])
            if d_bias is not None:
                d_bias += p.sum(0)
            g = p.to(table.dtype)
            if d_hidden is not None:
                d_hidden.append((g @ table).to(hidden.dtype))
            if d_weight is not None:
                if g.dtype == d_weight.dtype:
                    d_weight.addmm_(g.T, h)
                else:
                    d_weight += g.T @ h
        ctx.save_for_backward(
            None if d_hidden is None else torch.cat(d_hidden) if d_hidden else torch.zeros_like(hidden),
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None or bias is None else d_bias.to(bias.dtype),
        )
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor) -> Any:
        gradients = [None if g is None else g * d_total.to(g.dtype) for g in ctx.saved_tensors]
        return (*gradients, None, None, None)

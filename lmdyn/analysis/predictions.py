"""Logits where something is predicted, and nowhere else: the vocabulary is the greater part of a small model's work."""

import inspect
from collections.abc import Mapping
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from lmdyn.analysis.forward import call_module, logits_of

__all__ = ["logits_at"]


def logits_at(
    module: nn.Module,
    batch: Mapping[str, Any],
    positions: Bool[Tensor, "batch time"],
    forward: str | None = None,
) -> Float[Tensor, "n vocab"]:
    """The logits of ``module`` at some positions of a batch.

    A module whose forward names ``predict`` (batch, time) is asked for these positions alone, and answers logits
    (n, vocab) in row-major order. Of any other module all logits are computed, and these taken.

    Args:
        module: the module.
        batch: tensors by name, on the module's device.
        positions: where to predict; n are true.
        forward: dotted path to ``(module, batch) -> output`` for modules that are not called in Hugging Face's names.

    Returns:
        (n, vocab), in row-major order of the positions.

    Raises:
        ValueError: logits of another shape.

    Example:
        >>> module = nn.Embedding(3, 5)  # answers 5 "logits" a token
        >>> module.forward = lambda input_ids: nn.functional.embedding(input_ids, module.weight)
        >>> ids = torch.tensor([[0, 2], [1, 0]])
        >>> logits_at(module, {"input_ids": ids}, ids > 0).shape
        torch.Size([2, 5])
    """
    if forward is None and "predict" in inspect.signature(module.forward).parameters:
        logits = logits_of(call_module(module, {**batch, "predict": positions}))
        n = int(positions.sum())
        if logits.ndim != 2 or logits.shape[0] != n:
            raise ValueError(
                f"{type(module).__name__}.forward names `predict`, and answered logits {tuple(logits.shape)} for {n} "
                "positions: expected (positions, vocab)"
            )
        return logits
    logits = logits_of(call_module(module, batch, forward=forward))
    if logits.shape[:2] != positions.shape:
        raise ValueError(
            f"logits are {tuple(logits.shape)} for positions {tuple(positions.shape)}: expected (batch, time, vocab)"
        )
    return logits[positions]

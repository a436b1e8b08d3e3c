"""Calling any language model on a batch, and the token loss of its output."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["IGNORED", "StopForward", "call_module", "device_of", "dotted", "logits_of", "token_losses"]


IGNORED = -100
"""The label of a token that has none, as everywhere in Hugging Face's libraries."""


class StopForward(Exception):  # noqa: N818 (no error)
    """Ends a forward pass early: a hook raises it once it has seen what it observes."""


def dotted(path: str) -> Callable[..., Any]:
    """The object that a dotted path such as ``"my_package.my_module.function"`` names.

    Raises:
        ValueError: nothing importable under this path.

    Example:
        >>> dotted("math.sqrt")(4.0)
        2.0
    """
    module, _, name = path.rpartition(".")
    try:
        return cast(Callable[..., Any], getattr(import_module(module), name))
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{path!r} cannot be imported ({error}): expected 'package.module.name'") from error


def device_of(module: nn.Module) -> torch.device:
    """Where the module's parameters are, by the first of them; the CPU where there is none.

    Example:
        >>> device_of(nn.Linear(2, 2))
        device(type='cpu')
    """
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def is_sharded(module: nn.Module) -> bool:
    """Whether ranks hold parts of the module's weights (``fully_shard``, FSDP): their forward passes are collectives.

    Example:
        >>> is_sharded(nn.Linear(2, 2))
        False
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    from torch.distributed.fsdp import FullyShardedDataParallel  # costs a second
    from torch.distributed.tensor import DTensor

    return any(isinstance(p, DTensor) for p in module.parameters()) or any(
        isinstance(m, FullyShardedDataParallel) for m in module.modules()
    )


def call_module(
    module: nn.Module, batch: Mapping[str, Any], *, forward: str | None = None, state: Any = None
) -> Any:
    """Call ``module`` with those entries of ``batch`` that its forward names.

    ``labels`` are never passed on, unless forward demands them: observers compute losses from logits.

    Args:
        module: a module whose forward takes keyword arguments in Hugging Face's names (``input_ids`` …).
        batch: tensors by name.
        forward: dotted path to ``(module, batch) -> output`` for modules that are called otherwise.
        state: recurrent state that a previous call answered as ``.state``; handed on to a forward that names
            both ``state`` and ``continues``, which then starts the rows that do not continue from zero.

    Returns:
        What the module returns.

    Raises:
        ValueError: forward demands an argument that the batch lacks; the message lists what exists.

    Example:
        >>> class Model(nn.Module):
        ...     def forward(self, input_ids):
        ...         return input_ids + 1
        >>> call_module(Model(), {"input_ids": torch.tensor([1]), "upos": torch.tensor([7])})
        tensor([2])
    """
    if forward is not None:
        return dotted(forward)(module, batch)
    parameters = inspect.signature(module.forward).parameters
    named = {
        name: p
        for name, p in parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and (name != "labels" or p.default is p.empty)
    }
    kwargs = {name: batch[name] for name in named if name in batch}
    if state is not None and "state" in named and "continues" in kwargs:
        kwargs["state"] = state
    missing = [name for name, p in named.items() if p.default is p.empty and name not in kwargs]
    if missing:
        raise ValueError(
            f"{type(module).__name__}.forward needs {missing}, the batch has {sorted(batch)}: rename the batch's keys, "
            "or give the observer `forward:`, a dotted path to a function (module, batch) -> output"
        )
    return module(**kwargs)


def logits_of(output: Any) -> Tensor:
    """The logits of a module's output: ``.logits``, ``.prediction_logits``, or the output if it is a tensor.

    Returns:
        (batch, time, classes).

    Raises:
        ValueError: none of them is there.

    Example:
        >>> logits_of(torch.zeros(1, 2, 3)).shape
        torch.Size([1, 2, 3])
    """
    for name in ("logits", "prediction_logits"):
        logits = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(logits, Tensor):
            return logits
    if isinstance(output, Tensor):
        return output
    raise ValueError(
        f"expected an output with `.logits` (batch, time, classes), got {type(output).__name__}: "
        "give the observer `forward:`, a dotted path to a function (module, batch) -> output"
    )


def token_losses(
    logits: Float[Tensor, "batch time classes"], labels: Int[Tensor, "_ _"]
) -> Float[Tensor, "batch time"]:
    """Cross entropy of each token in nats; 0 where the label is -100.

    Raises:
        ValueError: logits and labels disagree in batch or time.

    Example:
        >>> token_losses(torch.zeros(1, 2, 4), torch.tensor([[3, -100]]))
        tensor([[1.3863, 0.0000]])
    """
    if logits.shape[:2] != labels.shape:
        raise ValueError(
            f"logits are (batch, time, classes) = {tuple(logits.shape)}, labels {tuple(labels.shape)}: "
            "`logits[b, t]` must be the prediction for `labels[b, t]`"
        )
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view(labels.shape)

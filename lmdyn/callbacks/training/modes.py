"""Modes of training: wrappers that are removed, and what is refused."""

from collections.abc import Callable

from torch import nn

from lmdyn.analysis.inspection.forward import is_tensor_parallel

REFUSED: dict[str, tuple[Callable[[nn.Module], bool], str]] = {
    "DeepSpeed": (
        lambda model: any("DeepSpeed" in base.__name__ for base in type(model).__mro__),
        "observe the checkpoints with `lmdyn analyze`",
    ),
    "tensor parallelism": (
        is_tensor_parallel,
        "ranks share a batch, but observers give each rank its own batch. Observe the checkpoints with `lmdyn analyze`",
    ),
}
"""How to recognise each mode of training that is not supported, and what to do instead: rows of the guide's table."""


def refuse_mode(model: nn.Module) -> None:
    """Raise a ValueError, with the remedy, for a mode of training that is not supported."""
    for mode, (is_so, remedy) in REFUSED.items():
        if is_so(model):
            raise ValueError(f"lmdyn does not support {mode}: {remedy}")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module within ``torch.compile`` and wrappers of parallel training, whose forward passes synchronize.

    Example:
        >>> import torch
        >>> inner = nn.Linear(2, 2)
        >>> unwrapped(nn.DataParallel(torch.compile(inner, backend="eager"))) is inner
        True
    """
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model

"""Modes of training: wrappers that are removed, and what is refused."""

from torch import nn

from lmdyn.analysis.inspection.forward import is_tensor_parallel

NO_DEEPSPEED = "lmdyn does not support DeepSpeed: observe the checkpoints with `lmdyn analyze`"


def refuse_mode(model: nn.Module) -> None:
    """Raise a ValueError, with the remedy, for a mode of training that is not supported."""
    if any("DeepSpeed" in base.__name__ for base in type(model).__mro__):
        raise ValueError(NO_DEEPSPEED)
    if is_tensor_parallel(model):
        raise ValueError(
            "lmdyn does not support tensor parallelism: ranks share a batch, but observers give each rank its own "
            "batch. Observe the checkpoints with `lmdyn analyze`"
        )


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

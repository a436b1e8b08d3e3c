"""The precision of sums and matrix products."""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "UNDERFLOW",
    "all_finite",
    "at_least_float32",
    "exact_float",
    "rounding",
    "scatter_matrix",
    "unit_size",
]

UNDERFLOW = 1e-290
"""Sums of squares below this value have lost precision in float64."""


def at_least_float32(x: Tensor) -> torch.dtype:
    """Return the dtype of ``x``, at least float32: sums overflow in float16 and have two digits in bfloat16.

    Example:
        >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)), at_least_float32(torch.ones(1).double())
        (torch.float32, torch.float64)
    """
    return torch.promote_types(x.dtype, torch.float32)


def rounding(dtype: torch.dtype) -> float:
    """Return the size of deviations, relative to a number, that are rounding errors: 100 spacings of its precision.

    Example:
        >>> round(rounding(torch.float64) * 1e14, 1)
        2.2
    """
    return 100 * torch.finfo(dtype).eps


def exact_float(x: Tensor) -> Tensor:
    """Convert ``x`` to float64 without its graph, on its device, or on the CPU if that device (MPS) has no float64."""
    return x.detach().to(torch.device("cpu") if x.device.type == "mps" else x.device, torch.float64)


def all_finite(x: Tensor) -> bool:
    """Return whether no value is NaN or infinite; faster than ``x.isfinite().all()``."""
    return not x.numel() or bool(torch.stack(torch.aminmax(x)).isfinite().all())


def unit_size(x: Tensor, dim: int | None = None) -> Tensor:
    """Scale ``x`` by the power of two that brings its largest number to [½, 1): squares do not overflow or underflow.

    No digit changes, so results that are independent of scale are identical to the bit. 0 and non-finite values are
    unchanged.

    Args:
        x: floating-point numbers.
        dim: dimension along which the largest number is determined, each with its own power; None for one power.

    Example:
        >>> unit_size(torch.tensor([3.0, -8.0]))
        tensor([ 0.1875, -0.5000])
    """
    if not x.numel():
        return x
    largest = x.abs().max() if dim is None else x.abs().amax(dim, keepdim=True)
    exponent = torch.where(largest.isfinite(), -torch.frexp(largest).exponent, 0)
    if not bool(exponent.any()):
        return x
    half = exponent // 2  # the whole power may be out of range; products are faster than ldexp of all numbers
    first, second = (torch.ldexp(torch.ones_like(largest), part) for part in (half, exponent - half))
    return (x * first).mul_(second)


def scatter_matrix(v: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """Compute vᵀv, symmetric to the bit: only upper blocks are multiplied, 5/8 of the work for large d."""
    d = v.shape[1]
    edges = [d * i // 4 for i in range(5)] if d >= 128 else [0, d]
    out = v.new_zeros(d, d)
    for rows in v.split(1024):  # these stay in the cache from block to block
        for low, high in pairwise(edges):
            out[:high, low:high].addmm_(rows[:, :high].T, rows[:, low:high])
    return out.triu_().add_(out.triu(1).T)

"""The precision of sums and matrix products."""

import numpy as np
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
    ends = x.aminmax() if dim is None else x.aminmax(dim=dim, keepdim=True)  # without a copy, unlike abs
    largest = torch.maximum(-ends.min, ends.max)
    exponent = torch.where(largest.isfinite(), -torch.frexp(largest).exponent, 0)
    if not exponent.any():
        return x
    half = exponent // 2
    first, second = (torch.ldexp(torch.ones_like(largest), part) for part in (half, exponent - half))
    return (x * first).mul_(second)


def scatter_matrix(v: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """Compute vᵀv, symmetric to the bit."""
    if v.device.type == "cpu":  # numpy computes one half and copies it
        rows = v.numpy()
        with np.errstate(all="ignore"):  # NaN and infinity are values, as in torch
            return torch.from_numpy(rows.T @ rows)
    upper = (v.T @ v).triu()
    return upper + upper.triu(1).T

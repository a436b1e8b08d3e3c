"""Sparsity of the entries of vectors and matrices: Gini index and Hoyer's measure."""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.statistics.precision import at_least_float32, exact_float

__all__ = ["gini", "hoyer"]

_CHUNK = 1 << 22  # numbers that are converted to float64 at a time


def gini(v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """Compute the Gini index of the magnitudes of each vector: 0 if all are equal, 1 − 1/d if one differs from 0.

    For magnitudes in ascending order x₁ ≤ … ≤ x_d it is 1 − 2 Σ x_k/‖x‖₁ · (d − k + ½)/d. It is invariant to scale,
    sign and order.

    Args:
        v: (..., d) vectors of any floating type.

    Returns:
        Float64 tensor of shape (...) in [0, 1 − 1/d]; NaN if v = 0, if v is not finite, or if ‖v‖₁ overflows.

    Reference: Hurley & Rickard 2009, "Comparing measures of sparsity", table I.

    Example:
        >>> gini(torch.tensor([[1.0, -1.0], [0.0, 3.0]]))
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    d = v.shape[-1]
    rows = [_gini_of(row) for row in v.detach().reshape(-1, d)] if d else []
    return _shaped(rows, v)


def hoyer(v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """Compute Hoyer's sparsity (√d − ‖v‖₁/‖v‖₂) / (√d − 1) of each vector: 0 if all magnitudes are equal, 1 if one-hot.

    It is (√d − 1/χ) / (√d − 1) for the taxicab-Euclidean concentration χ of :func:`lmdyn.analysis.concentration`:
    normalized, it can be compared between matrices of different sizes.

    Args:
        v: (..., d) vectors of any floating type.

    Returns:
        Float64 tensor of shape (...) in [0, 1]; NaN if v = 0, if d = 1, if v is not finite, or if ‖v‖₁ overflows.

    Reference: Hoyer 2004, "Non-negative matrix factorization with sparseness constraints", section 3.1.

    Example:
        >>> hoyer(torch.tensor([[1.0, 1.0, 1.0, -1.0], [0.0, 0.0, 0.0, 3.0]]))
        tensor([0., 1.], dtype=torch.float64)
    """
    d = v.shape[-1]
    rows = [_hoyer_of(row) for row in v.detach().reshape(-1, d)] if d > 1 else []
    return _shaped(rows, v)


def _shaped(rows: list[Tensor], v: Tensor) -> Tensor:
    batch = v.shape[:-1]
    if not rows:
        return torch.full(batch, torch.nan, dtype=torch.float64)
    return torch.stack(rows).cpu().reshape(batch)


def _gini_of(row: Tensor) -> Tensor:
    exact, d = row.abs().to(at_least_float32(row)), len(row)
    # numpy's is vectorized, without the indices of torch.sort
    ordered = torch.from_numpy(np.sort(exact.numpy())) if row.device.type == "cpu" else exact.sort().values
    total = weighted = exact_float(row.new_zeros(()))
    largest = d - 0.5
    for part in map(exact_float, ordered.split(_CHUNK)):
        weights = torch.arange(largest, largest - len(part), -1, dtype=torch.float64, device=part.device)
        total = total + part.sum()
        weighted = weighted + part @ weights.div_(d)
        largest -= len(part)
    found = (1 - 2 * weighted / total).clamp_min(0)  # NaN for 0/0
    return found.where(total.isfinite(), torch.nan)


def _hoyer_of(row: Tensor) -> Tensor:
    largest = exact_float(row.abs().max())
    scale = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent)
    taxicab = squares = torch.zeros_like(largest)
    for part in row.split(_CHUNK):
        unit = exact_float(part) / scale
        taxicab = taxicab + unit.abs().sum()
        squares = squares + unit @ unit
    root = math.sqrt(len(row))
    return ((root - taxicab / squares.sqrt()) / (root - 1)).clamp(0, 1)

"""Kernels between samples, and the seeded subsample that keeps what is n × n small."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.statistics.precision import at_least_float32, exact_float, unit_size

__all__ = [
    "KERNELS",
    "Structure",
    "cosine_kernel",
    "linear_kernel",
    "pair_distances",
    "pairs_of_rows",
    "rbf_kernel",
    "structure_of",
    "subsample",
]

Structure = str | Callable[[Tensor], Tensor]
"""A name from a table, ``precomputed``, or a function of (n, d) samples that returns an (n, n) matrix."""

_MOST = 10_000  # samples: a matrix of 800 MB


def linear_kernel(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Products ⟨xᵢ, xⱼ⟩ of the centred samples (CKA centres anyway; done first, it costs no digits).

    In float32 at least, as all kernels here. NaN, or infinite, where a sample is: the mean is too.
    """
    x = x.to(at_least_float32(x))
    centred = x - x.mean(0)
    gram: Tensor = centred @ centred.T
    return gram


def cosine_kernel(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Cosines of the angles between samples, in [−1, 1].

    Raises:
        ValueError: a sample that is zero has no angle; NaN or infinite values.
    """
    unit = unit_rows(x.to(at_least_float32(x)), "zero")
    gram: Tensor = unit @ unit.T
    return gram


def rbf_kernel(x: Float[Tensor, "n d"], bandwidth: float = 1.0) -> Float[Tensor, "n n"]:
    """Gaussian kernel exp(−‖xᵢ − xⱼ‖² / 2σ²), in [0, 1].

    Args:
        x: (n, d) samples.
        bandwidth: σ as a multiple of the median distance between two different samples (Kornblith et al. 2019,
            section 4; the lower median of an even number). It makes the kernel invariant to isotropic scaling.

    Raises:
        ValueError: fewer than 2 samples; NaN or infinite values; more than half of the pairs of samples coincide.

    Example:
        >>> rbf_kernel(torch.tensor([[0.0], [1.0], [1.0]]))[0]
        tensor([1.0000, 0.6065, 0.6065])
    """
    if len(x) < 2:
        raise ValueError(
            f"the bandwidth is a distance between two samples: expected 2 samples or more, got {len(x)}"
        )
    x = unit_size(x.to(at_least_float32(x)))
    distance = pair_distances(x)
    if not bool(distance.isfinite().all()):
        raise ValueError(
            "samples hold NaN or infinite values, or are too far apart for their precision: leave these out"
        )
    median = distance.median()
    if not median > 0:
        raise ValueError(
            "more than half of the pairs of samples coincide, so their median distance is 0: drop duplicates, "
            "or give a kernel with a bandwidth of its own"
        )
    values = torch.exp(-0.5 * (distance / (bandwidth * median)) ** 2)
    kernel = torch.zeros(len(x), len(x), dtype=x.dtype, device=x.device)
    kernel.masked_scatter_(torch.ones_like(kernel, dtype=torch.bool).triu_(1), values)
    return (kernel + kernel.T).fill_diagonal_(1)


KERNELS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"linear": linear_kernel, "cosine": cosine_kernel, "rbf": rbf_kernel}
)
"""Kernels by name."""


def pair_distances(x: Float[Tensor, "n d"]) -> Float[Tensor, "pairs"]:
    """Distances ‖xᵢ − xⱼ‖, i < j, in the order of rows: exactly 0 between equal samples, so that ties are ties.

    In float32 at least; NaN or infinite for samples that are.
    """
    return torch.nn.functional.pdist(x.to(at_least_float32(x)))


def pairs_of_rows(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "pairs"]:
    """What is above the diagonal, in the order of :func:`pair_distances`.

    Raises:
        ValueError: a matrix that is not square.
    """
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"expected an (n, n) matrix, got shape {tuple(matrix.shape)}")
    rows, columns = torch.triu_indices(len(matrix), len(matrix), 1, device=matrix.device)
    return matrix[rows, columns]


def unit_rows(x: Float[Tensor, "n d"], lacking: str) -> Float[Tensor, "n d"]:
    """Each row over its norm; a ValueError that names the first row without one."""
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    if not bool(norms.isfinite().all()):
        row = int((~norms[:, 0].isfinite()).nonzero()[0, 0])
        raise ValueError(
            f"sample {row} holds NaN or infinite values (or its squares overflow): leave it out on both sides"
        )
    if not bool((norms > 0).all()):
        row = int((norms[:, 0] == 0).nonzero()[0, 0])
        raise ValueError(
            f"sample {row} is {lacking}, so its angle to others is undefined: leave it out on both sides, "
            "or use a measure of distances"
        )
    unit: Tensor = x / norms
    return unit


def subsample(n: int, max_samples: int | None, seed: int, *, least: int) -> Tensor | None:
    """Which of n samples to take: None for all, else sorted indices, the same for the same n and seed.

    Raises:
        ValueError: fewer than ``least`` samples, or too many for n × n without a ``max_samples``.
    """
    taken = n if max_samples is None else min(n, max_samples)
    if taken < least:
        raise ValueError(f"{taken} samples: at least {least} are needed for this measure to say anything")
    if max_samples is None and n > _MOST:
        raise ValueError(
            f"{n} samples make two matrices of {n} × {n}: give max_samples (at most {_MOST} without being asked), "
            "a seeded subsample"
        )
    if taken == n:
        return None
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:taken].sort().values


def structure_of(
    name: str,
    x: Tensor,
    structure: Structure,
    table: Mapping[str, Callable[[Tensor], Tensor]],
    chosen: Tensor | None,
) -> Float[Tensor, "n n"] | Float[Tensor, "pairs"]:
    """The structure of one side in float64: an (n, n) matrix by a function or as it is given, or the table's by name.

    Raises:
        ValueError: an unknown name, a matrix of another shape, NaN or infinite values in or out.
    """
    if x.ndim != 2:
        raise ValueError(
            f"{name} must be (samples, features), got shape {tuple(x.shape)}: "
            "flatten batch and time and leave padding out"
        )
    x = exact_float(x)
    index = None if chosen is None else chosen.to(x.device)
    if structure == "precomputed":
        if x.shape[0] != x.shape[1]:
            raise ValueError(f"{name} is precomputed, so it must be (n, n): got shape {tuple(x.shape)}")
        found = x if index is None else x[index][:, index]
    else:
        if index is not None:
            x = x[index]
        if not bool(x.isfinite().all()):
            raise ValueError(f"{name} holds NaN or infinite values: drop these samples from both sides")
        if callable(structure):
            found = exact_float(structure(x))
            if found.shape != (len(x), len(x)):
                raise ValueError(
                    f"{structure!r} made a matrix of shape {tuple(found.shape)} for {len(x)} samples of {name}"
                )
        elif structure in table:
            found = table[structure](unit_size(x))  # none of them is of the size of all samples
        else:
            known = ", ".join([*table, "precomputed"])
            raise ValueError(f"{structure!r} for {name} is none of {known}, and no function either")
    if not bool(found.isfinite().all()):
        raise ValueError(f"the matrix of {name} holds NaN or infinite values")
    return found

"""Kernels between samples, and the seeded subsample that limits the n × n matrices."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.statistics.precision import (
    all_finite,
    at_least_float32,
    exact_float,
    scatter_matrix,
    unit_size,
)

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
_FAR = 100  # a squared norm, in squared medians of the distances: two digits of 16 are lost
_ROWS = 64  # of a matrix, that are changed at a time
_BY_DIFFERENCES = "donot_use_mm_for_euclid_dist"


def linear_kernel(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Compute the products ⟨xᵢ, xⱼ⟩ of the centred samples.

    CKA centres the kernel again; centring the samples first keeps precision. Computed in at least float32, as all
    kernels here. The result is NaN or infinite if a sample is, because the mean is.
    """
    x = x.to(at_least_float32(x))
    centred = x - x.mean(0)
    gram: Tensor = centred @ centred.T
    return gram


def cosine_kernel(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Compute the cosines of the angles between samples, in [−1, 1].

    Raises:
        ValueError: if a sample is zero, which has no angle, or if values are NaN or infinite.
    """
    unit = unit_rows(x.to(at_least_float32(x)), "zero")
    gram: Tensor = unit @ unit.T
    return gram


def rbf_kernel(x: Float[Tensor, "n d"], bandwidth: float = 1.0) -> Float[Tensor, "n n"]:
    """Compute the Gaussian kernel exp(−‖xᵢ − xⱼ‖² / 2σ²), in [0, 1].

    Args:
        x: (n, d) samples.
        bandwidth: σ as a multiple of the median distance between two different samples (Kornblith et al. 2019, section
            4; the lower median of an even number). The median makes the kernel invariant to isotropic scaling.

    Raises:
        ValueError: if there are fewer than 2 samples, if values are NaN or infinite, or if more than half of the pairs
            of samples coincide.

    Example:
        >>> rbf_kernel(torch.tensor([[0.0], [1.0], [1.0]]))[0]
        tensor([1.0000, 0.6065, 0.6065])
    """
    if len(x) < 2:
        raise ValueError(f"the bandwidth is a distance, which requires at least 2 samples, got {len(x)}")
    samples = unit_size(exact_float(x))
    squared, norms = squared_distances(samples)
    if not norms.isfinite().all():
        raise ValueError("samples or their distances are NaN or infinite: leave out these samples")
    median = pairs_of_rows(squared).median()
    # products round distances by a share of the norms, which are large only next to those of far samples
    far = (norms > _FAR * median).nonzero()[:, 0]
    if len(far) > 1:
        squared[far[:, None], far] = torch.cdist(
            samples[far], samples[far], compute_mode=_BY_DIFFERENCES
        ).square()
        median = pairs_of_rows(squared).median()
    if not median > 0:
        raise ValueError(
            "more than half of the pairs of samples coincide, so the median distance is 0: remove duplicates, or pass "
            "a kernel with a fixed bandwidth"
        )
    kernel = squared.mul_(-0.5 / (bandwidth**2 * median)).exp_()
    return kernel.fill_diagonal_(1).to(x.device, at_least_float32(x))


KERNELS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "linear": linear_kernel,
    "cosine": cosine_kernel,
    "rbf": rbf_kernel,
}
"""Kernels by name."""


def squared_distances(x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n"]]:
    """Compute the squared distances of samples by products of the centred ones, and the squared norms of these.

    The distance of two samples is rounded by a share of their norms: it may be wrong if it is much smaller.
    """
    products = scatter_matrix((x - x.mean(0)).T)
    norms = products.diagonal().clone()
    for part, own in zip(products.split(_ROWS), norms.split(_ROWS), strict=True):
        torch.sub(own[:, None] + norms, part, alpha=2, out=part).clamp_(min=0)
    return products, norms


def pair_distances(x: Float[Tensor, "n d"]) -> Float[Tensor, "pairs"]:
    """Compute the distances ‖xᵢ − xⱼ‖, i < j, row by row; exactly 0 between equal samples, so ties stay ties.

    Computed in at least float32; NaN or infinite for samples that are.
    """
    return torch.pdist(x.to(at_least_float32(x)))


def pairs_of_rows(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "pairs"]:
    """Return the entries above the diagonal, in the order of :func:`pair_distances`."""
    return torch.cat([row[i + 1 :] for i, row in enumerate(matrix)])


def unit_rows(x: Float[Tensor, "n d"], lacking: str) -> Float[Tensor, "n d"]:
    """Divide each row by its norm; raise a ValueError that names the first row without a norm."""
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    for row in (~(norms.isfinite() & (norms > 0))[:, 0]).nonzero()[:1, 0].tolist():
        why = f"is {lacking}" if norms[row] == 0 else "has NaN or infinite values (or squares that overflow)"
        raise ValueError(
            f"sample {row} {why}, so the angle to other samples is undefined: remove the sample from both inputs, "
            "or use a measure of distances"
        )
    unit: Tensor = x / norms
    return unit


def subsample(n: int, max_samples: int | None, seed: int, *, least: int) -> Tensor | None:
    """Return None to use all of n samples, or the sorted indices of a subsample, a function of n and seed.

    Raises:
        ValueError: if there are fewer than ``least`` samples, or too many for an n × n matrix and no ``max_samples``.
    """
    taken = n if max_samples is None else min(n, max_samples)
    if taken < least:
        raise ValueError(f"expected at least {least} samples, got {taken} of {n} ({max_samples=})")
    if max_samples is None and n > _MOST:
        raise ValueError(
            f"{n} samples require two matrices of {n} × {n}: set max_samples to use a seeded subsample (without "
            f"max_samples, at most {_MOST} samples)"
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
) -> Float[Tensor, "n _"]:
    """Return the structure of one side in float64, a new tensor: by a name from the table, by a function, or as given.

    What the functions of the table return is not checked: an (n, n) matrix, or (n, d) points.

    Raises:
        ValueError: if the name is unknown, the matrix has a wrong shape, or the input or the result is NaN or
            infinite.
    """
    x = exact_float(x)
    index = None if chosen is None else chosen.to(x.device)
    if structure == "precomputed":
        if x.shape[0] != x.shape[1]:
            raise ValueError(f"the precomputed {name} must be of shape (n, n), got {tuple(x.shape)}")
        found = x.clone() if index is None else x[index][:, index]
    else:
        if index is not None:
            x = x[index]
        if not all_finite(x):
            raise ValueError(
                f"{name} contains NaN or infinite values: remove the samples with such values from both inputs"
            )
        if callable(structure):
            found = exact_float(structure(x)).clone()  # it may be theirs
            if found.shape != (len(x), len(x)):
                raise ValueError(
                    f"the function for {name} must return shape {(len(x), len(x))}, got {tuple(found.shape)}"
                )
        elif structure in table:
            found = table[structure](unit_size(x))  # none of these depends on the scale of all samples
        else:
            known = ", ".join([*table, "precomputed"])
            raise ValueError(f"expected a function or one of {known} for {name}, got {structure!r}")
    if not all_finite(found):
        raise ValueError(
            f"the matrix of {name} has NaN or infinite values: remove samples with such values from both inputs"
        )
    return found

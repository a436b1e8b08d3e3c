"""Intrinsic dimension of a set of vectors by the distances to two nearest neighbours (TwoNN), at several scales."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lmdyn.analysis.similarity.kernels import squared_distances
from lmdyn.analysis.statistics.precision import all_finite, at_least_float32, exact_float, rounding, unit_size

__all__ = ["IntrinsicDimension", "intrinsic_dimension"]

_DISCARDED = 0.1  # share of the largest ratios, as published
_LEAST = 10  # rows of an estimate
_ROWS = 64  # at a time, which stay in the cache
_NEAREST = 4  # neighbours whose distances are computed again without cancellation
_PRODUCTS = 1e-12  # error of squared distances by products, relative to squared norms


@dataclass(frozen=True)
class IntrinsicDimension:
    """TwoNN of a set of vectors and of its parts.

    Attributes:
        distinct: number of distinct vectors.
        dimensions: estimate for each part, with distinct // part vectors; NaN for fewer than 10, or if all ratios of
            distances are 1.
    """

    distinct: int
    dimensions: tuple[float, ...]


@torch.no_grad()
def intrinsic_dimension(x: Float[Tensor, "n d"], parts: Sequence[int] = (1, 2, 4)) -> IntrinsicDimension:
    """Estimate the intrinsic dimension of vectors by TwoNN, for all distinct ones, and for a half and a quarter.

    μ_i is the ratio of the distances of vector i to its second and its first nearest neighbour. If the density is
    constant on the scale of these distances, P(μ > t) = t^−D: D is the slope of −ln(1 − i/N) over the i-th smallest
    ln μ, through the origin, without the largest 10 %. Fewer vectors have more distant neighbours: estimates that
    change from part to part show that the dimension depends on the scale (noise, curvature, borders).

    The standard error for N vectors is about D/√N. Dimensions above about 10 are underestimated, since the borders of
    a set are near then: see the table in the observer's documentation (``Geometry``).

    Equal vectors, such as the embeddings of one word, have distance 0 and no ratio: vectors that differ by at most 100
    spacings of their precision count once, the first in order. It is invariant to shifts, scale, sign and rotations.
    All pairs of distances are computed: n is at most a few thousand.

    Args:
        x: (n, d) vectors, in random order: the parts are the first ones.
        parts: for each estimate, by what the number of distinct vectors is divided.

    Returns:
        The number of distinct vectors, and the estimates; NaN and 0 if a number is NaN or infinite.

    Raises:
        ValueError: if a part is below 1.

    Reference: Facco et al. 2017, "Estimating the intrinsic dimension of datasets by a minimal neighborhood
        information", equation 4 and the linear fit that follows.

    Example:
        >>> x = torch.rand(800, 2, generator=torch.Generator().manual_seed(0))
        >>> plane = torch.cat([x, x.sum(1, keepdim=True)], 1)  # two dimensions in three
        >>> found = intrinsic_dimension(plane)
        >>> found.distinct, [round(value, 1) for value in found.dimensions]
        (800, [2.2, 2.0, 2.1])
    """
    if any(part < 1 for part in parts):
        raise ValueError(f"parts are {', '.join(map(str, parts))}: expected whole numbers from 1")
    if not all_finite(x):
        return IntrinsicDimension(0, (torch.nan,) * len(parts))
    rows = unit_size(x.detach().to(at_least_float32(x)))
    squared, norms = squared_distances(exact_float(rows))
    squared.fill_diagonal_(torch.inf)
    kept = _distinct(rows, squared, norms)
    if not kept.all():
        rows, squared = rows[kept], squared[kept][:, kept]
    sizes = [len(rows) // part for part in parts]
    found = (_two_nn(rows[:size], squared[:size, :size]) for size in sizes)
    return IntrinsicDimension(len(rows), tuple(found))


def _distinct(
    rows: Float[Tensor, "n d"], squared: Float[Tensor, "n n"], norms: Float[Tensor, "n"]
) -> Bool[Tensor, "n"]:
    """Return which rows are not near to such a row before them; replace distances that products do not resolve."""
    if not rows.numel():  # all are equal
        return torch.arange(len(rows), device=squared.device) == 0
    kept = torch.ones(len(rows), dtype=torch.bool)
    exact = exact_float(rows)
    tolerance = rounding(rows.dtype) * torch.linalg.vector_norm(exact) / len(exact) ** 0.5
    some = (squared.amin(1) <= 2 * tolerance**2 + _PRODUCTS * norms.max()).nonzero()[:, 0]
    if len(some):
        equal = torch.unique(exact[some], dim=0, return_inverse=True)[1]
        first = torch.full_like(some, len(rows)).scatter_reduce(0, equal, some, "amin")
        once = first[equal] == some
        kept[some.cpu()] = once.cpu()
        some = some[once]
        distances = torch.cdist(exact[some], exact, compute_mode="donot_use_mm_for_euclid_dist")
        squared[some], squared[:, some] = distances**2, distances.T**2
        squared.fill_diagonal_(torch.inf)
        for i, near in zip(some.tolist(), (distances <= tolerance).cpu(), strict=True):
            kept[i] = not bool((near & kept)[:i].any())
    return kept.to(squared.device)


def _two_nn(rows: Float[Tensor, "n d"], squared: Float[Tensor, "n n"]) -> float:
    n = len(rows)
    if n < _LEAST:
        return torch.nan
    indices = squared.topk(_NEAREST, largest=False).indices
    pairs = zip(indices.split(_ROWS), rows.split(_ROWS), strict=True)
    differences = (rows[near] - own[:, None] for near, own in pairs)
    nearest = exact_float(torch.cat([torch.linalg.vecdot(d, d) for d in differences])).sort(1).values
    ratios = (nearest[:, 1] / nearest[:, 0]).log() / 2  # ln μ
    kept = int(n * (1 - _DISCARDED))
    x = ratios.sort().values[:kept]
    y = -torch.log1p(-torch.arange(1, kept + 1, dtype=torch.float64, device=x.device) / n)
    steepness = x @ x
    return float((x @ y) / steepness) if bool(steepness > 0) else torch.nan

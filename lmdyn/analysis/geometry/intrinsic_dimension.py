"""Intrinsic dimension of a set of vectors by the distances to two nearest neighbours (TwoNN), at several scales."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.precision import at_least_float32, exact_float, rounding, unit_size

__all__ = ["IntrinsicDimension", "intrinsic_dimension"]

_DISCARDED = 0.1  # share of the largest ratios, as published
_LEAST = 10  # rows of an estimate
_NEAREST = 4  # neighbours whose distances are computed again without cancellation


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
        raise ValueError(f"parts are {list(parts)}: expected whole numbers from 1")
    if not bool(x.isfinite().all()):
        return IntrinsicDimension(0, (float("nan"),) * len(parts))
    rows = unit_size(x.detach().to(at_least_float32(x)))
    scores, norms = _scores(rows)
    kept = _distinct(rows, scores, norms)
    if not bool(kept.all()):
        rows = rows[kept]
        scores, norms = _scores(rows)
    sizes = [len(rows) // part for part in parts]
    found = (_two_nn(rows[:size], scores[:size, :size], norms[:size]) for size in sizes)
    return IntrinsicDimension(len(rows), tuple(found))


def _distinct(
    rows: Float[Tensor, "n d"], scores: Float[Tensor, "n n"], norms: Float[Tensor, "n"]
) -> Bool[Tensor, "n"]:
    """Return which rows are not near to such a row before them.

    Only rows with a near neighbour by their scores are compared, and of these only those with near projections on an
    axis, as near rows have on any.
    """
    kept = torch.ones_like(norms, dtype=torch.bool)
    if not len(rows):
        return kept
    exact = exact_float(rows)
    tolerance = rounding(rows.dtype) * exact.square().sum(1).mean().sqrt()
    # twice its square, as the centred rows are rounded too
    may_be_near = exact_float(scores.amin(1) + norms - _rounding(rows, norms)) <= 2 * tolerance**2
    candidates = may_be_near.nonzero()[:, 0]
    if not len(candidates):
        return kept
    exact = exact[candidates]
    generator = torch.Generator().manual_seed(0)
    axis = torch.randn(rows.shape[1], dtype=torch.float64, generator=generator).to(exact.device)
    along, order = (exact @ (axis / axis.norm().clamp(min=1e-300))).sort()
    begins = torch.cat([along.new_ones(1, dtype=torch.bool), along.diff() > 2 * tolerance])
    run = torch.empty_like(order)
    run[order] = begins.cumsum(0) - 1  # rows of different runs are not near
    several = run.bincount()[run] > 1
    first_of_near, left = ~several, several.nonzero()[:, 0]
    while len(left):  # of each run, keep the first row that is left, and leave out those near to it
        first = torch.full_like(run, len(run)).scatter_reduce_(0, run[left], left, "amin")[run[left]]
        first_of_near[first] = True
        distances = torch.linalg.vector_norm(exact[left] - exact[first], dim=1)
        left = left[distances > tolerance]
    kept[candidates.to(kept.device)] = first_of_near.to(kept.device)
    return kept


def _scores(rows: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n"]]:
    """Return ‖b‖² − 2ab for centred rows a and columns b, ∞ for a = b, and ‖a‖²: their sums are squared distances."""
    if not len(rows):
        return rows.new_zeros(0, 0), rows.new_zeros(0)
    centred = rows - rows.mean(0)
    norms = centred.square().sum(1)
    return torch.addmm(norms, centred, centred.T, alpha=-2).fill_diagonal_(torch.inf), norms


def _rounding(rows: Float[Tensor, "n d"], norms: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Return by how much the least squared distance of each row, by its scores, may be wrong."""
    return 4 * math.sqrt(rows.shape[1]) * torch.finfo(rows.dtype).eps * (norms + norms.max())


def _two_nn(rows: Float[Tensor, "n d"], scores: Float[Tensor, "n n"], norms: Float[Tensor, "n"]) -> float:
    n = len(rows)
    if n < _LEAST:
        return float("nan")
    found = scores.topk(_NEAREST + 1, largest=False)
    squared = _nearest(rows, rows, found.indices[:, :-1])
    # scores are rounded: where a neighbour that was left out may be the nearer one, all distances are computed
    unsure = found.values[:, -1] + norms - _rounding(rows, norms) < squared[:, 1]
    if bool(unsure.any()):
        squared[unsure] = _by_all_distances(rows, unsure.nonzero()[:, 0])
    ratios = (squared[:, 1] / squared[:, 0]).log() / 2  # ln μ
    kept = int(n * (1 - _DISCARDED))
    x = ratios.sort().values[:kept]
    y = -torch.log1p(-torch.arange(1, kept + 1, dtype=torch.float64, device=x.device) / n)
    steepness = x @ x
    return float((x @ y) / steepness) if bool(steepness > 0) else float("nan")


def _nearest(rows: Tensor, of: Tensor, candidates: Int[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Return the squared distances of each row of ``of`` to its candidates, from the nearest on, float64."""
    differences = rows[candidates] - of[:, None]
    return exact_float(torch.linalg.vecdot(differences, differences)).sort(1).values


def _by_all_distances(rows: Tensor, which: Int[Tensor, "m"]) -> Float[Tensor, "m k"]:
    """Return the squared distances of some rows to their nearest neighbours, by products in float64."""
    exact = exact_float(rows)
    exact = exact - exact.mean(0)
    scores = torch.addmm(exact.square().sum(1), exact[which], exact.T, alpha=-2)
    scores[torch.arange(len(which), device=scores.device), which] = torch.inf
    return _nearest(rows, rows[which], scores.topk(_NEAREST, largest=False).indices)

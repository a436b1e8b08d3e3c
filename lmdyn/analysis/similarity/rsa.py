"""Representational similarity analysis: whether two representations order pairs of samples alike."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.similarity.kernels import (
    Structure,
    pair_distances,
    pairs_of_rows,
    squared_distances,
    structure_of,
    subsample,
    unit_rows,
)
from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["DISSIMILARITIES", "centred_ranks", "rsa"]


def _correlation(x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    spread, size = (torch.linalg.vector_norm(v, dim=1, keepdim=True) for v in (centred, x))
    # constant up to the rounding error of its mean
    return unit_rows(torch.where(spread > 1e-14 * size, centred, 0), "constant over its features")


DISSIMILARITIES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "correlation": _correlation,
    "cosine": partial(unit_rows, lacking="zero"),
    "euclidean": exact_float,
}
"""Dissimilarities by name, as points whose distances order pairs like them: 1 − Pearson's r between the features of two
samples and 1 − cosine are half the squared distance of unit vectors."""

_UNSURE = 0.05  # share of pairs above which all are compared by differences, which is faster then


def rsa(
    x: Float[Tensor, "n d1"],
    y: Float[Tensor, "n d2"],
    dissimilarity: Structure = "correlation",
    *,
    dissimilarity_y: Structure | None = None,
    max_samples: int | None = None,
    seed: int = 0,
) -> Float[Tensor, ""]:
    """Compute the Spearman correlation of the dissimilarities of all pairs of samples in two representations.

    The value is 1 if both order the n(n − 1)/2 pairs alike, and 0 for unrelated orders. Equal dissimilarities share
    their mean rank (there are many if words repeat). The value is invariant to any increasing function of the
    dissimilarities, and has their invariances: ``euclidean`` is invariant to shifts, rotations and isotropic scaling;
    ``cosine`` to rotations and to the length of each sample; ``correlation`` to the length of each sample and to a
    shift of all features of a sample by one number.

    Memory and time are O(n²) to O(n² d).

    Args:
        x: (n, d₁) first representation, or an (n, n) matrix.
        y: (n, d₂) second representation of the same samples, or an (n, n) matrix, such as distances between parses.
        dissimilarity: ``correlation`` (Kriegeskorte et al. 2008), ``cosine``, ``euclidean``, ``precomputed``, or a
            function of (n, d) samples that returns their symmetric (n, n) dissimilarities. A kernel k may be passed
            unchanged if both sides use one; on one side only, pass −k, since only the order counts.
        dissimilarity_y: the same for ``y``; None uses ``dissimilarity``.
        max_samples: maximum number of samples, drawn without replacement; None uses all, up to 10,000.
        seed: seed of this draw.

    Returns:
        Scalar float64 tensor in [−1, 1].

    Raises:
        ValueError: if there are fewer than 3 samples, or more than 10,000 and no ``max_samples``; if the numbers of
            samples differ; if the input is NaN or infinite; if all dissimilarities are equal; if a sample has no
            angle; if the name is unknown.

    Reference: Kriegeskorte et al. 2008, "Representational similarity analysis – connecting the branches of systems
    neuroscience"; with kernels over sentences, Chrupała & Alishahi 2019.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
        >>> rsa(x, x.flip(0), "euclidean")
        tensor(0.2571, dtype=torch.float64)
    """
    chosen = subsample(len(x), max_samples, seed, least=3)
    kinds = (dissimilarity, dissimilarity if dissimilarity_y is None else dissimilarity_y)
    ranks = []
    for name, samples, kind in zip("xy", (x, y), kinds, strict=True):
        found = structure_of(name, samples, kind, DISSIMILARITIES, chosen)
        ranked = distance_ranks(found) if kind in DISSIMILARITIES else centred_ranks(pairs_of_rows(found))
        norm = torch.linalg.vector_norm(ranked)
        if not norm > 0:
            raise ValueError(
                f"all pairs of samples of {name} are equally dissimilar, so there is no order to compare: "
                f"leave {name} out or use samples that differ"
            )
        ranks.append(ranked / norm)
    rho: Tensor = ranks[0] @ ranks[1]
    return rho.clamp(-1, 1)


def centred_ranks(values: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Return ranks minus their mean; equal values share the mean of their ranks.

    Raises:
        ValueError: if a value is NaN, which has no rank.
    """
    exact = exact_float(values)
    if exact.isnan().any():
        raise ValueError("expected numbers to rank, got NaN: leave out the NaN values")
    return _ranks(*_sorted(exact))


def _sorted(values: Float[Tensor, "n"], kind: Literal["stable"] | None = None) -> tuple[Tensor, Tensor]:
    """Return values from the smallest on, and their positions; numpy sorts faster than torch."""
    array = values.cpu().numpy()
    order = array.argsort(kind=kind)
    return torch.from_numpy(array[order]).to(values.device), torch.from_numpy(order).to(values.device)


def _ranks(ordered: Float[Tensor, "n"], order: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Return ranks minus their mean, of sorted values and their positions."""
    first = F.pad(ordered.diff() != 0, (1, 0), value=True)[: len(order)].nonzero()[:, 0]
    counts = first.diff(append=first.new_tensor([len(order)]))
    ranks = (first.double() + (counts.double() - len(order)) / 2).repeat_interleave(counts)
    return torch.empty_like(ranks).scatter_(0, order, ranks)


def distance_ranks(points: Float[Tensor, "n d"]) -> Float[Tensor, "pairs"]:
    """Compute :func:`centred_ranks` of :func:`pair_distances` by products of the points, in float64.

    Distances by products are rounded; where this leaves the order of two pairs open, both are computed by differences,
    so that equal distances, such as those of repeated points, stay equal.
    """
    n, d = points.shape
    squared, norms = squared_distances(points)
    values = pairs_of_rows(squared)
    ordered, order = _sorted(values)
    near = ordered.diff() <= 8 * d * torch.finfo(values.dtype).eps * norms.max()
    unsure = F.pad(near, (1, 0)) | F.pad(near, (0, 1))
    pairs = order[unsure]
    if len(pairs) > _UNSURE * len(order):
        return centred_ranks(pair_distances(points))
    first, second = torch.triu_indices(n, n, 1, device=points.device)[:, pairs]
    ordered[unsure] = (points[first] - points[second]).square().sum(1)
    ordered, moved = _sorted(ordered, "stable")  # fast, as most are in order
    return _ranks(ordered, order[moved])

"""Representational similarity analysis: whether two representations order pairs of samples alike."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float
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
from lmdyn.analysis.statistics.precision import at_least_float32, exact_float

__all__ = ["DISSIMILARITIES", "centred_ranks", "rsa"]


def _cosine(x: Tensor) -> Tensor:
    return unit_rows(x, "zero")


def _correlation(x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    spread, size = (torch.linalg.vector_norm(v, dim=1, keepdim=True) for v in (centred, x))
    # constant up to the rounding error of its mean
    return unit_rows(torch.where(spread > 1e-14 * size, centred, 0), "constant over its features")


DISSIMILARITIES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"correlation": _correlation, "cosine": _cosine, "euclidean": exact_float}
)
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
                "leave this site out or use samples that differ"
            )
        ranks.append(ranked / norm)
    rho: Tensor = ranks[0] @ ranks[1]
    return rho.clamp(-1, 1)


def centred_ranks(values: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Return ranks minus their mean; equal values share the mean of their ranks.

    Raises:
        ValueError: if a value is NaN, which has no rank.
    """
    ordered, order = _sorted(values.to(at_least_float32(values)))
    if len(ordered) and bool(ordered[-1].isnan()):  # NaN is sorted last
        raise ValueError("expected numbers to rank, got NaN: leave these values out")
    return _ranks_of_sorted(ordered, order)


def distance_ranks(points: Float[Tensor, "n d"]) -> Float[Tensor, "pairs"]:
    """Compute :func:`centred_ranks` of :func:`pair_distances` by products of the points, in float64.

    Distances by products are rounded; where this leaves the order of two pairs open, both are computed by differences,
    so that equal distances, such as those of repeated points, stay equal.
    """
    n, d = points.shape
    if _repeated(points) > _UNSURE / 2 * n:
        return centred_ranks(pair_distances(points))
    squared, norms = squared_distances(points)
    ordered, order = _sorted(pairs_of_rows(squared))
    rounding = 4 * d * torch.finfo(ordered.dtype).eps * norms.max()
    near = ordered.diff() <= 2 * rounding
    unsure = torch.nn.functional.pad(near, (1, 0)) | torch.nn.functional.pad(near, (0, 1))
    pairs = order[unsure]
    if len(pairs) > _UNSURE * len(order):
        return centred_ranks(pair_distances(points))
    first, second = torch.triu_indices(n, n, 1, device=points.device)[:, pairs]
    ordered[unsure], again = _sorted((points[first] - points[second]).square().sum(1))
    order[unsure] = pairs[again]
    return _ranks_of_sorted(ordered, order)


def _repeated(points: Tensor) -> int:
    """Return about how many points equal another one: these have equal projections on any axis."""
    axis = torch.linspace(1, 2, points.shape[1], dtype=points.dtype, device=points.device)
    return int(((points @ axis).sort().values.diff() == 0).sum())


def _sorted(values: Tensor) -> tuple[Tensor, Tensor]:
    if values.device.type != "cpu":
        ordered, order = values.sort()
        return ordered, order
    array = values.numpy()  # several times as fast as torch
    positions = array.argsort()
    return torch.from_numpy(array[positions]), torch.from_numpy(positions)


def _ranks_of_sorted(ordered: Tensor, order: Tensor) -> Tensor:
    n = len(ordered)
    ranks = torch.arange(n, dtype=torch.float64, device=ordered.device) - (n - 1) / 2
    differs = ordered.diff() != 0
    if not bool(differs.all()):
        first = torch.nn.functional.pad(differs, (1, 0), value=True).nonzero()[:, 0]
        counts = first.diff(append=first.new_tensor([n]))
        ranks = (first.double() + (counts.double() - n) / 2).repeat_interleave(counts)
    return torch.empty_like(ranks).scatter_(0, order, ranks)

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
    structure_of,
    subsample,
    unit_rows,
)
from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = ["DISSIMILARITIES", "centred_ranks", "rsa"]


def _cosine(x: Tensor) -> Tensor:
    # 1 − cos = ‖u − v‖²/2: exact for small angles, and ties stay ties
    return pair_distances(unit_rows(x, "zero")).square() / 2


def _correlation(x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    spread, size = (torch.linalg.vector_norm(v, dim=1, keepdim=True) for v in (centred, x))
    # constant up to the rounding error of its mean
    unit = unit_rows(torch.where(spread > 1e-14 * size, centred, 0), "constant over its features")
    return pair_distances(unit).square() / 2


DISSIMILARITIES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"correlation": _correlation, "cosine": _cosine, "euclidean": pair_distances}
)
"""Dissimilarities of all pairs by name: 1 − Pearson's r between the features of two samples, 1 − cosine, ‖xᵢ − xⱼ‖."""


def rsa(
    x: Float[Tensor, "n d1"],
    y: Float[Tensor, "_ d2"],
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
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} samples and y {len(y)}: row i of both must be the same sample")
    chosen = subsample(len(x), max_samples, seed, least=3)
    kinds = (dissimilarity, dissimilarity if dissimilarity_y is None else dissimilarity_y)
    ranks = []
    for name, samples, kind in zip("xy", (x, y), kinds, strict=True):
        found = structure_of(name, samples, kind, DISSIMILARITIES, chosen)
        ranked = centred_ranks(pairs_of_rows(found) if found.ndim == 2 else found)
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
    values = values.to(at_least_float32(values))
    # numpy sorts several times as fast as torch on the CPU
    order = torch.from_numpy(values.numpy().argsort()) if values.device.type == "cpu" else values.argsort()
    ordered = values.gather(0, order)
    if len(ordered) and bool(ordered[-1].isnan()):  # NaN is sorted last
        raise ValueError("expected numbers to rank, got NaN: leave these values out")
    first = torch.cat([ordered.new_ones(1), ordered.diff()]).nonzero()[:, 0]
    counts = first.diff(append=first.new_tensor([len(values)]))
    ranks = (first.double() + (counts.double() - len(values)) / 2).repeat_interleave(counts)
    return torch.empty_like(ranks).scatter_(0, order, ranks)

"""Variance of vectors between and within groups, and at the two levels of a tree, from streaming sums."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.distributed import gather
from lmdyn.analysis.statistics.precision import UNDERFLOW, at_least_float32, exact_float, rounding

__all__ = [
    "GroupSums",
    "GroupVariance",
    "GroupVectors",
    "NestedVariance",
    "group_variance",
    "nested_variance",
]

_SAME = 1e-12  # variance within groups, relative to all, of groups of equal vectors: distances of 1e-6


@dataclass(frozen=True)
class GroupVectors:
    """Number, mean and scatter of the vectors of each of k groups; groups may overlap.

    Attributes:
        counts: (k,) float64 number of vectors.
        means: (k, d) float64; NaN for groups without vectors.
        scatter: (k,) float64 sum of squared distances to the group's mean; 0 for groups without vectors.
        rounding: relative size of rounding errors of the vectors' type.
    """

    counts: Float[Tensor, "k"]
    means: Float[Tensor, "k d"]
    scatter: Float[Tensor, "k"]
    rounding: float

    @property
    def finite(self) -> bool:
        """Whether the vectors of all groups are finite."""
        there = self.counts > 0
        return bool(self.means[there].isfinite().all() and self.scatter[there].isfinite().all())

    def of(self, groups: Sequence[int] | Int[Tensor, "_"]) -> "GroupVectors":
        """Return some of the groups, in this order."""
        index = torch.as_tensor(groups, dtype=torch.int64)
        return GroupVectors(self.counts[index], self.means[index], self.scatter[index], self.rounding)

    def merged(self, parents: Int[Tensor, "_"]) -> "GroupVectors":
        """Return the groups of all vectors of one parent, 0 … the largest one.

        Args:
            parents: (k,) parent of each group; groups are disjoint.
        """
        k, there = int(parents.max()) + 1, self.counts > 0
        means = self.means.where(there[:, None], 0)
        counts = self.counts.new_zeros(k).index_add_(0, parents, self.counts)
        sums = means.new_zeros(k, means.shape[1]).index_add_(0, parents, self.counts[:, None] * means)
        centres = sums / counts[:, None]
        apart = (self.counts * (means - centres[parents]).square().sum(1)).where(there, 0)
        scatter = counts.new_zeros(k).index_add_(0, parents, apart + self.scatter)
        return GroupVectors(counts, centres, scatter, self.rounding)


class GroupSums:
    """Streaming float64 sums of the vectors of each group, batch by batch and over ranks.

    A vector may belong to several groups, such as those of its word and of its part of speech. Memory is O(groups · d),
    whatever the number of vectors. Sums are taken of x − c, with c the mean of the first vectors that
    have a group.

    Args:
        n_groups: groups are 0 … n_groups − 1; negative ones are ignored.

    Example:
        >>> sums = GroupSums(2)
        >>> sums.update(torch.tensor([[0.0], [2.0], [7.0], [9.0]]), torch.tensor([0, 0, 1, -1]))
        >>> sums.reduce()
        >>> found = sums.result()
        >>> found.counts.tolist(), found.means[:, 0].tolist(), found.scatter.tolist()
        ([2.0, 1.0], [1.0, 7.0], [2.0, 0.0])
    """

    def __init__(self, n_groups: int) -> None:
        self.n_groups = n_groups
        self._centre: Tensor | None = None
        self._counts = torch.zeros(n_groups + 1, dtype=torch.float64)  # the last one is of no group
        self._sums = torch.zeros(n_groups + 1, 0, dtype=torch.float64)
        self._squares = self._counts.clone()
        self._rounding = 0.0
        self._reduced: GroupVectors | None = None

    def update(self, x: Float[Tensor, "n d"], groups: Int[Tensor, "_ *columns"]) -> None:
        """Add n vectors; n may be 0.

        Args:
            x: (n, d) vectors.
            groups: (n,) group of each vector, or (n, c) its groups.

        Raises:
            ValueError: if d is not that of earlier vectors, or if a group is not below ``n_groups``.
        """
        if self._centre is not None and x.shape[1] != len(self._centre):
            raise ValueError(
                f"x has {x.shape[1]} dimensions: expected {len(self._centre)}, as in earlier vectors"
            )
        if not len(x):
            return
        exact = exact_float(x)
        index = groups.to(exact.device).reshape(len(x), -1)
        if index.device.type == "cpu" and index.numel() and int(index.max()) >= self.n_groups:
            raise ValueError(f"groups has {int(index.max())}: expected numbers below {self.n_groups}")
        if self._centre is None:
            inside = (index >= 0).any(1)
            if not inside.any():
                return
            self._centre = exact[inside].mean(0)  # vectors of no group, such as those of padding, may be NaN
            self._counts, self._squares = self._counts.to(exact.device), self._squares.to(exact.device)
            self._sums = exact.new_zeros(self.n_groups + 1, x.shape[1])
            self._rounding = rounding(at_least_float32(x))
        v = exact - self._centre
        squares = torch.linalg.vecdot(v, v)
        one = v.new_ones(len(v))
        for column in torch.where(index >= 0, index, self.n_groups).unbind(1):
            self._counts.index_add_(0, column, one)
            self._sums.index_add_(0, column, v)
            self._squares.index_add_(0, column, squares)

    def reduce(self) -> None:
        """Sum over ranks; call it once, on every rank, after the last update. A rank may have no vectors."""
        parts = [part for part in gather(self.result()) if part.means.shape[1]]
        if parts:
            columns = zip(*((part.counts, part.means, part.scatter) for part in parts), strict=True)
            counts, means, scatter = map(torch.cat, columns)
            every = GroupVectors(counts, means, scatter, parts[0].rounding)
            self._reduced = every.merged(torch.arange(self.n_groups).repeat(len(parts)))

    def result(self) -> GroupVectors:
        """Return the groups of all vectors so far, on the CPU."""
        if self._reduced is not None:
            return self._reduced
        counts, sums, squares = (t[:-1].cpu() for t in (self._counts, self._sums, self._squares))
        centre = torch.zeros(sums.shape[1], dtype=sums.dtype) if self._centre is None else self._centre.cpu()
        offset = sums / counts[:, None]
        scatter = squares - counts * offset.square().sum(1)
        scatter = torch.where(counts > 0, scatter.clamp(min=0), 0)  # clamp keeps NaN
        return GroupVectors(counts, centre + offset, scatter, self._rounding)


@dataclass(frozen=True)
class GroupVariance:
    """Variance between and within groups; NaN where a number is not defined.

    Attributes:
        variance: mean squared distance of the vectors to their mean.
        between: share of the variance between groups, from 0 to 1.
        between_floor: its expected value for groups drawn at random, (k − 1)/(n − 1), exactly.
        separation: root mean square distance of two groups' means over that of two vectors of one group; NaN if no
            vectors of one group differ.
        separation_floor: √(mean over groups of 1/n_g): its value for groups drawn at random, up to O(1/n).
        planar: share of the variance of the groups' means, each counted once, in two principal directions.
    """

    variance: float
    between: float
    between_floor: float
    separation: float
    separation_floor: float
    planar: float


@torch.no_grad()
def group_variance(found: GroupVectors) -> GroupVariance:
    """Divide the variance of vectors into that between and within groups.

    With n vectors in k groups of n_g vectors, Σ‖x − x̄‖² = Σ n_g ‖x̄_g − x̄‖² + Σ_g Σ‖x − x̄_g‖². The share of the first
    term is the R² of the groups' means (η²). It grows with k: for groups drawn at random, a permutation of the vectors,
    it is (k − 1)/(n − 1) on average, whatever the vectors. The numbers are invariant to shifts and rotations, the
    variance excepted to scale.

    Args:
        found: disjoint groups; those without vectors are left out.

    Raises:
        ValueError: for fewer than 2 groups with vectors.

    Example:
        >>> sums = GroupSums(2)
        >>> sums.update(torch.tensor([[-4.0], [-2.0], [2.0], [4.0]]), torch.tensor([0, 0, 1, 1]))
        >>> found = group_variance(sums.result())
        >>> found.variance, found.between, round(found.between_floor, 3), found.separation
        (10.0, 0.9, 0.333, 3.0)
    """
    found = found.of(found.counts.nonzero()[:, 0])
    n = float(found.counts.sum())
    k = len(found.counts)
    nan = math.nan
    if k < 2:
        raise ValueError(f"expected vectors in at least 2 groups, got {k}")
    mean = found.counts @ found.means / n
    between = float(found.counts @ (found.means - mean).square().sum(1))
    total = between + float(found.scatter.sum())
    floor = (k - 1) / (n - 1)
    apart = math.sqrt(float((1 / found.counts).mean()))
    smallest = max(n * found.rounding**2 * float(mean.square().sum()), UNDERFLOW)
    if not smallest < total < math.inf:
        return GroupVariance(nan, nan, floor, nan, apart, nan)
    within = float(found.scatter.sum())
    deviations = found.means - found.means.mean(0)
    squares = float(deviations.square().sum())
    separation = nan
    if n > k and within > _SAME * total:
        separation = math.sqrt(squares / (k - 1) / (within / (n - k)))
    planar = nan
    if squares > _SAME * total / n:
        planar = min(1.0, float(torch.linalg.svdvals(deviations)[:2].square().sum()) / squares)
    return GroupVariance(total / n, min(1.0, between / total), floor, separation, apart, planar)


@dataclass(frozen=True)
class NestedVariance:
    """Variance at the two levels of a tree; shares are NaN for vectors that do not vary.

    Attributes:
        variance: mean squared distance of the vectors to their mean.
        coarse: share of the variance between coarse groups, from 0 to 1.
        fine: share of the variance between fine groups of one coarse group, from 0 to 1 − coarse.
        coarse_floor: expected value of ``coarse`` for coarse groups drawn at random, (k − 1)/(n − 1).
        fine_floor: expected value of ``fine`` for fine groups drawn at random in their coarse group.
    """

    variance: float
    coarse: float
    fine: float
    coarse_floor: float
    fine_floor: float


@torch.no_grad()
def nested_variance(found: GroupVectors, parents: Int[Tensor, "_"]) -> NestedVariance:
    """Divide the variance of vectors into that between coarse groups, between fine ones in a coarse one, and the rest.

    While a network learns a tree of concepts, coarse distinctions appear first, then finer ones (progressive
    differentiation): ``coarse · variance`` rises before ``fine · variance``. For fine groups that are drawn at random
    within each coarse group c, the scatter between them is (k_c − 1)/(n_c − 1) of c's own, on average.

    Args:
        found: disjoint fine groups; those without vectors are left out.
        parents: (k,) coarse group of each fine group.

    Raises:
        ValueError: if the numbers of parents and groups differ, or for fewer than 2 coarse groups with vectors.

    Reference: Saxe et al. 2019, "A mathematical theory of semantic development in deep neural networks", for
        progressive differentiation in linear networks.

    Example:
        >>> sums = GroupSums(4)
        >>> sums.update(torch.tensor([[-4.0], [-2.0], [2.0], [4.0]]), torch.arange(4))
        >>> found = nested_variance(sums.result(), torch.tensor([0, 0, 1, 1]))
        >>> found.variance, found.coarse, found.fine
        (10.0, 0.9, 0.1)
    """
    if len(parents) != len(found.counts):
        raise ValueError(f"parents has {len(parents)} entries: expected {len(found.counts)}, one per group")
    there = found.counts.nonzero()[:, 0]
    labels, parent, groups = parents[there].unique(return_inverse=True, return_counts=True)
    if len(labels) < 2:
        raise ValueError(f"expected vectors in at least 2 coarse groups, got {len(labels)}")
    fine = found.of(there)
    coarse = fine.merged(parent)
    whole = group_variance(coarse)
    total = whole.variance * float(coarse.counts.sum())  # may be NaN
    share = float(fine.counts @ (fine.means - coarse.means[parent]).square().sum(1)) / total
    at_random = float(((groups - 1) / (coarse.counts - 1).clamp(min=1)) @ coarse.scatter)
    return NestedVariance(
        whole.variance, whole.between, min(share, 1.0), whole.between_floor, at_random / total
    )

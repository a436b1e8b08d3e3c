"""Covariances of representations in one streaming pass: CCA, linear CKA and Procrustes of any number of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.similarity.cca import cca_of, correlations_of, pwcca_of, ranks_of, svcca_of
from lmdyn.analysis.similarity.cka import linear_cka_of
from lmdyn.analysis.similarity.procrustes import procrustes_of
from lmdyn.analysis.similarity.scatter import Cut, Pair, Side
from lmdyn.analysis.statistics.distributed import all_reduce_sum, gather
from lmdyn.analysis.statistics.precision import exact_float, scatter_matrix

__all__ = ["CrossCovariance"]


class CrossCovariance:
    """Streaming float64 sums of two representations of the same samples, and the measures computed from them.

    The values are those of :func:`lmdyn.analysis.cca`, ``svcca``, ``pwcca``, ``linear_cka`` (also debiased) and
    ``procrustes`` of all samples at once, to 1e-9 if the kept directions have a condition number κ of at most 1e4.
    Above it, the error of a correlation grows as 1e-16 · κ²: at the rank tolerance of 1e-6, the weakest directions are
    known to about 1e-4, and only the exact path on stored activations is better. Linear CKA and Procrustes do not
    depend on κ.

    Memory is O((d₁ + d₂)²), whatever the number of samples. Sums are taken of x − c, with c the mean of the first
    batch: moments about 0 would lose seven digits at a mean of 100. The sums of several ranks (or parts) are moved to
    one c, that of the first rank with samples, before they are added. :meth:`update` does not synchronize with the
    device.

    Args:
        names: name of each representation in error messages.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(60, 3, generator=g), torch.randn(60, 2, generator=g)
        >>> covariance = CrossCovariance()
        >>> for rows in torch.arange(60).split(25):
        ...     covariance.update(x[rows], y[rows])
        >>> covariance.n, bool((covariance.cca() - cca_of(Pair.of(x, y))).abs() < 1e-12)
        (60, True)
    """

    def __init__(self, names: Sequence[str] = ("x", "y")) -> None:
        self._names = names
        self._sums: _Sums | None = None
        self._pair: Pair | None = None
        self._of: tuple[_Sides, int, int] | None = None  # a part of the sums of several representations
        self._sides: _Sides | None = None

    @property
    def n(self) -> int:
        """Number of samples added so far."""
        return 0 if self._sums is None else int(self._sums.n)

    @property
    def widths(self) -> tuple[int, ...]:
        """Dimensions (d₁, d₂); (0, 0) before the first sample."""
        return (0, 0) if self._sums is None else self._sums.widths

    @property
    def mean(self) -> Float[Tensor, "d"]:
        """Mean of [x | y], (d₁ + d₂,) float64.

        Raises:
            ValueError: if there are no samples yet.
        """
        return self._some().mean()

    @property
    def scatter(self) -> Float[Tensor, "d d"]:
        """Scatter matrix Σ (v − mean)(v − mean)ᵀ of the samples v = [x | y], (d₁ + d₂, d₁ + d₂) float64.

        Raises:
            ValueError: if there are no samples yet.
        """
        sums = self._some()
        return sums.about(sums.mean()).vv

    def _some(self) -> "_Sums":
        if self._sums is None:
            raise ValueError("no samples yet: call update(x, y) first")
        return self._sums

    def update(self, x: Float[Tensor, "n d1"], y: Float[Tensor, "_ d2"]) -> None:
        """Add n samples; n may be 0.

        Args:
            x: (n, d₁) first representation.
            y: (n, d₂) second representation of the same samples.

        Raises:
            ValueError: if the numbers of samples differ, or if the dimensions are not those of earlier samples.
        """
        if len(x) != len(y):
            raise ValueError(f"x has {len(x)} rows, y {len(y)}: row i of both arrays must be the same sample")
        self.update_all([x, y])

    def update_all(self, parts: Sequence[Float[Tensor, "n _"]]) -> None:
        """Add n samples of several representations, of which :meth:`between` returns the covariance of any two.

        All pairs of k representations take less time and memory than a covariance for each pair.

        Args:
            parts: (n, d₁), (n, d₂), … representations of the same samples, two or more.

        Raises:
            ValueError: if the dimensions are not those of earlier samples.
        """
        assert len(parts) == len(self._names)
        if len(parts[0]) == 0:
            return
        v = torch.cat([exact_float(part) for part in parts], 1)
        widths = tuple(p.shape[1] for p in parts)
        if self._sums is None:
            self._sums = _Sums.zeros(v.mean(0), widths)
        elif self._sums.widths != widths:
            raise ValueError(f"expected dimensions {self._sums.widths}, as in earlier samples, got {widths}")
        self._sums.add(v)
        self._pair = self._sides = self._of = None

    def between(self, i: int, j: int) -> "CrossCovariance":
        """Return the covariance of the i-th and the j-th of the representations of :meth:`update_all`, from 0.

        It shares results that concern only one of the two, such as eigenvectors, with those of other pairs.

        Example:
            >>> g = torch.Generator().manual_seed(0)
            >>> x, y, z = (torch.randn(60, d, generator=g) for d in (3, 2, 4))
            >>> three, two = CrossCovariance(["x", "y", "z"]), CrossCovariance()
            >>> three.update_all([x, y, z])
            >>> two.update(x, z)
            >>> bool((three.between(0, 2).cca() - two.cca()).abs() < 1e-12)
            True
        """
        found = CrossCovariance()
        if self._sums is not None:
            if self._sides is None:
                self._sides = _Sides(self._sums, self._names)
            found._sums = self._sums.part(i, j)
            found._of = (self._sides, i, j)
        return found

    def reduce(self) -> None:
        """Sum over ranks; call it once, on every rank, after the last update. A rank may have no samples."""
        own = self._sums
        found = gather(None if own is None else (own.centre.cpu(), own.widths))
        if len(found) == 1 or not any(found):
            return
        centre, widths = next(one for one in found if one is not None)
        sums = _Sums.zeros(centre, widths) if own is None else own
        self._sums = sums.about(centre.to(sums.centre.device)).reduced()
        self._pair = self._sides = self._of = None

    @classmethod
    def combine(
        cls, parts: Sequence["CrossCovariance"], weights: Sequence[int] | None = None
    ) -> "CrossCovariance":
        """Return the covariance of all samples of several parts, each counted ``weights`` times.

        Use it for bootstrap intervals: parts are blocks of sentences, weights are how often each block was drawn.

        Args:
            parts: covariances of the same two representations.
            weights: integers of at least 0, one for each part; None counts each part once.

        Raises:
            ValueError: if no part has samples.

        Example:
            >>> parts = []
            >>> for block in torch.arange(60.0).sin().reshape(3, 5, 4):
            ...     parts.append(CrossCovariance())
            ...     parts[-1].update(block[:, :2], block[:, 2:])
            >>> CrossCovariance.combine(parts, [2, 0, 1]).n
            15
        """
        counts = [1] * len(parts) if weights is None else list(weights)
        if len(counts) != len(parts) or any(count < 0 for count in counts):
            raise ValueError(f"expected {len(parts)} weights >= 0, got {', '.join(map(str, counts))}")
        drawn = [(p._sums, count) for p, count in zip(parts, counts, strict=True) if p._sums and count]
        if not drawn:
            raise ValueError("none of the parts has samples and a weight above 0: pass a part with both")
        combined = cls(parts[0]._names)
        first, count = drawn[0]
        combined._sums = first.times(count)
        for sums, count in drawn[1:]:
            combined._sums = combined._sums.plus(sums.about(first.centre).times(count))
        return combined

    def without(self, part: "CrossCovariance") -> "CrossCovariance":
        """Return the covariance of these samples without those of a part.

        Use it for the jackknife: sums are subtracted, so leaving out each of many blocks requires no second pass.

        Args:
            part: covariance of some of these samples.

        Raises:
            ValueError: if there are no samples yet, or if no sample would be left.

        Example:
            >>> whole, part = CrossCovariance(), CrossCovariance()
            >>> x = torch.arange(8.0).reshape(4, 2).sin()
            >>> whole.update(x, x.cos())
            >>> part.update(x[:1], x[:1].cos())
            >>> left = CrossCovariance()
            >>> left.update(x[1:], x[1:].cos())
            >>> whole.without(part).n, torch.allclose(whole.without(part).scatter, left.scatter)
            (3, True)
        """
        sums, theirs = self._some(), part._sums
        if part.n >= self.n:
            raise ValueError(f"expected a part of fewer than all {self.n} samples, got a part of {part.n}")
        rest = CrossCovariance(self._names)
        taken = sums.times(0) if theirs is None else theirs.about(sums.centre).times(-1)
        rest._sums = sums.plus(taken)
        return rest

    def pair(self) -> Pair:
        """Return the two centred sides, from which every measure is computed; cached until the next update.

        Raises:
            ValueError: if there are no samples yet, or if the input is NaN, infinite or constant.
        """
        if self._pair is None:
            sides, i, j = self._of or (_Sides(self._some(), self._names), 0, 1)
            self._pair = sides.pair(i, j)
        return self._pair

    def canonical_correlations(self, *, variance: float = 1.0, cut: Cut = "variance") -> Float[Tensor, "k"]:
        """Compute :func:`lmdyn.analysis.canonical_correlations` of all samples."""
        return correlations_of(self.pair(), variance, cut)

    def cca(self) -> Float[Tensor, ""]:
        """Compute :func:`lmdyn.analysis.cca` of all samples."""
        return cca_of(self.pair())

    def svcca(
        self, variance: float = 0.99, *, cut: Cut = "variance", directions: int | None = None
    ) -> Float[Tensor, ""]:
        """Compute :func:`lmdyn.analysis.svcca` of all samples."""
        kept = None if directions is None else (directions, directions)
        return svcca_of(self.pair(), variance, cut, kept)

    def svcca_ranks(self, variance: float = 0.99, *, cut: Cut = "variance") -> tuple[int, int]:
        """Return :func:`lmdyn.analysis.svcca_ranks` of all samples."""
        return ranks_of(self.pair(), variance, cut)

    def pwcca(self) -> Float[Tensor, ""]:
        """Compute :func:`lmdyn.analysis.pwcca` of all samples."""
        return pwcca_of(self.pair())

    def linear_cka(self, debiased: bool = False) -> Float[Tensor, ""]:
        """Compute :func:`lmdyn.analysis.linear_cka` of all samples."""
        return linear_cka_of(self.pair(), debiased)

    def procrustes(self) -> Float[Tensor, ""]:
        """Compute :func:`lmdyn.analysis.procrustes` of all samples."""
        return procrustes_of(self.pair())


@dataclass
class _Sums:
    """Sums over samples v = [x₁ | x₂ | …] − c, with a = (‖x₁ − c₁‖², …) for debiased CKA.

    Attributes:
        centre: (d,) c.
        widths: (d₁, …, d_k), of sum d.
        n: () number of samples.
        v: (d,) Σ v.
        vv: (d, d) Σ v vᵀ.
        aa: (k, k) Σ a aᵀ.
        av: (k, d) Σ a vᵀ.
    """

    centre: Tensor
    widths: tuple[int, ...]
    n: Tensor
    v: Tensor
    vv: Tensor
    aa: Tensor
    av: Tensor

    @classmethod
    def zeros(cls, centre: Tensor, widths: tuple[int, ...]) -> "_Sums":
        d, k = len(centre), len(widths)
        new = centre.new_zeros
        return cls(centre, widths, new(()), new(d), new(d, d), new(k, k), new(k, d))

    def _terms(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.n, self.v, self.vv, self.aa, self.av

    def add(self, v: Tensor) -> None:
        v = v - self.centre
        a = torch.stack([part.square().sum(1) for part in v.split(self.widths, 1)])
        self.n += len(v)
        self.v += v.sum(0)
        self.vv += scatter_matrix(v)
        self.aa += a @ a.T
        self.av += a @ v

    def times(self, count: int) -> "_Sums":
        return _Sums(self.centre, self.widths, *(count * term for term in self._terms()))

    def plus(self, other: "_Sums") -> "_Sums":
        terms = zip(self._terms(), other._terms(), strict=True)
        return _Sums(self.centre, self.widths, *(one + two for one, two in terms))

    def reduced(self) -> "_Sums":
        return _Sums(self.centre, self.widths, *(all_reduce_sum(term) for term in self._terms()))

    def part(self, i: int, j: int) -> "_Sums":
        """Return the sums of two of the representations."""
        chosen = [self.places()[k] for k in (i, j)]

        def of(x: Tensor) -> Tensor:  # slices, which are copied several times as fast as by index
            return torch.cat([x[..., place] for place in chosen], -1)

        return _Sums(
            of(self.centre),
            (self.widths[i], self.widths[j]),
            self.n.clone(),
            of(self.v),
            torch.cat([of(self.vv[place]) for place in chosen]),
            self.aa[[[i], [j]], [i, j]],
            of(self.av[[i, j]]),
        )

    def places(self) -> list[slice]:
        """Return where each representation is in v."""
        return [slice(*ends) for ends in pairwise(accumulate(self.widths, initial=0))]

    def mean(self) -> Tensor:
        """Mean of the samples, (d,)."""
        return self.centre + self.v / self.n

    def about(self, centre: Tensor) -> "_Sums":
        """Return the same sums of v' = v + δ, δ = c − c': a' = a + 2 D v + q, with δ₁, δ₂, … in the rows of D.

        Products with D are taken block by block: with its zeros, one representation that is NaN would spoil all.
        """
        delta = self.centre - centre
        deltas = delta.split(self.widths)

        def with_delta(x: Tensor) -> Tensor:  # x Dᵀ
            parts = zip(x.split(self.widths, -1), deltas, strict=True)
            return torch.stack([part @ own for part, own in parts], -1)

        q = torch.stack([own @ own for own in deltas])
        a = torch.stack([block.sum() for block in self.vv.diagonal().split(self.widths)])
        Dv, Dvv = with_delta(self.v), with_delta(self.vv).T
        one_sided = 2 * with_delta(self.av) + torch.outer(a + 2 * Dv, q)
        half = torch.outer(self.v + self.n / 2 * delta, delta)
        return _Sums(
            centre,
            self.widths,
            self.n,
            self.v + self.n * delta,
            (half + half.T).add_(self.vv),  # symmetric to the bit
            self.aa + one_sided + one_sided.T + 4 * with_delta(Dvv) + self.n * torch.outer(q, q),
            self.av + 2 * Dvv + torch.outer(a + 2 * Dv, delta) + torch.outer(q, self.v + self.n * delta),
        )


class _Sides:
    """Representations as sides of pairs, from their sums about the mean of all samples."""

    def __init__(self, sums: _Sums, names: Sequence[str]) -> None:
        self._names, self._mean = names, sums.mean()
        self._centred = sums.about(self._mean)
        self._places = sums.places()
        self._known: dict[int, Side] = {}

    def pair(self, i: int, j: int) -> Pair:
        """Return two of the representations."""
        aa = self._centred.aa
        norms = torch.stack([aa[i, i], aa[j, j], aa[i, j]])
        return Pair(self._side(i), self._side(j), cross=self._block(i, j), norm_products=norms)

    def _side(self, i: int) -> Side:
        if i not in self._known:
            mean = self._mean[self._places[i]]
            self._known[i] = Side(self._names[i], int(self._centred.n), mean=mean, scatter=self._block(i, i))
        return self._known[i]

    def _block(self, i: int, j: int) -> Tensor:
        return self._centred.vv[self._places[i], self._places[j]]

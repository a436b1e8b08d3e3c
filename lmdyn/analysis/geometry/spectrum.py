"""Spectrum of a set of vectors: RankMe, the exponent of its power law, the participation ratio."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.geometry.effective_dimension import participation_ratio
from lmdyn.analysis.similarity.covariance import CrossCovariance
from lmdyn.analysis.similarity.scatter import RANK_TOLERANCE
from lmdyn.analysis.statistics.precision import at_least_float32, exact_float, rounding, unit_size

__all__ = ["PowerLaw", "RankVariant", "Spectrum", "exp_entropy", "power_law", "rankme", "white_noise_rank"]

RankVariant = Literal["singular_values", "covariance"]
"""``singular_values`` of the uncentred matrix, as published, or eigenvalues of the centred ``covariance``."""

_LEAST = 3  # points of a line with an error
_ROWS = 1024  # that are in float64 at a time


def exp_entropy(values: Float[Tensor, "k"], epsilon: float = 0.0) -> Float[Tensor, ""]:
    """Compute exp(−Σ p ln p) of p = v/Σv + ε: how many equal values have the same entropy.

    Args:
        values: (k,) numbers of at least 0.
        epsilon: added to each share; with ε > 0 the shares add up to 1 + kε.

    Returns:
        Scalar float64 from 1 to k (for ε = 0); NaN without values, if all are 0, or if one is NaN or infinite.

    Example:
        >>> exp_entropy(torch.tensor([2.0, 2.0, 0.0])), exp_entropy(torch.tensor([1.0, 0.0]))
        (tensor(2., dtype=torch.float64), tensor(1., dtype=torch.float64))
    """
    values = unit_size(exact_float(values))
    entropy: Tensor = torch.special.entr(values / values.sum() + epsilon).sum()
    return entropy.exp() if len(values) else entropy.new_tensor(torch.nan)


def rankme(
    x: Float[Tensor, "n d"], *, variant: RankVariant = "singular_values", epsilon: float = 0.0
) -> Float[Tensor, ""]:
    """Compute RankMe, exp(−Σ p_i ln p_i) with p_i = σ_i/Σσ, of the singular values σ of x.

    The value is the rank of x if its nonzero singular values are equal, and less otherwise. x is not centred, as
    published: a mean far from 0 is one large singular value and lowers RankMe. The variant ``covariance`` takes the
    eigenvalues of the centred covariance, the squares of the centred matrix's singular values: variances decay twice
    as fast, so it is lower (for eigenvalues 1/i in 128 dimensions 47 instead of 107).

    Singular values of at most 1e-6 of the largest count as 0. It is invariant to scale, sign, rotations and the order
    of the rows; the variant also to shifts.

    Args:
        x: (n, d) vectors.
        variant: see above.
        epsilon: added to each p_i. Garrido et al. print p_i = σ_i/Σσ + ε, ε = 1e-7 for float32, so that ln p_i is
            finite; 0 ln 0 = 0 requires none.

    Returns:
        Scalar float64 from 1 to min(n, d); NaN if x is 0 (for the variant, constant), or if a value is NaN or infinite.

    Raises:
        ValueError: if there are fewer than 2 vectors, or for an unknown variant.

    Reference: Garrido et al. 2023, "RankMe: assessing the downstream performance of pretrained self-supervised
        representations by their rank", equation 1.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
        >>> rankme(x), rankme(x * torch.tensor([1.0, 0.0]))
        (tensor(2., dtype=torch.float64), tensor(1., dtype=torch.float64))
    """
    _check_variant(variant)
    sums = _sums_of(x)  # without the half of a spectrum that the variant does not read
    if variant == "covariance":
        return exp_entropy(_eigenvalues(sums, _participation_ratio(sums, at_least_float32(x))), epsilon)
    return exp_entropy(_singular_values(sums), epsilon)


@cache
def white_noise_rank(n: int, d: int) -> float:
    """Return RankMe of n vectors of d independent Gaussian components, for large n and d: a ceiling for real vectors.

    The singular values of noise are not equal but spread between √max ± √min of n and d, so that its RankMe is below
    min(n, d): 0.97 of d for n = 4 d. It is computed from the density of Marchenko and Pastur.

    Args:
        n: number of vectors, at least 1.
        d: dimensions, at least 1.

    Reference: Marchenko & Pastur 1967, "Distribution of eigenvalues for some sets of random matrices".

    Example:
        >>> [round(white_noise_rank(n, 100), 1) for n in (50, 100, 400, 10_000)]
        [46.3, 80.5, 96.6, 99.9]
    """
    k, c = min(n, d), min(n, d) / max(n, d)
    # λ = 1 + c + 2√c cos t has the density sin²t · 4c / (2π c λ) dt on 0 to π
    t = (torch.arange(20_000, dtype=torch.float64) + 0.5) * math.pi / 20_000
    eigenvalues = (1 + c + 2 * math.sqrt(c) * t.cos()).clamp(min=1e-300)
    density = t.sin().square() / eigenvalues
    density = density / density.sum()
    sigma = eigenvalues.sqrt()
    share = sigma / (density @ sigma)
    return k * math.exp(float(density @ torch.special.entr(share)))


@dataclass(frozen=True)
class PowerLaw:
    """Least-squares line of ln λ_i over ln i.

    Attributes:
        exponent: α of λ_i ~ i^−α.
        error: standard error of α, from the residuals of the line.
        r2: share of the variance of ln λ that the line explains.
        first: first index i of the fit, from 1.
        last: last index, inclusive.
    """

    exponent: float
    error: float
    r2: float
    first: int
    last: int


def power_law(eigenvalues: Float[Tensor, "d"], first: int = 3, last: int | None = 100) -> PowerLaw | None:
    """Fit λ_i ~ i^−α by least squares of ln λ_i on ln i over a range of indices (α-ReQ).

    A line in the logarithms fits any range: the exponent is that of this range, and r2 says how straight it is. The
    standard error takes the residuals as independent; those of ordered eigenvalues are not, so that it is too small.

    Args:
        eigenvalues: (d,) of a covariance, in descending order, at least 0.
        first: first index of the fit, from 1: the leading ones often do not follow the power law.
        last: last index; None for the last eigenvalue. Eigenvalues of at most 1e-12 of the largest are left out.

    Returns:
        The line; None if fewer than 3 eigenvalues are in the range, or if one is NaN or infinite.

    Raises:
        ValueError: if ``first`` is below 1, or ``last`` below ``first + 2``.

    Reference: Agrawal et al. 2022, "α-ReQ: assessing representation quality in self-supervised learning by measuring
        eigenspectrum decay".

    Example:
        >>> found = power_law(torch.arange(1, 65).double() ** -1.5)
        >>> round(found.exponent, 6), round(found.r2, 6), found.first, found.last
        (1.5, 1.0, 3, 64)
    """
    if first < 1 or (last is not None and last < first + _LEAST - 1):
        raise ValueError(
            f"indices of the power law are {first} to {last or 'the last'}: expected a first index from 1, and a last "
            f"index at least {_LEAST - 1} above the first"
        )
    if not len(eigenvalues) or not eigenvalues.isfinite().all():
        return None
    there = int((eigenvalues > RANK_TOLERANCE**2 * eigenvalues[0]).sum())
    last = there if last is None else min(last, there)
    if last - first + 1 < _LEAST:
        return None
    y = eigenvalues[first - 1 : last].double().log()
    x = torch.arange(first, last + 1, dtype=torch.float64, device=y.device).log()
    x, y = x - x.mean(), y - y.mean()
    slope = (x @ y) / (x @ x)
    residual = (y - slope * x).square().sum()
    total = y @ y
    error = (residual / (len(x) - 2) / (x @ x)).sqrt()
    flat = bool(total <= rounding(torch.float64) ** 2 * len(y))  # a line without slope
    r2 = 1.0 if flat else float(1 - residual / total)
    return PowerLaw(float(0.0 - slope), float(error), r2, first, last)


@dataclass(frozen=True)
class Spectrum:
    """Spectrum of n vectors of d dimensions, float64, in descending order; k = min(n, d).

    Attributes:
        n: number of vectors.
        singular_values: (k,) of the uncentred n × d matrix; those of at most 1e-6 of the largest are 0.
        eigenvalues: (k,) of the centred covariance, 1/n Σ (x − μ)(x − μ)ᵀ; those of at most 1e-12 of the largest are 0.
            All are NaN if the vectors are constant up to rounding.
        participation_ratio: (Σλ)²/Σλ² of the eigenvalues, as :func:`lmdyn.analysis.effective_dimension`.

    Example:
        >>> found = Spectrum.of(torch.tensor([[3.0, 1.0], [3.0, -1.0]]))
        >>> found.singular_values, found.eigenvalues
        (tensor([4.2426, 1.4142], dtype=torch.float64), tensor([1., 0.], dtype=torch.float64))
    """

    n: int
    singular_values: Float[Tensor, "k"]
    eigenvalues: Float[Tensor, "k"]
    participation_ratio: Float[Tensor, ""]

    @classmethod
    def of(cls, x: Float[Tensor, "n d"]) -> "Spectrum":
        """Return the spectrum of the rows of ``x``.

        Raises:
            ValueError: if there are fewer than 2 vectors.
        """
        return cls.of_sums(_sums_of(x), at_least_float32(x))

    @classmethod
    def of_sums(cls, sums: CrossCovariance, dtype: torch.dtype) -> "Spectrum":
        """Return the spectrum of streamed vectors: the first representation of ``sums``, the second is empty.

        Args:
            sums: of :meth:`lmdyn.analysis.CrossCovariance.update` with ``x, x[:, :0]``.
            dtype: type of the vectors, whose rounding is no deviation.

        Raises:
            ValueError: if there are fewer than 2 vectors.
        """
        participation = _participation_ratio(sums, dtype)
        return cls(sums.n, _singular_values(sums), _eigenvalues(sums, participation), participation)

    def rankme(self, variant: RankVariant = "singular_values", epsilon: float = 0.0) -> Float[Tensor, ""]:
        """Compute :func:`rankme`.

        Raises:
            ValueError: for an unknown variant.
        """
        _check_variant(variant)
        return exp_entropy(
            self.singular_values if variant == "singular_values" else self.eigenvalues, epsilon
        )


def _check_variant(variant: str) -> None:
    if variant not in ("singular_values", "covariance"):
        raise ValueError(f"variant is {variant!r}: expected 'singular_values' or 'covariance'")


def _sums_of(x: Tensor) -> CrossCovariance:
    sums = CrossCovariance()
    for part in x.split(_ROWS):
        sums.update(part, part[:, :0])
    return sums


def _participation_ratio(sums: CrossCovariance, dtype: torch.dtype) -> Tensor:
    _check_number(sums)
    return participation_ratio(sums.scatter, sums.n * sums.mean.square().sum(), dtype)


def _check_number(sums: CrossCovariance) -> None:
    if sums.n < 2:
        raise ValueError(f"a spectrum requires at least 2 vectors, got {sums.n}")


def _singular_values(sums: CrossCovariance) -> Tensor:
    """Return the singular values of the uncentred matrix."""
    _check_number(sums)
    return _descending(sums.scatter + sums.n * torch.outer(sums.mean, sums.mean)).sqrt()[: sums.n]


def _eigenvalues(sums: CrossCovariance, participation: Tensor) -> Tensor:
    """Return the eigenvalues of the centred covariance; NaN if the vectors are constant up to rounding."""
    if participation.isnan():
        return torch.full_like(sums.mean, torch.nan)[: sums.n]
    return (_descending(sums.scatter) / sums.n)[: sums.n]


def _descending(matrix: Tensor) -> Tensor:
    """Return the eigenvalues of a matrix of products, 0 where they are rounding; NaN if it is not finite."""
    if not matrix.isfinite().all():
        return matrix.new_full((len(matrix),), torch.nan)
    values: Tensor = torch.linalg.eigvalsh(matrix).flip(0)
    return values.where(values > RANK_TOLERANCE**2 * values[:1], 0)

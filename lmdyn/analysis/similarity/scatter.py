"""Two centred representations of the same samples, from which CCA, linear CKA and Procrustes are computed.

A measure is written once, as a function of a :class:`Pair`; the pair is made from two matrices
(``Pair.of(x, y)``) or from sums over a stream (:class:`lmdyn.analysis.CrossCovariance`).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from lmdyn.analysis.statistics.precision import (
    UNDERFLOW,
    at_least_float32,
    exact_float,
    scatter_matrix,
    unit_size,
)

__all__ = ["RANK_TOLERANCE", "WELL_CONDITIONED", "Axes", "Cut", "Pair", "Side", "kept_directions"]

RANK_TOLERANCE = 1e-6
"""Directions with at most this share of the largest singular value count as absent, everywhere."""
WELL_CONDITIONED = 1e-4
"""Smallest singular value, as a share of the largest, at which the eigenvalues of XᵀX are precise to 1e-9."""

_ABSENT = 5e-13  # eigenvalues of XᵀX below this share of the largest are rounding errors: safely below RANK_TOLERANCE²
_CONSTANT = 1e-12  # deviations below this share of the values themselves are rounding errors of the mean

Cut = Literal["variance", "singular_values"]


def kept_directions(singular_values: Tensor, variance: float = 1.0, cut: Cut = "variance") -> int:
    """Return the number of leading directions to keep: the fewest that hold the share, none beyond the rank tolerance.

    Args:
        singular_values: (d,) in descending order.
        variance: share to hold, in (0, 1]; 1 keeps every direction within the rank tolerance.
        cut: whether the share is of the squared singular values (``variance``) or of the singular values themselves
            (``singular_values``).

    Raises:
        ValueError: if ``variance`` is out of range, if ``cut`` is unknown, or if there are no singular values or they
            are NaN or infinite.

    Example:
        >>> kept_directions(torch.tensor([10.0, 1.0, 0.5, 0.0]), 0.99)
        2
    """
    if not 0 < variance <= 1:
        raise ValueError(f"variance must be a share above 0 and at most 1, got {variance}")
    if cut not in ("variance", "singular_values"):
        raise ValueError(f"cut must be 'variance' or 'singular_values', got {cut!r}")
    if not len(singular_values):
        raise ValueError("singular_values is empty: expected at least one singular value")
    if not singular_values.isfinite().all():
        raise ValueError(
            "singular_values has NaN or infinite values: use a matrix with finite values and squares"
        )
    rank = int((singular_values > RANK_TOLERANCE * singular_values[0]).sum())
    if variance == 1:
        return rank
    held = (singular_values**2 if cut == "variance" else singular_values).cumsum(0)
    # of 99 and 1, the first holds 99 %, whatever the rounding
    return min(rank, int((held < variance * held[-1] * (1 - 1e-12)).sum()) + 1)


@dataclass(frozen=True)
class Axes:
    """Principal axes of a centred matrix X = U diag(s) Vᵀ.

    Attributes:
        values: (r,) singular values s, in descending order.
        directions: (d, r) V, in the space of features.
        variates: (n, r) U, in the space of samples; None if only XᵀX is known.
    """

    values: Tensor
    directions: Tensor
    variates: Tensor | None = None

    def leading(self, k: int) -> "Axes":
        """Return the first k axes."""
        variates = None if self.variates is None else self.variates[:, :k]
        return Axes(self.values[:k], self.directions[:, :k], variates)


class Side:
    """One of two representations: its centred scatter matrix and, if available, its samples.

    A side is shared by all pairs that contain it; costly results are computed once, on demand.

    Args:
        name: name of the side in error messages.
        n: number of samples.
        mean: (d,) mean of the samples, to distinguish a constant from a small variation.
        scatter: (d, d) XᵀX of the centred X.
        samples: (n, d) centred X.

    Raises:
        ValueError: if values are NaN, infinite or constant.
    """

    def __init__(
        self, name: str, n: int, *, mean: Tensor, scatter: Tensor | None = None, samples: Tensor | None = None
    ) -> None:
        self.name, self.n, self.samples = name, n, samples
        if scatter is not None:
            self.scatter = scatter  # instead of the cached property
        spread = (
            torch.linalg.vector_norm(samples) ** 2 if samples is not None else self.scatter.diagonal().sum()
        )
        self.variance = float(spread)
        if not self.variance < torch.inf:
            raise ValueError(
                f"{name} contains NaN or infinite values (or squares that overflow), so similarity to {name} is "
                "undefined. Remove the samples with such values from both inputs"
            )
        if 0 < self.variance < UNDERFLOW:
            raise ValueError(
                f"the squares of {name} underflow: divide {name} by its largest absolute value (no similarity changes)"
            )
        constant = max(_CONSTANT, torch.finfo(mean.dtype).eps)
        if self.variance <= constant**2 * n * float(mean.square().sum()):
            raise ValueError(
                f"{name} is constant over {n} samples, so similarity to {name} is undefined. Leave {name} out or "
                "use samples that differ"
            )

    @classmethod
    def of(cls, name: str, x: Tensor, dtype: torch.dtype = torch.float64) -> "Side":
        """Return the side of an (n, d) matrix of any real dtype, computed in ``dtype``."""
        if 0 in x.shape:
            raise ValueError(f"{name} is empty: expected samples and dimensions, got shape {tuple(x.shape)}")
        if dtype == torch.float32:
            x = x.detach().to(at_least_float32(x))
            unit = unit_size(x).to(dtype)  # its range is small
            mean = unit.mean(0)
            samples = unit - mean if unit is x else unit.sub_(mean)
            samples -= samples.mean(0)  # the mean is rounded
            return cls(name, len(x), mean=mean, samples=samples)
        x = exact_float(x)
        mean = x.mean(0)
        return cls(name, len(x), mean=mean, samples=x - mean)

    @property
    def d(self) -> int:
        """Number of features."""
        return int((self.samples if self.samples is not None else self.scatter).shape[1])

    @cached_property
    def scatter(self) -> Tensor:
        """Scatter matrix XᵀX of the centred X, (d, d)."""
        assert self.samples is not None
        return scatter_matrix(self.samples)

    @cached_property
    def factor(self) -> Tensor | None:
        """Lower Cholesky factor of XᵀX; None unless it proves a condition number of X of at most 1e4."""
        factor, failed = torch.linalg.cholesky_ex(self.scatter)
        if failed:
            return None
        inverse = torch.cholesky_inverse(factor)
        # Frobenius norms are at least the largest singular values, so the bound is safe
        bound = torch.linalg.matrix_norm(self.scatter) * torch.linalg.matrix_norm(inverse)
        return factor if bool(bound <= WELL_CONDITIONED**-2) else None

    @cached_property
    def axes(self) -> Axes:
        """Compute the axes from the eigenvectors of XᵀX: fast, exact to 1e-9 up to a condition number of 1e4."""
        values, vectors = torch.linalg.eigh(self.scatter)
        return Axes(values.flip(0).clamp(min=0).sqrt(), vectors.flip(1))

    @cached_property
    def exact_axes(self) -> Axes:
        """Compute the axes from the singular value decomposition of X itself, exact for any spectrum."""
        assert self.samples is not None
        u, values, vt = torch.linalg.svd(self.samples, full_matrices=False)
        return Axes(values, vt.T, u)

    def suffices(self, variance: float, cut: Cut, directions: int | None = None) -> bool:
        """Return whether XᵀX gives the kept directions as precisely as X would: a condition number of at most 1e4."""
        if self.samples is None:
            return True  # nothing better is available
        if self.n <= self.d:
            return False  # X is the smaller of the two
        values = self.axes.values
        rank = kept_directions(values)
        kept = kept_directions(values, variance, cut) if directions is None else min(directions, rank)
        clear = kept == self.d or float(values[kept] ** 2) <= _ABSENT * float(values[0] ** 2)
        number_decides = (variance < 1 or directions is not None) and kept < rank
        return float(values[kept - 1]) >= WELL_CONDITIONED * float(values[0]) and (clear or number_decides)


class Pair:
    """Two sides of the same samples.

    Args:
        x: first side.
        y: second side.
        cross: (d₁, d₂) XᵀY; computed from the samples if not given.
        norm_products: (3,) Σᵢ kᵢ², Σᵢ lᵢ² and Σᵢ kᵢ lᵢ of the squared norms kᵢ = ‖xᵢ‖² and lᵢ = ‖yᵢ‖² of the centred
            samples; computed from the samples if not given.

    Raises:
        ValueError: if the numbers of samples differ.
    """

    def __init__(
        self, x: Side, y: Side, *, cross: Tensor | None = None, norm_products: Tensor | None = None
    ) -> None:
        if x.n != y.n:
            raise ValueError(
                f"{x.name} has {x.n} rows, {y.name} {y.n}: row i of both arrays must be the same sample. Pass the "
                "same words or tokens in the same order"
            )
        self.x, self.y, self.n = x, y, x.n
        if cross is not None:
            self.cross = cross
        if norm_products is not None:
            self.norm_products = norm_products

    @classmethod
    def of(cls, x: Tensor, y: Tensor, dtype: torch.dtype = torch.float64) -> "Pair":
        """Return the pair of two matrices, (n, d₁) and (n, d₂), computed in ``dtype``."""
        return cls(Side.of("x", x, dtype), Side.of("y", y, dtype))

    @cached_property
    def cross(self) -> Tensor:
        """Cross product XᵀY, (d₁, d₂)."""
        assert self.x.samples is not None
        assert self.y.samples is not None
        return self.x.samples.T @ self.y.samples

    @cached_property
    def norm_products(self) -> Tensor:
        """Σ k², Σ l² and Σ k l of the squared norms of the centred samples, (3,)."""
        assert self.x.samples is not None
        assert self.y.samples is not None
        k, l = (side.square().sum(1) for side in (self.x.samples, self.y.samples))  # noqa: E741
        return torch.stack([k @ k, l @ l, k @ l])

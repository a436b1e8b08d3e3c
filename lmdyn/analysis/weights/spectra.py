"""Norms and ranks of matrices from their singular values, and of products of matrices from their factors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.parameters.head_matrices import HeadMatrices
from lmdyn.analysis.statistics.precision import exact_float
from lmdyn.analysis.weights.sparsity_of_entries import gini, hoyer

__all__ = ["MatrixSpectrum", "head_spectra", "matrix_spectrum", "product_spectrum", "singular_values"]

TOLERANCE = 1e-6
"""Share of the largest singular value up to which singular values do not count to the numerical rank."""

_OF_SINGULAR_VALUES = {
    "mean": "mean_singular_value",
    "median": "median_singular_value",
    "variance": "singular_value_variance",
}
_SQUARED = 1e-10  # ratio of eigenvalues, of which float64 has 16 digits
_ROWS = 8  # rows of a step of the QR decomposition, in multiples of the columns


@dataclass(frozen=True)
class MatrixSpectrum:
    """Quantities of matrices of a batch; each has the shape of the batch. NaN for a matrix that is not finite.

    Attributes:
        singular_values: (*batch, k), descending, k = min(rows, columns), or the inner dimension of a product if it is
            smaller: further singular values are 0 by construction.
        frobenius_norm: ‖W‖_F = √Σσᵢ².
        spectral_norm: ‖W‖₂ = σ₁.
        nuclear_norm: Σσᵢ.
        mean: mean of the k singular values.
        median: their median, the mean of the two in the middle for even k.
        variance: their variance Σ(σᵢ − mean)²/k.
        stable_rank: ‖W‖_F²/‖W‖₂², from 1 to k; 0 for W = 0.
        effective_rank: exp of the entropy of σᵢ/Σσ, from 1 to k; 0 for W = 0.
        numerical_rank: number of singular values above max(10⁻⁶ σ₁, ε ‖W‖_F (1/√rows + 1/√columns)) with the ε of the
            stored type: the second is about the size to which rounding to this type raises zero singular values.
        condition_number: σ₁/σ_r for the numerical rank r; NaN for W = 0.
        gini: Gini index of the magnitudes of the entries, see :func:`gini`; NaN for W = 0 and for products.
        hoyer: Hoyer's sparsity of the entries, see :func:`hoyer`; NaN for W = 0 and for products.
    """

    singular_values: Float[Tensor, "*batch k"]
    frobenius_norm: Float[Tensor, "*batch"]
    spectral_norm: Float[Tensor, "*batch"]
    nuclear_norm: Float[Tensor, "*batch"]
    mean: Float[Tensor, "*batch"]
    median: Float[Tensor, "*batch"]
    variance: Float[Tensor, "*batch"]
    stable_rank: Float[Tensor, "*batch"]
    effective_rank: Float[Tensor, "*batch"]
    numerical_rank: Float[Tensor, "*batch"]
    condition_number: Float[Tensor, "*batch"]
    gini: Float[Tensor, "*batch"]
    hoyer: Float[Tensor, "*batch"]

    def numbers(self, place: int) -> dict[str, float]:
        """Return the quantities of one matrix of a batch by name, without the singular values.

        Example:
            >>> found = matrix_spectrum(torch.eye(3)[None]).numbers(0)
            >>> found["stable_rank"], found["mean_singular_value"]
            (3.0, 1.0)
        """
        return {
            _OF_SINGULAR_VALUES.get(name, name): float(values[place])
            for name, values in vars(self).items()
            if name != "singular_values"
        }


def matrix_spectrum(w: Float[Tensor, "*batch rows cols"]) -> MatrixSpectrum:
    """Compute norms, ranks, moments of the singular values, and sparsity of the entries of each matrix.

    Everything is computed in float64. Norms and moments scale with W; ranks, condition number and sparsities do not
    change. All but the sparsities are invariant to rotations on either side.

    Args:
        w: matrices of any floating type. A zero matrix has norms and ranks 0.

    Returns:
        Float64 tensors of the shape of the batch.

    Raises:
        ValueError: for matrices without rows or columns.

    Reference: effective rank: Roy & Vetterli 2007, "The effective rank: a measure of effective dimensionality",
    equations 3 and 4; stable rank: Rudelson & Vershynin 2007, "Sampling from large matrices".

    Example:
        >>> found = matrix_spectrum(torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]))
        >>> found.singular_values.tolist(), round(float(found.frobenius_norm), 6), float(found.stable_rank)
        ([4.0, 3.0], 5.0, 1.5625)
        >>> round(float(found.effective_rank), 4), float(found.condition_number)
        (1.9796, 1.3333333333333333)
    """
    flat = w.flatten(-2)
    sparsity = gini(flat), hoyer(flat)
    return _spectrum(singular_values(w), (w.shape[-2], w.shape[-1]), _epsilon(w), *sparsity)


def product_spectrum(
    a: Float[Tensor, "*batch rows inner"], b: Float[Tensor, "*batch inner cols"]
) -> MatrixSpectrum:
    """Compute the spectrum of the products a b without computing them: QR of both factors, then one small matrix.

    Args:
        a: left factors.
        b: right factors.

    Returns:
        As :func:`matrix_spectrum`, without the sparsities of the entries.

    Raises:
        ValueError: for factors without rows or columns.

    Example:
        >>> a, b = torch.tensor([[1.0], [1.0]]), torch.tensor([[3.0, 4.0]])
        >>> product_spectrum(a, b).singular_values, matrix_spectrum(a @ b).spectral_norm
        (tensor([7.0711], dtype=torch.float64), tensor(7.0711, dtype=torch.float64))
    """
    (left, left_scale), (right, right_scale) = _reduced(a, 1), _reduced(b.mT, 1)
    values = _finite_values(left @ right.mT) * (left_scale * right_scale)[..., None]
    nothing = values.new_full(values.shape[:-1], torch.nan, dtype=torch.float64)
    eps = max(_epsilon(a), _epsilon(b))
    return _spectrum(values, (a.shape[-2], b.shape[-1]), eps, nothing, nothing)


def head_spectra(heads: HeadMatrices) -> dict[str, MatrixSpectrum]:
    """Compute the spectra of the products ``qk`` = qᵀk and ``ov`` = o v of all heads, from their factors."""
    group = heads.query_group
    return {
        "qk": product_spectrum(heads.q.mT, heads.k[group]),
        "ov": product_spectrum(heads.o, heads.v[group]),
    }


def singular_values(w: Float[Tensor, "*batch rows cols"]) -> Float[Tensor, "*batch k"]:
    """Compute all singular values in float64, descending.

    They are roots of the eigenvalues of WᵀW if its entries have fewer digits than float64 and the smallest is at least
    1e-5 of the largest: errors are then at most some 1e-6 of a value. Else, a matrix with many more rows than columns
    is reduced by QR, of which the values are computed directly.

    Returns:
        Tensor of shape (*batch, min(rows, cols)); NaN for a matrix that is not finite.

    Raises:
        ValueError: for matrices without rows or columns.

    Example:
        >>> singular_values(torch.tensor([[0.0, 2.0], [0.0, 0.0]]))
        tensor([2., 0.], dtype=torch.float64)
    """
    tall = w if w.shape[-2] >= w.shape[-1] else w.mT
    if _epsilon(w) > torch.finfo(torch.float64).eps:
        exact, scale = _scaled(tall)
        gram = torch.stack([part.mT @ part for part in map(exact, _parts(tall))]).sum(0)
        broken = ~gram.isfinite().all(-1).all(-1)
        squares = torch.linalg.eigvalsh(torch.where(broken[..., None, None], 0.0, gram)).flip(-1)
        if (broken | (squares[..., -1] > _SQUARED * squares[..., 0])).all():
            values = squares.clamp_min(0).sqrt()
            return torch.where(broken[..., None], torch.nan, values) * scale[..., None]
    r, scale = _reduced(tall)
    return _finite_values(r) * scale[..., None]


def _epsilon(w: Tensor) -> float:
    return torch.finfo(w.dtype).eps if w.is_floating_point() else 0.0


def _reduced(w: Tensor, most: int = 2) -> tuple[Tensor, Tensor]:
    """Return a matrix of at most ``most`` times as many rows as columns with the same singular values, and its scale.

    The matrix is divided by a power of two so that squares neither overflow nor underflow; a matrix that is not finite
    is NaN. Rows are converted to float64 and reduced step by step: memory does not grow with their number.
    """
    exact, scale = _scaled(w)
    if w.shape[-2] <= most * w.shape[-1]:
        return exact(w), scale
    reduced = exact(w[..., :0, :])
    for part in _parts(w):
        reduced = torch.linalg.qr(torch.cat([reduced, exact(part)], dim=-2), mode="r").R
    return reduced, scale


def _parts(w: Tensor) -> Sequence[Tensor]:
    return torch.split(w, _ROWS * w.shape[-1], dim=-2)


def _scaled(w: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return a function that divides rows of matrices by powers of two, in float64, and these powers."""
    if not w.shape[-2] or not w.shape[-1]:
        raise ValueError(f"expected matrices with at least one row and column, got shape {tuple(w.shape)}")
    largest = exact_float(w.detach().abs().amax((-2, -1)))
    exponent = torch.frexp(largest).exponent
    scale = torch.ldexp(torch.ones_like(largest), torch.where(largest.isfinite(), exponent, 0))
    scale = scale.where(largest.isfinite(), torch.nan)  # LAPACK's QR can lose NaN
    return lambda part: exact_float(part) / scale[..., None, None], scale


def _finite_values(w: Tensor) -> Tensor:
    """Return singular values; NaN for a matrix with a number that is not finite, for which LAPACK raises."""
    broken = ~w.isfinite().all(-1).all(-1)
    values = torch.linalg.svdvals(torch.where(broken[..., None, None], 0.0, w))
    return torch.where(broken[..., None], torch.nan, values)


def _spectrum(
    values: Tensor, shape: tuple[int, int], eps: float, gini: Tensor, hoyer: Tensor
) -> MatrixSpectrum:
    first, total = values[..., 0], values.sum(-1)
    zero, broken = first == 0, first.isnan()
    one = torch.where(zero, 1.0, first)
    relative = values / one[..., None]  # squares neither overflow nor underflow
    squares = relative.square().sum(-1)
    share = relative / torch.where(zero, 1.0, relative.sum(-1))[..., None]
    rounding = eps * squares.sqrt() * (shape[0] ** -0.5 + shape[1] ** -0.5)
    kept = (relative > rounding.clamp_min(TOLERANCE)[..., None]).sum(-1)
    last = relative.gather(-1, (kept - 1).clamp_min(0)[..., None])[..., 0]
    nan = torch.full_like(first, torch.nan)
    return MatrixSpectrum(
        singular_values=values,
        frobenius_norm=squares.sqrt() * one,
        spectral_norm=first,
        nuclear_norm=total,
        mean=total / values.shape[-1],
        median=values.quantile(0.5, -1),
        variance=values.var(-1, correction=0),
        stable_rank=squares,
        effective_rank=torch.where(zero, 0.0, torch.special.entr(share).sum(-1).exp()),
        numerical_rank=torch.where(broken, nan, kept.to(values.dtype)),
        condition_number=torch.where(zero | broken, nan, 1 / torch.where(zero | broken, 1.0, last)),
        gini=gini,
        hoyer=hoyer,
    )

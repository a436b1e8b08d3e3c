"""Canonical correlation of two representations: mean CCA, SVCCA and PWCCA.

All of them are float64 inside, on the device of their arguments, and not differentiable. Conventions: both sides
are centred; directions with a singular value of at most 1e-6 of the greatest count as absent; the mean is over the
smaller of the two kept ranks.

*Which path when.* From XᵀX, YᵀY and XᵀY (covariance path) as long as the kept directions have a condition number
of at most 1e4 and the rank is beyond doubt; this agrees with the exact path to 1e-9. Within it, by Cholesky factors
where everything is kept and these prove the condition number, else by eigenvectors. Otherwise, and where samples do
not outnumber dimensions, by QR and singular value decomposition of the centred matrices themselves (exact path,
slower). A stream has only its sums: see :class:`lmdyn.analysis.CrossCovariance`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.similarity.scatter import Cut, Pair, kept_directions

__all__ = ["canonical_correlations", "cca", "pwcca", "svcca", "svcca_ranks"]

_TIE = 1e-8  # difference of correlations below which their variates mix


def canonical_correlations(
    x: Float[Tensor, "n d1"], y: Float[Tensor, "_ d2"], *, variance: float = 1.0, cut: Cut = "variance"
) -> Float[Tensor, "k"]:
    """Canonical correlations ρ₁ ≥ ρ₂ ≥ … of two representations: see :func:`cca` and :func:`svcca`.

    Args:
        x: (n, d₁) first representation.
        y: (n, d₂) second representation of the same samples.
        variance: as in :func:`svcca`; 1 keeps every direction within the rank tolerance.
        cut: as in :func:`svcca`.

    Returns:
        (k,) in [0, 1], falling; k is the smaller of the kept ranks.

    Raises:
        ValueError: as in :func:`cca`.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> canonical_correlations(x, torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])).round(decimals=4)
        tensor([1.], dtype=torch.float64)
    """
    return correlations_of(Pair.of(x, y), variance, cut)


def cca(x: Float[Tensor, "n d1"], y: Float[Tensor, "_ d2"]) -> Float[Tensor, ""]:
    """Mean canonical correlation ρ̄ = (1/k) Σ ρᵢ.

    1 where the smaller of the two spaces of features lies in the other one, as for cca(x, x); near √(d/n) and more
    for unrelated representations of n samples, so compare at equal n and d. Invariant to invertible affine maps of
    either side (as far as they leave the rank tolerance alone).

    With fewer samples than dimensions the value is over the kept ranks, as always. Of ranks r₁ and r₂ that exceed
    n − 1 together, r₁ + r₂ − n + 1 correlations are 1 whatever the data: have more samples than that. Where one side
    spans the whole space of centred samples (rank n − 1), all of them are, which is an error.

    Args:
        x: (n, d₁) first representation.
        y: (n, d₂) second representation of the same samples.

    Returns:
        Scalar in [0, 1], float64.

    Raises:
        ValueError: different numbers of samples; NaN, infinite or constant input; a side that spans the whole space
            of centred samples.

    Reference: Hotelling 1936; as a similarity of representations, Raghu et al. 2017 and Kornblith et al. 2019,
    whose ρ̄_CCA it is (their R²_CCA is the mean of ρᵢ²). Code that adds an epsilon to the covariances instead of
    cutting at a rank tolerance gives cca(x, x) < 1.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> cca(x, x @ torch.tensor([[3.0, 1.0], [0.0, 2.0]]) + 5)
        tensor(1.0000, dtype=torch.float64)
    """
    return cca_of(Pair.of(x, y))


def svcca(
    x: Float[Tensor, "n d1"],
    y: Float[Tensor, "_ d2"],
    variance: float = 0.99,
    *,
    cut: Cut = "variance",
    directions: int | None = None,
) -> Float[Tensor, ""]:
    """Mean canonical correlation between the leading principal directions of each side.

    Each side is centred, then cut to the fewest principal directions that hold ``variance`` of its variance.
    1 where the smaller kept space lies in the other one. Invariant to shifts, rotations and isotropic scaling of
    either side, not to invertible maps in general.

    How many directions hold 99 % of the variance differs between representations and grows over training
    (:func:`svcca_ranks`); a mean over few leading directions is higher than one over many. Where values are compared
    between steps or references, compare them at a number of ``directions`` too.

    Args:
        x: (n, d₁) first representation.
        y: (n, d₂) second representation of the same samples.
        variance: share to keep, above 0 and at most 1 (then it is :func:`cca`).
        cut: ``variance`` cuts on the sum of squares of singular values, as "99 % of variance" says (Raghu et al.
            2017, section 2; Saphra & Lopez 2019). ``singular_values`` cuts on the sum of the singular values
            themselves, as the cumulative sums in some released SVCCA code do; it keeps more directions.
        directions: keep so many leading directions of each side, in the place of a share of the variance.

    Returns:
        Scalar in [0, 1], float64.

    Raises:
        ValueError: as in :func:`cca`; a ``variance`` out of range; fewer directions than asked for.

    Reference: Raghu et al. 2017, "SVCCA: singular vector canonical correlation analysis for deep learning dynamics
    and interpretability", section 2. Some code cuts before centring, so that the mean takes up the first direction.

    Example:
        >>> x = torch.tensor([[9.0, 0.1], [-9.0, 0.1], [9.0, -0.1], [-9.0, -0.1]])
        >>> y = torch.tensor([[1.0], [0.0], [1.0], [0.0]])
        >>> svcca(x, y), svcca(x[:, 1:], y)
        (tensor(1., dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    return svcca_of(Pair.of(x, y), variance, cut, None if directions is None else (directions, directions))


def svcca_ranks(
    x: Float[Tensor, "n d1"], y: Float[Tensor, "_ d2"], variance: float = 0.99, *, cut: Cut = "variance"
) -> tuple[int, int]:
    """How many principal directions of each side :func:`svcca` keeps.

    Args:
        x: (n, d₁) first representation.
        y: (n, d₂) second representation of the same samples.
        variance: as in :func:`svcca`.
        cut: as in :func:`svcca`.

    Returns:
        Directions of ``x`` and of ``y``; svcca is a mean over the smaller of the two.

    Raises:
        ValueError: as in :func:`cca`; a ``variance`` out of range.

    Example:
        >>> x = torch.tensor([[9.0, 0.1], [-9.0, 0.1], [9.0, -0.1], [-9.0, -0.1]])
        >>> svcca_ranks(x, x @ torch.tensor([[0.01, 0.0], [0.0, 1.0]]))
        (1, 2)
    """
    return ranks_of(Pair.of(x, y), variance, cut)


def pwcca(x: Float[Tensor, "n d1"], y: Float[Tensor, "_ d2"]) -> Float[Tensor, ""]:
    """Canonical correlations weighted by how much of ``x`` their directions account for: Σ αᵢ ρᵢ / Σ αᵢ.

    αᵢ = Σⱼ |⟨hᵢ, xⱼ⟩|, with hᵢ the canonical variates of the centred x (orthonormal in the space of samples) and xⱼ
    its neurons, centred too. Not symmetric: the weights are those of ``x``. Invariant to invertible affine maps of
    ``y``, and to shifts and isotropic scaling of ``x``, but not to rotations of it, since neurons enter one by one.
    The formula leaves the hᵢ of equal ρᵢ open, up to a rotation that the weights depend on: here they are the
    principal directions of what ``x`` has in their space (ρᵢ that differ by 1e-8 at most count as equal).

    Args:
        x: (n, d₁) first representation, which gives the weights.
        y: (n, d₂) second representation of the same samples.

    Returns:
        Scalar in [0, 1], float64.

    Raises:
        ValueError: as in :func:`cca`.

    Reference: Morcos et al. 2018, "Insights on representational similarity in neural networks with canonical
    correlation", its projection weighting. Released code (google/svcca) leaves the whitening out of the
    directions and adds the means back before it takes the products; and it weights by the side of fewer directions.

    Example:
        >>> x = torch.tensor([[9.0, 1.0], [-9.0, 1.0], [9.0, -1.0], [-9.0, -1.0]])
        >>> pwcca(x, torch.tensor([[1.0, 1.0], [-1.0, 0.0], [1.0, -1.0], [-1.0, 0.0]]))
        tensor(0.9707, dtype=torch.float64)
    """
    return pwcca_of(Pair.of(x, y))


def ranks_of(pair: Pair, variance: float = 0.99, cut: Cut = "variance") -> tuple[int, int]:
    """:func:`svcca_ranks` of a pair."""
    exact = not (pair.x.suffices(variance, cut) and pair.y.suffices(variance, cut))
    one, two = (
        kept_directions((side.exact_axes if exact else side.axes).values, variance, cut)
        for side in (pair.x, pair.y)
    )
    return one, two


def correlations_of(
    pair: Pair, variance: float = 1.0, cut: Cut = "variance", directions: tuple[int, int] | None = None
) -> Tensor:
    """Canonical correlations of a pair; ``directions`` are the kept numbers of either side."""
    product = _bases(pair, variance, cut, directions).product
    small = product @ product.T if product.shape[0] <= product.shape[1] else product.T @ product
    squares = torch.linalg.eigvalsh(small).flip(0)
    # twice as fast as svdvals, with an error of 1e-15 in ρ², so of 1e-10 in a ρ of 1e-5; weaker ones need svdvals
    rho: Tensor = squares.sqrt() if bool(squares[-1] > 1e-10) else torch.linalg.svdvals(product)
    return rho.clamp(0, 1)


def cca_of(pair: Pair) -> Tensor:
    """:func:`cca` of a pair."""
    return correlations_of(pair).mean()


def svcca_of(
    pair: Pair, variance: float = 0.99, cut: Cut = "variance", directions: tuple[int, int] | None = None
) -> Tensor:
    """:func:`svcca` of a pair; ``directions`` are the kept numbers of either side."""
    return correlations_of(pair, variance, cut, directions).mean()


def pwcca_of(pair: Pair) -> Tensor:
    """:func:`pwcca` of a pair."""
    bases = _bases(pair)
    left, rho, _ = torch.linalg.svd(bases.product, full_matrices=False)
    left = _settle_ties(left, rho, bases.loadings)
    # hᵢ = Bₓ aᵢ with the columns aᵢ of left: ⟨hᵢ, xⱼ⟩ = aᵢᵀ Bₓᵀ xⱼ needs no samples
    alpha = (left.T @ bases.loadings).abs().sum(1)
    weighted: Tensor = (alpha * rho.clamp(0, 1)).sum() / alpha.sum()
    return weighted


def _settle_ties(left: Tensor, rho: Tensor, loadings: Tensor) -> Tensor:
    """Singular vectors whose equal values leave them open, turned to the principal directions of their loadings."""
    steps = (rho[:-1] - rho[1:] > _TIE).nonzero()[:, 0] + 1
    groups = left.tensor_split(steps.tolist(), dim=1)
    settled = [
        group @ torch.linalg.svd(group.T @ loadings, full_matrices=False).U if group.shape[1] > 1 else group
        for group in groups
    ]
    return torch.cat(settled, 1)


@dataclass(frozen=True)
class _Bases:
    """What two orthonormal bases, of the kept spaces of X and of Y, have in common with each other and with X.

    Attributes:
        product: (k₁, k₂) BₓᵀB_y, whose singular values are the canonical correlations.
        loadings: (k₁, d₁) BₓᵀX.
    """

    product: Tensor
    loadings: Tensor


def _bases(
    pair: Pair, variance: float = 1.0, cut: Cut = "variance", directions: tuple[int, int] | None = None
) -> _Bases:
    """Bases of the kept directions of both sides, by the fastest path that is precise enough."""
    x, y = pair.x, pair.y
    wanted = directions or (None, None)
    if (
        directions is None
        and variance == 1
        and max(x.d, y.d) < pair.n - 1
        and x.factor is not None
        and y.factor is not None
    ):
        # all directions are kept, so that any basis will do: Bₓ = X L⁻ᵀ with XᵀX = LLᵀ
        half = torch.linalg.solve_triangular(x.factor, pair.cross, upper=False)
        product = torch.linalg.solve_triangular(y.factor, half.T, upper=False).T
        return _Bases(product, x.factor.T)
    exact = not (x.suffices(variance, cut, wanted[0]) and y.suffices(variance, cut, wanted[1]))
    kept = []
    for side, number in zip((x, y), wanted, strict=True):
        axes = side.exact_axes if exact else side.axes
        k = kept_directions(axes.values, variance, cut) if number is None else number
        if number is not None and not 0 < number <= kept_directions(axes.values):
            raise ValueError(
                f"{side.name} has {kept_directions(axes.values)} directions within the rank tolerance: expected a "
                f"number of directions from 1 to that, got {number}; keep fewer, or a share of the variance"
            )
        if k >= pair.n - 1:
            raise ValueError(
                f"{side.name} keeps {k} directions and {pair.n} centred samples span no more than {pair.n - 1}: "
                "every canonical correlation would be 1 whatever the data; give more samples than dimensions, "
                "or use svcca with a lower variance"
            )
        kept.append(axes.leading(k))
    one, two = kept
    if one.variates is not None and two.variates is not None:
        product = one.variates.T @ two.variates
    else:
        product = one.directions.T @ pair.cross @ two.directions / one.values[:, None] / two.values
    return _Bases(product, one.values[:, None] * one.directions.T)

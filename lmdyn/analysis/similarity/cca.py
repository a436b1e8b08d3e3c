"""Canonical correlation of two representations: mean CCA, SVCCA and PWCCA.

All functions compute in float64 on the device of their arguments and are not differentiable. Conventions: both sides
are centred; directions with a singular value of at most 1e-6 of the largest count as absent; the mean is over the
smaller of the two kept ranks.

*Which path is used.* The covariance path starts from XᵀX, YᵀY and XᵀY. It is used if the kept directions have a
condition number of at most 1e4 and the rank is beyond doubt; it agrees with the exact path to 1e-9. It uses Cholesky
factors if every direction is kept and the factors prove the condition number, otherwise eigenvectors. In all other
cases, and if there are no more samples than dimensions, the exact path is used: QR and singular value decomposition of
the centred matrices themselves, which is slower. A stream has only its sums: see
:class:`lmdyn.analysis.CrossCovariance`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.similarity.scatter import Cut, Pair, kept_directions

__all__ = ["canonical_correlations", "cca", "pwcca", "svcca", "svcca_ranks"]

_TIE = 1e-8  # difference of correlations below which their variates mix


def canonical_correlations(
    x: Float[Tensor, "n d1"], y: Float[Tensor, "n d2"], *, variance: float = 1.0, cut: Cut = "variance"
) -> Float[Tensor, "k"]:
    """Compute the canonical correlations ρ₁ ≥ ρ₂ ≥ … of two representations: see :func:`cca` and :func:`svcca`.

    Args:
        x: (n, d₁) first representation.
        y: (n, d₂) second representation of the same samples.
        variance: as in :func:`svcca`; 1 keeps every direction within the rank tolerance.
        cut: as in :func:`svcca`.

    Returns:
        Tensor of shape (k,) in [0, 1], in descending order; k is the smaller of the kept ranks.

    Raises:
        ValueError: as in :func:`cca`.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> canonical_correlations(x, torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])).round(decimals=4)
        tensor([1.], dtype=torch.float64)
    """
    return correlations_of(Pair.of(x, y), variance, cut)


def cca(x: Float[Tensor, "n d1"], y: Float[Tensor, "n d2"]) -> Float[Tensor, ""]:
    """Compute the mean canonical correlation ρ̄ = (1/k) Σ ρᵢ.

    The value is 1 if the smaller of the two feature spaces lies in the other one, as for cca(x, x). For unrelated
    representations of n samples it is near √(d/n) or higher, so compare values at equal n and d. It is invariant to
    invertible affine maps of either side, as long as they do not change which directions are within the rank
    tolerance.

    With fewer samples than dimensions, the value is still the mean over the kept ranks. If the ranks r₁ and r₂ add up
    to more than n − 1, then r₁ + r₂ − n + 1 correlations are 1 whatever the data: use more samples than that. If one
    side spans the whole space of centred samples (rank n − 1), all correlations are 1, which is an error.

    Args:
        x: (n, d₁) first representation.
        y: (n, d₂) second representation of the same samples.

    Returns:
        Scalar float64 tensor in [0, 1].

    Raises:
        ValueError: if the numbers of samples differ, if the input is NaN, infinite or constant, or if a side spans the
            whole space of centred samples.

    Reference: Hotelling 1936. As a similarity of representations: Raghu et al. 2017, and Kornblith et al. 2019, whose
    ρ̄_CCA it is (their R²_CCA is the mean of ρᵢ²). Code that adds an epsilon to the covariances instead of a rank
    tolerance gives cca(x, x) < 1.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> cca(x, x @ torch.tensor([[3.0, 1.0], [0.0, 2.0]]) + 5)
        tensor(1.0000, dtype=torch.float64)
    """
    return cca_of(Pair.of(x, y))


def svcca(
    x: Float[Tensor, "n d1"],
    y: Float[Tensor, "n d2"],
    variance: float = 0.99,
    *,
    cut: Cut = "variance",
    directions: int | None = None,
) -> Float[Tensor, ""]:
    """Compute the mean canonical correlation between the leading principal directions of each side.

    Each side is centred, then reduced to the fewest principal directions that hold ``variance`` of its variance. The
    value is 1 if the smaller kept space lies in the other one. It is invariant to shifts, rotations and isotropic
    scaling of either side, but not to invertible maps in general.

    The number of directions that hold 99 % of the variance differs between representations and grows over training
    (:func:`svcca_ranks`), and a mean over few leading directions is higher than a mean over many. To compare values
    between steps or references, also compute them at a fixed number of ``directions``.

    Args:
        x: (n, d₁) first representation.
        y: (n, d₂) second representation of the same samples.
        variance: share of the variance to keep, above 0 and at most 1 (1 is :func:`cca`).
        cut: ``variance`` applies the share to the sum of the squared singular values, as "99 % of variance" says
            (Raghu et al. 2017, section 2; Saphra & Lopez 2019). ``singular_values`` applies it to the sum of the
            singular values, as the cumulative sums in some released SVCCA code do; this keeps more directions.
        directions: number of leading directions to keep on each side, instead of a share of the variance.

    Returns:
        Scalar float64 tensor in [0, 1].

    Raises:
        ValueError: as in :func:`cca`; also if ``variance`` is out of range, or if a side has fewer than ``directions``
            directions.

    Reference: Raghu et al. 2017, "SVCCA: singular vector canonical correlation analysis for deep learning dynamics and
    interpretability", section 2. Some released code reduces before it centres, so that the mean takes up the first
    direction.

    Example:
        >>> x = torch.tensor([[9.0, 0.1], [-9.0, 0.1], [9.0, -0.1], [-9.0, -0.1]])
        >>> y = torch.tensor([[1.0], [0.0], [1.0], [0.0]])
        >>> svcca(x, y), svcca(x[:, 1:], y)
        (tensor(1., dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    return svcca_of(Pair.of(x, y), variance, cut, None if directions is None else (directions, directions))


def svcca_ranks(
    x: Float[Tensor, "n d1"], y: Float[Tensor, "n d2"], variance: float = 0.99, *, cut: Cut = "variance"
) -> tuple[int, int]:
    """Return the number of principal directions that :func:`svcca` keeps on each side.

    Args:
        x: (n, d₁) first representation.
        y: (n, d₂) second representation of the same samples.
        variance: as in :func:`svcca`.
        cut: as in :func:`svcca`.

    Returns:
        Number of directions of ``x`` and of ``y``; svcca is a mean over the smaller of the two.

    Raises:
        ValueError: as in :func:`cca`; also if ``variance`` is out of range.

    Example:
        >>> x = torch.tensor([[9.0, 0.1], [-9.0, 0.1], [9.0, -0.1], [-9.0, -0.1]])
        >>> svcca_ranks(x, x @ torch.tensor([[0.01, 0.0], [0.0, 1.0]]))
        (1, 2)
    """
    return ranks_of(Pair.of(x, y), variance, cut)


def pwcca(x: Float[Tensor, "n d1"], y: Float[Tensor, "n d2"]) -> Float[Tensor, ""]:
    """Compute canonical correlations weighted by the share of ``x`` that their directions explain: Σ αᵢ ρᵢ / Σ αᵢ.

    The weights are αᵢ = Σⱼ |⟨hᵢ, xⱼ⟩|, with hᵢ the canonical variates of the centred x (orthonormal in the space of
    samples) and xⱼ its neurons, also centred. The measure is not symmetric: the weights are those of ``x``. It is
    invariant to invertible affine maps of ``y``, and to shifts and isotropic scaling of ``x``, but not to rotations of
    ``x``, because neurons enter one by one.
    For equal ρᵢ, the formula determines the hᵢ only up to a rotation, on which the weights depend. Here they are the
    principal directions of the part of ``x`` in the space of these hᵢ (ρᵢ that differ by at most 1e-8 count as equal).

    Args:
        x: (n, d₁) first representation, which determines the weights.
        y: (n, d₂) second representation of the same samples.

    Returns:
        Scalar float64 tensor in [0, 1].

    Raises:
        ValueError: as in :func:`cca`.

    Reference: Morcos et al. 2018, "Insights on representational similarity in neural networks with canonical
    correlation", its projection weighting. Released code (google/svcca) omits the whitening from the directions, adds
    the means back before it takes the products, and weights by the side with fewer directions.

    Example:
        >>> x = torch.tensor([[9.0, 1.0], [-9.0, 1.0], [9.0, -1.0], [-9.0, -1.0]])
        >>> pwcca(x, torch.tensor([[1.0, 1.0], [-1.0, 0.0], [1.0, -1.0], [-1.0, 0.0]]))
        tensor(0.9707, dtype=torch.float64)
    """
    return pwcca_of(Pair.of(x, y))


def ranks_of(pair: Pair, variance: float = 0.99, cut: Cut = "variance") -> tuple[int, int]:
    """Return :func:`svcca_ranks` of a pair."""
    exact = not (pair.x.suffices(variance, cut) and pair.y.suffices(variance, cut))
    one, two = (
        kept_directions((side.exact_axes if exact else side.axes).values, variance, cut)
        for side in (pair.x, pair.y)
    )
    return one, two


def correlations_of(
    pair: Pair, variance: float = 1.0, cut: Cut = "variance", directions: tuple[int, int] | None = None
) -> Tensor:
    """Return the canonical correlations of a pair; ``directions`` are the kept numbers of the two sides."""
    product, _ = _bases(pair, variance, cut, directions)
    small = product @ product.T if product.shape[0] <= product.shape[1] else product.T @ product
    squares = torch.linalg.eigvalsh(small).flip(0)
    # twice as fast as svdvals, with an error of 1e-15 in ρ², hence of 1e-10 in a ρ of 1e-5; smaller ρ require svdvals
    rho: Tensor = squares.sqrt() if bool(squares[-1] > 1e-10) else torch.linalg.svdvals(product)
    return rho.clamp(0, 1)


def cca_of(pair: Pair) -> Tensor:
    """Compute :func:`cca` of a pair."""
    return correlations_of(pair).mean()


def svcca_of(
    pair: Pair, variance: float = 0.99, cut: Cut = "variance", directions: tuple[int, int] | None = None
) -> Tensor:
    """Compute :func:`svcca` of a pair; ``directions`` are the kept numbers of the two sides."""
    return correlations_of(pair, variance, cut, directions).mean()


def pwcca_of(pair: Pair) -> Tensor:
    """Compute :func:`pwcca` of a pair."""
    product, loadings = _bases(pair)
    left, rho, _ = torch.linalg.svd(product, full_matrices=False)
    left = _settle_ties(left, rho, loadings)
    # hᵢ = Bₓ aᵢ with the columns aᵢ of left: ⟨hᵢ, xⱼ⟩ = aᵢᵀ Bₓᵀ xⱼ does not require the samples
    alpha = (left.T @ loadings).abs().sum(1)
    weighted: Tensor = (alpha * rho.clamp(0, 1)).sum() / alpha.sum()
    return weighted


def _settle_ties(left: Tensor, rho: Tensor, loadings: Tensor) -> Tensor:
    """Rotate singular vectors of equal values, which are not unique, to the principal directions of their loadings."""
    steps = (rho[:-1] - rho[1:] > _TIE).nonzero()[:, 0] + 1
    groups = left.tensor_split(steps.tolist(), dim=1)
    settled = [
        group @ torch.linalg.svd(group.T @ loadings, full_matrices=False).U if group.shape[1] > 1 else group
        for group in groups
    ]
    return torch.cat(settled, 1)


def _bases(
    pair: Pair, variance: float = 1.0, cut: Cut = "variance", directions: tuple[int, int] | None = None
) -> tuple[Tensor, Tensor]:
    """Compute products of orthonormal bases of the kept directions of both sides, by the fastest precise path.

    Returns:
        (k₁, k₂) BₓᵀB_y, whose singular values are the canonical correlations, and (k₁, d₁) BₓᵀX.
    """
    x, y = pair.x, pair.y
    wanted = directions or (None, None)
    if (
        directions is None
        and variance == 1
        and max(x.d, y.d) < pair.n - 1
        and x.factor is not None
        and y.factor is not None
    ):
        # all directions are kept, so any basis is correct: Bₓ = X L⁻ᵀ with XᵀX = LLᵀ
        half = torch.linalg.solve_triangular(x.factor, pair.cross, upper=False)
        product = torch.linalg.solve_triangular(y.factor, half.T, upper=False).T
        return product, x.factor.T
    exact = not (x.suffices(variance, cut, wanted[0]) and y.suffices(variance, cut, wanted[1]))
    kept = []
    for side, number in zip((x, y), wanted, strict=True):
        axes = side.exact_axes if exact else side.axes
        k = kept_directions(axes.values, variance, cut) if number is None else number
        if number is not None and not 0 < number <= kept_directions(axes.values):
            raise ValueError(
                f"{side.name} has the numerical rank {kept_directions(axes.values)}: expected `directions` (the k of "
                f"svcca_<k>) from 1 to this rank, got {number}"
            )
        if k >= pair.n - 1:
            raise ValueError(
                f"{side.name} has {k} directions to compare, but {pair.n} centred samples span no more than "
                f"{pair.n - 1}, so every canonical correlation would be 1 for any data. Use more samples than "
                "dimensions + 1, or svcca with fewer directions (lower `variance` or k)"
            )
        kept.append(axes.leading(k))
    one, two = kept
    if one.variates is not None and two.variates is not None:
        product = one.variates.T @ two.variates
    else:
        product = one.directions.T @ pair.cross @ two.directions / one.values[:, None] / two.values
    return product, one.values[:, None] * one.directions.T

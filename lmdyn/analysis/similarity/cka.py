"""Centred kernel alignment of two representations, biased and debiased, linear and with any kernel.

All functions compute in float64, if not told otherwise, on the device of their arguments and are not differentiable.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.similarity.kernels import KERNELS, Structure, structure_of, subsample
from lmdyn.analysis.similarity.scatter import Pair
from lmdyn.analysis.statistics.precision import UNDERFLOW, exact_float

__all__ = ["kernel_cka", "linear_cka"]

_NOTHING = 1e-12  # share of ‖K‖² below which an unbiased ‖K‖² is a rounding error


def linear_cka(
    x: Float[Tensor, "n d1"],
    y: Float[Tensor, "n d2"],
    debiased: bool = False,
    *,
    dtype: torch.dtype = torch.float64,
) -> Float[Tensor, ""]:
    """Compute linear centred kernel alignment ‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖) of the centred X and Y (Frobenius norms).

    The value is 1 for representations that agree up to shift, rotation and isotropic scaling, to which it is invariant
    on either side. It is not invariant to other linear maps: directions of large variance have the largest weights. It
    is computed from d × d matrices, or from n × n matrices if these are smaller; the debiased form also requires the
    squared norms of the samples.

    Args:
        x: (n, d₁) first representation.
        y: (n, d₂) second representation of the same samples.
        debiased: False computes the printed formula, whose value for unrelated representations grows with d/n. True
            uses the unbiased estimator HSIC₁ of Song et al. 2012 instead; its value for unrelated representations is
            near 0 at any n.
        dtype: type of the products and sums, float64 or float32. float32 takes about half of the time. Its error was
            below 1e-6, and below 1e-5 if debiased, for float32 values of 4 to 8,000 samples whose mean was up to 1,000
            times their standard deviation.

    Returns:
        Scalar float64 tensor in [0, 1], or in [−1, 1] if debiased.

    Raises:
        ValueError: if there are fewer than 3 samples (with 2 the value is 1 whatever the data), or fewer than 4 if
            debiased; if the numbers of samples differ; if the input is NaN, infinite or constant; if debiased, also if
            the samples have no structure, for example if all are at the same distance from each other; if ``dtype`` is
            another one.

    Reference: Kornblith et al. 2019, "Similarity of neural network representations revisited", section 3, linear CKA;
    Song et al. 2012, "Feature selection via dependence maximization", HSIC₁; as a similarity of wide layers on few
    samples, Nguyen et al. 2021. The average of either form over mini-batches is a different number; the sums of
    :class:`lmdyn.analysis.CrossCovariance` give this one.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> linear_cka(x, x[:, :1])
        tensor(0.7071, dtype=torch.float64)
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    return linear_cka_of(Pair.of(x, y, dtype), debiased)


def kernel_cka(
    x: Float[Tensor, "n d1"],
    y: Float[Tensor, "n d2"],
    kernel: Structure = "rbf",
    *,
    kernel_y: Structure | None = None,
    debiased: bool = False,
    max_samples: int | None = None,
    seed: int = 0,
) -> Float[Tensor, ""]:
    """Compute centred kernel alignment HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)) of the kernels of two representations.

    The value is 1 if the centred kernel matrices agree up to scale. Its invariances are those of the kernel: ``rbf``
    is invariant to shifts, rotations and isotropic scaling; ``cosine`` to rotations and to the length of each sample.
    With ``linear`` it equals :func:`linear_cka`, which is faster.

    Memory and time are O(n²).

    Args:
        x: (n, d₁) first representation, or an (n, n) kernel matrix.
        y: (n, d₂) second representation of the same samples, or an (n, n) kernel matrix.
        kernel: ``rbf`` (σ is the median distance; for another one use ``functools.partial(rbf_kernel,
            bandwidth=0.5)``), ``linear``, ``cosine``, ``precomputed``, or a function of (n, d) samples that returns
            their symmetric positive semidefinite (n, n) matrix.
        kernel_y: the same for ``y``; None uses ``kernel``.
        debiased: as in :func:`linear_cka`.
        max_samples: maximum number of samples, drawn without replacement; None uses all, up to 10,000.
        seed: seed of this draw.

    Returns:
        Scalar float64 tensor in [0, 1], or in [−1, 1] if debiased.

    Raises:
        ValueError: as in :func:`linear_cka`; also if the kernel is unknown, or if there are more than 10,000 samples
            and no ``max_samples``.

    Reference: Cortes et al. 2012; Kornblith et al. 2019, equations 3 and 4; Song et al. 2012, HSIC₁.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
        >>> bool(kernel_cka(x, 5 - 2 * x) > 1 - 1e-12)
        True
    """
    chosen = subsample(len(x), max_samples, seed, least=4 if debiased else 3)
    kernels = (kernel, kernel if kernel_y is None else kernel_y)
    centred, norms = [], []
    for name, samples, kind in zip("xy", (x, y), kernels, strict=True):
        gram = structure_of(name, samples, kind, KERNELS, chosen)
        whole = torch.linalg.matrix_norm(gram)
        matrix = gram.sub_(gram.mean(0))
        matrix.sub_(matrix.mean(1, keepdim=True))  # HKH with H = I − 11ᵀ/n
        norm = torch.linalg.matrix_norm(matrix)
        if not norm > 1e-12 * whole:
            raise ValueError(f"the kernel of {name} is constant over {len(gram)} samples: use other samples")
        if debiased:
            matrix, biased = _u_centre(matrix), norm
            norm = torch.linalg.matrix_norm(matrix)
            _check_structure(name, float(norm / biased) ** 2)
        centred.append(matrix)
        norms.append(norm)
    alignment: Tensor = torch.linalg.vecdot(centred[0].flatten(), centred[1].flatten()) / (
        norms[0] * norms[1]
    )
    return alignment.clamp(-1 if debiased else 0, 1)


def linear_cka_of(pair: Pair, debiased: bool = False) -> Tensor:
    """Compute :func:`linear_cka` of a pair."""
    n, least = pair.n, 4 if debiased else 3
    if n < least:
        raise ValueError(f"linear CKA requires at least {least} samples, got {n}")
    squared_norms = _squared_norms(pair)
    nothing = max(_NOTHING, 100 * torch.finfo(squared_norms[0].dtype).eps)
    xx, yy, xy = (exact_float(squared) for squared in squared_norms)
    for side, squared in ((pair.x, float(xx)), (pair.y, float(yy))):
        if not UNDERFLOW < squared < torch.inf:
            raise ValueError(
                f"the fourth powers of {side.name} overflow or underflow: divide {side.name} by its largest absolute "
                "value (no similarity changes)"
            )
    if debiased:
        # HSIC₁ of Song et al. 2012, times n(n − 3), for centred X: the rows of K = XXᵀ sum to 0, so those of K
        # without its diagonal to −kᵢ = −‖xᵢ‖², and 1ᵀK̃L̃1 = Σ kᵢ lᵢ, 1ᵀK̃1 = −tr XᵀX, tr K̃L̃ = ‖XᵀY‖² − Σ kᵢ lᵢ
        kk, ll, kl = exact_float(pair.norm_products)
        biased_xx = float(xx)
        biased_yy = float(yy)
        tx, ty = pair.x.variance, pair.y.variance
        pairs, share = (n - 1) * (n - 2), n / (n - 2)
        xx, yy, xy = (
            squares - share * products + trace / pairs
            for squares, products, trace in ((xx, kk, tx * tx), (yy, ll, ty * ty), (xy, kl, tx * ty))
        )
        _check_structure("x", float(xx) / biased_xx, nothing)
        _check_structure("y", float(yy) / biased_yy, nothing)
    return (xy / (xx.sqrt() * yy.sqrt())).clamp(-1 if debiased else 0, 1)


def _squared_norms(pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ‖XᵀX‖², ‖YᵀY‖² and ‖XᵀY‖² from the smaller matrices."""
    x, y = pair.x, pair.y
    if x.samples is not None and y.samples is not None and pair.n < max(x.d, y.d):
        K, L = x.samples @ x.samples.T, y.samples @ y.samples.T
        return K.square().sum(), L.square().sum(), (K * L).sum()
    return x.scatter.square().sum(), y.scatter.square().sum(), pair.cross.square().sum()


def _u_centre(gram: Tensor) -> Tensor:
    """Compute the U-centred matrix Ũ, with HSIC₁(K, L) = ⟨Ũ_K, Ũ_L⟩ / (n(n − 3)): Székely & Rizzo 2014."""
    n = len(gram)
    off = gram - gram.diagonal().diag()
    rows = off.sum(0)
    centred = off - (rows[:, None] + rows) / (n - 2) + rows.sum() / ((n - 1) * (n - 2))
    return centred - centred.diagonal().diag()


def _check_structure(name: str, share: float, nothing: float = _NOTHING) -> None:
    """Raise an error if the measure would divide rounding errors by each other."""
    if not share > nothing:
        raise ValueError(
            f"the unbiased HSIC of {name} with itself is 0, for example because all samples are equally far from each "
            "other. Use more samples, or a measure that is not debiased"
        )

"""Principal components of embeddings, and independent components of these.

He & Toyoizumi 2022, "Spontaneous emerging preference in two-tower language model", section 5.3, after Isomura &
Toyoizumi 2021. The publication has words in the rows of X and in the columns of Y; here they are in rows throughout.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

__all__ = [
    "FASTICA_TOLERANCE",
    "TOLERANCE",
    "IndependentComponents",
    "Nonlinearity",
    "UnusableEmbeddingsError",
    "Whiten",
    "amari_ica",
    "amari_index",
    "fast_ica",
    "principal_components",
]

Whiten = Literal["divide", "multiply"]
Nonlinearity = Literal["bounded", "halved"]

TOLERANCE = 0.01
"""Of Amari's rule: n words know an entry of g(Y)Yᵀ/n to about 1/√n, 0.014 for n = 5,000."""
FASTICA_TOLERANCE = 1e-4
"""Of FastICA: scikit-learn's own."""


class UnusableEmbeddingsError(ValueError):
    """Embeddings that no components can be had of: not finite, too flat, or such that the rule diverges.

    Settings that fit no embeddings of that shape are a plain ``ValueError``.

    Example:
        >>> try:
        ...     principal_components(torch.ones(5, 2), 1)
        ... except UnusableEmbeddingsError as error:
        ...     print(error)
        embeddings that vary in 0 directions have no 1 components to whiten: ask for at most 0
    """


_RANK_TOLERANCE = 1e-12  # of variances: 1e-6 of singular values, as for every measure here
_EVERY = 20  # iterations between looks at the residual, each of which waits for the device


def principal_components(
    x: Float[Tensor, "n d"], components: int, whiten: Whiten | None = "divide", *, centre: bool = True
) -> Float[Tensor, "n components"]:
    """The first principal components of x, whitened: equation 5 of the publication.

    With XᵀX/n = V S Vᵀ and V_d, S_d its first ``components`` eigenvectors and eigenvalues:

    - ``divide``: P = X V_d / √S_d, whose covariance is the identity, which independent components presuppose.
    - ``multiply``: P = X V_d √S_d as printed, whose covariance is S_d²: it widens the differences that whitening
      removes. Amari's rule has the same fixed points from there, but starts far from them: see :func:`amari_ica`.
    - None: P = X V_d.

    The publication calls XᵀX/n the covariance matrix and does not say that X was centred. It is one only if X is:
    the mean of static embeddings is far from 0, and would be the first "component". ``centre=False`` is the printed
    form. The sign of each eigenvector is that which makes its largest entry positive.

    Args:
        x: (n, d) embeddings.
        components: k, how many to keep, from 1 to d.
        whiten: see above.
        centre: take off the mean of each column first.

    Returns:
        (n, k) float64, on the device of ``x``; columns in descending order of variance in x.

    Raises:
        ValueError: more components than columns, no more rows than components.
        UnusableEmbeddingsError: x not finite or, for whitening, of a rank below ``components`` (variances down to
            1e-12 of the largest count).

    Reference: He & Toyoizumi 2022, equation 5.

    Example:
        >>> x = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> principal_components(x + 7, 1).flatten()
        tensor([ 1.4142, -1.4142,  0.0000,  0.0000], dtype=torch.float64)
    """
    if whiten not in (None, *get_args(Whiten)):
        raise ValueError(f"whiten is {whiten!r}: expected one of {[*get_args(Whiten), None]}")
    n, d = x.shape
    if not 1 <= components <= d:
        raise ValueError(f"expected from 1 to {d} components of embeddings of width {d}, got {components}")
    if n <= components:
        raise ValueError(f"expected more words than components, got {n} words for {components} components")
    x = _float64(x)
    if not x.isfinite().all():
        raise UnusableEmbeddingsError("expected finite embeddings, got some that are NaN or infinite")
    if centre:
        x = x - x.mean(0)
    covariance = x.T @ x / n
    if not covariance.isfinite().all():
        raise UnusableEmbeddingsError(
            "the squares of the embeddings overflow: divide them by their largest value"
        )
    variance, vectors = torch.linalg.eigh(covariance)
    variance, vectors = variance.flip(0)[:components], vectors.flip(1)[:, :components]
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    p: Tensor = x @ (vectors * largest.sign())
    if whiten is None:
        return p
    rank = int((variance > _RANK_TOLERANCE * variance[0].clamp(min=0)).sum())
    if rank < components:
        raise UnusableEmbeddingsError(
            f"embeddings that vary in {rank} directions have no {components} components to whiten: ask for at most "
            f"{rank}"
        )
    scale = variance.sqrt()
    whitened: Tensor = p / scale if whiten == "divide" else p * scale
    return whitened


@dataclass(frozen=True)
class IndependentComponents:
    """What an independent component analysis found.

    Attributes:
        sources: (n, k) float64 Y = P Wᵀ, in the scale that the rule leaves them in.
        unmixing: (k, k) float64 W.
        iterations: updates done.
        converged: whether the residual came below the tolerance.
        residual: largest absolute entry of I − g(Y)Yᵀ/n at the end; NaN for FastICA, which has another.
    """

    sources: Float[Tensor, "n k"]
    unmixing: Float[Tensor, "k k"]
    iterations: int
    converged: bool
    residual: float


def amari_ica(
    p: Float[Tensor, "n k"],
    learning_rate: float = 0.01,
    max_iterations: int = 20_000,
    tolerance: float = TOLERANCE,
    nonlinearity: Nonlinearity = "bounded",
) -> IndependentComponents:
    """Independent components by Amari's natural gradient: W ← W + lr (I − g(Y)Yᵀ/n) W, from W = I, with Y = W P.

    The nonlinearity g (equation 7, whose brackets do not match in print):

    - ``bounded``: g(y) = sgn(y)(1 − e^{−√2|y|}), between −1 and 1.
    - ``halved``: half of it, the distribution function of a Laplace variable of unit variance less 1/2.

    It suits super-Gaussian sources, sparse ones. g fixes the scale of Y: at the fixed point the mean of g(yᵢ)yᵢ is 1
    for each component, a standard deviation of about 1.65 for Laplace sources (``bounded``; 3.0 for ``halved``), so
    scale Y before values are compared with a threshold.

    The rule is equivariant (the course of Y depends on Y alone), so whitening changes the start and not the fixed
    points. With ``whiten="multiply"`` a component starts at the scale s = S_d: where s is below 1 the rule takes about
    ln(1/s) / lr iterations more, and where lr · s is above about 3 it diverges.

    From whitened data the published rate of 0.01 takes thousands of iterations, one of 0.1 a tenth of these to the
    same point. Measured: of 5,000 embeddings of WikiText-2 (200 factors of the co-occurrences) and 128 components
    10,220 iterations at 0.01 and 760 at 0.1, of about 20 ms each on one CPU core, for the same shares of words by
    clusters within 0.01; 0.3 has not settled after 3,000.

    Args:
        p: (n, k) samples, centred and whitened.
        learning_rate: lr. Larger ones than the published take fewer iterations.
        max_iterations: updates to do at most.
        tolerance: stop where no entry of I − g(Y)Yᵀ/n is larger (it is looked at every 20 iterations).
        nonlinearity: see above.

    Returns:
        The components; ``converged`` is false where ``max_iterations`` came first.

    Raises:
        ValueError: an unknown nonlinearity, a rate that is not positive, no samples.
        UnusableEmbeddingsError: input that is not finite, or W growing beyond all bounds.

    Reference: He & Toyoizumi 2022, equations 6 and 7; Amari, Cichocki & Yang 1996, "A new learning algorithm for
    blind signal separation".

    Example:
        >>> laplace = torch.distributions.Laplace(0.0, 1.0)
        >>> uniform = torch.rand(4000, 2, generator=torch.Generator().manual_seed(0))
        >>> mixing = torch.tensor([[1.0, 0.5], [0.2, 1.0]])
        >>> x = laplace.icdf(uniform.clamp(1e-6)) @ mixing.T
        >>> found = amari_ica(principal_components(x, 2), learning_rate=0.1)
        >>> found.converged, found.residual < 0.01
        (True, True)
    """
    if nonlinearity not in get_args(Nonlinearity):
        raise ValueError(f"nonlinearity is {nonlinearity!r}: expected one of {list(get_args(Nonlinearity))}")
    if not (learning_rate > 0 and tolerance > 0 and max_iterations >= 0):
        raise ValueError(
            f"expected a positive learning rate and tolerance and 0 iterations or more, got {learning_rate}, "
            f"{tolerance} and {max_iterations}"
        )
    p = _float64(p)
    if not p.isfinite().all():
        raise UnusableEmbeddingsError("expected finite samples, got some that are NaN or infinite")
    n, k = p.shape
    if n == 0 or k == 0:
        raise ValueError(f"expected (n, k) samples, got shape {(n, k)}: there are no samples to take apart")
    samples = p.T.contiguous()
    identity = torch.eye(k, dtype=p.dtype, device=p.device)
    half = 0.5 if nonlinearity == "halved" else 1.0
    w, iterations, residual = identity, 0, math.nan
    while True:
        y = w @ samples
        # in place: the n × k numbers are written as seldom as can be
        g = y.abs().mul_(-math.sqrt(2)).expm1_().abs_().copysign_(y)
        gradient = identity - (g @ y.T) * (half / n)
        if iterations % _EVERY == 0 or iterations == max_iterations:
            residual = float(gradient.abs().max())
            if not math.isfinite(residual):
                raise UnusableEmbeddingsError(
                    f"the unmixing matrix grew beyond all bounds within {iterations} iterations: take a smaller "
                    f"learning rate than {learning_rate:g}, or whiten by 'divide'"
                )
            if residual < tolerance or iterations == max_iterations:
                break
        w = w + learning_rate * (gradient @ w)
        iterations += 1
    return IndependentComponents(y.T.contiguous(), w, iterations, residual < tolerance, residual)


def fast_ica(
    p: Float[Tensor, "n k"],
    max_iterations: int = 20_000,
    tolerance: float = FASTICA_TOLERANCE,
    seed: int = 0,
) -> IndependentComponents:
    """Independent components by FastICA: scikit-learn's, symmetric, of the negentropy that log cosh approximates.

    It keeps W orthogonal, so Y is as white as ``p`` is, and its scale is that of ``p``: white samples are needed.

    Args:
        p: (n, k) samples, centred and whitened by ``divide``.
        max_iterations: updates to do at most, 1 or more.
        tolerance: stop where no row of W turns by more: 1 − |cosine| between one update and the next.
        seed: of the first W, which is drawn.

    Returns:
        The components, computed on the CPU and answered on the device of ``p``; ``converged`` is false where
        ``max_iterations`` came first, and ``residual`` NaN.

    Raises:
        ValueError: no iterations, a tolerance that is not positive, no more samples than components.
        UnusableEmbeddingsError: input that is not finite.

    Reference: Hyvärinen 1999, "Fast and robust fixed-point algorithms for independent component analysis".

    Example:
        >>> laplace = torch.distributions.Laplace(0.0, 1.0)
        >>> uniform = torch.rand(4000, 2, generator=torch.Generator().manual_seed(0))
        >>> mixing = torch.tensor([[1.0, 0.5], [0.2, 1.0]])
        >>> p = principal_components(laplace.icdf(uniform.clamp(1e-6)) @ mixing.T, 2)
        >>> found = fast_ica(p)
        >>> found.converged, torch.allclose(found.unmixing @ found.unmixing.T, torch.eye(2).double())
        (True, True)
    """
    if not (tolerance > 0 and max_iterations >= 1):
        raise ValueError(
            f"expected a positive tolerance and 1 iteration or more, got {tolerance} and {max_iterations}"
        )
    p = _float64(p)
    if not p.isfinite().all():
        raise UnusableEmbeddingsError("expected finite samples, got some that are NaN or infinite")
    if len(p) <= p.shape[1] or p.shape[1] == 0:
        raise ValueError(f"expected more samples than components, got (n, k) = {tuple(p.shape)}")
    ica = FastICA(whiten=False, fun="logcosh", max_iter=max_iterations, tol=tolerance, random_state=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ica.fit(p.cpu().numpy())
    converged = True
    for warning in caught:
        if issubclass(warning.category, ConvergenceWarning):
            converged = False
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    w = torch.from_numpy(ica.components_.copy()).to(p)
    return IndependentComponents(p @ w.T, w, int(ica.n_iter_), converged, math.nan)


def amari_index(product: Float[Tensor, "k k"]) -> float:
    """How far an unmixing matrix times the mixing matrix is from a scaled permutation, in [0, 1].

    1 / (2k(k−1)) [Σᵢ (Σⱼ |pᵢⱼ| / maxⱼ |pᵢⱼ| − 1) + Σⱼ (Σᵢ |pᵢⱼ| / maxᵢ |pᵢⱼ| − 1)]: 0 where each source is found, in
    whatever order, sign and scale; 1 where every output holds all sources alike.

    Args:
        product: (k, k) unmixing matrix @ mixing matrix.

    Raises:
        ValueError: a row or column of zeros, numbers that are not finite, an empty product or one that is not square.

    Reference: Amari, Cichocki & Yang 1996, section 5, normalised by 2k(k − 1).

    Example:
        >>> amari_index(torch.tensor([[0.0, -3.0], [0.5, 0.0]])), amari_index(torch.ones(2, 2))
        (0.0, 1.0)
    """
    size = product.double().abs().cpu()
    k = len(size)
    if k == 0 or size.shape != (k, k):
        raise ValueError(
            f"expected a (k, k) product of one component or more, got {tuple(size.shape)}, empty or not square"
        )
    rows, columns = size.amax(1), size.amax(0)
    if not (size.isfinite().all() and (rows > 0).all() and (columns > 0).all()):
        raise ValueError(
            "expected a finite product without rows or columns of zeros: W or the mixing is singular"
        )
    if k == 1:
        return 0.0
    total = (size / rows[:, None]).sum() + (size / columns).sum() - 2 * k
    return float(total.clamp(min=0) / (2 * k * (k - 1)))


def _float64(x: Tensor) -> Tensor:
    return x.detach().to(torch.device("cpu") if x.device.type == "mps" else x.device, torch.float64)

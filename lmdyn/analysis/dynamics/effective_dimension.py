"""The effective number of principal components of a cloud of states."""

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.similarity.covariance import CrossCovariance
from lmdyn.analysis.statistics.precision import UNDERFLOW, exact_float, scatter_matrix

__all__ = ["EffectiveDimension", "effective_dimension"]

_CHUNK = 1 << 22  # numbers of x that are held in float64 at a time, 32 MiB
_ROUNDING = 100  # deviations of at most so many times the spacing of their precision say nothing


@torch.no_grad()
def effective_dimension(x: Float[Tensor, "samples dims"]) -> Float[Tensor, ""]:
    """Effective dimension N_eff = 1 / Σ s̃² of centred samples, s̃ the eigenvalues of their covariance scaled to sum 1.

    From 1 (all samples on a line) to min(samples − 1, dims) (the same variance in each direction); d for isotropic
    d-dimensional noise and many samples. Since Σ s = tr C and Σ s² = ‖C‖², it is tr(C)²/‖C‖² without eigenvalues, of
    the covariance or the Gram matrix of the samples, whichever is smaller. Invariant to shifts, scale, rotations and
    the order of samples. NaN for samples that are constant up to the rounding of their precision, as those that
    all reached one fixed point, and where a value is NaN or infinite.

    Args:
        x: (samples, dims) states, a joint state flattened. Only a part of x is in float64 at a time.

    Returns:
        () float64, on the device of x.

    Raises:
        ValueError: fewer than 2 samples.

    Reference: Inoue et al. 2022, equation 6.

    Example:
        >>> cross = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> effective_dimension(cross), effective_dimension(cross * torch.tensor([1.0, 0.0]))
        (tensor(2., dtype=torch.float64), tensor(1., dtype=torch.float64))
    """
    n, d = x.shape
    _check_samples(n)
    size = min(n, d)
    scatter = torch.zeros(size, size, dtype=torch.float64, device=exact_float(x[:0]).device)
    squares = scatter.new_zeros(())
    if n > d:
        parts = x.split(max(1, _CHUNK // max(d, 1)))
        mean = torch.stack([exact_float(part).sum(0) for part in parts]).sum(0) / n
        squares += mean.square().sum()
        for part in parts:
            scatter += scatter_matrix(exact_float(part) - mean)
    else:
        for part in x.split(_CHUNK // n or 1, 1):
            columns = exact_float(part)
            mean = columns.mean(0)
            squares += mean.square().sum()
            scatter += scatter_matrix((columns - mean).T)
    return _participation(scatter, n * squares, x.dtype)


class EffectiveDimension:
    """Streaming :func:`effective_dimension` of any number of samples, batch by batch and over ranks.

    Keeps a (dims, dims) matrix in float64: for at most a few thousand dimensions. Sums are taken around the first
    batch's mean, so that a mean far from 0 costs no digits (:class:`lmdyn.analysis.CrossCovariance`).

    Example:
        >>> x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
        >>> streaming = EffectiveDimension()
        >>> for batch in x.split(30):
        ...     streaming.update(batch)
        >>> bool((streaming.result() - effective_dimension(x)).abs() < 1e-12)
        True
    """

    def __init__(self) -> None:
        self._covariance = CrossCovariance()
        self._dtype = torch.float64

    @property
    def n(self) -> int:
        """Number of samples so far."""
        return self._covariance.n

    def update(self, x: Float[Tensor, "samples dims"]) -> None:
        """Add samples; none is allowed.

        Raises:
            ValueError: another number of dimensions than before.
        """
        self._dtype = x.dtype
        self._covariance.update(x, x[:, :0])  # the second representation, of no dimensions, costs nothing

    def reduce(self) -> None:
        """Add up over ranks; call it once, on every rank, after the last update. A rank may have no samples."""
        self._covariance.reduce()

    def result(self) -> Float[Tensor, ""]:
        """N_eff of all samples so far, () float64.

        Raises:
            ValueError: fewer than 2 samples.
        """
        _check_samples(self.n)
        mean = self._covariance.mean
        return _participation(self._covariance.scatter, self.n * mean.square().sum(), self._dtype)


def _check_samples(n: int) -> None:
    if n < 2:
        raise ValueError(f"the covariance of {n} samples is undefined: give 2 samples or more")


def _participation(scatter: Tensor, size: Tensor, dtype: torch.dtype) -> Tensor:
    """tr(C)²/‖C‖² of a scatter or Gram matrix; NaN where it is the rounding of constants with squares of this sum."""
    trace = scatter.trace()
    rounding = torch.finfo(dtype if dtype.is_floating_point else torch.float64).eps
    varies = trace > ((_ROUNDING * rounding) ** 2 * size).clamp(min=UNDERFLOW)  # False for NaN
    share = scatter / trace  # first, so that squares do not overflow
    return torch.where(varies & trace.isfinite(), 1 / share.square().sum(), torch.nan)

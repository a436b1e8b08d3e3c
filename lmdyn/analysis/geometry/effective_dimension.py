"""Effective number of principal components of a set of states."""

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.similarity.covariance import CrossCovariance
from lmdyn.analysis.statistics.precision import UNDERFLOW, exact_float, rounding, scatter_matrix

__all__ = ["EffectiveDimension", "effective_dimension", "participation_ratio"]

_CHUNK = 1 << 22  # numbers of x that are in float64 at a time, 32 MiB


@torch.no_grad()
def effective_dimension(x: Float[Tensor, "samples dims"]) -> Float[Tensor, ""]:
    """Compute N_eff = 1 / Σ s̃² of centred samples, with s̃ the eigenvalues of their covariance, scaled to a sum of 1.

    The value ranges from 1 (all samples on a line) to min(samples − 1, dims) (equal variance in each direction); it is
    d for isotropic d-dimensional noise and many samples. Since Σ s = tr C and Σ s² = ‖C‖², it is computed as
    tr(C)²/‖C‖² without eigenvalues, from the covariance or the Gram matrix of the samples, whichever is smaller. It is
    invariant to shifts, scale, rotations and the order of samples. It is NaN for samples that are constant up to
    rounding, such as samples that all reached one fixed point, and if a value is NaN or infinite.

    Args:
        x: (samples, dims) states; flatten a joint state. Only a part of x is in float64 at a time.

    Returns:
        Scalar float64 tensor, on the device of x.

    Raises:
        ValueError: if there are fewer than 2 samples.

    Reference: Inoue et al. 2022, equation 6.

    Example:
        >>> cross = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> effective_dimension(cross), effective_dimension(cross * torch.tensor([1.0, 0.0]))
        (tensor(2., dtype=torch.float64), tensor(1., dtype=torch.float64))
    """
    n, d = x.shape
    if n > d:
        streamed = EffectiveDimension()
        for part in x.split(max(1, _CHUNK // max(d, 1))):
            streamed.update(part)
        return streamed.result()
    _check_samples(n)
    scatter = torch.zeros(n, n, dtype=torch.float64, device=exact_float(x[:0]).device)
    squares = scatter.new_zeros(())
    for part in x.split(_CHUNK // n or 1, 1):
        columns = exact_float(part)
        mean = columns.mean(0)
        squares += mean.square().sum()
        scatter += scatter_matrix((columns - mean).T)
    return participation_ratio(scatter, n * squares, x.dtype)


class EffectiveDimension:
    """Streaming :func:`effective_dimension` of any number of samples, batch by batch and over ranks.

    It keeps a (dims, dims) matrix in float64, for at most a few thousand dimensions. Sums are taken around the mean of
    the first batch, so that a mean far from 0 does not cost precision (:class:`lmdyn.analysis.CrossCovariance`).

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
        """Number of samples added so far."""
        return self._covariance.n

    def update(self, x: Float[Tensor, "samples dims"]) -> None:
        """Add samples; the batch may be empty.

        Raises:
            ValueError: if the number of dimensions is not that of earlier samples.
        """
        self._dtype = x.dtype
        self._covariance.update(x, x[:, :0])  # the second representation has no dimensions and costs nothing

    def reduce(self) -> None:
        """Sum over ranks; call it once, on every rank, after the last update. A rank may have no samples."""
        self._covariance.reduce()

    def result(self) -> Float[Tensor, ""]:
        """Return N_eff of all samples so far, a scalar float64 tensor.

        Raises:
            ValueError: if there are fewer than 2 samples.
        """
        _check_samples(self.n)
        mean = self._covariance.mean
        return participation_ratio(self._covariance.scatter, self.n * mean.square().sum(), self._dtype)


def _check_samples(n: int) -> None:
    if n < 2:
        raise ValueError(f"the covariance requires at least 2 samples, got {n}")


def participation_ratio(
    scatter: Float[Tensor, "d d"], size: Float[Tensor, ""], dtype: torch.dtype
) -> Float[Tensor, ""]:
    """Compute tr(C)²/‖C‖² of a scatter or Gram matrix C of centred samples.

    Args:
        scatter: (d, d) float64.
        size: sum of the squares of the mean over all samples, to which deviations are compared.
        dtype: type of the samples, whose rounding is no deviation.

    Returns:
        Scalar; NaN if the deviations are rounding errors of constants, or if a number is NaN or infinite.

    Example:
        >>> participation_ratio(torch.diag(torch.tensor([2.0, 2.0, 0.0])).double(), torch.tensor(0.0), torch.float32)
        tensor(2., dtype=torch.float64)
    """
    trace = scatter.trace()
    relative = rounding(dtype if dtype.is_floating_point else torch.float64)
    varies = trace > (relative**2 * size).clamp(min=UNDERFLOW)  # False for NaN
    share = scatter / trace  # first, so that squares do not overflow
    return torch.where(varies & trace.isfinite(), 1 / share.square().sum(), torch.nan)

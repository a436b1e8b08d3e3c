"""The exponent of an orbit from its windows: how well it is known, whether it is above 0, where it changed."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor

from lmdyn.analysis.statistics.precision import unit_size

__all__ = ["GrowthRate", "arrival", "growth_rate"]

_BLOCKS = (20, 10, 5)
_LEAST_GROWTH = 10.0


@dataclass(frozen=True)
class GrowthRate:
    """Mean exponents, and how well they are known.

    Attributes:
        exponent: (batch,) float64 mean λ, nats a step; NaN of a row without windows.
        error: (batch,) its block standard error; infinite with fewer than five blocks.
        low: (batch,) lower end of its two-sided interval.
        high: (batch,) upper end.
        resolution: (batch,) |λ| that is not told from 0: max(ln T / T, standard error).
        steps: (batch,) T, the steps of the mean.
    """

    exponent: Float[Tensor, "batch"]
    error: Float[Tensor, "batch"]
    low: Float[Tensor, "batch"]
    high: Float[Tensor, "batch"]
    resolution: Float[Tensor, "batch"]
    steps: Int[Tensor, "batch"]

    @property
    def chaotic(self) -> Bool[Tensor, "batch"]:
        """(batch,) where λ is above what a regular orbit shows: its interval above the resolution, and λT ≥ 10."""
        return (self.low > self.resolution) & self.grows

    @property
    def grows(self) -> Bool[Tensor, "batch"]:
        """(batch,) where λT ≥ 10, however well λ is known."""
        return self.exponent * self.steps >= _LEAST_GROWTH

    @property
    def zero(self) -> Bool[Tensor, "batch"]:
        """(batch,) where λ is not told from 0, although T is long enough to have an error."""
        return (self.exponent.abs() <= self.resolution) & self.error.isfinite()


@torch.no_grad()
def growth_rate(
    exponents: Float[Tensor, "windows batch"],
    tau: int,
    start: Int[Tensor, "batch"] | None = None,
    stop: Int[Tensor, "batch"] | None = None,
    *,
    confidence: float = 0.95,
) -> GrowthRate:
    """Mean λ of windows of one orbit, with its block standard error, and the resolution that T steps have.

    Perturbations of a regular orbit grow, too, by a power of time: ln ‖δ‖ / T falls like ln T / T, at which λ is no
    evidence of chaos. The standard error is the largest of those of the means of 20, 10 and 5 consecutive blocks (of as
    many as there are windows, if fewer): longer blocks take the correlation of windows far apart into account, and
    slow swings; the interval is Student's t.

    Error: of windows that follow each other with autocorrelation ρ (normal, first order), a 95 % interval covers the
    mean in 97 to 98 % for ρ = 0.5; for ρ = 0.9 in 90 % (100 windows) and 96 % (500); for ρ = 0.97 in 71 and 92 %; for
    ρ = 0.99 in 46 and 80 %. Of 500 windows of 10 steps, mean 0 and standard deviation 0.02, 5 % are called chaotic for
    ρ = 0.99 and 0.2 % for ρ = 0.5; of those of mean 0.004, 16 % for ρ = 0.5: windows should be longer than the
    correlation time, and many.

    Args:
        exponents: (windows, batch) λ of each window; NaN windows are left out.
        tau: steps of a window.
        start: (batch,) first window that is looked at; None: 0.
        stop: (batch,) window before which it ends; None: all.
        confidence: of the interval.

    Reference: Flyvbjerg & Petersen 1989 (block averages); Skokos 2010, section 5 (ln T / T).

    Example:
        >>> calm, wild = torch.zeros(100), torch.full((100,), 0.02)
        >>> found = growth_rate(torch.stack([calm, wild], 1), tau=10)
        >>> found.chaotic, found.resolution
        (tensor([False,  True]), tensor([0.0069, 0.0069], dtype=torch.float64))
    """
    if tau < 1:
        raise ValueError(f"tau is 1 or more, got {tau}")
    n, device = len(exponents), exponents.device
    time = torch.arange(n, device=device)[:, None]
    known = ~exponents.isnan()
    if start is not None:
        known = known & (time >= start)
    if stop is not None:
        known = known & (time < stop)
    values = torch.where(known, exponents.double(), 0)
    count = known.sum(0)
    mean = values.sum(0) / count
    error = torch.zeros_like(mean)
    reach = torch.zeros_like(mean)
    for most in _BLOCKS:
        of_these, degrees = _block_error(values, known, mean, most)
        t = torch.tensor(stats.t.ppf(0.5 + confidence / 2, degrees.cpu().numpy()))
        error = torch.maximum(error, of_these)
        reach = torch.maximum(reach, t.to(error) * of_these)
    steps = count * tau
    least = torch.where(steps > 1, steps.double().clamp(min=2).log() / steps.clamp(min=1), torch.inf)
    return GrowthRate(mean, error, mean - reach, mean + reach, torch.maximum(least, error), steps)


def _block_error(
    values: Float[Tensor, "windows batch"],
    known: Bool[Tensor, "windows batch"],
    mean: Float[Tensor, "batch"],
    most: int,
) -> tuple[Float[Tensor, "batch"], Int[Tensor, "batch"]]:
    """Standard error of the mean by blocks of windows that are known, so many at most, and its degrees of freedom."""
    count = known.sum(0)
    blocks = count.clamp(1, most)
    place = (known.cumsum(0) - 1).clamp(min=0)
    block = (place * blocks // count.clamp(min=1)).clamp(max=most - 1)
    sums = torch.zeros(most, len(mean), dtype=torch.float64, device=values.device)
    counts = torch.zeros_like(sums)
    sums.scatter_add_(0, block, values)
    counts.scatter_add_(0, block, known.double())
    means = sums / counts.clamp(min=1)
    spread = torch.where(counts > 0, (means - mean) ** 2, 0).sum(0) / (blocks - 1).clamp(min=1)
    error = (spread / blocks).sqrt()
    return torch.where(blocks >= min(_BLOCKS), error, torch.inf), (blocks - 1).clamp(min=1)


@torch.no_grad()
def arrival(
    exponents: Float[Tensor, "windows batch"], stop: Int[Tensor, "batch"] | None = None
) -> Int[Tensor, "batch"]:
    """The window from which on exponents have another mean than before: where a transient may have ended.

    The split in two with the least sum of squares about the means of both sides. There is one in any series: whether
    it tells anything is seen from the two means and their errors, :func:`growth_rate` before and after.

    Args:
        exponents: (windows, batch) λ; NaN windows are left out.
        stop: (batch,) the split is at this window at most; None: anywhere.

    Returns:
        (batch,) window at which the second part begins, from 0.

    Raises:
        ValueError: no windows.

    Reference: the likeliest change of the mean of independent normal numbers: Hinkley 1970.

    Example:
        >>> arrival(torch.tensor([[0.2], [0.1], [0.2], [-0.3], [-0.3]]))
        tensor([3])
    """
    if not len(exponents):
        raise ValueError("there are no windows to split: expected one at least")
    known = ~exponents.isnan()
    values = unit_size(torch.where(known, exponents.double(), 0))
    before, count = values.cumsum(0), known.cumsum(0)
    whole, n = before[-1:], count[-1:]
    after, rest = whole - before, n - count
    gain = before**2 / count.clamp(min=1) + after**2 / rest.clamp(min=1)
    gain = torch.where((count > 0) & (rest > 0), gain, -torch.inf)
    if stop is not None:
        time = torch.arange(len(exponents), device=exponents.device)[:, None]
        gain = torch.where(time < stop.clamp(min=1), gain, -torch.inf)
    found = gain.argmax(0) + 1
    return torch.where(gain.amax(0).isfinite(), found, 0)

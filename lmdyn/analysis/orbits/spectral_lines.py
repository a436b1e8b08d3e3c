"""Discrete spectral lines of a series: its spectra over two stretches of time are then equal."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["SpectralLines", "spectral_lines"]

_BETA = 20.0  # parameter of Kaiser's window: leakage below 1e-14 of a line's power
_ROUNDING = 4  # units of the last place
_HALF_WIDTH = 7  # bins of a line on either side, √(1 + (β/π)²)


class SpectralLines(NamedTuple):
    """Comparison of the spectra of two halves of a series.

    Attributes:
        change: (batch,) float64 Σ|P₁ − P₂| / Σ(P₁ + P₂) of the power spectra of the first and the second half, from 0
            (equal) to 1; about 0.5 for noise or chaos.
        share: (batch,) share of the power in the strongest lines, in both halves.
    """

    change: Float[Tensor, "batch"]
    share: Float[Tensor, "batch"]


@torch.no_grad()
def spectral_lines(series: Float[Tensor, "times batch observables"], lines: int = 40) -> SpectralLines:
    """Compute how much the power spectrum of an orbit changes from one half of a series to the other.

    A quasi-periodic orbit has constant lines: the power at each frequency is the same in both halves, except for
    neighbouring lines less than 15 bins apart, which beat. A chaotic orbit has a spectrum with a continuous part,
    whose power at a frequency differs each time (exponentially distributed: change 0.5). An orbit that still
    approaches its attractor has lines that shrink: a factor 1 − a from half to half gives a change of about a.

    Args:
        series: (times, batch, observables) functions of the state at equal time steps; their spectra are added.
        lines: number of lines of the share; each takes 15 bins of times / 4.

    Returns:
        Both numbers; NaN if the series is constant up to rounding, or not finite.

    Raises:
        ValueError: if there are fewer than 256 times or no observables.

    Reference: Eckmann & Ruelle 1985, section 2.E (discrete and continuous spectra); Laskar 1993.

    Example:
        >>> t = torch.arange(4096, dtype=torch.float64)[:, None, None]
        >>> two_lines = (0.3 * t).cos() + (0.3 * 2**0.5 * t).cos()
        >>> noise = torch.randn(4096, 1, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> bool(spectral_lines(two_lines).change < 1e-6), round(float(spectral_lines(noise).change), 1)
        (True, 0.5)
    """
    n = len(series) // 2
    if n < 128 or series.shape[2] == 0:
        raise ValueError(f"series is {tuple(series.shape)}: expected (256 or more times, batch, observables)")
    window = torch.kaiser_window(n, periodic=False, beta=_BETA, dtype=torch.float64, device=series.device)
    window = window[:, None, None]
    # (batch,) power of the rounding errors of the numbers themselves
    rounding = torch.finfo(series.dtype if series.is_floating_point() else torch.float64).eps
    floor = (_ROUNDING * rounding * series.double().square().sum(2).amax(0).sqrt()).square() * n**2
    halves = torch.stack([series[:n], series[len(series) - n :]]).double()
    centred = halves - (halves * window).sum(1, keepdim=True) / window.sum()
    first, second = torch.fft.rfft(centred * window, dim=1).abs().square().sum(3)
    left = first + second
    total = left.sum(0)
    total = torch.where(total > floor, total, torch.nan)
    change = (first - second).abs().sum(0) / total
    held = torch.zeros_like(total)
    bins = torch.arange(len(left), device=series.device)[:, None]
    for _ in range(lines):
        near = (bins - left.argmax(0)).abs() <= _HALF_WIDTH
        held += torch.where(near, left, 0).sum(0)
        left = torch.where(near, 0, left)
    return SpectralLines(change, held / total)

"""The 0–1 test for chaos of a scalar series: a second opinion, whose result depends on the length of the series."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.precision import unit_size

__all__ = ["ZeroOne", "decorrelation_lag", "zero_one_test"]


@dataclass(frozen=True)
class ZeroOne:
    """Result of the test for each series, cut after several numbers of values.

    Attributes:
        lengths: (lengths,) numbers of values that were used.
        k: (lengths, batch) float64 the median K over the frequencies: near 0 regular, near 1 chaotic.
    """

    lengths: Int[Tensor, "lengths"]
    k: Float[Tensor, "lengths batch"]


@torch.no_grad()
def zero_one_test(
    series: Float[Tensor, "times batch"],
    *,
    every: int = 1,
    n_frequencies: int = 100,
    seed: int = 0,
) -> ZeroOne:
    """Compute Gottwald and Melbourne's 0–1 test: whether a walk driven by the series spreads or stays bounded.

    For a frequency c, p(n) = Σ φ(j) cos jc and q(n) = Σ φ(j) sin jc over j ≤ n, for a series φ whose mean is
    subtracted (the part ⟨φ⟩² (1 − cos nc)/(1 − cos c) of the publication's displacement is then 0, and an offset,
    however large, changes nothing). Their mean square displacement over n steps grows like n for chaos and stays
    bounded for a regular orbit; K is its correlation with n, for n up to a tenth of the length. The median over random
    frequencies in (π/5, 4π/5) is robust to resonances.

    Use it only as a second opinion. A series of few correlation times always looks regular: chaos with λ = 3e-3 over
    5,000 steps gives K near 0. So does a series that is sampled much more finely than its time scale: use every n-th
    value. K is therefore computed for an eighth, a quarter, half and all of the values, as far as these are at least
    100: a K that increases with the length is no evidence of a regular orbit.

    Args:
        series: (times, batch) values of an observable, equally spaced.
        every: use every n-th value.
        n_frequencies: number of frequencies c.
        seed: seed of the frequencies.

    Returns:
        K; NaN if a series is constant or not finite. Its error is of the order of the square root of 10/length.

    Raises:
        ValueError: if there are fewer than 100 values, or if ``every`` or ``n_frequencies`` is below 1.

    Reference: Gottwald & Melbourne 2009, "On the implementation of the 0–1 test for chaos", equations 3.1 to 3.5.

    Example:
        >>> x = [torch.tensor([0.3, 0.3], dtype=torch.float64)]
        >>> for _ in range(1999):
        ...     x.append(torch.tensor([3.55, 4.0]) * x[-1] * (1 - x[-1]))  # a cycle of 8, and chaos
        >>> zero_one_test(torch.stack(x)).k[-1].round(decimals=1).abs()
        tensor([0., 1.], dtype=torch.float64)
    """
    if every < 1 or n_frequencies < 1:
        raise ValueError(f"expected every and n_frequencies of at least 1, got {every=} and {n_frequencies=}")
    values = series[::every].double()
    # K is independent of scale, and uses fourth powers
    values = unit_size(values, 0)
    n = len(values)
    if n < _LEAST:
        raise ValueError(
            f"expected at least {_LEAST} values, got {n} (every {every} of {len(series)}): use a longer series"
        )
    lengths = [m for m in (n // 8, n // 4, n // 2, n) if m >= _LEAST]
    g = torch.Generator().manual_seed(seed)
    c = math.pi / 5 + 3 * math.pi / 5 * torch.rand(n_frequencies, generator=g, dtype=torch.float64)
    c = c.to(values.device)

    if values.shape[1] == 0:
        return ZeroOne(torch.tensor(lengths), values.new_empty(len(lengths), 0))
    k = torch.stack([torch.stack([_growth_correlation(values[:m], one) for one in c]) for m in lengths])
    return ZeroOne(torch.tensor(lengths), k.nanmedian(1).values)


_LEAST = 100


def decorrelation_lag(series: Float[Tensor, "times"], share: float = math.exp(-1)) -> int:
    """Return the first lag at which the autocorrelation of a series is below a share, a choice for ``every``.

    Args:
        series: (times,) finite values.
        share: share of the autocorrelation at lag 0.

    Returns:
        Lag of at least 1; the number of values if the autocorrelation never falls below, as for a constant.

    Raises:
        ValueError: if values are missing or not finite.

    Example:
        >>> wave = torch.arange(1000.0).mul(math.tau / 100).cos()
        >>> decorrelation_lag(wave)  # arccos(1/e) is 0.19 periods, minus an effect of the ends
        19
    """
    n = len(series)
    if n == 0:
        raise ValueError("the series is empty: pass at least one value")
    if not series.isfinite().all():
        raise ValueError("the series has NaN or infinite values: cut the series before the first such value")
    centred = series.double() - series.double().mean()
    centred = unit_size(centred)
    power = torch.fft.rfft(centred, 2 * n).abs().square()
    correlation = torch.fft.irfft(power, 2 * n)[:n]
    below = (correlation < share * correlation[0]).nonzero()
    return max(1, int(below[0])) if len(below) else n


def _growth_correlation(values: Tensor, c: Tensor) -> Tensor:
    """Compute K of each series for one frequency."""
    n = len(values)
    constant = values.std(0) <= 1e-12 * values.abs().amax(0)
    values = values - values.mean(0)
    cut = n // 10
    kept = n - cut
    at = torch.arange(1, n + 1, dtype=torch.float64, device=values.device)[:, None] * c
    walk = torch.polar(values, at.expand_as(values)).cumsum(0)  # p + iq
    # Σ_j |z(j + m) − z(j)|² for all lags m at once: squares by cumulative sums, products by a Fourier transform
    walk = walk - walk.mean(0)
    squares = torch.cat([torch.zeros_like(values[:1]), walk.abs().square().cumsum(0)])
    lags = torch.arange(1, cut + 1, device=values.device)
    size = 1 << (n + kept - 1).bit_length()
    products = torch.fft.ifft(
        torch.fft.fft(walk[:kept], size, 0).conj() * torch.fft.fft(walk, size, 0), dim=0
    )
    d = (squares[kept + lags] - squares[lags] + squares[kept] - 2 * products[lags].real) / kept
    steps = lags.double()[:, None]
    d, steps = d - d.mean(0), steps - steps.mean()
    norm = d.norm(dim=0) * steps.norm()
    return torch.where((norm > 0) & ~constant, (d * steps).sum(0) / norm, torch.nan)

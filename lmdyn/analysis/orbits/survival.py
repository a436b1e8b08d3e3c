"""Duration of chaos if the end was not observed for some orbits: survival, escape rates, restricted means."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy
import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor

__all__ = ["Survival", "survival"]

Array = npt.NDArray[np.float64]

_BLOCKS = 64  # of orbits without groups


@dataclass(frozen=True)
class Survival:
    """Share of orbits that are still in their transient, over time.

    Attributes:
        times: (times,) float64, 0 and the lengths at which a transient ended, increasing, in the unit of the lengths.
        survival: (times,) Kaplan–Meier share of orbits whose transient is longer than each of the times.
        low: (times,) lower ends of the confidence intervals.
        high: (times,) upper ends of the confidence intervals.
        escape_rate: κ, with survival decreasing like exp(−κt): number of transients that ended, divided by the total
            observed time; 0 if none ended.
        escape_interval: confidence interval of the escape rate.
        restricted_mean: mean of min(length, horizon), the area under the curve, which is not biased by censoring.
        restricted_interval: confidence interval of the restricted mean.
        horizon: upper limit of the restricted mean.
        n: number of orbits.
        n_ended: number of orbits whose end was observed.
        n_groups: number of networks, or other groups, over which intervals are computed; of blocks without groups.
    """

    times: Float[Tensor, "times"]
    survival: Float[Tensor, "times"]
    low: Float[Tensor, "times"]
    high: Float[Tensor, "times"]
    escape_rate: float
    escape_interval: tuple[float, float]
    restricted_mean: float
    restricted_interval: tuple[float, float]
    horizon: float
    n: int
    n_ended: int
    n_groups: int


def survival(
    lengths: Real[Tensor, "n"],
    censored: Bool[Tensor, "n"],
    groups: Sequence[int] | None = None,
    *,
    horizon: float | None = None,
    detected: float = 0.0,
    confidence: float = 0.95,
) -> Survival:
    """Estimate the survival of transients, ended or censored, with intervals over orbits or groups of orbits.

    A censored length is a lower bound. Its orbit counts as one that lasts up to this length, and is left out after it:
    a mean of the ended ones alone would be too short, as would one that uses the bounds as lengths. Orbits of one
    network are similar, so with ``groups`` every interval is over networks: the delete-one-group jackknife with
    Student's t with one degree of freedom less than the number of groups (on the complementary log-log scale for the
    curve, on the logarithm for the escape rate). Without groups, it is that over at most 64 blocks of orbits.

    Args:
        lengths: (n,) lengths of transients, at least 0; 0 for an orbit without one.
        censored: (n,) whether the end was not observed.
        groups: the network of each orbit; None if orbits are independent.
        horizon: upper limit of the restricted mean; None uses the longest length.
        detected: shortest length that can be distinguished from none (10 / λ for chaotic transients): the time of the
            escape rate begins there, and the curve is meaningless before. Shorter lengths count as none.
        confidence: confidence level of the intervals.

    Raises:
        ValueError: if there are no orbits, if lengths are negative or infinite, if the number of groups does not match
            or is below 2, or if no orbit was followed to the horizon.

    Reference: Kaplan & Meier 1958; Lai & Tél 2011, "Transient Chaos", chapter 1 (escape rate).

    Example:
        >>> found = survival(torch.tensor([1.0, 2.0, 3.0, 3.0]), torch.tensor([False, False, True, True]))
        >>> found.times, found.survival, found.restricted_mean
        (tensor([0., 1., 2.], dtype=torch.float64), tensor([1.0000, 0.7500, 0.5000], dtype=torch.float64), 2.25)
    """
    length = lengths.double().cpu().numpy()
    ended = ~censored.cpu().numpy()
    if len(length) == 0 or not np.isfinite(length).all() or (length < 0).any():
        raise ValueError(
            "expected lengths of at least one orbit, all finite and at least 0: pass only orbits with such lengths"
        )
    if groups is not None and len(groups) != len(length):
        raise ValueError(f"expected one group for each of {len(length)} lengths, got {len(groups)}")
    if detected < 0 or (horizon is not None and not horizon >= 0):
        raise ValueError(f"expected detected and horizon of at least 0, got {detected=} and {horizon=}")
    last = float(length.max()) if horizon is None else float(horizon)
    if length.max() < last and not ended[length == length.max()].all():
        raise ValueError(
            f"no orbit was followed beyond {length.max():g}, and the horizon is {last:g}: use a lower horizon, or "
            "follow the orbits further"
        )
    times = np.unique(np.concatenate([[0.0], length[ended]]))
    beyond = (length - detected).clip(min=0)
    of = np.arange(len(length)) % _BLOCKS if groups is None else np.asarray(groups)
    names = np.unique(of)
    if groups is not None and len(names) < 2:
        raise ValueError(f"groups has {len(names)} group: expected at least 2, or groups=None")
    # one orbit has no interval: its t is NaN
    kept = [of != name for name in names] if len(names) > 1 else [of == of[0]]
    t = float(scipy.stats.t.ppf(0.5 + confidence / 2, len(names) - 1))
    whole = _curve(length, ended, times)
    rate = _escape_rate(beyond, ended)
    mean = _mean(length, ended, last)
    low, high = _on_cloglog(whole, np.stack([_curve(length[k], ended[k], times) for k in kept]), t)
    spread = t * float(_jackknife_error(np.array([_mean(length[k], ended[k], last) for k in kept])))
    return Survival(
        torch.from_numpy(times),
        torch.from_numpy(whole),
        torch.from_numpy(low),
        torch.from_numpy(high),
        rate,
        _on_log(rate, np.array([_escape_rate(beyond[k], ended[k]) for k in kept]), t),
        mean,
        (max(0.0, mean - spread), min(last, mean + spread)),
        last,
        len(length),
        int(ended.sum()),
        len(names),
    )


def _curve(length: Array, ended: npt.NDArray[np.bool_], times: Array) -> Array:
    """Return the share that lasts longer than each of the times."""
    found = scipy.stats.ecdf(scipy.stats.CensoredData(uncensored=length[ended], right=length[~ended])).sf
    return np.asarray(found.evaluate(times), np.float64)


def _escape_rate(length: Array, ended: npt.NDArray[np.bool_]) -> float:
    there = length.sum()
    return float((ended & (length > 0)).sum() / there) if there > 0 else torch.nan


def _mean(length: Array, ended: npt.NDArray[np.bool_], horizon: float) -> float:
    """Compute the area under the curve up to the horizon."""
    times = np.unique(np.concatenate([[0.0], length[ended & (length < horizon)], [horizon]]))
    return float((_curve(length, ended, times[:-1]) * np.diff(times)).sum())


def _jackknife_error(without: Array) -> Array:
    n = len(without)
    return np.asarray(np.sqrt((n - 1) / n * ((without - without.mean(0)) ** 2).sum(0)))


def _on_cloglog(whole: Array, without: Array, t: float) -> tuple[Array, Array]:
    """Compute intervals of shares on the scale ln(−ln S), on which they stay between 0 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.log(-np.log(whole))
        error = _jackknife_error(np.log(-np.log(without)))
        low = np.exp(-np.exp(at + t * error))
        high = np.exp(-np.exp(at - t * error))
    certain = (whole == 1) | (whole == 0)
    unknown = ~np.isfinite(low) | ~np.isfinite(high)  # a share that depends on one group
    low = np.where(unknown, 0.0, low)
    high = np.where(unknown, 1.0, high)
    return np.where(certain, whole, low), np.where(certain, whole, high)


def _on_log(whole: float, without: Array, t: float) -> tuple[float, float]:
    if not whole > 0 or not (without > 0).all():  # also NaN: all observed time belongs to one group
        return 0.0, torch.inf
    error = float(_jackknife_error(np.log(without)))
    return float(whole * np.exp(-t * error)), float(whole * np.exp(t * error))

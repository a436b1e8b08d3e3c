"""Duration of chaos if the end was not observed for some orbits: survival, escape rates, restricted means."""

import warnings
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
        n_groups: number of networks, or other groups, over which intervals are computed; the number of orbits without
            groups.
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
    curve, on the logarithm for the escape rate). Without groups, it is Greenwood's interval for the curve, and the
    interval of a rate of counts for the escape rate.

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

    Reference: Kaplan & Meier 1958; Greenwood 1926; Lai & Tél 2011, "Transient Chaos", chapter 1 (escape rate).

    Example:
        >>> found = survival(torch.tensor([1.0, 2.0, 3.0, 3.0]), torch.tensor([False, False, True, True]))
        >>> found.times, found.survival, found.restricted_mean
        (tensor([0., 1., 2.], dtype=torch.float64), tensor([1.0000, 0.7500, 0.5000], dtype=torch.float64), 2.25)
    """
    length, ended = lengths.double().cpu().numpy(), ~censored.cpu().numpy()
    if len(length) == 0 or not np.isfinite(length).all() or (length < 0).any():
        raise ValueError(
            "expected lengths of at least one orbit, finite and at least 0: leave out diverged orbits first"
        )
    if groups is not None and len(groups) != len(length):
        raise ValueError(f"expected one group for each of {len(length)} lengths, got {len(groups)}")
    if detected < 0 or (horizon is not None and not horizon >= 0):
        raise ValueError(f"expected detected and horizon of at least 0, got {detected} and {horizon}")
    last = float(length.max()) if horizon is None else float(horizon)
    if length.max() < last and not ended[length == length.max()].all():
        raise ValueError(
            f"no orbit was followed beyond {length.max():g}, and the horizon is {last:g}: use a lower horizon, or "
            "follow the orbits further"
        )
    times = np.unique(np.concatenate([[0.0], length[ended]]))
    whole = _curve(length, ended, times)
    beyond = (length - detected).clip(min=0)
    rate, mean = _escape_rate(beyond, ended), _restricted_mean(length, ended, last)
    if groups is None:
        low, high = _greenwood(length, ended, times, confidence)
        rate_interval = _rate_interval(beyond, ended, confidence)
        spread, t = _error_of_mean(length, ended, last), float(scipy.stats.norm.ppf(0.5 + confidence / 2))
        mean_interval = (mean - t * spread, mean + t * spread)
        n_groups = len(length)
    else:
        of = np.asarray(groups)
        names = np.unique(of)
        n_groups = len(names)
        if n_groups < 2:
            raise ValueError(f"an interval over groups requires at least 2 groups, got {n_groups}")
        kept = [of != name for name in names]
        t = float(scipy.stats.t.ppf(0.5 + confidence / 2, n_groups - 1))
        low, high = _on_cloglog(whole, np.stack([_curve(length[k], ended[k], times) for k in kept]), t)
        rate_interval = _on_log(rate, np.array([_escape_rate(beyond[k], ended[k]) for k in kept]), t)
        means = np.array([_restricted_mean(length[k], ended[k], last) for k in kept])
        error = float(_jackknife_error(means))
        mean_interval = (mean - t * error, mean + t * error)
    return Survival(
        torch.from_numpy(times),
        torch.from_numpy(whole),
        torch.from_numpy(low),
        torch.from_numpy(high),
        rate,
        rate_interval,
        mean,
        (max(0.0, float(mean_interval[0])), min(last, float(mean_interval[1]))),
        last,
        len(length),
        int(ended.sum()),
        n_groups,
    )


def _curve(length: Array, ended: npt.NDArray[np.bool_], times: Array) -> Array:
    """Return the share that lasts longer than each of the times."""
    found = scipy.stats.ecdf(scipy.stats.CensoredData(uncensored=length[ended], right=length[~ended])).sf
    return np.asarray(found.evaluate(times), dtype=np.float64)


def _greenwood(
    length: Array, ended: npt.NDArray[np.bool_], times: Array, confidence: float
) -> tuple[Array, Array]:
    sf = scipy.stats.ecdf(scipy.stats.CensoredData(uncensored=length[ended], right=length[~ended])).sf
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # if the curve is 1 or 0, it has no interval
        ends = sf.confidence_interval(confidence, method="log-log")
        low, high = ends.low.evaluate(times), ends.high.evaluate(times)
    curve = sf.evaluate(times)
    return np.where(np.isfinite(low), low, curve), np.where(np.isfinite(high), high, curve)


def _escape_rate(length: Array, ended: npt.NDArray[np.bool_]) -> float:
    there = length.sum()
    return float((ended & (length > 0)).sum() / there) if there > 0 else float("nan")


def _rate_interval(length: Array, ended: npt.NDArray[np.bool_], confidence: float) -> tuple[float, float]:
    """Compute the exact interval of a Poisson count over the observed time."""
    n, there = int((ended & (length > 0)).sum()), float(length.sum())
    if there == 0:
        return float("nan"), float("nan")
    tail = (1 - confidence) / 2
    low = float(scipy.stats.chi2.ppf(tail, 2 * n)) / 2 if n else 0.0
    return low / there, float(scipy.stats.chi2.ppf(1 - tail, 2 * n + 2)) / 2 / there


def _restricted_mean(length: Array, ended: npt.NDArray[np.bool_], horizon: float) -> float:
    """Compute the area under the curve up to the horizon."""
    times = np.unique(np.concatenate([[0.0], length[ended & (length < horizon)], [horizon]]))
    return float((_curve(length, ended, times[:-1]) * np.diff(times)).sum())


def _error_of_mean(length: Array, ended: npt.NDArray[np.bool_], horizon: float) -> float:
    """Compute the standard error of the restricted mean over independent orbits, in Greenwood's form."""
    times = np.unique(length[ended & (length < horizon)])
    whole = np.concatenate([times, [horizon]])
    areas = (_curve(length, ended, whole[:-1]) * np.diff(whole))[::-1].cumsum()[::-1]  # beyond each time
    at_risk = (length[None] >= times[:, None]).sum(1)
    ends = ((length[None] == times[:, None]) & ended[None]).sum(1)
    left = np.maximum(at_risk * (at_risk - ends), 1)
    return float(np.sqrt((areas**2 * ends / left).sum()))


def _jackknife_error(without: Array) -> Array:
    n = len(without)
    return np.asarray(np.sqrt((n - 1) / n * ((without - without.mean(0)) ** 2).sum(0)))


def _on_cloglog(whole: Array, without: Array, t: float) -> tuple[Array, Array]:
    """Compute intervals of shares on the scale ln(−ln S), on which they stay between 0 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.log(-np.log(whole))
        error = _jackknife_error(np.log(-np.log(without)))
        low, high = np.exp(-np.exp(at + t * error)), np.exp(-np.exp(at - t * error))
    certain = (whole == 1) | (whole == 0)
    unknown = ~np.isfinite(low) | ~np.isfinite(high)  # a share that depends on one group
    low, high = np.where(unknown, 0.0, low), np.where(unknown, 1.0, high)
    return np.where(certain, whole, low), np.where(certain, whole, high)


def _on_log(whole: float, without: Array, t: float) -> tuple[float, float]:
    if not whole > 0 or not (without > 0).all():  # also NaN: all observed time belongs to one group
        return 0.0, float("inf")
    error = float(_jackknife_error(np.log(without)))
    return float(whole * np.exp(-t * error)), float(whole * np.exp(t * error))

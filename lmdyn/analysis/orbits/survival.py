"""How long chaos lasts, where some orbits were not followed to its end: survival, escape rates, restricted means."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Real
from scipy import stats
from torch import Tensor

__all__ = ["Survival", "survival"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Survival:
    """How many orbits are still in their transient, over time.

    Attributes:
        times: (times,) float64, 0 and the lengths at which one ended, rising, in the unit of the lengths.
        survival: (times,) share of orbits whose transient is longer than each of the times, by Kaplan and Meier.
        low: (times,) lower ends of its intervals.
        high: (times,) upper ends.
        escape_rate: κ, where survival falls like exp(−κt): transients that ended, over the time that all lasted; 0
            where none ended.
        escape_interval: its interval.
        restricted_mean: mean of min(length, horizon), the area under the curve, which censoring does not bias.
        restricted_interval: its interval.
        horizon: up to which the restricted mean goes.
        n: orbits.
        n_ended: of these, those whose end was seen.
        n_groups: networks, or other groups, over which the intervals are; the number of orbits without groups.
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
    unit: float | None = None,
    detected: float = 0.0,
    confidence: float = 0.95,
) -> Survival:
    """Survival of transients whose ends were seen or not, with intervals over orbits or over groups of them.

    A length that is censored is a lower bound. Its orbit counts among those that last up to there, and is left out
    after: a mean of the ended ones alone would be too short, one with the bounds as lengths too. Orbits of one network
    are alike, so that with ``groups`` every interval is over networks: the delete-one-group jackknife with Student's t
    of one degree of freedom less than there are groups (of ln S on the curve's complementary log-log scale, of the
    logarithm of the escape rate). Without groups, Greenwood's interval of the curve, and that of a rate of counts.

    Args:
        lengths: (n,) of transients, 0 or more; 0 of an orbit that has none.
        censored: (n,) whether the end was not seen.
        groups: the network of each orbit; None: orbits are independent.
        horizon: up to which the restricted mean goes; None: the longest length.
        unit: lengths are multiples of it, and it is not short beside them (steps of a fast escape, windows): a share
            p = 1 − exp(−κ·unit) ends in each. None: time is continuous.
        detected: shortest length that is told from none (10 / λ of chaotic transients): the time that the escape rate
            is of begins there (with a ``unit``, at the next multiple of it), and the curve tells nothing before.
            Shorter lengths count as none.
        confidence: of the intervals.

    Raises:
        ValueError: no orbits, negative or infinite lengths, another number of groups, fewer than 2 groups, a horizon
            that no orbit was followed to.

    Reference: Kaplan & Meier 1958; Greenwood 1926; Lai & Tél 2011, "Transient Chaos", chapter 1 (escape rate).

    Example:
        >>> found = survival(torch.tensor([1.0, 2.0, 3.0, 3.0]), torch.tensor([False, False, True, True]))
        >>> found.times, found.survival, found.restricted_mean
        (tensor([0., 1., 2.], dtype=torch.float64), tensor([1.0000, 0.7500, 0.5000], dtype=torch.float64), 2.25)
    """
    if censored.dtype != torch.bool or censored.shape != lengths.shape:
        raise ValueError(
            f"expected censored to be a bool for each of {len(lengths)} lengths, got {censored.dtype} of shape "
            f"{tuple(censored.shape)}: give censored.bool()"
        )
    length, ended = lengths.double().cpu().numpy(), ~censored.cpu().numpy()
    if len(length) == 0 or not np.isfinite(length).all() or (length < 0).any():
        raise ValueError(
            "expected lengths of one orbit or more, finite and from 0: diverged ones are left out before"
        )
    if horizon is not None and not horizon >= 0:
        raise ValueError(f"expected a horizon from 0, got {horizon}")
    if groups is not None and len(groups) != len(length):
        raise ValueError(f"{len(groups)} groups are given for {len(length)} lengths: expected one for each")
    if detected < 0 or (unit is not None and not unit > 0):
        raise ValueError(f"expected detected from 0 and unit above 0, got {detected} and {unit}")
    last = float(length.max()) if horizon is None else float(horizon)
    if length.max() < last and not ended[length == length.max()].all():
        raise ValueError(
            f"no orbit was followed beyond {length.max():g}, and the horizon is {last:g}: give a lower horizon, or "
            "follow them further"
        )
    times = np.unique(np.concatenate([[0.0], length[ended]]))
    whole = _curve(length, ended, times)
    # whole units, since an end is noticed at the end of one
    beyond = (length - (detected if unit is None else np.ceil(detected / unit) * unit)).clip(min=0)
    rate, mean = _escape_rate(beyond, ended, unit), _restricted_mean(length, ended, last)
    if groups is None:
        low, high = _greenwood(length, ended, times, confidence)
        rate_interval = _rate_interval(beyond, ended, unit, confidence)
        spread, t = _error_of_mean(length, ended, last), float(stats.norm.ppf(0.5 + confidence / 2))
        mean_interval = (mean - t * spread, mean + t * spread)
        n_groups = len(length)
    else:
        of = np.asarray(groups)
        names = np.unique(of)
        n_groups = len(names)
        if n_groups < 2:
            raise ValueError(
                f"an interval over groups is asked for, and there is {n_groups}: expected 2 or more"
            )
        kept = [of != name for name in names]
        t = float(stats.t.ppf(0.5 + confidence / 2, n_groups - 1))
        low, high = _on_cloglog(whole, np.stack([_curve(length[k], ended[k], times) for k in kept]), t)
        rate_interval = _on_log(rate, np.array([_escape_rate(beyond[k], ended[k], unit) for k in kept]), t)
        means = np.array([_restricted_mean(length[k], ended[k], last) for k in kept])
        error = float(_jackknife_error(means))
        mean_interval = (mean - t * error, mean + t * error)
    return Survival(
        torch.from_numpy(times), torch.from_numpy(whole), torch.from_numpy(low), torch.from_numpy(high),
        rate, rate_interval, mean, (max(0.0, float(mean_interval[0])), min(last, float(mean_interval[1]))), last,
        len(length), int(ended.sum()), n_groups,
    )  # fmt: skip


def _curve(length: Array, ended: npt.NDArray[np.bool_], times: Array) -> Array:
    """The share that lasts longer than each of the times."""
    found = stats.ecdf(stats.CensoredData(uncensored=length[ended], right=length[~ended])).sf
    return np.asarray(found.evaluate(times), dtype=np.float64)


def _greenwood(
    length: Array, ended: npt.NDArray[np.bool_], times: Array, confidence: float
) -> tuple[Array, Array]:
    sf = stats.ecdf(stats.CensoredData(uncensored=length[ended], right=length[~ended])).sf
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where the curve is 1 or 0 there is no interval
        ends = sf.confidence_interval(confidence, method="log-log")
        low, high = ends.low.evaluate(times), ends.high.evaluate(times)
    curve = sf.evaluate(times)
    return np.where(np.isfinite(low), low, curve), np.where(np.isfinite(high), high, curve)


def _escape_rate(length: Array, ended: npt.NDArray[np.bool_], unit: float | None) -> float:
    there = length.sum()
    if not there > 0:
        return float("nan")
    rate = float((ended & (length > 0)).sum() / there)
    return rate if unit is None else _of_share(rate * unit, unit)


def _of_share(share: float, unit: float) -> float:
    """The rate at which this share ends in a unit of time."""
    return float(-np.log1p(-share) / unit) if share < 1 else float("inf")


def _rate_interval(
    length: Array, ended: npt.NDArray[np.bool_], unit: float | None, confidence: float
) -> tuple[float, float]:
    """The exact interval of a Poisson count over the time that was watched; with a unit, of a binomial share."""
    n, there = int((ended & (length > 0)).sum()), float(length.sum())
    if there == 0:
        return float("nan"), float("nan")
    if unit is not None:
        ends = stats.binomtest(n, round(there / unit)).proportion_ci(confidence)
        return _of_share(float(ends.low), unit), _of_share(float(ends.high), unit)
    tail = (1 - confidence) / 2
    low = float(stats.chi2.ppf(tail, 2 * n)) / 2 if n else 0.0
    return low / there, float(stats.chi2.ppf(1 - tail, 2 * n + 2)) / 2 / there


def _restricted_mean(length: Array, ended: npt.NDArray[np.bool_], horizon: float) -> float:
    """The area under the curve up to the horizon."""
    times = np.unique(np.concatenate([[0.0], length[ended & (length < horizon)], [horizon]]))
    return float((_curve(length, ended, times[:-1]) * np.diff(times)).sum())


def _error_of_mean(length: Array, ended: npt.NDArray[np.bool_], horizon: float) -> float:
    """Its standard error over independent orbits, of Greenwood's form."""
    times = np.unique(length[ended & (length < horizon)])
    whole = np.concatenate([times, [horizon]])
    areas = (_curve(length, ended, whole[:-1]) * np.diff(whole))[::-1].cumsum()[
        ::-1
    ]  # beyond each of the times
    at_risk = (length[None] >= times[:, None]).sum(1)
    ends = ((length[None] == times[:, None]) & ended[None]).sum(1)
    left = np.maximum(at_risk * (at_risk - ends), 1)
    return float(np.sqrt((areas**2 * ends / left).sum()))


def _jackknife_error(without: Array) -> Array:
    n = len(without)
    return np.asarray(np.sqrt((n - 1) / n * ((without - without.mean(0)) ** 2).sum(0)))


def _on_cloglog(whole: Array, without: Array, t: float) -> tuple[Array, Array]:
    """Intervals of shares on the scale ln(−ln S), on which they stay between 0 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.log(-np.log(whole))
        error = _jackknife_error(np.log(-np.log(without)))
        low, high = np.exp(-np.exp(at + t * error)), np.exp(-np.exp(at - t * error))
    certain = (whole == 1) | (whole == 0)
    unknown = ~np.isfinite(low) | ~np.isfinite(high)  # a share that hangs on one group
    low, high = np.where(unknown, 0.0, low), np.where(unknown, 1.0, high)
    return np.where(certain, whole, low), np.where(certain, whole, high)


def _on_log(whole: float, without: Array, t: float) -> tuple[float, float]:
    if not whole > 0 or not (without > 0).all():  # NaN too: all the time that was watched is one group's
        return 0.0, float("inf")
    error = float(_jackknife_error(np.log(without)))
    return float(whole * np.exp(-t * error)), float(whole * np.exp(t * error))

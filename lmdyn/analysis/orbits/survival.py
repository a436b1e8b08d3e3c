"""Duration of chaos if the end was not observed for some orbits: survival, escape rates, restricted means."""

from dataclasses import dataclass

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor

__all__ = ["Survival", "survival"]


@dataclass(frozen=True)
class Survival:
    """Share of orbits that are still in their transient, over time.

    Attributes:
        times: (times,) float64, 0 and the lengths at which a transient ended, increasing, in the unit of the lengths.
        survival: (times,) Kaplan–Meier share of orbits whose transient is longer than each of the times.
        escape_rate: κ, with survival decreasing like exp(−κt): number of transients that ended, divided by the total
            observed time; 0 if none ended, NaN without observed time.
        restricted_mean: mean of min(length, horizon), the area under the curve, which is not biased by censoring.
    """

    times: Float[Tensor, "times"]
    survival: Float[Tensor, "times"]
    escape_rate: float
    restricted_mean: float


def survival(
    lengths: Real[Tensor, "n"], censored: Bool[Tensor, "n"], *, horizon: float | None = None
) -> Survival:
    """Estimate the survival of transients, ended or censored.

    A censored length is a lower bound. Its orbit counts as one that lasts up to this length, and is left out after it:
    a mean of the ended ones alone would be too short, as would one that uses the bounds as lengths.

    There are no intervals. Orbits of one network are similar, so an interval over orbits is too narrow for statements
    about networks: compute the numbers for each network, and the interval of their mean over networks. For independent
    orbits, ``scipy.stats.ecdf(…).sf.confidence_interval`` is Greenwood's interval of the curve.

    Args:
        lengths: (n,) lengths of transients, at least 0; 0 for an orbit without one.
        censored: (n,) whether the end was not observed.
        horizon: upper limit of the restricted mean; None uses the longest length.

    Raises:
        ValueError: if there are no orbits, if lengths are negative or infinite, or if no orbit was followed to the
            horizon.

    Reference: Kaplan & Meier 1958; Lai & Tél 2011, "Transient Chaos", chapter 1 (escape rate).

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
    last = float(length.max()) if horizon is None else float(horizon)
    if not last >= 0 or (length.max() < last and not ended[length == length.max()].all()):
        raise ValueError(
            f"no orbit was followed beyond {length.max():g}, and the horizon is {last:g}: use a horizon from 0 to it, "
            "or follow the orbits further"
        )
    held = scipy.stats.CensoredData(uncensored=length[ended], right=length[~ended])
    curve = scipy.stats.ecdf(held).sf
    times = np.unique(np.concatenate([[0.0], length[ended]]))
    before = np.append(times[times < last], last)
    observed = length.sum()
    rate = float((ended & (length > 0)).sum() / observed) if observed > 0 else float("nan")
    mean = float((curve.evaluate(before[:-1]) * np.diff(before)).sum())
    shares = np.asarray(curve.evaluate(times), dtype=np.float64)
    return Survival(torch.from_numpy(times), torch.from_numpy(shares), rate, mean)

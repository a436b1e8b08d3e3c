"""Length of the chaotic part of a trajectory before it ends on a regular attractor."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Rule", "Transients", "transient_length"]

Rule = Literal["running_mean", "sign_change"]


@dataclass(frozen=True)
class Transients:
    """Lengths of chaotic transients.

    Attributes:
        length: (batch,) number of steps, a multiple of τ; 0 without a chaotic transient, the horizon if censored.
        censored: (batch,) whether the transient did not end within the horizon: its length is a lower bound.
        mean_exponent: (batch,) float64 mean λ over the windows before the end; NaN if the length is 0.
    """

    length: Int[Tensor, "batch"]
    censored: Bool[Tensor, "batch"]
    mean_exponent: Float[Tensor, "batch"]


@torch.no_grad()
def transient_length(
    exponents: Float[Tensor, "windows batch"],
    tau: int,
    width: int = 20,
    recurred_at: Int[Tensor, "batch"] | None = None,
    rule: Rule = "running_mean",
) -> Transients:
    """Compute the length of chaotic transients: until the running mean of λ stays at or below 0, or the state recurs.

    The running mean of window w is that of windows w … w + width − 1, because single windows are noisy. The end is the
    first window from which on no running mean is positive, or the one in which the state recurs, whichever is first.

    The mean looks forward and is weighted by size: a transient of L windows of λ₊ counts as none if a calm phase of λ₋
    follows with L·λ₊ ≤ (width − L)·|λ₋|, and an end in the last ``width`` windows may be noise. The rule
    ``sign_change`` has no width and uses only signs: the end is the window at which the number of positive windows
    minus the number of negative windows before it is largest (the most likely place of a single change); a row is
    censored if that is its horizon.

    NaN windows are left out of all means. Windows from which on a row is NaN to the end (it was no longer followed, or
    diverged) count as if they did not exist: the row's horizon is its last window with a value, and if it has fewer
    than ``width`` windows, the only running mean is that of all of them. A row with only NaN has a horizon of 0 and is
    censored.

    Args:
        exponents: (windows, batch) local Lyapunov exponents λ in time order.
        tau: number of steps in a window.
        width: number of windows in the running mean.
        recurred_at: (batch,) step at which the state is known to be on a closed orbit, −1 for none.
        rule: ``running_mean``, or ``sign_change``, which ignores ``width``.

    Raises:
        ValueError: if there are fewer windows than ``width``, or if ``width`` or ``tau`` is below 1.

    Reference: Inoue et al. 2022, section II.B and figure 4D; the rule is that of lmdyn; the publication determines the
        end by inspection.

    Example:
        >>> falls = torch.tensor([[0.2], [0.1], [0.2], [-0.3], [-0.2], [-0.3]])
        >>> found = transient_length(falls, tau=50, width=2)
        >>> found.length, found.censored, found.mean_exponent
        (tensor([100]), tensor([False]), tensor([0.1500], dtype=torch.float64))
    """
    windows = len(exponents)
    if tau < 1 or width < 1:
        raise ValueError(f"tau and width must be at least 1, got tau={tau}, width={width}")
    if rule not in get_args(Rule):
        raise ValueError(f"rule is {rule!r}: expected {' or '.join(map(repr, get_args(Rule)))}")
    if width > windows:
        raise ValueError(
            f"a running mean over {width} windows requires at least as many windows, got {windows}: "
            "iterate for longer, or use a smaller width"
        )
    known = ~exponents.isnan()
    values = torch.where(known, exponents, 0).double()
    time = torch.arange(windows, device=exponents.device)[:, None]
    horizon = torch.where(known, time + 1, 0).amax(0)
    if rule == "sign_change":
        gained = torch.cat([torch.zeros_like(values[:1]), values.sign().cumsum(0)])
        end = gained.argmax(0)  # the first of equal maxima
        censored = (horizon == 0) | (end == horizon)
    else:
        # The sign of a mean is that of its sum. Each window is summed separately: differences of running totals would
        # turn the zeros of a quasi-periodic orbit into rounding errors of either sign.
        sums = values.unfold(0, width, 1).sum(-1)
        last_start = (horizon - width).clamp(min=0)
        begins = time[: len(sums)]
        end = torch.where((sums > 0) & (begins <= last_start), begins + 1, 0).amax(0)
        censored = (end > last_start) | (horizon == 0)
    end = torch.where(censored, horizon, end)
    if recurred_at is not None:
        recurs = recurred_at >= 0
        end = torch.where(recurs, torch.minimum(end, recurred_at // tau), end)
        censored = censored & ~recurs
    before = known & (time < end)
    mean = torch.where(before, values, 0).sum(0) / before.sum(0)
    return Transients(end * tau, censored, mean)

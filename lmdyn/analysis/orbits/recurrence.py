"""Closed orbits: when a state recurs, with which period, and which trajectories end on the same attractor."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.orbits.trajectories import Map, of_states, per_row, repeat, state_norm

__all__ = ["Attractors", "Recurrence", "attractors"]

_OLD = 0.25  # age of the saved state, as a share of its own step, at which it is replaced


class Recurrence:
    """Detects recurrence of trajectories, keeping one earlier state for each row.

    Each new state is compared with the saved one: a match is ‖x − saved‖ ≤ tolerance · ‖x‖. The first match, p steps
    after the saved state, is a candidate that must match again at 2p. The orbit is then closed with period p if it has
    also arrived: movements of d₁ in the first p steps and d₂ in all 2p, if they continue to shrink by the same factor
    (d₂ − d₁)/d₁, lead to a distance of d₁²/(2d₁ − d₂), which must also be within the tolerance. (A slow approach moves
    by less than the tolerance long before it arrives; a drift does not shrink.) If one of these conditions fails, the
    row starts again from its present state. Otherwise, the saved state is replaced by the present one when it is older
    than a quarter of its own step (in Brent's algorithm, than this step). Each row follows its own schedule, and
    results do not depend on other rows. The work of an update is that of two norms, without synchronization with the
    device.

    The period is that with which states agree at the onset: for an oscillating approach (as near a period doubling),
    this may be a multiple of the period of the orbit, which :func:`attractors` finds from the final states.

    The onset is the step of the saved state, which is at or after the true one, t₀: it exceeds t₀ by at most t₀ / 4 + 1
    if the period fits into that age, and otherwise by about four periods.

    Args:
        tolerance: relative distance of a match: above the rounding of the map (about 1e-6 in float32), and below the
            distance between states of one orbit, because a smaller orbit is taken for a fixed point.
        largest: whether distances are relative to the largest state so far, not to the present one, for orbits that
            end at 0.

    Attributes:
        recurred_at: step (number of updates before) of a state known to be on a closed orbit, (batch,); −1 for none.
        period: period of the closed orbit in updates, (batch,); 0 for none.

    Raises:
        ValueError: if the tolerance is below 0.

    Reference: Brent 1980, "An improved Monte Carlo factorization algorithm", section 2.

    Example:
        >>> recurrence, x = Recurrence(tolerance=1e-6), torch.tensor([[8.0], [1.0]])
        >>> for _ in range(40):
        ...     recurrence.update(x)
        ...     x = torch.where(x == 8, 5, torch.where(x > 1, x - 1, x))  # 8 5 4 3 2 1 1 1 …; 1 1 1 …
        >>> recurrence.period, recurrence.recurred_at
        (tensor([1, 1]), tensor([5, 0]))
    """

    def __init__(self, tolerance: float, *, largest: bool = False) -> None:
        if not tolerance >= 0:
            raise ValueError(f"tolerance must be a relative distance of at least 0, got {tolerance}")
        self.tolerance, self._largest = tolerance, largest
        self._size: Tensor | None = None
        self._step = 0
        self._saved: Tensor | None = None

    @torch.no_grad()
    def update(self, x: Float[Tensor, "batch *state"]) -> None:
        """Process the next state; the first one is step 0."""
        size = state_norm(x)
        if self._largest:
            size = torch.where(size.isfinite(), size, 0)
            self._size = size if self._size is None else torch.maximum(self._size, size)
            size = self._size
        if self._saved is None:
            self._saved = x.clone()
            zeros = x.new_zeros(len(x), dtype=torch.int64)
            self._saved_at, self._candidate, self.period = zeros, zeros.clone(), zeros.clone()
            self.recurred_at = zeros - 1
            self._moved = x.new_zeros(len(x), dtype=torch.float64)
            return
        self._step += 1
        age = self._step - self._saved_at
        open_, waiting = self.period == 0, self._candidate > 0
        away = state_norm(x - self._saved)
        match = (away <= self.tolerance * size) & size.isfinite()
        decides = open_ & waiting & (age == 2 * self._candidate)
        closed = decides & match & (extrapolated(self._moved, away) <= self.tolerance * size)
        self.recurred_at = torch.where(closed, self._saved_at, self.recurred_at)
        self.period = torch.where(closed, self._candidate, self.period)
        new = open_ & ~waiting & match
        too_old = (age >= _OLD * self._saved_at) & open_ & ~waiting & ~match
        replaced = too_old | (decides & ~closed)
        self._candidate = torch.where(new, age, torch.where(replaced, 0, self._candidate))
        self._moved = torch.where(new, away, self._moved)
        self._saved = torch.where(per_row(replaced, x), x, self._saved)
        self._saved_at = torch.where(replaced, self._step, self._saved_at)


def extrapolated(once: Float[Tensor, "batch"], twice: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """Extrapolate a movement that continues to shrink by the same factor per period.

    Args:
        once: (batch,) distance after one period, at least 0.
        twice: (batch,) distance after two periods.

    Returns:
        Tensor of shape (batch,): once / (1 − c), with c = (twice − once) / once, at least 0; infinite for c ≥ 1; 0 if
        nothing moved.

    Example:
        >>> extrapolated(torch.tensor([0.5, 1.0, 0.0]), torch.tensor([0.75, 2.0, 0.0]))  # ½ + ¼ + …; a drift; at rest
        tensor([1., inf, 0.])
    """
    rest = once - (twice - once).clamp(min=0)  # once · (1 − c)
    return torch.where(rest > 0, once**2 / rest, torch.where((once == 0) & (twice == 0), 0.0, torch.inf))


@dataclass(frozen=True)
class Attractors:
    """Attractors on which trajectories ended.

    Attributes:
        period: (batch,) 1 for a fixed point, p for a periodic orbit, 0 if the state did not recur.
        label: (batch,) equal for two rows on the same orbit, from 0 in order of appearance; −1 for period 0.
    """

    period: Int[Tensor, "batch"]
    label: Int[Tensor, "batch"]


@of_states
def attractors(f: Map, x: Float[Tensor, "batch *state"], max_period: int, tolerance: float) -> Attractors:
    """Find the period of the orbit of each row, and which rows share an orbit.

    The period is the smallest p up to ``max_period`` for which the state recurs after p and after 2p steps: ‖fᵖ(x) −
    x‖ ≤ tolerance · ‖x‖. Two rows share an orbit if one of its states, after all these steps, is as near to a state of
    the other as both may still be to their attractor: within the tolerance and the extrapolation of their last
    period's movement, if it continues to shrink by the same factor (0.999 at most).

    The function makes 2·max_period steps of all rows and, for each attractor found, as many steps as its period.

    Args:
        f: map of (batch, *state) to the same shape.
        x: (batch, *state) states at the end of long trajectories.
        max_period: longest period to search for.
        tolerance: relative distance, as in :class:`Recurrence`.

    Raises:
        ValueError: if the precision is below float32, or if ``max_period`` is below 1.

    Example:
        >>> two_wells = lambda x: 1.5 * x - 0.5 * x**3
        >>> ended = attractors(two_wells, torch.tensor([[1.0], [-1.0], [1.0]]), max_period=4, tolerance=1e-6)
        >>> ended.period, ended.label
        (tensor([1, 1, 1]), tensor([0, 1, 0]))
    """
    if max_period < 1:
        raise ValueError(f"max_period must be at least 1, got {max_period}")
    step, start = repeat(f, 1), x
    back = x.new_zeros(2 * max_period, len(x), dtype=torch.bool)
    away = x.new_zeros(2 * max_period, len(x), dtype=torch.float64)
    for t in range(2 * max_period):
        x = step(x)
        gap, size = state_norm(x - start), state_norm(x)
        back[t], away[t] = (gap <= tolerance * size) & size.isfinite(), gap / size
    confirmed = back[:max_period] & back[1::2]  # recurred at p, and at 2p
    periods = torch.arange(1, max_period + 1, device=x.device)[:, None]
    period = torch.where(confirmed, periods, max_period + 1).amin(0)
    period = torch.where(period > max_period, 0, period)
    # bound on the distance to the attractor: steps that shrink by a factor c per period sum up to the first / (1 − c)
    at = period.clamp(min=1)[None] - 1
    once = away.gather(0, at)[0]
    twice = away.gather(0, 2 * at + 1)[0]
    radius = torch.minimum(extrapolated(once, twice), 1000 * once) + 2 * tolerance
    label = torch.full_like(period, -1)
    count = 0
    while len(left := ((period > 0) & (label < 0)).nonzero()):
        first = int(left[0])
        # all rows are stepped, of which one is used: a map may hold data of each row, such as a mask
        orbit, same = x, torch.zeros_like(label, dtype=torch.bool)
        for _ in range(int(period[first])):
            close = state_norm(x - orbit[first : first + 1]) <= (radius + radius[first]) * state_norm(x)
            same |= close & (period == period[first])
            orbit = step(orbit)
        same[first] = True  # also if its neighbourhood is empty, at a tolerance of 0
        label = torch.where(same & (period > 0) & (label < 0), count, label)
        count += 1
    return Attractors(period, label)

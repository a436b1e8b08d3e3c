"""Orbits that close: when a state recurs, with which period, and which trajectories end on the same attractor."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.orbits.trajectories import Map, check_precision, repeat, state_norm

__all__ = ["Attractors", "Recurrence", "attractor_types", "attractors"]


class Recurrence:
    """Watches trajectories for recurrence, keeping one earlier state a row.

    Each new state is compared with the saved one: a match is ‖x − saved‖ ≤ tolerance · ‖x‖. The first match, p steps
    after the saved state, is a candidate that must match again at 2p. Then the orbit is closed with period p if it has
    also arrived: movements of d₁ in the first p steps and d₂ in all 2p, which go on shrinking by the same factor
    (d₂ − d₁)/d₁, lead to a distance of d₁²/(2d₁ − d₂), which must be within the tolerance, too. (A slow approach
    moves by less than the tolerance long before it is there; a drift does not shrink.) If one of these fails, the row
    starts again from its present state. Otherwise the saved state is replaced by the present one when it is older than
    a share (``growth`` − 1) of its own step (Brent's algorithm has growth 2). Rows follow one schedule each, whenever
    they match, and from their own first finite state on: a row that is NaN so far has not begun, and what is found of
    it does not depend on the others. The work of an update is that of two norms; nothing waits for the device.

    The period is that with which states agree at the onset: where an orbit is approached in oscillations (as next to
    a period doubling) this may be a multiple of its own, which :func:`attractors` finds from the final states.

    The onset found is the step of the saved state, which is at or after the true one, t₀: it exceeds t₀ by at most
    (growth − 1)·t₀ + 1 where the period fits into that age, and else by about p/(growth − 1).

    Args:
        tolerance: relative distance of a match: above the rounding of the map (some 1e-6 in float32), below the
            distance between states of one orbit, since a smaller orbit is taken for a fixed point.
        growth: above 1.
        largest: distances are relative to the largest state so far, not to the present one: of orbits that end at 0.

    Raises:
        ValueError: tolerance below 0, growth not above 1.

    Reference: Brent 1980, "An improved Monte Carlo factorization algorithm", section 2.

    Example:
        >>> recurrence, x = Recurrence(tolerance=1e-6), torch.tensor([[8.0], [1.0]])
        >>> for _ in range(40):
        ...     recurrence.update(x)
        ...     x = torch.where(x == 8, 5, torch.where(x > 1, x - 1, x))  # 8 5 4 3 2 1 1 1 …; 1 1 1 …
        >>> recurrence.period, recurrence.recurred_at
        (tensor([1, 1]), tensor([5, 0]))
    """

    def __init__(self, tolerance: float, growth: float = 1.25, *, largest: bool = False) -> None:
        if not tolerance >= 0:
            raise ValueError(f"tolerance is a relative distance, 0 or more: got {tolerance}")
        if not growth > 1:
            raise ValueError(f"growth is the age at which a saved state is replaced, above 1: got {growth}")
        self.tolerance, self.growth, self._largest = tolerance, growth, largest
        self._size: Tensor | None = None
        self._step = 0
        self._saved: Tensor | None = None

    @property
    def recurred_at(self) -> Int[Tensor, "batch"]:
        """(batch,) step (number of updates before) of a state known to be on a closed orbit; −1 if there is none."""
        self._check_updated()
        return self._recurred_at

    @property
    def period(self) -> Int[Tensor, "batch"]:
        """(batch,) period of the closed orbit in updates; 0 if there is none."""
        self._check_updated()
        return self._period

    @torch.no_grad()
    def update(self, x: Float[Tensor, "batch *state"]) -> None:
        """Look at the next state; the first one is step 0.

        Raises:
            ValueError: another shape than before.
        """
        size = state_norm(x)
        if self._largest:
            size = torch.where(size.isfinite(), size, 0)
            self._size = size if self._size is None else torch.maximum(self._size, size)
            size = self._size
        if self._saved is None:
            self._saved = x.clone()
            zeros = torch.zeros(len(x), dtype=torch.int64, device=x.device)
            self._saved_at, self._candidate, self._period = zeros, zeros.clone(), zeros.clone()
            self._recurred_at = zeros - 1
            self._began = torch.where(_finite(x), 0, -1)
            self._moved = torch.zeros(len(x), dtype=torch.float64, device=x.device)
            return
        if x.shape != self._saved.shape:
            raise ValueError(f"a state of {tuple(x.shape)} after states of {tuple(self._saved.shape)}")
        self._step += 1
        begins = (self._began < 0) & _finite(x)
        self._began = torch.where(begins, self._step, self._began)
        age = self._step - self._saved_at
        open_, waiting = self._period == 0, self._candidate > 0
        away = state_norm(x - self._saved)
        match = (away <= self.tolerance * size) & size.isfinite()
        decides = open_ & waiting & (age == 2 * self._candidate)
        closed = decides & match & (extrapolated(self._moved, away) <= self.tolerance * size)
        self._recurred_at = torch.where(closed, self._saved_at, self._recurred_at)
        self._period = torch.where(closed, self._candidate, self._period)
        new = open_ & ~waiting & match
        own_step = self._saved_at - self._began.clamp(min=0)
        too_old = (age >= (self.growth - 1) * own_step) & open_ & ~waiting & ~match
        replaced = too_old | (decides & ~closed) | begins
        self._candidate = torch.where(new, age, torch.where(replaced, 0, self._candidate))
        self._moved = torch.where(new, away, self._moved)
        self._saved = torch.where(replaced.reshape(-1, *[1] * (x.ndim - 1)), x, self._saved)
        self._saved_at = torch.where(replaced, self._step, self._saved_at)

    def _check_updated(self) -> None:
        if self._saved is None:
            raise ValueError("no states so far: call update(x) at each step first")


def extrapolated(once: Float[Tensor, "batch"], twice: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """Where a movement leads that goes on shrinking by the same factor a period.

    Args:
        once: (batch,) distance after a period, 0 or more.
        twice: (batch,) distance after two periods.

    Returns:
        (batch,) once / (1 − c), c = (twice − once) / once from 0 on; infinity for c ≥ 1; 0 where nothing moved.

    Example:
        >>> extrapolated(torch.tensor([0.5, 1.0, 0.0]), torch.tensor([0.75, 2.0, 0.0]))  # ½ + ¼ + …; a drift; at rest
        tensor([1., inf, 0.])
    """
    rest = once - (twice - once).clamp(min=0)  # once · (1 − c)
    return torch.where(rest > 0, once**2 / rest, torch.where((once == 0) & (twice == 0), 0.0, torch.inf))


def _finite(x: Tensor) -> Tensor:
    """(batch,) whether each row's state is finite."""
    return x.flatten(1).isfinite().all(1)


@dataclass(frozen=True)
class Attractors:
    """On which attractors trajectories ended.

    Attributes:
        period: (batch,) 1 for a fixed point, p for a periodic orbit, 0 where the state did not recur.
        label: (batch,) equal where two rows are on the same orbit, from 0 in order of appearance; −1 for period 0.
        tolerance: relative distance of a match.
        max_period: longest period that was looked for.
    """

    period: Int[Tensor, "batch"]
    label: Int[Tensor, "batch"]
    tolerance: float
    max_period: int


@torch.no_grad()
def attractors(f: Map, x: Float[Tensor, "batch *state"], max_period: int, tolerance: float) -> Attractors:
    """Period of the orbit on which each row is, and which rows share one.

    The period is the least p up to ``max_period`` after which, and after twice which, the state is back:
    ‖fᵖ(x) − x‖ ≤ tolerance · ‖x‖. Two rows share an orbit where one of its states, after all these steps, is as
    near to a state of the other as both may still be to their attractor: the tolerance, and what their last period's
    movement extrapolates to if it goes on shrinking by the same factor (0.999 at most).

    Takes 2·max_period steps of all rows and, for each attractor found, as many as its period.

    Args:
        f: map of (batch, *state) to the same.
        x: (batch, *state) states at the end of long trajectories.
        max_period: longest period to look for.
        tolerance: relative distance, as that of :class:`Recurrence`.

    Raises:
        ValueError: precision below float32, max_period below 1.

    Example:
        >>> two_wells = lambda x: 1.5 * x - 0.5 * x**3
        >>> ended = attractors(two_wells, torch.tensor([[1.0], [-1.0], [1.0]]), max_period=4, tolerance=1e-6)
        >>> ended.period, ended.label
        (tensor([1, 1, 1]), tensor([0, 1, 0]))
    """
    check_precision(x)
    if max_period < 1:
        raise ValueError(f"max_period is 1 or more, got {max_period}")
    step, start = repeat(f, 1), x
    back = torch.zeros(2 * max_period, len(x), dtype=torch.bool, device=x.device)
    away = torch.zeros(2 * max_period, len(x), dtype=torch.float64, device=x.device)
    for t in range(2 * max_period):
        x = step(x)
        back[t] = _near(x, start, tolerance)
        away[t] = state_norm(x - start) / state_norm(x)
    confirmed = back[:max_period] & back[1::2]  # back at p, and at 2p
    periods = torch.arange(1, max_period + 1, device=x.device)[:, None]
    period = torch.where(confirmed, periods, max_period + 1).amin(0)
    period = torch.where(period > max_period, 0, period)
    # how far the attractor may still be: steps of a period that shrink by a factor c sum up to the first / (1 − c)
    at = period.clamp(min=1)[None] - 1
    once, twice = away.gather(0, at)[0], away.gather(0, 2 * at + 1)[0]
    radius = torch.minimum(extrapolated(once, twice), 1000 * once) + 2 * tolerance
    label = torch.full_like(period, -1)
    count = 0
    while len(left := ((period > 0) & (label < 0)).nonzero()):
        first = int(left[0])
        # all rows step along, of which one is looked at: a map may hold something of each row, as a mask
        orbit, same = x, torch.zeros_like(label, dtype=torch.bool)
        for _ in range(int(period[first])):
            close = state_norm(x - orbit[first : first + 1]) <= (radius + radius[first]) * state_norm(x)
            same |= close & (period == period[first])
            orbit = step(orbit)
        same[first] = True  # also where its neighbourhood holds nothing, at a tolerance of 0
        label = torch.where(same & (period > 0) & (label < 0), count, label)
        count += 1
    return Attractors(period, label, tolerance, max_period)


def attractor_types(
    period: Int[Tensor, "batch"],
    mean_exponent: Float[Tensor, "batch"],
    resolution: float,
    recurred: Bool[Tensor, "batch"] | None = None,
) -> list[str]:
    """What each trajectory is at its horizon.

    - "fixed point": period 1; "periodic": a longer one, whatever the exponent;
    - "chaotic": no recurrence and λ above the resolution;
    - "quasi-periodic": no recurrence and |λ| within it (also a chaos too weak to be told from it);
    - "converging": no recurrence yet, though λ is below −resolution;
    - "undetermined": no recurrence and no exponent (NaN), as of a diverged row.

    Args:
        period: (batch,) 0 without recurrence.
        mean_exponent: (batch,) mean λ over the last windows before the horizon, nats a step.
        resolution: the |λ| that is not told from 0: the standard error of the mean, at least.
        recurred: (batch,) the state is known to have recurred, though with a period that was not looked for.

    Raises:
        ValueError: a negative resolution.

    Example:
        >>> attractor_types(torch.tensor([1, 2, 0, 0]), torch.tensor([-0.1, -0.1, 0.3, 1e-5]), resolution=1e-3)
        ['fixed point', 'periodic', 'chaotic', 'quasi-periodic']
    """
    if not resolution >= 0:
        raise ValueError(f"resolution is the |λ| that is not told from 0, 0 or more: got {resolution}")

    def kind(p: int, exponent: float) -> str:
        if p:
            return "fixed point" if p == 1 else "periodic"
        if exponent != exponent:
            return "undetermined"
        if abs(exponent) <= resolution:
            return "quasi-periodic"
        return "chaotic" if exponent > 0 else "converging"

    if recurred is not None:
        period = torch.where((period == 0) & recurred, 2, period)  # some period
    return [kind(p, e) for p, e in zip(period.tolist(), mean_exponent.tolist(), strict=True)]


def _near(x: Tensor, y: Tensor, tolerance: float) -> Tensor:
    """Where ‖x − y‖ ≤ tolerance · ‖x‖; nowhere for values that are not finite."""
    size = state_norm(x)
    return (state_norm(x - y) <= tolerance * size) & size.isfinite()

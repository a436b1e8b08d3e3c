"""Long trajectories of an encoder: local Lyapunov exponents, on the map of one token once all tokens are equal."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.dynamics.synchronization import (
    THRESHOLD,
    DeviationVariant,
    check_floor,
    deviation,
    deviation_floor,
)
from lmdyn.analysis.orbits.lyapunov import check_windows, random_perturbation, rescaled
from lmdyn.analysis.orbits.recurrence import Recurrence
from lmdyn.analysis.orbits.trajectories import Map, check_precision, part_of, repeat, state_norm

__all__ = ["LongRun", "long_run"]


@dataclass(frozen=True)
class LongRun:
    """Result of :func:`long_run`.

    Attributes:
        exponents: (windows, batch) float64, λ of each window in nats per step. NaN in the window in which the reduced
            map took over, after a trajectory was ended, and from the window on in which a state was not finite.
        saturated: (windows, batch) whether the perturbation shrank below what the precision resolves; the exponent is
            then an upper bound.
        deviations: (kept + 1, batch) float64 D(t), t = 0 … kept, while the full map ran; NaN afterwards.
        synchronized_at: (batch,) first t with D(t) below the threshold; −1 for none within the steps.
        switched_at: (batch,) step from which the reduced map was iterated; −1 for never.
        recurred_at: (batch,) step of a state to which the trajectory returned twice; −1 for none.
        ended_at: (batch,) step after which a recurrent trajectory was no longer followed; −1 if it was followed to the
            end.
        diverged: (batch,) whether some state, or the perturbed one, was not finite.
        observed: (windows, batch) first component of the mean token at the end of each window; NaN for windows that
            were not run.
        final: (batch, d) mean token of the last state.
        final_full: (batch, tokens, d) last state of trajectories on the full map; NaN after the reduced one took over.
        delta: (batch, d) last perturbation of trajectories on the reduced map, rescaled; NaN for others.
        delta_full: (batch, tokens, d) last perturbation of trajectories on the full map; NaN after the reduced one
            took over.
        floor: deviation that rounding maintains among equal tokens; NaN without a reduced map.
        tau: number of steps of a window.
        epsilon: norm of the joint perturbation.
        dtype: precision of the states.
    """

    exponents: Float[Tensor, "windows batch"]
    saturated: Bool[Tensor, "windows batch"]
    deviations: Float[Tensor, "times batch"]
    synchronized_at: Int[Tensor, "batch"]
    switched_at: Int[Tensor, "batch"]
    recurred_at: Int[Tensor, "batch"]
    ended_at: Int[Tensor, "batch"]
    diverged: Bool[Tensor, "batch"]
    observed: Float[Tensor, "windows batch"]
    final: Float[Tensor, "batch d"]
    final_full: Float[Tensor, "batch tokens d"]
    delta: Float[Tensor, "batch d"]
    delta_full: Float[Tensor, "batch tokens d"]
    floor: float
    tau: int
    epsilon: float
    dtype: torch.dtype


@torch.no_grad()
def long_run(
    f: Map,
    x: Float[Tensor, "batch tokens d"],
    tau: int,
    steps: int,
    *,
    reduced: Map | None = None,
    epsilon: float = 1.0,
    threshold: float = THRESHOLD,
    keep: int = 0,
    end_recurrent: bool = False,
    tolerance: float = 1e-5,
    batch_size: int = 16,
    seed: int = 0,
    rows: Sequence[int] | None = None,
    variant: DeviationVariant = "printed",
) -> LongRun:
    """Compute local Lyapunov exponents along long trajectories, and detect synchronization and recurrence.

    This is the publication's algorithm: a random perturbation of norm ε over the joint state; every τ steps λ =
    ln(‖δ‖/ε)/τ, and δ is rescaled to ε. With ``reduced``, a trajectory switches to the map of one token at the end of
    the window in which its tokens have synchronized. It starts from their mean token and the mean of their
    perturbations, whose norm ε over N equal tokens is ε/√N for one. The exponent of that window is NaN.

    Memory does not grow with the steps, except for two numbers per window (and D(t) while it is kept).

    Args:
        f: the map of (batch, tokens, d). A map that depends on the rows must belong to the rows of ``x``.
        x: initial states of the trajectories.
        tau: number of steps of a window.
        steps: total number of steps, a multiple of ``tau``.
        reduced: the map of (batch, d) for equal tokens, as returned by :func:`~lmdyn.analysis.synchronized_map`; None
            uses the full map throughout.
        epsilon: norm of the joint perturbation.
        threshold: D below which tokens count as synchronized.
        keep: last step t for which D(t) is kept.
        end_recurrent: whether to stop following a trajectory that has returned to a state for the second time.
        tolerance: distance, relative to the norm of the state, at which a state counts as the same.
        batch_size: number of rows, without their perturbed copies, to which the full map is applied at once; the
            reduced map takes all.
        seed: seed of the first perturbations.
        rows: number of each row in the whole set, from which its perturbation is drawn; 0 … batch − 1 by default.
        variant: variant of D, see :func:`~lmdyn.analysis.deviation`.

    Raises:
        ValueError: if the precision is below float32; if ``tau`` does not divide ``steps``; if numbers are not above
            0; with ``reduced``, if the numerical floor of D is not below the threshold.

    Reference: Inoue et al. 2022, algorithm A1; sections II.A and II.B.

    Example:
        >>> f = lambda x: 2 * (x - x.mean(1, keepdim=True)) / 8 + (3.8 * x * (1 - x)).mean(1, keepdim=True)
        >>> x = torch.rand(2, 4, 1, generator=torch.Generator().manual_seed(0)).double()
        >>> run = long_run(f, x, 10, 2000, reduced=lambda x: 3.8 * x * (1 - x), epsilon=1e-6)
        >>> run.switched_at.tolist(), round(float(run.exponents.nanmean()), 1)  # 0.43 for one token
        ([10, 10], 0.4)
    """
    check_precision(x)
    if getattr(f, "masked", False):
        raise ValueError(
            "trajectories are dropped when they end, but masks belong to rows: create the map without a mask"
        )
    check_windows(tau, steps)
    if epsilon <= 0 or batch_size < 1 or tolerance <= 0 or keep < 0:
        raise ValueError(
            "expected epsilon and tolerance above 0, batch_size >= 1 and keep >= 0, got "
            f"{epsilon}, {tolerance}, {batch_size}, {keep}"
        )
    state = _State(x, tau, steps, min(keep, steps), epsilon, tolerance, variant)
    delta = random_perturbation(x, epsilon, seed, rows)
    parts = torch.arange(len(x), device=x.device).split(batch_size)
    if reduced is None:
        for part in parts:
            _full(state, part_of(f, part), x[part], delta[part], part, None, end_recurrent)
        return state.result(float("nan"))
    floor = float(deviation_floor(part_of(f, slice(batch_size)), x[:batch_size], 64, variant))
    check_floor(floor, threshold)
    tokens = math.sqrt(x.shape[1])
    starts = torch.full((len(x), x.shape[2]), float("nan"), dtype=x.dtype, device=x.device)
    perturbed = torch.zeros_like(starts)
    for part in parts:
        found = _full(state, part_of(f, part), x[part], delta[part], part, threshold, end_recurrent)
        starts[part], perturbed[part] = found.mean_token, found.mean_delta
    norm = state_norm(perturbed)[:, None].clamp(min=torch.finfo(torch.float64).tiny)
    perturbed = (perturbed * (epsilon / tokens / norm)).to(x.dtype)
    _reduced(state, reduced, starts, perturbed, epsilon / tokens, end_recurrent)
    return state.result(floor)


class _State:
    """All records of all trajectories."""

    def __init__(
        self,
        x: Tensor,
        tau: int,
        steps: int,
        keep: int,
        epsilon: float,
        tolerance: float,
        variant: DeviationVariant,
    ) -> None:
        n, windows, device = len(x), steps // tau, x.device
        self.tau, self.windows, self.keep, self.epsilon, self.tolerance = (
            tau,
            windows,
            keep,
            epsilon,
            tolerance,
        )
        self.dtype, self.variant = x.dtype, variant
        nan = float("nan")
        self.exponents = torch.full((windows, n), nan, dtype=torch.float64, device=device)
        self.saturated = torch.zeros((windows, n), dtype=torch.bool, device=device)
        self.deviations = torch.full((keep + 1, n), nan, dtype=torch.float64, device=device)
        never = torch.full((n,), -1, dtype=torch.int64, device=device)
        self.synchronized_at, self.switched_at = never.clone(), never.clone()
        self.recurred_at, self.ended_at = never.clone(), never.clone()
        self.diverged = torch.zeros(n, dtype=torch.bool, device=device)
        self.observed = torch.full((windows, n), nan, dtype=x.dtype, device=device)
        self.final = torch.full((n, x.shape[-1]), nan, dtype=x.dtype, device=device)
        self.final_full = torch.full_like(x, nan)
        self.delta, self.delta_full = torch.full_like(self.final, nan), torch.full_like(x, nan)

    def grown(
        self, x: Tensor, delta: Tensor, first: Tensor, window: int, rows: Tensor, epsilon: float
    ) -> Tensor:
        """Record the exponents of a window, and return the rescaled perturbations."""
        delta, growth, lost, finite = rescaled(x, delta, first, epsilon)
        self.exponents[window, rows] = torch.where(finite, growth / self.tau, torch.nan)
        self.saturated[window, rows] = lost
        self.diverged[rows] |= ~finite
        return delta

    def result(self, floor: float) -> LongRun:
        """Return the records, frozen."""
        return LongRun(
            self.exponents,
            self.saturated,
            self.deviations,
            self.synchronized_at,
            self.switched_at,
            self.recurred_at,
            self.ended_at,
            self.diverged,
            self.observed,
            self.final,
            self.final_full,
            self.delta,
            self.delta_full,
            floor,
            self.tau,
            self.epsilon,
            self.dtype,
        )


@dataclass
class _Synchronized:
    mean_token: Float[Tensor, "rows d"]
    mean_delta: Float[Tensor, "rows d"]


def _full(
    state: _State,
    f: Map,
    x: Tensor,
    delta: Tensor,
    rows: Int[Tensor, "rows"],
    threshold: float | None,
    end_recurrent: bool,
) -> _Synchronized:
    """Iterate the full map, until all of these rows have synchronized, or to the end."""
    found = _Synchronized(_mean(x) * torch.nan, torch.zeros_like(_mean(x)))
    first = delta
    here = torch.arange(len(rows), device=rows.device)  # indices of the rows that still run
    returns = _Returns(state, rows, 0) if end_recurrent else None
    for window in range(state.windows):
        for step in range(window * state.tau, (window + 1) * state.tau):
            if threshold is not None or step <= state.keep:
                _look(state, x, step, rows[here], threshold)
            both = f(torch.cat([x, x + delta]))
            x, delta = both[: len(x)], both[len(x) :] - both[: len(x)]
        delta = state.grown(x, delta, first[here], window, rows[here], state.epsilon)
        step = (window + 1) * state.tau
        if threshold is not None or step <= state.keep:
            _look(state, x, step, rows[here], threshold)
        state.final[rows[here]], state.final_full[rows[here]] = _mean(x), x
        state.delta_full[rows[here]] = delta
        state.observed[window, rows[here]] = state.final[rows[here], 0]
        over = ~x.flatten(1).isfinite().all(1)
        if threshold is not None:
            done = (deviation(x, state.variant) < threshold) & (state.synchronized_at[rows[here]] >= 0)
            at = rows[here[done]]
            state.switched_at[at] = step
            state.exponents[window, at] = torch.nan
            state.final_full[at], state.delta_full[at] = torch.nan, torch.nan
            found.mean_token[here[done]], found.mean_delta[here[done]] = _mean(x[done]), _mean(delta[done])
            over |= done
        if returns is not None:
            over |= returns.found(x.flatten(1), here, window)
        if bool(over.any()):  # the only synchronization with the device in a window
            x, delta, here, f = x[~over], delta[~over], here[~over], part_of(f, ~over)
        if len(here) == 0:
            break
    return found


def _look(state: _State, x: Tensor, step: int, rows: Tensor, threshold: float | None) -> None:
    d = deviation(x, state.variant)
    if step <= state.keep:
        state.deviations[step, rows] = d
    if threshold is not None:
        first = (d < threshold) & (state.synchronized_at[rows] < 0)
        state.synchronized_at[rows] = torch.where(first, step, state.synchronized_at[rows])


def _reduced(
    state: _State, reduced: Map, x: Tensor, delta: Tensor, epsilon: float, end_recurrent: bool
) -> None:
    """Iterate the map of one token, for all rows that have synchronized, each from its own window on."""
    goes_on = (state.switched_at >= 0) & (state.ended_at < 0)
    begins = torch.where(goes_on, state.switched_at // state.tau, state.windows).cpu()
    there = begins[begins < state.windows]
    if len(there) == 0:
        return
    first, last = int(there.min()), int(there.max())
    run = repeat(reduced, state.tau)
    rows = torch.empty(0, dtype=torch.int64, device=x.device)
    now, apart = x[rows], delta[rows]
    everyone = torch.arange(len(x), device=x.device)
    returns = _Returns(state, everyone, first) if end_recurrent else None
    for window in range(first, state.windows):
        new = (begins == window).nonzero()[:, 0].to(x.device)
        if len(new):
            rows, now, apart = (
                torch.cat([rows, new]),
                torch.cat([now, x[new]]),
                torch.cat([apart, delta[new]]),
            )
        if len(rows) == 0:
            if window >= last:
                return
            if returns is not None:  # its clock continues
                returns.found(now, rows, window)
            continue
        both = _run_padded(run, torch.cat([now, now + apart]))
        now, apart = both[: len(now)], both[len(now) :] - both[: len(now)]
        apart = state.grown(now, apart, delta[rows], window, rows, epsilon)
        state.final[rows], state.observed[window, rows] = now, now[:, 0]
        state.delta[rows] = apart
        over = ~now.isfinite().all(1)
        if returns is not None:
            over |= returns.found(now, rows, window)
        if bool(over.any()):  # the only synchronization with the device in a window
            now, apart, rows = now[~over], apart[~over], rows[~over]


class _Returns:
    """Detects trajectories on closed orbits at the end of each window: any period appears as a period in windows."""

    def __init__(self, state: _State, rows: Int[Tensor, "rows"], first: int) -> None:
        self._state, self._rows, self._first = state, rows, first
        self._tracker = Recurrence(state.tolerance)

    def found(
        self, x: Float[Tensor, "running d"], here: Int[Tensor, "running"], window: int
    ) -> Bool[Tensor, "running"]:
        """Return which of the running rows, as indices among all rows, are known to be closed, and record them."""
        every = torch.full((len(self._rows), x.shape[1]), float("nan"), dtype=x.dtype, device=x.device)
        every[here] = x
        self._tracker.update(every)
        at = self._tracker.recurred_at[here]
        closed, rows, tau = at >= 0, self._rows[here], self._state.tau
        self._state.recurred_at[rows] = torch.where(
            closed, (at + self._first + 1) * tau, self._state.recurred_at[rows]
        )
        self._state.ended_at[rows] = torch.where(closed, (window + 1) * tau, self._state.ended_at[rows])
        return closed


def _run_padded(run: Map, x: Tensor) -> Tensor:
    """Pad rows to a power of two on a GPU, so that few CUDA graphs are captured."""
    if not x.is_cuda:
        return run(x)
    more = (1 << (len(x) - 1).bit_length()) - len(x)
    return run(torch.cat([x, x[:1].expand(more, -1)]))[: len(x)]


def _mean(x: Tensor) -> Tensor:
    return x.double().mean(1).to(x.dtype)

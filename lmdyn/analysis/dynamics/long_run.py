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
    mean_token,
)
from lmdyn.analysis.orbits.lyapunov import check_windows, random_perturbation, rescaled
from lmdyn.analysis.orbits.recurrence import Recurrence
from lmdyn.analysis.orbits.trajectories import Map, finite_rows, of_states, part_of, repeat, state_norm

__all__ = ["LongRun", "long_run"]


@dataclass(frozen=True)
class LongRun:
    """Result of :func:`long_run`.

    Attributes:
        exponents: (windows, batch) float64, λ of each window in nats per step. NaN in the window in which the reduced
            map took over, after a trajectory was ended, and from the window on in which a state was not finite.
        deviations: (kept + 1, batch) float64 D(t), t = 0 … kept, while the full map ran; NaN afterwards.
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
        tau: number of steps of a window.
        epsilon: norm of the joint perturbation.
    """

    exponents: Float[Tensor, "windows batch"]
    deviations: Float[Tensor, "times batch"]
    switched_at: Int[Tensor, "batch"]
    recurred_at: Int[Tensor, "batch"]
    ended_at: Int[Tensor, "batch"]
    diverged: Bool[Tensor, "batch"]
    observed: Float[Tensor, "windows batch"]
    final: Float[Tensor, "batch d"]
    final_full: Float[Tensor, "batch tokens d"]
    delta: Float[Tensor, "batch d"]
    delta_full: Float[Tensor, "batch tokens d"]
    tau: int
    epsilon: float


@of_states
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
    if getattr(f, "masked", False):
        raise ValueError(
            "lmdyn cannot drop ended trajectories from a map with masks: create the EncoderMap with masked=False"
        )
    check_windows(tau, steps)
    if epsilon <= 0 or batch_size < 1 or tolerance <= 0 or keep < 0:
        raise ValueError(
            "expected epsilon and tolerance above 0, batch_size >= 1 and keep >= 0, got "
            f"{epsilon=}, {tolerance=}, {batch_size=}, {keep=}"
        )
    if reduced is not None:
        check_floor(deviation_floor(part_of(f, slice(batch_size)), x[:batch_size], 64, variant), threshold)
    run = _unknown(x, tau, steps, min(keep, steps), epsilon)
    below = 0.0 if reduced is None else threshold
    closes = tolerance if end_recurrent else None
    delta = random_perturbation(x, epsilon, seed, rows)
    for part in torch.arange(len(x), device=x.device).split(batch_size):
        _full(run, part_of(f, part), x[part], delta[part], part, below, closes, variant)
    if reduced is not None:
        norm = state_norm(run.delta)[:, None].clamp(min=torch.finfo(torch.float64).tiny)
        share = epsilon / math.sqrt(x.shape[1])
        run.delta.copy_(run.delta * (share / norm))
        _reduced(run, reduced, share, closes)
    return run


def _unknown(x: Tensor, tau: int, steps: int, keep: int, epsilon: float) -> LongRun:
    """Return the records of all trajectories before the first window, which are then filled in."""
    n, windows = len(x), steps // tau
    token = x.new_full((n, x.shape[2]), torch.nan)
    never = x.new_full((n,), -1, dtype=torch.int64)
    return LongRun(
        exponents=x.new_full((windows, n), torch.nan, dtype=torch.float64),
        deviations=x.new_full((keep + 1, n), torch.nan, dtype=torch.float64),
        switched_at=never,
        recurred_at=never.clone(),
        ended_at=never.clone(),
        diverged=never == 0,
        observed=x.new_full((windows, n), torch.nan),
        final=token,
        final_full=torch.full_like(x, torch.nan),
        delta=token.clone(),
        delta_full=torch.full_like(x, torch.nan),
        tau=tau,
        epsilon=epsilon,
    )


def _full(
    run: LongRun,
    f: Map,
    x: Tensor,
    delta: Tensor,
    rows: Int[Tensor, "rows"],
    threshold: float,
    tolerance: float | None,
    variant: DeviationVariant,
) -> None:
    """Iterate the full map, until all of these rows have synchronized or recurred, or to the end."""
    every, first = rows, delta
    returns = None if tolerance is None else Recurrence(tolerance)
    d = _look(run, x, 0, rows, variant)
    for window in range(len(run.exponents)):
        for step in range(window * run.tau + 1, (window + 1) * run.tau + 1):
            both = f(torch.cat([x, x + delta]))
            x, delta = both[: len(x)], both[len(x) :] - both[: len(x)]
            if threshold or step < len(run.deviations):
                d = _look(run, x, step, rows, variant)
        delta = _grown(run, x, delta, first, window, rows, run.epsilon)
        run.final[rows] = mean_token(x)
        run.final_full[rows] = x
        run.delta_full[rows] = delta
        run.observed[window, rows] = run.final[rows, 0]
        over = ~finite_rows(x)
        if returns is not None:
            over |= _returned(run, returns, x.flatten(1), every, rows, window + 1)
        if threshold:
            done = d < threshold
            at = rows[done]
            run.switched_at[at] = (window + 1) * run.tau
            run.exponents[window, at] = torch.nan
            run.final_full[at] = torch.nan
            run.delta_full[at] = torch.nan
            run.delta[at] = mean_token(delta[done])
            over |= done
        if over.any():  # the only synchronization with the device in a window
            x = x[~over]
            delta = delta[~over]
            first = first[~over]
            rows = rows[~over]
            f = part_of(f, ~over)
        if len(rows) == 0:
            return


def _look(
    run: LongRun, x: Tensor, step: int, rows: Tensor, variant: DeviationVariant
) -> Float[Tensor, "rows"]:
    """Return D of these rows, and record it."""
    d = deviation(x, variant)
    if step < len(run.deviations):
        run.deviations[step, rows] = d
    return d


def _reduced(run: LongRun, reduced: Map, epsilon: float, tolerance: float | None) -> None:
    """Iterate the map of one token, for all rows that have synchronized, each from its own window on."""
    goes_on = (run.switched_at >= 0) & (run.ended_at < 0)
    run.delta[~goes_on] = torch.nan
    power, first = repeat(reduced, run.tau), run.delta.clone()
    every = rows = (goes_on & (run.switched_at < len(run.exponents) * run.tau)).nonzero()[:, 0]
    window = run.switched_at[rows] // run.tau
    returns = None if tolerance is None else Recurrence(tolerance)
    while len(rows):
        x, delta = run.final[rows], run.delta[rows]
        x, moved = _run_padded(power, torch.cat([x, x + delta])).chunk(2)
        run.delta[rows] = _grown(run, x, moved - x, first[rows], window, rows, epsilon)
        run.final[rows], run.observed[window, rows] = x, x[:, 0]
        window = window + 1
        over = ~finite_rows(x) | (window == len(run.exponents))
        if returns is not None:
            over |= _returned(run, returns, x, every, rows, window, run.switched_at[rows])
        if over.any():  # the only synchronization with the device in a window
            rows, window = rows[~over], window[~over]


def _grown(
    run: LongRun,
    x: Tensor,
    delta: Tensor,
    first: Tensor,
    window: int | Tensor,
    rows: Tensor,
    epsilon: float,
) -> Tensor:
    """Record the exponents of a window, and return the rescaled perturbations."""
    delta, growth, _, finite = rescaled(x, delta, first, epsilon)
    run.exponents[window, rows] = torch.where(finite, growth / run.tau, torch.nan)
    run.diverged[rows] |= ~finite
    return delta


def _returned(
    run: LongRun,
    returns: Recurrence,
    x: Float[Tensor, "rows d"],
    every: Tensor,
    rows: Tensor,
    windows: int | Tensor,
    since: int | Tensor = 0,
) -> Bool[Tensor, "rows"]:
    """Return which rows, of ``every`` row that is tracked, are known to be on a closed orbit, and record them.

    States are compared at the end of each window, from step ``since`` on: any period appears as a period in windows.
    """
    states = x.new_full((len(every), x.shape[1]), torch.nan)
    here = torch.searchsorted(every, rows)
    states[here] = x
    returns.update(states)
    at = returns.recurred_at[here]
    run.recurred_at[rows] = torch.where(at >= 0, (at + 1) * run.tau + since, run.recurred_at[rows])
    run.ended_at[rows] = torch.where(at >= 0, windows * run.tau, run.ended_at[rows])
    return at >= 0


def _run_padded(run: Map, x: Tensor) -> Tensor:
    """Pad rows to a power of two on a GPU, so that few CUDA graphs are captured."""
    if not x.is_cuda:
        return run(x) if len(x) else x
    more = (1 << (len(x) - 1).bit_length()) - len(x)
    return run(torch.cat([x, x[:1].expand(more, -1)]))[: len(x)]

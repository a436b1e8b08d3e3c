"""The kind of orbit that a map ends on: chaos, torus, cycle, fixed point, or undetermined."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.orbits.closed_rate import closed_orbit_rate
from lmdyn.analysis.orbits.correlation_dimension import correlation_dimension
from lmdyn.analysis.orbits.followed_orbits import FollowedOrbits, refuse_noise
from lmdyn.analysis.orbits.growth_rate import GrowthRate, arrival, growth_rate
from lmdyn.analysis.orbits.lyapunov import check_windows
from lmdyn.analysis.orbits.lyapunov_spectrum import ResolutionError, lyapunov_spectrum
from lmdyn.analysis.orbits.spectral_lines import spectral_lines
from lmdyn.analysis.orbits.trajectories import Map, finite_rows, of_states, repeat, state_norm

__all__ = ["KINDS", "OrbitKinds", "orbit_kind"]

KINDS: Final = ("chaotic", "torus", "cycle", "fixed point", "undetermined")
"""The possible kinds of an orbit."""
_CHAOTIC, _TORUS, _CYCLE, _FIXED, _UNDETERMINED = range(5)

_DIMENSIONS = 3  # of tori that are searched for
_KEPT, _FELL = 0.5, 0.5  # shares of λ at T left at a multiple of T: chaos keeps more, a regular orbit less
_CHANGE, _SHARE = 2e-3, 0.999  # of a spectrum of lines
_MOVED = 0.1  # tolerance, as a share of the range, whose ends a torus of a few beats has visited less often
_DIMENSION = 0.7  # correlation dimension of a curve, less a tolerance for few points
_APART = 3.0  # standard errors between the means before and after a change of kind
_ENOUGH = 0.25  # of all windows, for chaos after a change: shorter parts may be slow oscillations about 0
_ROUNDING, _LEAST_RATE = 1 / 16, 1e-4  # rounding as a share of the tolerance (4 of 64 eps); slowest approach
_LOOKS = 8192  # maximum length of a series whose spectrum is computed


@dataclass(frozen=True)
class OrbitKinds:
    """Kinds of orbits.

    Attributes:
        kinds: one of :data:`KINDS` for each row.
        exponent: (batch,) float64 mean λ of the windows that decided (those after an arrival), in nats per step; for
            fixed points and cycles that of :func:`~lmdyn.analysis.closed_orbit_rate`.
        error: (batch,) block standard error of the exponent.
        resolution: (batch,) |λ| below which these windows cannot distinguish λ from 0.
        steps: (batch,) number of steps that each orbit was followed.
        period: (batch,) period of fixed points and cycles; 0 for others, and for cycles longer than ``max_period``.
        length: (batch,) steps of the chaotic transient, up to the arrival on a regular kind; 0 if there is none; all
            steps if its end was not observed.
        censored: (batch,) whether the end of the transient was not observed: chaotic, or undetermined after chaos.
        transient_undetermined: (batch,) whether it is unknown if there is a chaotic transient, and ``length`` is 0:
            the orbit is undetermined, or λ·steps before its arrival is at least 10, but the interval of λ reaches the
            resolution.
        chaotic_exponent: (batch,) mean λ while the orbit is chaotic: ``exponent`` for chaotic orbits, that of the
            windows before the arrival for transients; NaN for others.
        zero_exponents: (batch,) number of dimensions of a torus; 0 for others.
        line_change: (batch,) result of :func:`spectral_lines` for orbits on which it was computed; NaN for others.
        final: (batch, *state) last state.
    """

    kinds: list[str]
    exponent: Float[Tensor, "batch"]
    error: Float[Tensor, "batch"]
    resolution: Float[Tensor, "batch"]
    steps: Int[Tensor, "batch"]
    period: Int[Tensor, "batch"]
    length: Int[Tensor, "batch"]
    censored: Bool[Tensor, "batch"]
    transient_undetermined: Bool[Tensor, "batch"]
    chaotic_exponent: Float[Tensor, "batch"]
    zero_exponents: Int[Tensor, "batch"]
    line_change: Float[Tensor, "batch"]
    final: Float[Tensor, "batch *state"]


@of_states
def orbit_kind(
    f: Map,
    x: Float[Tensor, "batch *state"],
    steps: int = 10_000,
    *,
    tau: int = 10,
    follow: int = 4,
    earlier: Float[Tensor, "windows batch"] | None = None,
    perturbation: Float[Tensor, "batch *state"] | None = None,
    closed: Bool[Tensor, "batch"] | None = None,
    max_period: int = 256,
    tolerance: float | None = None,
    seed: int = 0,
    rows: Sequence[int] | None = None,
) -> OrbitKinds:
    """Follow orbits until their kind is known, or report that it is not.

    - *Chaotic*: the interval of λ lies above its resolution max(ln T / T, block standard error), and λT ≥ 10
      (:func:`~lmdyn.analysis.growth_rate`). An orbit that is not chaotic at T = ``steps`` is followed to ``follow`` ·
      T; there, λ must also have kept its value: growth by a power of time, as on a regular orbit, leaves 0.3 of it.
    - *Fixed point* and *cycle*: the state recurs to the precision, twice (:class:`~lmdyn.analysis.Recurrence`). If
      perturbations grow nevertheless (chaos in a band that is narrower than the precision, a state near an unstable
      cycle), the orbit is chaotic, unless it returns to exactly the same numbers: then it is an unstable cycle.
    - *Torus*: neither, and each of four kinds of evidence at ``follow`` · T, which must exceed T: λ cannot be
      distinguished from 0; of the largest exponents, one to three are 0 and those after them below 0; the power
      spectrum consists of lines that do not change (:func:`~lmdyn.analysis.spectral_lines`: by less than 0.2 %, 99.9 %
      of the power in 40 lines); the orbit fills at least a curve (:func:`~lmdyn.analysis.correlation_dimension` of at
      least 0.7) and stays there (the ranges of both halves agree to a tenth).
    - *Undetermined*: all others, such as orbits that have not arrived yet, diverged ones, chaos too weak for T, and
      any orbit of fewer than five windows that does not recur.

    If the mean of λ changes on the way (by 3 standard errors), the part after the change determines the kind, and
    chaos requires it to be at least a quarter of all windows. The part before is the transient, which is chaotic by
    the same rule. A transient with λ·length below 10 therefore cannot be distinguished from none. Perturbations are
    finite, √eps of the norm of the largest state on the way, so any map is possible; λ has a relative error of this
    order, and is a lower bound if λ·tau > ½·|ln eps| − 3 (15 in float64, 5 in float32).

    Error: of 100 random starts in float64 with T = 10,000, at most 2 % are assigned a wrong kind on each of 24 maps
    (logistic maps at full chaos, at λ = 0.011 in 100 contracting dimensions, at cycles of 3, 4 and 128 and at period
    doublings; Hénon; Lorenz; circle maps, locked and not; tori of two frequencies; spirals and contractions, slow and
    fast; slow oscillations), and if T is long enough, at least 95 % are determined
    (``tests/analysis/orbits/test_orbit_kind.py`` repeats most with 40 starts and T = 4,000).

    An orbit is also undetermined if its largest state of the last tenth is 1.5 times that of its first half, or if its
    norm overflows (from 1e154 in float64); λ is then that of the windows before. The same holds for a neutral cycle
    that rounding displaces (a rotation by 1/7): it recurs to the precision, and yet fills a curve after many steps.

    Limits, since nothing else is known of the map. In float32, chaos in bands narrower than the tolerance is
    classified as a cycle, and shears of maps that contract nothing as chaos with λ of about 1e-3. A coordinate that is
    constant and large relative to what moves (1e2 in float32, 1e6 in float64) makes λ too small, and a small cycle a
    fixed point. A torus whose slowest period, or beat, is longer than about a tenth of T stays undetermined. Chaos
    with λ below 10 / (``follow`` · T) whose spectrum consists of lines to 0.2 % is classified as a torus, and so are
    an approach to a fixed point in a spiral, or from both sides in turn, that shrinks by less than this in T / 2
    steps, and a cycle longer than a fifth of all steps.

    Args:
        f: map of (batch, *state) to the same shape, with independent rows; it is also applied to some of the rows, and
            to several copies of them.
        x: (batch, *state) initial states, float32 or float64.
        steps: T, a multiple of ``tau``.
        tau: number of steps of a window.
        follow: undecided orbits are followed for ``follow`` · T steps; 1 follows none.
        earlier: (windows, batch) exponents of the same orbits before ``x``, in windows of ``tau``, which also count: T
            is then the sum of their steps and ``steps``, which may be 0. NaN at the end for orbits that were no longer
            followed because they recurred.
        perturbation: (batch, *state) perturbation at the end of these ``earlier`` windows, of any norm; None uses a
            random one, whose first windows measure how it turns.
        closed: (batch,) whether an orbit is known to have recurred twice before ``x``; it is not followed.
        max_period: longest period of cycles that is determined.
        tolerance: distance at which states are the same, relative to the largest on the way; None means 64 eps.
        seed: seed of the first perturbations and of the observables.
        rows: number of each row in the whole set, from which its perturbation is drawn; 0 … batch − 1 by default.

    Raises:
        ValueError: if the precision is below float32, if windows do not divide the steps, if ``follow`` is below 1, or
            if the map is random.

    Reference: Inoue et al. 2022, section II.B (by inspection there); Eckmann & Ruelle 1985; Skokos 2010.

    Example:
        >>> rates = torch.tensor([[2.8], [3.2], [4.0]], dtype=torch.float64)
        >>> x = torch.cat([rates, torch.full_like(rates, 0.3)], 1)  # the logistic map, with its parameter in the state
        >>> logistic = lambda x: torch.stack([x[:, 0], x[:, 0] * x[:, 1] * (1 - x[:, 1])], 1)
        >>> orbit_kind(lambda x: x * (3.8 * (1 - x)), x[:, 1:], steps=1000).kinds
        ['chaotic', 'chaotic', 'chaotic']
        >>> orbit_kind(logistic, x, steps=1000).kinds  # λ is 0 in the direction of the parameter, 0.69 in the third row
        ['fixed point', 'cycle', 'chaotic']
    """
    before = 0 if earlier is None else len(earlier)
    if steps or not before:
        check_windows(tau, steps)
    if follow < 1:
        raise ValueError(f"follow must be at least 1, got {follow}")
    refuse_noise(f, x)
    orbits = FollowedOrbits(f, x, tau, tolerance, seed, rows, earlier, perturbation, closed)
    orbits.advance(steps // tau)
    found = _decided(orbits, None)
    if follow > 1:
        at_first = growth_rate(orbits.exponents, tau).exponent
        orbits.rest = orbits.rest[found.kinds.to(x.device)[orbits.rest] == _UNDETERMINED]
        orbits.followed[orbits.rest] = True
        orbits.advance((follow - 1) * (before + steps // tau))
        found = _decided(orbits, at_first)
        _find_tori(f, orbits, found, before * tau + steps, seed, max_period)
    _find_exact(f, orbits, found, max_period)
    _find_periods(f, orbits, found, max_period)
    _measure_closed(f, orbits, found, seed, rows)
    rate = found.rate
    return OrbitKinds(
        [KINDS[kind] for kind in found.kinds.tolist()],
        rate.exponent,
        rate.error,
        rate.resolution,
        orbits.steps.cpu(),
        found.period,
        *_transients(orbits, found),
        found.zero_exponents,
        found.line_change,
        orbits.x,
    )


class _Found:
    """What is found, so far, on the CPU; kinds by their number in :data:`KINDS`."""

    def __init__(self, kinds: Int[Tensor, "batch"], rate: GrowthRate, arrived: Int[Tensor, "batch"]) -> None:
        self.kinds, self.rate, self.arrived = kinds, rate, arrived
        self.period, self.zero_exponents = torch.zeros_like(kinds), torch.zeros_like(kinds)
        self.line_change = torch.full_like(rate.exponent, torch.nan)


def _decided(orbits: FollowedOrbits, at_first: Tensor | None) -> _Found:
    """Return chaotic, closed ("cycle", for now) or undetermined; with λ at T given, chaos must have kept it."""
    exponents = orbits.exponents.cpu()
    tau = orbits.tau
    recurred_at = orbits.recurred_at.cpu()
    closed = recurred_at >= 0
    at = arrival(exponents, torch.where(closed, recurred_at.clamp(min=1), len(exponents)))
    early = growth_rate(exponents, tau, stop=at)
    late = growth_rate(exponents, tau, start=at)
    whole = growth_rate(exponents, tau)
    apart = (late.exponent - early.exponent).abs() > _APART * (early.error**2 + late.error**2).sqrt()
    # a closed orbit is not followed, so few windows belong to it alone: too few for an error
    at = torch.where(apart | closed, at, 0)
    after = growth_rate(exponents, tau, start=at)
    chaotic = after.chaotic & ((at == 0) | (after.steps >= _ENOUGH * whole.steps))
    if at_first is not None:
        kept = whole.exponent >= _KEPT * at_first.cpu()
        chaotic = chaotic & (kept | apart | ~orbits.followed.cpu())
    else:
        # a row that did not recur and is no longer followed stopped for another reason, which is not known here
        chaotic = chaotic & (closed | ~exponents[-1].isnan())
    chaotic = chaotic & ~_leaves(orbits)
    kinds = torch.where(chaotic, _CHAOTIC, torch.where(closed, _CYCLE, _UNDETERMINED))
    return _Found(kinds, after, at)


def _leaves(orbits: FollowedOrbits) -> Bool[Tensor, "batch"]:
    """Return which orbits are unbounded."""
    return (orbits.diverged | orbits.widens | ~finite_rows(orbits.x)).cpu()


def _find_exact(f: Map, orbits: FollowedOrbits, found: _Found, most: int) -> None:
    """Mark orbits that return to exactly the same state as closed, even if neighbouring orbits separate quickly."""
    rows = ((found.kinds == _CHAOTIC) & (orbits.recurred_at.cpu() >= 0)).nonzero()[:, 0]
    if len(rows):
        at = rows.to(orbits.x.device)
        period = _least_period(f, orbits.x[at], torch.zeros_like(orbits.scale[at]), most)
        found.kinds[rows[period.cpu() > 0]] = _CYCLE


def _find_tori(f: Map, orbits: FollowedOrbits, found: _Found, steps: int, seed: int, most: int) -> None:
    """Mark the tori among undetermined orbits."""
    zero = found.rate.zero & ~_leaves(orbits)
    rows = ((found.kinds == _UNDETERMINED) & zero).nonzero()[:, 0]
    if len(rows) == 0:
        return
    at = rows.to(orbits.x.device)
    x = orbits.x[at]
    size = math.prod(x.shape[1:])
    k, every = min(_DIMENSIONS + 1, size), max(1, orbits.tau // 5)
    times = max(20, steps // every)
    skip = steps // 10 // every * every
    try:
        spectrum = lyapunov_spectrum(f, x, k, times * every, skip, seed, every=every, method="perturbation")
    except ResolutionError:  # they stay undetermined
        return
    error = spectrum.errors.clamp(min=math.log(times * every) / (times * every))
    none = spectrum.exponents.abs() <= error
    q = none.sum(1)
    below = torch.arange(k, device=x.device) >= q[:, None]
    split = (
        torch.where(below, spectrum.exponents < -2 * error, none).all(1) & (q >= 1) & ((q < k) | (k == size))
    )
    # the observed series is long enough for slow lines; otherwise, fast ones are sampled more often
    series = orbits.looks[:, at]
    discrete, change, dimension = _discrete(series)
    again = split & ~discrete
    if again.any():
        power, y, fine = repeat(f, every), x[again], []
        for _ in range(max(256, min(_LOOKS, times))):
            fine.append((y.flatten(1) @ orbits.along).double())
            y = power(y)
        discrete[again], change[again], dimension[again] = _discrete(torch.stack(fine))
    # a cycle that rounding displaces by less than the tolerance also fills a curve
    drifts = _least_period(f, x, orbits.tolerance * orbits.scale[at], most) > 0
    torus = (split & discrete & (dimension > _DIMENSION) & ~drifts).cpu()
    found.line_change[rows] = change.cpu()
    found.kinds[rows[torus]], found.zero_exponents[rows[torus]] = _TORUS, q.cpu()[torus]


def _discrete(
    series: Float[Tensor, "times batch observables"],
) -> tuple[Bool[Tensor, "batch"], Float[Tensor, "batch"], Float[Tensor, "batch"]]:
    """Return whether a spectrum consists of constant lines, its change, and the dimension of the points."""
    if len(series) < 256:
        unknown = torch.full_like(series[0, :, 0], torch.nan)
        return unknown > 0, unknown, unknown.clone()
    lines = spectral_lines(series)
    stays = (lines.change < _CHANGE) & (lines.share > _SHARE) & _stays(series)
    return stays, lines.change, correlation_dimension(series)


def _stays(series: Float[Tensor, "times batch observables"]) -> Bool[Tensor, "batch"]:
    """Return whether both halves span the same range: a drift, whose spectrum is also constant, does not."""
    early = series[: len(series) // 2]
    late = series[len(series) // 2 :]
    wide = series.amax(0) - series.amin(0)
    high = late.amax(0) - early.amax(0)
    low = late.amin(0) - early.amin(0)
    return (torch.maximum(high.abs(), low.abs()) <= _MOVED * wide).all(-1)


def _find_periods(f: Map, orbits: FollowedOrbits, found: _Found, most: int) -> None:
    """Distinguish fixed points from cycles, and find the periods of cycles.

    States are equal up to the tolerance, and up to the effect of an approach by e^λ per step on rounding, eps / (1 −
    e^λ). An oscillating approach looks like a cycle until it has ended: an orbit that is not a fixed point is examined
    again after as many steps as it was followed before.
    """
    rows = (found.kinds == _CYCLE).nonzero()[:, 0]
    if len(rows) == 0:
        return
    left = (-torch.expm1(found.rate.exponent[rows].clamp(max=0))).clamp(min=_LEAST_RATE)
    wide = torch.where(left.isnan(), 1.0, (_ROUNDING / left).clamp(min=1.0))
    at = rows.to(orbits.x.device)
    near = orbits.tolerance * orbits.scale[at] * wide.to(at.device)
    x = orbits.x[at]
    period = _least_period(f, x, near, most)
    if (again := period != 1).any():
        x = x[again]
        for _ in range(int(orbits.steps[at[again]].max()) // orbits.tau):
            x = orbits.power(x)
        period[again] = _least_period(f, x, near[again], most)
    found.period[rows] = period.cpu()
    found.kinds[found.period == 1] = _FIXED


def _least_period(f: Map, start: Tensor, near: Tensor, most: int) -> Int[Tensor, "batch"]:
    """Return the number of steps after which states recur; 0 for more than ``most``."""
    x, step = start, repeat(f, 1)
    period = start.new_zeros(len(start), dtype=torch.int64)
    for t in range(1, most + 1):
        x = step(x)
        back = (state_norm(x - start) <= near) & (period == 0)
        period = torch.where(back, t, period)
    return period


def _measure_closed(
    f: Map,
    orbits: FollowedOrbits,
    found: _Found,
    seed: int,
    numbers: Sequence[int] | None,
) -> None:
    """Replace the exponents of fixed points and cycles of known period, which have few windows."""
    rows = (found.period > 0).nonzero()[:, 0]
    if len(rows) == 0:
        return
    at = rows.to(orbits.x.device)
    own = [i if numbers is None else numbers[i] for i in rows.tolist()]
    period = found.period[rows].to(at.device)
    rate = closed_orbit_rate(f, orbits.x[at], period, orbits.delta[at], seed=seed, rows=own)
    for name, of_windows in vars(found.rate).items():
        of_windows[rows] = getattr(rate, name).cpu()


def _transients(
    orbits: FollowedOrbits,
    found: _Found,
) -> tuple[Int[Tensor, "batch"], Bool[Tensor, "batch"], Bool[Tensor, "batch"], Float[Tensor, "batch"]]:
    """Return lengths of chaotic transients, whether they are censored or undetermined, and λ of chaos."""
    tau, exponents = orbits.tau, orbits.exponents.cpu()
    before = growth_rate(exponents, tau, stop=found.arrived)
    early = before.chaotic & (found.arrived > 0)
    chaotic = found.kinds == _CHAOTIC
    unknown = found.kinds == _UNDETERMINED
    undetermined = ~chaotic & ~early & (unknown | (before.grows & (found.arrived > 0)))
    steps = orbits.steps.cpu()
    length = torch.where(chaotic, steps, torch.where(early, found.arrived * tau, 0))
    while_chaotic = torch.where(chaotic, found.rate.exponent, torch.where(early, before.exponent, torch.nan))
    return length, chaotic | (unknown & early), undetermined, while_chaotic

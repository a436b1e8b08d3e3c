"""Exponent of an orbit that is known to be closed: step by step, over whole periods."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.orbits.growth_rate import GrowthRate, growth_rate
from lmdyn.analysis.orbits.lyapunov import advanced, random_perturbation, unit_perturbation
from lmdyn.analysis.orbits.trajectories import Map, of_states, repeat, state_norm

__all__ = ["closed_orbit_rate"]

_STEPS, _PERIODS = 300, 3


@of_states
def closed_orbit_rate(
    f: Map,
    x: Float[Tensor, "batch *state"],
    period: Int[Tensor, "batch"],
    perturbation: Float[Tensor, "batch *state"] | None = None,
    *,
    seed: int = 0,
    rows: Sequence[int] | None = None,
) -> GrowthRate:
    """Compute λ of fixed points and cycles from a perturbation that is measured and rescaled after every step.

    A trajectory that ends on a closed orbit is followed for a few windows only, in which a random perturbation mostly
    turns towards the slowest direction, so their mean describes this turning, not λ. In addition, a window of τ steps
    does not resolve λ below ½ ln eps / τ. This function makes 300 steps, or three periods if that is more, drops the
    first third, and averages λ over whole periods of the rest. One step resolves λ down to −½ |ln eps| nats (8 in
    float32, 18 in float64).

    Args:
        f: map of (batch, *state) to the same shape, with independent rows.
        x: (batch, *state) states on closed orbits, float32 or float64.
        period: (batch,) period in steps, at least 1.
        perturbation: (batch, *state) of any norm, such as the perturbation after a long trajectory. None uses a random
            one; the first third of the steps may be too short for it to turn if two directions have nearly the same
            rate.
        seed: seed of the random perturbation, and of the replacement of a lost one.
        rows: number of each row in the whole set, from which random perturbations are drawn; 0 … batch − 1 by default.

    Returns:
        λ with its error over blocks of steps, and T, the number of averaged steps.

    Raises:
        ValueError: if a period is below 1, or if the precision is below float32.

    Example:
        >>> slow_and_fast = torch.tensor([0.99, 0.5])
        >>> x = torch.zeros(1, 2)
        >>> found = closed_orbit_rate(lambda x: 1 + slow_and_fast * (x - 1), x + 1, torch.tensor([1]))
        >>> found.exponent.exp()
        tensor([0.9900], dtype=torch.float64)
    """
    if (period < 1).any():
        raise ValueError(f"expected periods of at least 1, got {int(period.min())}: pass only closed orbits")
    first = random_perturbation(x, 1.0, seed, rows)
    size = state_norm(x)
    delta = first if perturbation is None else unit_perturbation(perturbation, first)
    total = max(_STEPS, _PERIODS * int(period.max())) if len(x) else _STEPS
    step, grown = repeat(f, 1), []
    for _ in range(total):
        x, delta, growth, finite = advanced(step, x, delta, first, size)
        grown.append(torch.where(finite, growth, torch.nan))
    kept = 2 * total // 3 // period * period
    return growth_rate(torch.stack(grown), 1, start=total - kept)

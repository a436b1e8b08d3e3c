"""Orbits, each with a perturbation, followed in windows until they are known to be closed."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lmdyn.analysis.orbits.lyapunov import advanced, random_perturbation, unit_perturbation
from lmdyn.analysis.orbits.recurrence import Recurrence
from lmdyn.analysis.orbits.trajectories import Map, repeat, state_norm

__all__ = ["FollowedOrbits", "refuse_noise"]

_OBSERVABLES = 3  # number of observables of a state whose spectrum is computed
_WIDENS = 1.5  # ratio of the largest state of the last tenth to that of the first half, for unbounded orbits


def refuse_noise(f: Map, x: Tensor) -> None:
    """Raise an error if a map is random.

    Raises:
        ValueError: if two results from one state differ by more than rounding.
    """
    first, again = (f(x.clone()).clone() for _ in range(2))
    apart, size = state_norm(again - first), state_norm(first)
    if (apart > torch.finfo(x.dtype).eps * 64 * size).any():
        raise ValueError(
            "two applications of the map to one state give different results: the map draws random numbers (dropout, "
            "noise), so lmdyn cannot name the kinds of orbits. Pass a deterministic map, such as a module in eval mode"
        )


class FollowedOrbits:
    """Orbits with their perturbations: exponents of all windows so far, recurrences, and the rows still followed."""

    def __init__(
        self,
        f: Map,
        x: Tensor,
        tau: int,
        tolerance: float | None,
        seed: int,
        rows: Sequence[int] | None,
        earlier: Tensor | None,
        perturbation: Tensor | None,
        closed: Tensor | None,
    ) -> None:
        n, self.tau = len(x), tau
        eps = torch.finfo(x.dtype).eps
        self.x, self.power = x.clone(), repeat(f, tau)
        self.tolerance = 64 * eps if tolerance is None else tolerance
        self.scale = state_norm(x)
        self.first = random_perturbation(x, 1.0, seed, rows)
        self.delta = (
            self.first.clone() if perturbation is None else unit_perturbation(perturbation, self.first)
        )
        nothing = x.new_empty(0, n, dtype=torch.float64)
        self.exponents = nothing if earlier is None else earlier.to(nothing)
        self.earlier = len(self.exponents)
        self.recurrence = Recurrence(self.tolerance, largest=True)
        self.recurrence.update(x)
        no = x.new_zeros(n, dtype=torch.bool)
        self.closed = no if closed is None else closed.to(x.device)
        self.rest = (~self.closed).nonzero()[:, 0]
        self.sizes, self.followed, self.diverged = nothing, no.clone(), no.clone()
        g = torch.Generator().manual_seed(seed + 1)
        size = math.prod(x.shape[1:])
        self.along = torch.randn(size, _OBSERVABLES, generator=g, dtype=torch.float64).to(x)
        self.steps = x.new_full((n,), self.earlier * tau, dtype=torch.int64)

    def advance(self, windows: int) -> None:
        """Follow the remaining rows for this many more windows; closed orbits are dropped."""
        n = len(self.x)
        self.looks = self.scale.new_full((windows, n, _OBSERVABLES), torch.nan)
        more = self.x.new_full((windows, n), torch.nan, dtype=torch.float64)
        sizes = torch.full_like(more, torch.nan)
        for window in range(windows):
            rows = self.rest
            if len(rows) == 0:
                break
            of_rows = (of[rows] for of in (self.x, self.delta, self.first, self.scale))
            x, self.delta[rows], growth, finite = advanced(self.power, *of_rows)
            norm = state_norm(x)
            # in float64, norms overflow from 1e154, and a perturbation of such a state is not defined
            finite &= norm.isfinite()
            more[window, rows] = torch.where(finite, growth / self.tau, torch.nan)
            self.diverged[rows] |= ~finite
            self.x[rows] = x
            self.looks[window, rows] = (x.flatten(1) @ self.along).double()
            sizes[window, rows] = norm.double()
            self.scale[rows] = torch.maximum(self.scale[rows], torch.where(norm.isfinite(), norm, 0))
            self.steps[rows] += self.tau
            seen = torch.full_like(self.x, torch.nan)
            seen[rows] = x
            self.recurrence.update(seen)
            ends = (self.recurrence.recurred_at[rows] >= 0) | ~finite
            if ends.any():  # the only synchronization with the device in a window
                self.rest = rows[~ends]
        self.exponents, self.sizes = torch.cat([self.exponents, more]), torch.cat([self.sizes, sizes])

    @property
    def widens(self) -> Bool[Tensor, "batch"]:
        """Return whether states still grow, (batch,), for rows that were followed to the end."""
        n = len(self.sizes)
        if n < 20:
            return torch.zeros_like(self.closed)
        early = self.sizes[: n // 2].nan_to_num(0).amax(0)
        late = self.sizes[-(n // 10) :].amax(0)
        return late > _WIDENS * early  # False for NaN

    @property
    def recurred_at(self) -> Int[Tensor, "batch"]:
        """Window of a state that recurred, (batch,); −1 for none."""
        at = self.recurrence.recurred_at
        known = (~self.exponents.isnan()).sum(0)
        return torch.where(self.closed, known, torch.where(at >= 0, at + self.earlier, at))

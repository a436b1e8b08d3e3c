"""The first Lyapunov exponents of a map at once, by orthonormalised tangent vectors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.dynamics.kaplan_yorke import kaplan_yorke_dimension
from lmdyn.analysis.dynamics.lyapunov import derivative
from lmdyn.analysis.dynamics.trajectories import Map, check_precision, check_steps, state_norm

__all__ = ["LyapunovSpectrum", "lyapunov_spectrum"]


@dataclass(frozen=True)
class LyapunovSpectrum:
    """The first k Lyapunov exponents of a batch of trajectories.

    Attributes:
        exponents: (batch, k) float64, falling, nats a step; NaN for a diverged row, −∞ for directions that f loses.
        kaplan_yorke: (batch,) dimension by :func:`lmdyn.analysis.kaplan_yorke_dimension`.
        final: (batch, *state) state after the last step.
        steps: steps of the average.
        skip: steps before them.
        dtype: precision of the state.
    """

    exponents: Float[Tensor, "batch k"]
    kaplan_yorke: Float[Tensor, "batch"]
    final: Float[Tensor, "batch *state"]
    steps: int
    skip: int
    dtype: torch.dtype


@torch.no_grad()
def lyapunov_spectrum(
    f: Map | Sequence[Map],
    x: Float[Tensor, "batch *state"],
    k: int,
    steps: int,
    skip: int = 0,
    seed: int = 0,
) -> LyapunovSpectrum:
    """The first k Lyapunov exponents: k tangent vectors through the derivative of f, orthonormalised at each step.

    Needs memory and work of k states a row. Over finitely many steps the average may break the order of two nearly
    equal exponents: they are sorted. All of them (k = size of the state) add up to the mean of ln |det Df|, whatever
    the steps.

    Args:
        f: differentiable map as in :func:`tangent_window`, or a sequence of them (time is depth).
        x: (batch, *state) state at t = 0, float32 or float64; the factorization is done in float64.
        k: how many exponents, at most the size of a row's state.
        steps: over which they are averaged.
        skip: steps before, in which the state reaches its attractor and the tangent vectors their directions.
        seed: of the random first directions, the same for all rows.

    Raises:
        ValueError: k above the size of the state, no steps, precision below float32, more steps than maps.

    Reference: Benettin et al. 1980; Eckmann & Ruelle 1985, section 5.C.

    Example:
        >>> halve_and_double = lambda x: x * torch.tensor([0.5, 2.0])
        >>> lyapunov_spectrum(halve_and_double, torch.ones(1, 2), k=2, steps=20, skip=20).exponents
        tensor([[ 0.6931, -0.6931]], dtype=torch.float64)
    """
    check_precision(x)
    size = math.prod(x.shape[1:])
    if not 1 <= k <= size:
        raise ValueError(f"k={k} exponents of a state of {size} dimensions: ask for 1 to {size}")
    if steps < 1 or skip < 0:
        raise ValueError(f"steps is 1 or more and skip 0 or more, got steps={steps}, skip={skip}")
    check_steps(f, skip + steps)
    dtype = x.dtype
    g = torch.Generator().manual_seed(seed)
    start = torch.linalg.qr(torch.randn(size, k, generator=g, dtype=torch.float64)).Q.to(x.device)
    q = start.expand(len(x), size, k)
    total = torch.zeros(len(x), k, dtype=torch.float64, device=x.device)
    for t in range(skip + steps):
        # (k, batch, *state): the derivative sees one tangent at a time, the state itself only once
        tangents = q.movedim(2, 0).to(dtype).reshape(k, *x.shape)
        x, tangents = _derivatives(f[t] if isinstance(f, Sequence) else f, x, tangents)
        v = tangents.reshape(k, len(x), size).movedim(0, 2).double()
        finite = v.isfinite().flatten(1).all(1)  # diverged rows must not stop the factorization of the others
        q, r = torch.linalg.qr(torch.where(finite[:, None, None], v, start))
        if t >= skip:
            growth = r.diagonal(dim1=1, dim2=2).abs().log()
            total = total + torch.where(finite[:, None], growth, torch.nan)
    finite = state_norm(x).isfinite()
    exponents = torch.where(finite[:, None], total / steps, torch.nan).sort(1, descending=True).values
    return LyapunovSpectrum(exponents, kaplan_yorke_dimension(exponents, size), x, steps, skip, dtype)


def _derivatives(f: Map, x: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
    """f(x), computed once, and the derivative of f at x along each of (k, batch, *state) tangents."""
    # without a batch dimension of its own, as out_dims states, the state is the same for all tangents
    out_dims: Any = (None, 0)
    along: Any = torch.func.vmap(partial(derivative, f, x), out_dims=out_dims)
    y, moved = along(tangents)
    return y, moved

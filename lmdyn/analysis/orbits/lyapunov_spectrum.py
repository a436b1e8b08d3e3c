"""The largest Lyapunov exponents of a map, by orthonormalised tangent vectors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.orbits.kaplan_yorke import kaplan_yorke_dimension
from lmdyn.analysis.orbits.lyapunov import derivative
from lmdyn.analysis.orbits.trajectories import Map, check_steps, finite_rows, of_states, state_norm

__all__ = ["LyapunovSpectrum", "ResolutionError", "lyapunov_spectrum"]

Method = Literal["perturbation", "tangent"]

_BLOCKS, _LEAST_BLOCKS = 20, 5
_BENT = 0.1


class ResolutionError(ValueError):
    """Raised if finite perturbations do not approximate the derivative in this precision."""


@dataclass(frozen=True)
class LyapunovSpectrum:
    """The k largest Lyapunov exponents of a batch of trajectories.

    Attributes:
        exponents: (batch, k) float64, in descending order, nats per step; NaN for a diverged row, −∞ for directions
            that f maps to 0.
        errors: (batch, k) block standard errors, of the means of 20 consecutive blocks; NaN with fewer than five.
        kaplan_yorke: (batch,) dimension by :func:`lmdyn.analysis.kaplan_yorke_dimension`.
        final: (batch, *state) state after the last step.
    """

    exponents: Float[Tensor, "batch k"]
    errors: Float[Tensor, "batch k"]
    kaplan_yorke: Float[Tensor, "batch"]
    final: Float[Tensor, "batch *state"]


@of_states
def lyapunov_spectrum(
    f: Map | Sequence[Map],
    x: Float[Tensor, "batch *state"],
    k: int,
    steps: int,
    skip: int = 0,
    seed: int = 0,
    *,
    every: int = 1,
    method: Method = "tangent",
) -> LyapunovSpectrum:
    """Compute the k largest Lyapunov exponents: k tangent vectors, mapped by the derivative of f and orthonormalised.

    It requires memory and work of k states per row, whatever the number of steps. Over finitely many steps, the
    average may reverse the order of two nearly equal exponents, so they are sorted. All exponents (k = size of the
    state) add up to the mean of ln |det Df|, whatever the number of steps. The influence of the initial directions
    after ``skip`` steps decreases like exp(−(λᵢ − λᵢ₊₁)·skip). The average over T steps has an error of the order of
    ln T / T if the exponent is 0, and of the block standard error in chaos.

    Args:
        f: map with independent rows, or a sequence of them (time is depth). For the method "tangent", its operations
            require forward-mode derivatives (attention in its eager form, not the fused one), and it must not disable
            gradients itself: its derivative would be 0.
        x: (batch, *state) state at t = 0, float32 or float64; the factorization is computed in float64.
        k: number of exponents, at most the size of a row's state.
        steps: number of averaged steps.
        skip: number of steps before them, in which the state reaches its attractor and the tangent vectors their
            directions.
        seed: seed of the random initial directions, which are the same for all rows.
        every: steps between orthonormalisations, a divisor of ``steps`` and of ``skip``. (λ₁ − λ_k)·every should be
            below about 10 in float32, 25 in float64: otherwise the last directions are lost in the rounding of the
            first.
        method: "tangent", forward-mode derivatives; or "perturbation", which works for any map: k perturbed copies of
            each row, at a distance of √eps of the norm of its state, with a relative error of that order. Whether this
            distance is small enough is measured before and after the average: doubling it must double the movement, to
            a tenth.

    Raises:
        ResolutionError: if perturbations are not small enough, or are lost in rounding, for states whose norm is large
            relative to what changes in them.
        ValueError: if k is above the size of the state, if there are no steps, if ``every`` does not divide them, if
            the precision is below float32, or if there are more steps than maps.

    Reference: Benettin et al. 1980; Eckmann & Ruelle 1985, section 5.C.

    Example:
        >>> halve_and_double = lambda x: x * torch.tensor([0.5, 2.0])
        >>> lyapunov_spectrum(halve_and_double, torch.ones(1, 2), k=2, steps=20, skip=20).exponents
        tensor([[ 0.6931, -0.6931]], dtype=torch.float64)
    """
    size = math.prod(x.shape[1:])
    if not 1 <= k <= size:
        raise ValueError(f"k must be from 1 to {size}, the dimensions of the state, got {k}")
    if steps < 1 or skip < 0 or every < 1 or steps % every or skip % every:
        raise ValueError(
            f"expected steps >= 1, skip >= 0 and an `every` that divides both, got steps={steps}, skip={skip}, "
            f"every={every}"
        )
    if method not in get_args(Method):
        raise ValueError(f"method is {method!r}: expected {' or '.join(map(repr, get_args(Method)))}")
    check_steps(f, skip + steps)
    dtype = x.dtype
    g = torch.Generator().manual_seed(seed)
    start = torch.linalg.qr(torch.randn(size, k, generator=g, dtype=torch.float64)).Q.to(x.device)
    q = start.expand(len(x), size, k)
    advance = _tangents if method == "tangent" else _perturbations
    n, skipped = steps // every, skip // every
    blocks = min(_BLOCKS, n)
    sums = x.new_zeros(blocks, len(x), k, dtype=torch.float64)
    bent = x.new_ones(len(x), dtype=torch.bool)
    for i in range(skipped + n):
        t = i * every
        if method == "perturbation" and i in (skipped, skipped + n - 1):
            bent &= _is_bent(f[t] if isinstance(f, Sequence) else f, x, q.to(dtype))
        maps = f[t : t + every] if isinstance(f, Sequence) else [f] * every
        x, v = advance(maps, x, q.to(dtype))
        v = v.double()
        finite = finite_rows(v)  # diverged rows must not stop the factorization of the others
        q, r = torch.linalg.qr(torch.where(finite[:, None, None], v, start))
        if i >= skipped:
            growth = r.diagonal(dim1=1, dim2=2).abs().log()
            sums[(i - skipped) * blocks // n] += torch.where(finite[:, None], growth, torch.nan)
    if method == "perturbation" and bent.any():
        epsilon = math.sqrt(torch.finfo(dtype).eps)
        raise ResolutionError(
            f"perturbations of {epsilon:.0e} of the state's norm are not small in {dtype}, for {int(bent.sum())} of "
            f"{len(x)} rows (doubling a perturbation does not double its effect): use float64, subtract the "
            'constant part of the state, or use method="tangent"'
        )
    finite = state_norm(x).isfinite()
    total = torch.where(finite[:, None], sums.sum(0) / steps, torch.nan)
    exponents, order = total.sort(1, descending=True)
    errors = _block_errors(sums, n, every).gather(1, order)
    return LyapunovSpectrum(exponents, errors, kaplan_yorke_dimension(exponents, size), x)


def _block_errors(sums: Float[Tensor, "blocks batch k"], n: int, every: int) -> Float[Tensor, "batch k"]:
    """Compute standard errors of the mean exponents, from the growth in consecutive blocks of n factorizations."""
    blocks = len(sums)
    if blocks < _LEAST_BLOCKS or not sums.numel():
        return torch.full_like(sums[0], torch.nan)
    length = torch.bincount(torch.arange(n) * blocks // n).to(sums) * every
    return (sums / length[:, None, None]).std(0) / math.sqrt(blocks)


def _tangents(maps: Sequence[Map], x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and the (batch, size, k) tangent vectors after these maps."""
    k = v.shape[2]
    # (k, batch, *state): the derivative takes one tangent at a time, the state itself only once
    tangents = v.movedim(2, 0).reshape(k, *x.shape)
    out_dims: Any = (None, 0)  # the state has no dimension of tangents: it is the same for all of them
    for f in maps:
        of_one = partial(derivative, f, x, jvp=torch.func.jvp)
        along: Any = torch.func.vmap(of_one, out_dims=out_dims, randomness="same")
        x, tangents = along(tangents)
    return x, tangents.reshape(k, len(x), v.shape[1]).movedim(0, 2)


def _perturbations(maps: Sequence[Map], x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Compute :func:`_tangents` by copies of the state at a distance of √eps of its norm."""
    k, share = v.shape[2], math.sqrt(torch.finfo(x.dtype).eps)
    norm = state_norm(x)
    epsilon = (share * torch.where(norm > 0, norm, 1.0)).to(x.dtype)
    apart = (v * epsilon[:, None, None]).movedim(2, 0).reshape(k, *x.shape)
    rows = torch.cat([x, (x + apart).flatten(0, 1)])
    for f in maps:
        rows = f(rows)
    x, moved = rows[: len(x)], rows[len(x) :].reshape(k, *x.shape)
    found = (moved.double() - x.double()).reshape(k, len(x), v.shape[1]).movedim(0, 2)
    return x, found / epsilon.double()[:, None, None]


def _is_bent(f: Map, x: Tensor, v: Tensor) -> Tensor:
    """Return whether doubling a perturbation does not double its movement in a step, to a tenth, (batch,)."""
    _, once = _perturbations([f], x, v)
    _, twice = _perturbations([f], x, 2 * v)
    off = (twice - 2 * once).flatten(1).norm(dim=1)
    bent: Tensor = off > _BENT * 2 * once.flatten(1).norm(dim=1)
    return bent

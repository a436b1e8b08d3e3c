"""Rate at which neighbouring trajectories of a map separate: local Lyapunov exponents.

Several exponents at once are in ``lyapunov_spectrum.py``, the dimension computed from them in ``kaplan_yorke.py``.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from lmdyn.analysis.orbits.trajectories import (
    Map,
    check_steps,
    of_states,
    per_row,
    power_at,
    state_norm,
)
from lmdyn.analysis.statistics.hashing import splitmix64

__all__ = [
    "LocalExponents",
    "advanced",
    "check_windows",
    "derivative",
    "local_lyapunov_exponents",
    "random_perturbation",
    "rescaled",
    "unit_perturbation",
]


@dataclass(frozen=True)
class LocalExponents:
    """Local Lyapunov exponents of a batch of trajectories.

    Attributes:
        exponents: (windows, batch) float64 λ of each window in nats per step; NaN from the window on in which the row
            diverged.
        saturated: (windows, batch) whether the perturbation shrank below what the precision resolves: the exponent is
            an upper bound.
        diverged: (batch,) whether the state, or the perturbed one, was not finite at the end of a window.
        final: (batch, *state) state after the last window.
    """

    exponents: Float[Tensor, "windows batch"]
    saturated: Bool[Tensor, "windows batch"]
    diverged: Bool[Tensor, "batch"]
    final: Float[Tensor, "batch *state"]


def random_perturbation(
    x: Float[Tensor, "batch *state"],
    epsilon: float = 1.0,
    seed: int = 0,
    rows: Sequence[int] | None = None,
) -> Float[Tensor, "batch *state"]:
    """Draw a Gaussian direction for each row, scaled to norm ε over its whole state.

    A row's direction is drawn on the CPU by a separate generator, seeded with a hash of ``seed`` and the row's number:
    it depends on neither the batch, the device nor the number of ranks.

    Args:
        x: (batch, *state) state, from which the perturbation takes shape, dtype and device.
        epsilon: norm ε of the perturbation.
        seed: seed for all rows.
        rows: number of each row in the whole set, if the batch is a part of it; 0 … batch − 1 by default.

    Example:
        >>> one = random_perturbation(torch.zeros(3, 2, 8), epsilon=0.5)
        >>> float(one[2].norm()), bool((one[2:] == random_perturbation(torch.zeros(1, 2, 8), 0.5, rows=[2])).all())
        (0.5, True)
    """
    rows = range(len(x)) if rows is None else rows
    keys = splitmix64(splitmix64(torch.tensor(seed)) + torch.tensor(list(rows), dtype=torch.int64))
    out = torch.empty(x.shape, dtype=x.dtype)
    for row, key in zip(out, keys.tolist(), strict=True):
        generator = torch.Generator().manual_seed(key)
        v = torch.randn(row.shape, generator=generator, dtype=torch.float64)
        row.copy_(v * (epsilon / v.norm()))
    return out.to(x.device)


def unit_perturbation(
    v: Float[Tensor, "batch *state"],
    instead: Float[Tensor, "batch *state"],
) -> Float[Tensor, "batch *state"]:
    """Scale perturbations to norm 1; one that is 0 or not finite is replaced by that of ``instead``.

    Example:
        >>> unit_perturbation(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [1.0000, 0.0000]])
    """
    norm = per_row(state_norm(v), v)
    usable = norm.isfinite() & (norm > 0)
    return torch.where(usable, (v / torch.where(usable, norm, 1.0)).to(instead.dtype), instead)


def check_windows(tau: int, steps: int, name: str = "steps") -> None:
    """Raise an error unless the steps are a whole number of windows of τ.

    Raises:
        ValueError: if they are not.

    Example:
        >>> check_windows(50, 120)
        Traceback (most recent call last):
        ValueError: steps must be a multiple of tau=50, got 120: use 100 or 150 steps
    """
    if tau < 1 or steps < tau or steps % tau:
        near = [s for s in (steps - steps % tau, steps - steps % tau + tau) if s > 0] if tau > 0 else []
        raise ValueError(
            f"{name} must be a multiple of tau={tau}, got {steps}: "
            + (f"use {' or '.join(map(str, near))} steps" if near else "tau must be at least 1")
        )


def rescaled(
    x: Float[Tensor, "batch *state"],
    delta: Float[Tensor, "batch *state"],
    first: Float[Tensor, "batch *state"],
    epsilon: float,
) -> tuple[
    Float[Tensor, "batch *state"], Float[Tensor, "batch"], Bool[Tensor, "batch"], Bool[Tensor, "batch"]
]:
    """End a window of algorithm A1: measure the perturbation, and rescale it to norm ε.

    Args:
        x: (batch, *state) state.
        delta: perturbation at the end of the window, of norm ε at its start.
        first: replaces a lost perturbation: the row's first perturbation, of norm ε.
        epsilon: ε.

    Returns:
        The next window's perturbation; ln(‖δ‖/ε), float64; whether ‖δ‖ fell to what the precision resolves relative to
        x, ‖δ‖ ≤ eps·‖x‖ (the logarithm is then that of this bound); and whether all of it is finite.

    Example:
        >>> x, small = torch.ones(1, 2), torch.tensor([[1e-9, 0.0]])
        >>> rescaled(x, small, torch.tensor([[0.0, 1.0]]), 1.0)[0]
        tensor([[0., 1.]])
    """
    norm, size = state_norm(delta), state_norm(x)
    finite = norm.isfinite() & size.isfinite()
    # the smallest normal number if the state is 0, too
    floor = (torch.finfo(x.dtype).eps * size).clamp(min=torch.finfo(x.dtype).tiny)
    lost = (norm <= floor) & finite
    growth = (torch.where(lost, floor, norm) / epsilon).log()
    scaled = delta * per_row(epsilon / norm, delta).to(delta.dtype)
    return torch.where(per_row(lost, x), first, scaled), growth, lost, finite


def advanced(
    power: Map, x: Tensor, delta: Tensor, first: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Advance states and perturbations in unit directions, of norm ε = √eps · scale (√eps if the scale is 0).

    Args:
        power: the steps of a window.
        x: (batch, *state) states.
        delta: directions of norm 1.
        first: replaces a lost direction.
        scale: (batch,) norms of states.

    Returns:
        The states and directions after the window; ln(‖δ‖/ε); whether all of them are finite.
    """
    epsilon = per_row(torch.where(scale > 0, scale, 1.0), x) * math.sqrt(torch.finfo(x.dtype).eps)
    epsilon = epsilon.to(x.dtype)
    x, moved = power(torch.cat([x, x + delta * epsilon])).chunk(2)
    # measured relative to the row's own ε: a norm of 1 that was ε
    delta, growth, _, finite = rescaled(x / epsilon, (moved - x) / epsilon, first, 1.0)
    return x, delta, growth, finite


@of_states
def local_lyapunov_exponents(
    f: Map | Sequence[Map],
    x: Float[Tensor, "batch *state"],
    tau: int,
    steps: int,
    epsilon: float = 1.0,
    seed: int = 0,
    rows: Sequence[int] | None = None,
) -> LocalExponents:
    """Compute the local Lyapunov exponents λ = ln(‖δ‖/ε)/τ of each window of τ steps.

    The perturbation is random at first (:func:`random_perturbation`); after each window it is rescaled to norm ε and
    keeps its direction. With the publication's ε = 1, it is finite, and λ differs from the exponent of the linearised
    map, to which it tends for small ε (1e-6 of the state's norm in float64);
    :func:`~lmdyn.analysis.lyapunov_spectrum` computes that from derivatives. Rows of f must be independent.

    If the perturbation falls to ‖δ‖ ≤ eps(dtype)·‖x‖, only rounding is left of it: λ is then the upper bound
    ln(eps·‖x‖/ε)/τ, marked ``saturated``, and the next window starts from the row's first random direction (rescaled
    noise, or a δ of 0, would be meaningless).

    Args:
        f: map of (batch, *state) to the same shape; or a sequence of maps for models whose layers differ (time is
            depth).
        x: (batch, *state) state at t = 0, float32 or float64.
        tau: number of steps in a window.
        steps: total number of steps, a multiple of τ.
        epsilon: norm of the perturbation over the joint state of a row.
        seed: seed of the first perturbation.
        rows: number of each row in the whole set, from which its perturbation is drawn; 0 … batch − 1 by default.

    Raises:
        ValueError: if τ does not divide the steps, if the precision is below float32, or if there are more steps than
            maps in a sequence.

    Reference: Inoue et al. 2022, algorithm A1 (there k = ε); Wolf et al. 1985.

    Example:
        >>> spiral = torch.tensor([[0.3, -0.4], [0.4, 0.3]])  # scales by 0.5
        >>> local_lyapunov_exponents(lambda x: x @ spiral, torch.zeros(1, 2), tau=10, steps=20).exponents
        tensor([[-0.6931], [-0.6931]], dtype=torch.float64)
    """
    check_steps(f, steps)
    check_windows(tau, steps)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a norm above 0 and finite, got {epsilon}")
    windows, power = steps // tau, power_at(f, tau)
    first = delta = random_perturbation(x, epsilon, seed, rows)
    exponents = x.new_empty(windows, len(x), dtype=torch.float64)
    saturated = x.new_zeros(windows, len(x), dtype=torch.bool)
    diverged = x.new_zeros(len(x), dtype=torch.bool)
    for w in range(windows):
        x, moved = power(torch.cat([x, x + delta]), w * tau).chunk(2)
        delta, growth, saturated[w], finite = rescaled(x, moved - x, first, epsilon)
        diverged = diverged | ~finite
        exponents[w] = torch.where(diverged, torch.nan, growth / tau)
    return LocalExponents(exponents, saturated, diverged, x)


def derivative(f: Map, x: Tensor, v: Tensor, jvp: Any = None) -> tuple[Tensor, Tensor]:
    """Compute f(x) and the derivative of f at x along v, by forward-mode differentiation.

    Args:
        f: the map.
        x: the state.
        v: the direction.
        jvp: ``torch.func.jvp``, which ``vmap`` requires; default: the same by dual numbers, in a third of the time.

    Raises:
        ValueError: if an operation of f has no forward-mode derivative.
    """
    _load_forward_mode()
    try:
        both: tuple[Tensor, Tensor] = (jvp or _dual)(f, (x,), (v,))
    except NotImplementedError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            "the map has an operation without forward-mode derivative, such as fused attention. For transformers, "
            "create the map with EncoderMap(…, attention='eager'). If a module calls scaled_dot_product_attention "
            "itself, use perturbations, or call this function within torch.nn.attention.sdpa_kernel(SDPBackend.MATH) "
            f"({reason})"
        ) from error
    return both


def _dual(f: Map, x: tuple[Tensor], v: tuple[Tensor]) -> tuple[Tensor, Tensor]:
    with forward_ad.dual_level(), _WithoutZeros():
        after, along = forward_ad.unpack_dual(f(forward_ad.make_dual(*x, *v)))
    return after, torch.zeros_like(after) if along is None else along


class _WithoutZeros(TorchFunctionMode):
    """Layers of constant weights: torch adds tangents of zero to theirs, which takes longer than the products."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _ALONG and args:
            x, v = forward_ad.unpack_dual(args[0])
            weights = (w for w in (*args[1:], *kwargs.values()) if isinstance(w, Tensor))
            if v is not None and all(forward_ad.unpack_dual(w).tangent is None for w in weights):
                along = _ALONG[function](x, v, *args[1:], **kwargs)
                return forward_ad.make_dual(function(x, *args[1:], **kwargs), along)
        return function(*args, **kwargs)


def _along_normed(
    x: Tensor, v: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> Tensor:
    over = tuple(range(-len(shape), 0))
    unit, _, scale = torch.native_layer_norm(x, shape, None, None, eps)
    along = scale * (v - v.mean(over, keepdim=True) - unit * (unit * v).mean(over, keepdim=True))
    return along if weight is None else along * weight


_ALONG: Any = {F.linear: lambda x, v, weight, bias=None: F.linear(v, weight), F.layer_norm: _along_normed}


@cache
def _load_forward_mode() -> None:
    """Make torch load its forward-mode decompositions, for which it calls one of its deprecated functions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.func.jvp(torch.neg, (torch.zeros(1),), (torch.zeros(1),))

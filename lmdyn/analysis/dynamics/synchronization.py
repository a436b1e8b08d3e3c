"""Synchronization of the token vectors of an iterated encoder: deviation, offset, numerical floor."""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.orbits.trajectories import part_of

__all__ = [
    "THRESHOLD",
    "DeviationVariant",
    "Synchronization",
    "check_floor",
    "deviation",
    "deviation_floor",
    "mean_token",
    "synchronization_offset",
    "synchronize",
]

THRESHOLD = 1e-5
"""Token vectors with a deviation below this value count as synchronized: Inoue et al. 2022, figure 2."""


DeviationVariant = Literal["printed", "released"]
"""Definition of the deviation: the publication's equation, or what its code computes."""


def deviation(
    x: Float[Tensor, "*batch tokens d"],
    variant: DeviationVariant = "printed",
) -> Float[Tensor, "*batch"]:
    """Compute D = (1/N) Σᵢ ‖xᵢ − x̄‖₂, how far the N token vectors are from their mean, in float64.

    It is in the units of the state; 0 if all are equal, NaN if the state is NaN or infinite. The variant ``released``
    is what the publication's code computes: the standard deviation over tokens of each of the d units, averaged over
    units, (1/d) Σⱼ √((1/N) Σᵢ (xᵢⱼ − x̄ⱼ)²). It is about √d times smaller, so at the same threshold tokens count as
    synchronized earlier.

    Args:
        x: (…, tokens, d) token vectors.
        variant: ``printed`` or ``released``.

    Raises:
        ValueError: if the variant is unknown.

    Reference: Inoue et al. 2022, equation 5.

    Example:
        >>> deviation(torch.tensor([[3.0, 4.0], [-3.0, -4.0]]))
        tensor(5., dtype=torch.float64)
    """
    if variant not in get_args(DeviationVariant):
        raise ValueError(f"variant is {variant!r}: expected 'printed' or 'released'")
    x = x.double()
    if not x.numel():
        return x.new_full(x.shape[:-2], torch.nan)
    if variant == "released":
        return x.std(-2, correction=0).mean(-1)
    apart: Tensor = torch.linalg.vector_norm(x - x.mean(-2, keepdim=True), dim=-1)
    return apart.mean(-1)


def mean_token(x: Float[Tensor, "*batch tokens d"]) -> Float[Tensor, "*batch d"]:
    """Compute the mean token of each state, summed in float64."""
    return x.double().mean(-2).to(x.dtype)


@torch.no_grad()
def deviation_floor(
    f: Callable[[Tensor], Tensor],
    x: Float[Tensor, "batch tokens d"],
    steps: int = 32,
    variant: DeviationVariant = "printed",
) -> Float[Tensor, ""]:
    """Compute the deviation that rounding maintains: the highest D(t) of tokens that differ only in their last bits.

    Tokens that differ in their last bits are rounded differently at each step, while the map contracts them; the floor
    is the balance of both. Deviations at or below this floor are not meaningful. If synchronization itself is
    unstable, the tokens separate again, and the floor is large for a reason other than precision.

    Args:
        f: the map.
        x: states; all tokens start at the mean of their state, times 1 ± 4 ε at random, with ε of the precision.
        steps: number of steps; the first half counts as settling.
        variant: variant of :func:`deviation`.

    Returns:
        Scalar float64 tensor, the maximum over the second half of the steps and the rows that stay finite; NaN if none
        does, 0 without rows.

    Raises:
        ValueError: if there are fewer than 2 steps.

    Example:
        >>> bool(deviation_floor(lambda x: 1 - x / 2, torch.ones(1, 3, 4)) < 1e-6)
        True
    """
    if steps < 2:
        raise ValueError(f"steps must be at least 2, got {steps}")
    noise = torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    factor = 1 + 8 * torch.finfo(x.dtype).eps * (noise - 0.5)
    x = (x.double().mean(-2, keepdim=True) * factor.to(x.device)).to(x.dtype)
    highest = x.new_zeros(len(x), dtype=torch.float64)
    for step in range(steps):
        x = f(x)
        if step >= steps // 2:
            highest = torch.maximum(highest, deviation(x, variant))  # NaN stays NaN
    if len(x) == 0:
        return highest.sum()
    finite = highest[highest.isfinite()]
    return finite.amax() if len(finite) else highest.new_tensor(torch.nan)


def synchronization_offset(
    deviations: Float[Tensor, "times batch"],
    floor: Float[Tensor, ""] | float,
    threshold: float = THRESHOLD,
) -> Int[Tensor, "batch"]:
    """Return the first t with D(t) < threshold; −1 for none among the times. NaN is not below it.

    Args:
        deviations: (times, batch) D(t) for t = 0, 1, 2, …
        floor: the numerical floor of the precision, from :func:`deviation_floor`.
        threshold: tokens count as synchronized below it.

    Raises:
        ValueError: if the floor is not below the threshold, because "never synchronized" and "not resolved" could not
            be distinguished; if there are no times.

    Reference: Inoue et al. 2022, section II.A and figure 2B.

    Example:
        >>> synchronization_offset(torch.tensor([[1.0, 1.0], [1e-6, 1.0], [2e-5, 1.0]]), floor=1e-7)
        tensor([ 1, -1])
    """
    check_floor(floor, threshold)
    if not len(deviations):
        raise ValueError("deviations are empty: expected the deviation D(t) at one or more times t, from 0")
    below = deviations < threshold
    return torch.where(below.any(0), below.int().argmax(0), -1)


class Synchronization(NamedTuple):
    """Result of :func:`synchronize`.

    Attributes:
        offset: (batch,) first t with D(t) below the threshold; −1 for none within the steps, or if the state became
            NaN.
        token: (batch, d) the mean token at this step, or after the last step.
    """

    offset: Int[Tensor, "batch"]
    token: Float[Tensor, "batch d"]


@torch.no_grad()
def synchronize(
    f: Callable[[Tensor], Tensor],
    x: Float[Tensor, "batch tokens d"],
    max_steps: int,
    threshold: float = THRESHOLD,
    batch_size: int = 16,
    variant: DeviationVariant = "printed",
) -> Synchronization:
    """Iterate until all token vectors of a row are equal, separately for each row.

    Check the :func:`deviation_floor` first.

    Args:
        f: the map.
        x: states at t = 0.
        max_steps: maximum number of steps.
        threshold: tokens count as synchronized below it.
        batch_size: number of rows to which the map is applied at once.
        variant: variant of :func:`deviation`.

    Example:
        >>> halved = lambda x: x.mean(1, keepdim=True) + (x - x.mean(1, keepdim=True)) / 10
        >>> synchronize(halved, torch.tensor([[[1.0], [3.0]]]), 100, threshold=5e-3)
        Synchronization(offset=tensor([3]), token=tensor([[2.]]))
    """
    offset = x.new_full((len(x),), -1, dtype=torch.int64)
    token = mean_token(x)
    for rows in torch.arange(len(x), device=x.device).split(batch_size):
        now, here = x[rows], part_of(f, rows)
        for t in range(max_steps + 1):
            still = offset[rows] < 0
            token[rows] = torch.where(still[:, None], mean_token(now), token[rows])
            offset[rows] = torch.where(still & (deviation(now, variant) < threshold), t, offset[rows])
            # synchronizes with the device only every 10 steps
            if t == max_steps or (t % 10 == 9 and (offset[rows] >= 0).all()):
                break
            now = here(now)
    return Synchronization(offset, token)


def check_floor(floor: Float[Tensor, ""] | float, threshold: float) -> None:
    """Raise an error if a precision cannot distinguish synchronized tokens from others.

    Raises:
        ValueError: if the floor is not below the threshold.
    """
    if not float(floor) < threshold:  # also for NaN
        raise ValueError(
            f"rounding separates equal token vectors to a deviation of {float(floor):.1e}: expected less than the "
            f"threshold {threshold:.1e}. Use float64; if this does not help, synchronized tokens are unstable"
        )

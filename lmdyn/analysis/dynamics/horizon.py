"""Trajectories at the end of a long run: their attractors, and their behaviour on them."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.orbits.recurrence import attractors
from lmdyn.analysis.orbits.trajectories import Map, finite_rows, part_of

__all__ = ["carried_on", "ends", "late_exponents"]

_LATE = 20  # windows: those of the running mean that ends a transient


def late_exponents(exponents: Float[Tensor, "windows batch"], windows: int = _LATE) -> Float[Tensor, "batch"]:
    """Return the mean λ of each row's last windows that have a value; NaN if none has.

    Example:
        >>> late_exponents(torch.tensor([[0.5], [-0.1], [-0.3], [float("nan")]]), windows=2)
        tensor([-0.2000])
    """
    tail = exponents.flip(0)
    return tail.where((~tail.isnan()).cumsum(0) <= windows, torch.nan).nanmean(0)


def carried_on(
    values: Float[Tensor, "times batch"], constant: Float[Tensor, "batch"], start: Int[Tensor, "batch"]
) -> Float[Tensor, "times batch"]:
    """Replace the values by each row's constant from its ``start`` on, if ``start`` is above 0.

    A mean over rows then also includes those that are no longer followed.

    Example:
        >>> carried_on(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.tensor([9.0, 9.0]), torch.tensor([1, -1]))
        tensor([[1., 1.],
                [9., 2.]])
    """
    time = torch.arange(len(values), device=values.device)[:, None]
    return torch.where((start > 0) & (time >= start), constant.to(values), values)


@torch.no_grad()
def ends(
    parts: Sequence[tuple[Map, Tensor, Bool[Tensor, "batch"]]],
    settled: Bool[Tensor, "batch"],
    *,
    max_period: int,
    tolerance: float,
) -> Int[Tensor, "batch"]:
    """Distinguish the closed orbits that trajectories end on; those of different maps are not compared.

    Args:
        parts: a map (of all rows, if it belongs to rows), the last states under it, (batch, *state), and the rows (on
            the CPU) that these belong to.
        settled: for which trajectories an orbit is searched; the others still separate from their neighbours.
        max_period: longest period to search for.
        tolerance: relative distance at which states count as the same.

    Returns:
        (batch,) labels, equal for two trajectories on the same closed orbit, from 0; −1 if none was found.

    Example:
        >>> wells, last = (lambda x: 1.5 * x - 0.5 * x**3), torch.tensor([[1.0], [-1.0], [1.0]])
        >>> every = torch.tensor([True, True, True])
        >>> ends([(wells, last, every)], every, max_period=4, tolerance=1e-6)
        tensor([0, 1, 0])
    """
    label = torch.full(settled.shape, -1, dtype=torch.int64)
    for f, final, where in parts:
        rows = (settled & where & finite_rows(final).cpu()).nonzero()[:, 0]
        if len(rows):
            there = final[rows.to(final.device)]
            found = attractors(part_of(f, rows), there, max_period, tolerance).label.cpu()
            label[rows] = torch.where(found >= 0, found + label.max() + 1, -1)
    return label

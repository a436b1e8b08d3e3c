"""Trajectories at the end of a long run: their attractors, and their behaviour on them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.orbits.recurrence import attractors
from lmdyn.analysis.orbits.trajectories import Map, part_of

__all__ = ["Horizon", "carried_on", "ends", "late_exponents"]

_LATE = 20  # windows: those of the running mean that ends a transient


@dataclass(frozen=True)
class Horizon:
    """What trajectories end on.

    Attributes:
        label: (batch,) equal for two trajectories on the same closed orbit, from 0; −1 if none was found.
    """

    label: Int[Tensor, "batch"]

    @property
    def attractors(self) -> int:
        """Return the number of different closed orbits."""
        return int(self.label.max()) + 1

    @property
    def largest_share(self) -> float:
        """Return the share of all trajectories that are on the most frequent closed orbit; 0 if there is none."""
        return float(torch.bincount(self.label[self.label >= 0], minlength=1).max()) / len(self.label)


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
    exponents: Float[Tensor, "windows batch"],
    parts: Sequence[tuple[Map, Tensor, Bool[Tensor, "batch"]]],
    *,
    max_period: int,
    tolerance: float,
    resolution: float,
) -> Horizon:
    """Distinguish the attractors that trajectories end on.

    A period is searched only for trajectories whose late λ is at most the resolution: the others still separate from
    their neighbours. Attractors of different maps are not compared.

    Args:
        exponents: (windows, batch) λ, NaN for none; on the CPU.
        parts: a map (of all rows, if it belongs to rows), the last states under it, (batch, *state), and the rows (on
            the CPU) that these belong to.
        max_period: longest period to search for.
        tolerance: relative distance at which states count as the same.
        resolution: λ above which neighbours separate.

    Example:
        >>> wells, calm = (lambda x: 1.5 * x - 0.5 * x**3), torch.full((30, 3), -0.5)
        >>> last, all_of_them = torch.tensor([[1.0], [-1.0], [1.0]]), torch.tensor([True, True, True])
        >>> found = ends(calm, [(wells, last, all_of_them)], max_period=4, tolerance=1e-6, resolution=1e-3)
        >>> found.attractors, round(found.largest_share, 2)
        (2, 0.67)
    """
    late = late_exponents(exponents)
    label = torch.full((exponents.shape[1],), -1, dtype=torch.int64)
    for f, final, where in parts:
        rows = ((late <= resolution) & where & final.flatten(1).isfinite().all(1).cpu()).nonzero()[:, 0]
        if len(rows):
            there = final[rows.to(final.device)]
            found = attractors(part_of(f, rows), there, max_period, tolerance).label.cpu()
            label[rows] = torch.where(found >= 0, found + label.max() + 1, -1)
    return Horizon(label)

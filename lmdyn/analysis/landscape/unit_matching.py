"""Hidden units of two networks matched by their weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import scipy
import torch
from jaxtyping import Int
from torch import Tensor

from lmdyn.analysis.parameters.exchangeable_units import UnitAxis, UnitGroup, permuted_units
from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["MatchedUnits", "match_units"]


@dataclass(frozen=True)
class MatchedUnits:
    """Permutations of another network's units.

    Attributes:
        permutations: permutation by name of the group, for :func:`~lmdyn.analysis.permuted_units`.
        before: inner product of the weights of both networks before matching, divided by their norms; NaN if weights
            are not finite, and no unit is then moved.
        after: the same after matching.
        sweeps: number of passes over all groups.
    """

    permutations: Mapping[str, Int[Tensor, " units"]]
    before: float
    after: float
    sweeps: int


def match_units(
    own: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
    groups: Sequence[UnitGroup],
    *,
    seed: int = 0,
    most: int = 100,
) -> MatchedUnits:
    """Permute the units of another network such that its weights are close to the own ones.

    Group by group, in random order, the permutation that maximises the inner product of the weights is found by
    linear assignment, given the permutations of the other groups, until none improves it. An axis whose units also
    occur on another axis of the same parameter, as in recurrent weights, counts that other axis in its current order.
    A unit of several entries, such as an attention head, is compared entry by entry. The result is a local optimum.

    Args:
        own: values by name of parameter, on one device.
        other: the other network's values.
        groups: exchangeable units.
        seed: seed of the orders of groups.
        most: maximum number of passes over all groups.

    Reference: Ainsworth, Hayase & Srinivasa 2023, "Git Re-Basin", section 3.2 (weight matching).

    Example:
        >>> group = UnitGroup("units", 2, (UnitAxis("w", 0),))
        >>> match_units({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([2.0, 1.0])}, [group]).permutations
        {'units': tensor([1, 0])}
    """
    names = sorted({axis.parameter for group in groups for axis in group.axes})
    mine = {name: exact_float(own[name]).cpu() for name in names}
    theirs = {name: exact_float(other[name]).cpu() for name in names}
    norms = [
        float(torch.stack([v.square().sum() for v in of.values()]).sum().sqrt()) for of in (mine, theirs)
    ]
    found = {group.name: torch.arange(group.size) for group in groups}
    if not all(map(math.isfinite, norms)):
        return MatchedUnits(found, math.nan, math.nan, 0)
    generator = torch.Generator().manual_seed(seed)

    within = {name: _within(groups, name) for name in names}

    def alike(permutations: Mapping[str, Tensor], parameters: Sequence[str] = names) -> float:
        products = [
            (mine[name] * permuted_units({name: theirs[name]}, within[name], permutations)[name]).sum()
            for name in parameters  # one copy at a time
        ]
        return float(torch.stack(products).sum())

    before = alike(found)
    scale = max(norms[0] * norms[1], 1e-300)
    sweeps, improved = 0, True
    while improved and sweeps < most:
        improved, sweeps = False, sweeps + 1
        for number in torch.randperm(len(groups), generator=generator).tolist():
            group = groups[number]
            cost = torch.zeros(group.size, group.size, dtype=torch.float64)
            for axis in group.axes:
                cost += _products(mine, theirs, within[axis.parameter], found, group, axis)
            _, order = scipy.optimize.linear_sum_assignment(cost.numpy(), maximize=True)
            trial = {**found, group.name: torch.from_numpy(order)}
            own_names = sorted({axis.parameter for axis in group.axes})  # the other products stay
            if alike(trial, own_names) - alike(found, own_names) > 1e-12 * scale:
                found, improved = trial, True
    best = alike(found)
    return MatchedUnits(found, before / scale, best / scale, sweeps)


def _within(groups: Sequence[UnitGroup], parameter: str) -> list[UnitGroup]:
    """Return the groups that have axes of a parameter, with these only."""
    found = [(g, tuple(axis for axis in g.axes if axis.parameter == parameter)) for g in groups]
    return [UnitGroup(g.name, g.size, axes) for g, axes in found if axes]


def _products(
    mine: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    groups: Sequence[UnitGroup],
    found: Mapping[str, Tensor],
    group: UnitGroup,
    axis: UnitAxis,
) -> Tensor:
    """Return the inner products of own units (rows) and the other's units (columns) along one axis."""
    name = axis.parameter
    moved = permuted_units({name: theirs[name]}, groups, found, leave=axis)
    end = axis.start + axis.blocks * group.size * axis.width
    units = [
        v.movedim(axis.axis, 0)[axis.start : end].reshape(axis.blocks, group.size, -1)
        for v in (mine[name], moved[name])
    ]
    return torch.einsum("bid,bjd->ij", *units)

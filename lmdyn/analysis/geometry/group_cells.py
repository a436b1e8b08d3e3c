"""Groups of tokens by a value, such as their word, divided into cells by a coarser label."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from lmdyn.analysis.geometry.group_variance import GroupVectors, NestedVariance, nested_variance

__all__ = ["GroupCells"]


@dataclass(frozen=True)
class GroupCells:
    """Cells of tokens with one value and one label; those of one value are a group.

    A value and a label have the number value · labels + label, in which the last label means none.

    Attributes:
        first: number of the first cell in the sums of all cells, of several groupings.
        group: (cells,) group of each cell, from 0.
        label: (cells,) label of each cell.
        fine: numbers of the cells that are fine groups within their label.
        cell_of: (values · labels,) number of the cell, −1 for values of no group.
    """

    first: int
    group: Int[Tensor, "cells"]
    label: Int[Tensor, "cells"]
    fine: Int[Tensor, "_"]
    cell_of: Int[Tensor, "_"]

    @classmethod
    def of(
        cls, counts: Int[Tensor, "values labels"], values: Int[Tensor, "groups"], least: int, first: int = 0
    ) -> "GroupCells":
        """Divide the tokens of some values.

        Args:
            counts: number of tokens of each value and label; the last label means none.
            values: value of each group.
            least: least number of tokens of a fine group.
            first: number of the first cell.

        Example:
            >>> cells = GroupCells.of(torch.tensor([[3, 0, 1], [2, 2, 0], [0, 5, 0]]), torch.tensor([0, 2]), least=2)
            >>> cells.group.tolist(), cells.label.tolist(), cells.fine.tolist()
            ([0, 0, 1], [0, 2, 1], [0, 2])
        """
        group, label = counts[values].nonzero(as_tuple=True)
        cell_of = torch.full_like(counts, -1)
        cell_of[values[group], label] = first + torch.arange(len(group))
        fine = (counts[values[group], label] >= least) & (label < counts.shape[1] - 1)
        return cls(first, group, label, fine.nonzero()[:, 0], cell_of.flatten())

    def find(self, numbers: Int[Tensor, "*tokens"]) -> Int[Tensor, "*tokens"]:
        """Return the cell of each token by the number of its value and label, −1 for none."""
        known = (numbers >= 0) & (numbers < len(self.cell_of))
        return torch.where(known, self.cell_of.to(numbers.device)[numbers.where(known, 0)], -1)

    def groups(self, found: GroupVectors) -> GroupVectors:
        """Return the vectors of each group, from those of all cells."""
        return found.of(range(self.first, self.first + len(self.group))).merged(self.group)

    def tree(self, found: GroupVectors) -> NestedVariance | None:
        """Return the variance between labels and between fine groups of one; None for fewer than two labels."""
        labels = self.label[self.fine]
        several = len(labels.unique()) > 1
        return nested_variance(found.of((self.first + self.fine).tolist()), labels) if several else None

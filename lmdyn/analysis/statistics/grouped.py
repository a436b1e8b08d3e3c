"""Means of many quantities by group (by word, by tag) in one streaming pass."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.distributed import all_reduce_sums

__all__ = ["GroupedMeans"]


class GroupedMeans:
    """Streaming float64 sums and counts of named quantities in ``n_groups`` groups.

    Memory is O(groups x quantities), whatever the corpus. Sums add over batches and ranks, so two ranks give the means
    of one.

    Args:
        n_groups: groups are 0 … n_groups - 1; a negative group is ignored.
        skip_nan: whether to leave NaN values out of sum and count; otherwise they make the mean of their group NaN.

    Example:
        >>> means = GroupedMeans(3)
        >>> means.update(torch.tensor([0, 0, 2, -1]), {"x": torch.tensor([1.0, 3.0, 5.0, 9.0])})
        >>> means.mean("x")
        tensor([2., nan, 5.], dtype=torch.float64)
        >>> means.count("x")
        tensor([2., 0., 1.], dtype=torch.float64)
    """

    def __init__(self, n_groups: int, *, skip_nan: bool = True) -> None:
        self.n_groups = n_groups
        self.skip_nan = skip_nan
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the quantities added so far."""
        return tuple(self._sums)

    def update(self, groups: Int[Tensor, "n"], values: dict[str, Float[Tensor, "_"]]) -> None:
        """Add n observations.

        Args:
            groups: (n,) group of each observation.
            values: (n,) values of each quantity.

        Raises:
            ValueError: if a group is not below ``n_groups``, or if the numbers of values and groups differ.
        """
        if groups.device.type == "mps":  # does not support float64
            groups = groups.cpu()
            values = {name: value.cpu() for name, value in values.items()}
        # no synchronization elsewhere
        if groups.device.type == "cpu" and len(groups) and int(groups.max()) >= self.n_groups:
            raise ValueError(f"groups contains {int(groups.max())}: expected numbers below {self.n_groups}")
        inside = groups >= 0
        for name, value in values.items():
            if value.shape != groups.shape:
                raise ValueError(
                    f"expected the shape {tuple(groups.shape)} of `groups` for {name!r}, got {tuple(value.shape)}"
                )
            valid = inside & ~value.isnan() if self.skip_nan else inside
            # an extra group takes values that are left out: boolean indexing and bincount would synchronize
            index = torch.where(valid, groups, self.n_groups)
            if name not in self._sums:
                zeros = groups.new_zeros(self.n_groups + 1, dtype=torch.float64)
                self._sums[name], self._counts[name] = zeros, zeros.clone()
            self._sums[name].index_add_(0, index, torch.where(valid, value, 0).double())
            self._counts[name].index_add_(0, index, valid.double())

    def reduce(self) -> None:
        """Sum over ranks; call it once, on every rank, after the last update."""
        self._sums, self._counts = all_reduce_sums(self._sums), all_reduce_sums(self._counts)

    def sum(self, name: str) -> Float[Tensor, "groups"]:
        """Return the sum in each group, (n_groups,) float64."""
        return self._sums[name][:-1].cpu()

    def count(self, name: str) -> Float[Tensor, "groups"]:
        """Return the number of observations in each group, (n_groups,) float64."""
        return self._counts[name][:-1].cpu()

    def mean(self, name: str) -> Float[Tensor, "groups"]:
        """Return the mean in each group, (n_groups,) float64; NaN for an empty group."""
        return self.sum(name) / self.count(name)

    def total_mean(self, name: str) -> float:
        """Return the mean over all observations (not over groups); NaN if there are none."""
        return float(self.sum(name).sum() / self.count(name).sum())

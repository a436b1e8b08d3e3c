"""Prediction of masked tokens at each time of an encoder: sums over positions, their rows, and the baselines."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.distributed import all_reduce_sum

__all__ = ["DepthRow", "MaskedTokens"]

_HOW = ("fixed", "retrained")
_WHERE = (None, "mask")


class DepthRow(NamedTuple):
    """A row of an observation of ``DepthPerformance``."""

    quantity: str
    how: str
    where: str | None
    t: int | None
    value: float


class MaskedTokens:
    """Sums over labelled positions: over all of them, and over those that show the mask token.

    Args:
        times: increasing times; the first is 0, without context.
        vocab_size: number of token types.
    """

    def __init__(self, times: Sequence[int], vocab_size: int) -> None:
        self._times = tuple(times)
        self._counts = torch.zeros(len(_WHERE), vocab_size, dtype=torch.float64)
        self._sums = torch.zeros(len(_HOW), len(_WHERE), len(times), 2, dtype=torch.float64)

    def update(
        self,
        labels: Int[Tensor, "n"],
        masked: Bool[Tensor, "n"],
        scores: Mapping[str, Sequence[Float[Tensor, "n 2"]]],
    ) -> None:
        """Add some positions.

        Args:
            labels: the tokens at these positions.
            masked: which of them show the mask token.
            scores: :func:`prediction_scores` at each time by decoder.
        """
        there = torch.stack([torch.ones_like(masked), masked])
        for where, chosen in enumerate(there):
            self._counts[where] += labels[chosen].bincount(minlength=self._counts.shape[1]).cpu()
            for how, name in enumerate(_HOW):
                of_times = torch.stack([at_t[chosen].sum(0) for at_t in scores[name]])
                self._sums[how, where] += of_times.cpu()

    def rows(self, times: Sequence[int]) -> list[DepthRow]:
        """Return the rows of some of the times, and the baselines, over all ranks, all of which must call it.

        If no position shows the mask token, there are no rows for these.

        Raises:
            ValueError: if there are no labels.
        """
        counts = all_reduce_sum(self._counts)
        sums = all_reduce_sum(self._sums)
        n = counts.sum(1)
        if n[0] == 0:
            raise ValueError("expected labelled positions in the data, got none")
        rows = []
        for i, where in enumerate(_WHERE):
            if n[i] == 0:
                continue
            means = sums[:, i] / n[i]
            for j, how in enumerate(_HOW):
                for t, (accuracy, cross_entropy) in zip(self._times, means[j].tolist(), strict=True):
                    if t in times:
                        rows.append(DepthRow("accuracy", how, where, t, accuracy))
                        rows.append(DepthRow("cross_entropy", how, where, t, cross_entropy))
            retrained = float(means[_HOW.index("retrained"), 0, 0])
            frequent = float(counts[i].max() / n[i])
            rows.append(DepthRow("floor", "retrained", where, None, retrained))
            rows.append(DepthRow("floor", "most_frequent", where, None, frequent))
        return rows

"""Streaming sums of labelled trajectories by time, sufficient for linear readouts of any window of time."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.distributed import all_reduce_sum
from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["WindowSums"]


class WindowSums:
    """Streaming float64 sums of labelled trajectories, sufficient for linear readouts of any window of time.

    For each class of sentences and each time, they are the number of sentences, the mean of their vectors, and the
    scatter matrix about it. Sums of scatter about the running mean are updated by the formulas of Chan, Golub &
    LeVeque (1983): all terms are positive, so no precision is lost, wherever the mean lies. Memory is O(times ·
    width²), whatever the number of sentences. :meth:`update` does not synchronize with the device.

    Args:
        n_times: number of times T.
        width: number of dimensions d of a vector.
        n_classes: number of classes C.
        pooled: whether to keep one scatter matrix for each time, the sum over classes. This is sufficient for
            training; errors on development sentences require those of each class.
        device: device of the sums.

    Attributes:
        counts: (C, T) number of sentences.
        means: (C, T, d) mean vectors of the sentences.
        resolution: deviations below this share of the mean are rounding errors.
        scatter: (C, T, d, d) Σ (x − mean)(x − mean)ᵀ within each class; pooled, (1, T, d, d).

    Example:
        >>> sums = WindowSums(n_times=1, width=1, n_classes=2)
        >>> sums.update(0, torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0, 0, 1]))
        >>> sums.means.flatten().tolist(), sums.scatter.flatten().tolist()
        ([2.0, 7.0], [2.0, 0.0])
    """

    def __init__(
        self,
        n_times: int,
        width: int,
        n_classes: int,
        *,
        pooled: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        self.pooled = pooled
        self.resolution = 1e-12
        groups = 1 if pooled else n_classes
        self.counts = torch.zeros(n_classes, n_times, dtype=torch.float64, device=device)
        self.means = torch.zeros(n_classes, n_times, width, dtype=torch.float64, device=device)
        self.scatter = torch.zeros(groups, n_times, width, width, dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(self, t: int, x: Float[Tensor, "n d"], classes: Int[Tensor, "n"]) -> None:
        """Add the vectors of n sentences at time t.

        Every sentence must be added at every time. Sentences of a class outside 0 … C − 1 are ignored.

        Args:
            t: the time, 0 … T − 1.
            x: (n, d) vectors.
            classes: (n,) the class of each sentence.
        """
        if x.dtype != torch.float64:
            self.resolution = max(self.resolution, 100 * torch.finfo(x.dtype).eps)
        x = exact_float(x)
        member = (classes[:, None] == torch.arange(len(self.counts), device=classes.device)).to(x)
        n, before = member.sum(0), self.counts[:, t]
        share = n / (before + n).clamp(min=1)
        mean = member.T @ x / n.clamp(min=1)[:, None]
        rest = (x - member @ mean) * member.sum(1, keepdim=True)
        move = (before * share).sqrt()[:, None] * (mean - self.means[:, t])
        if self.pooled:
            rows = torch.cat([rest, move])
            self.scatter[0, t].addmm_(rows.T, rows)
        else:
            parts = torch.cat([rest * member.T[:, :, None], move[:, None]], 1)  # (C, n + 1, d)
            self.scatter[:, t].baddbmm_(parts.mT, parts)
        self.means[:, t].lerp_(mean, share[:, None])
        before += n

    @torch.no_grad()
    def reduce(self) -> None:
        """Sum over ranks; call it once, on every rank, after the last update. A rank may have no sentences."""
        counts = all_reduce_sum(self.counts)
        means = all_reduce_sum(self.counts[..., None] * self.means) / counts.clamp(min=1)[..., None]
        for t in range(counts.shape[1]):  # one at a time, because reducing makes a copy
            move = self.counts[:, t, None].sqrt() * (self.means[:, t] - means[:, t])
            between = move[:, :, None] * move[:, None]
            self.scatter[:, t] = all_reduce_sum(
                self.scatter[:, t] + (between.sum(0) if self.pooled else between)
            )
        self.counts, self.means = counts, means

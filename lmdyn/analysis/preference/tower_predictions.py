"""Predictions of each word by each tower of a language model: streaming sums over the text, and their means."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.distributed import all_reduce_sum
from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["Predictions", "TowerPredictions", "means_of"]


@dataclass(frozen=True)
class Predictions:
    """How well each of K towers predicts each of V types: means over the positions whose target is the type.

    All tensors are float64 on the CPU, the same on every rank. Means over no positions are NaN.

    Attributes:
        count: (V,) number of positions whose target is the type.
        probability: (K, V) mean probability of the type at these positions, in [0, 1].
        log_probability: (K, V) mean log-probability at these positions, in nats, at most 0; −∞ if a probability was 0.
        covariance: (K, K, V) covariance of the towers' probabilities at these positions, divided by the count; NaN for
            fewer than 2 positions.
        half_count: (2, V) number of positions in each half of the corpus.
        half_probability: (2, K, V) mean probability in each half.
        half_log_probability: (2, K, V) mean log-probability in each half.
    """

    count: Float[Tensor, "vocab"]
    probability: Float[Tensor, "towers vocab"]
    log_probability: Float[Tensor, "towers vocab"]
    covariance: Float[Tensor, "towers towers vocab"]
    half_count: Float[Tensor, "2 vocab"]
    half_probability: Float[Tensor, "2 towers vocab"]
    half_log_probability: Float[Tensor, "2 towers vocab"]

    @property
    def towers(self) -> int:
        """Number K of towers."""
        return len(self.probability)

    @property
    def mean_probability(self) -> Float[Tensor, "towers"]:
        """Mean probability of the target over all positions, (K,) (He & Toyoizumi 2022, equation 3)."""
        return self._over_positions(self.probability)

    @property
    def cross_entropy(self) -> Float[Tensor, "towers"]:
        """Mean of −log p of the target over all positions, (K,), in nats."""
        return -self._over_positions(self.log_probability)

    def _over_positions(self, means: Tensor) -> Tensor:
        occurring = self.count > 0
        return (means * self.count)[:, occurring].sum(1) / self.count.sum()


class TowerPredictions:
    """Streaming float64 sums of the probabilities that K towers assign to the targets, by type and half of the corpus.

    Memory is O(K² · vocab_size), whatever the corpus. Sums add over batches and ranks, and updates do not synchronize
    with the device.

    Args:
        vocab_size: number V of types; targets are 0 … V − 1.
        towers: number K of towers, at least 1.

    Example:
        >>> sums = TowerPredictions(vocab_size=3, towers=2)
        >>> p = torch.tensor([[0.5, 0.1, 0.7, 0.9], [0.25, 0.2, 0.1, 0.9]])
        >>> sums.update(p.log(), torch.tensor([0, 2, 0, -100]), torch.tensor([0, 0, 1, 1]))
        >>> sums.reduce().probability
        tensor([[0.6000,    nan, 0.1000],
                [0.1750,    nan, 0.2000]], dtype=torch.float64)
    """

    def __init__(self, vocab_size: int, towers: int) -> None:
        self.vocab_size = vocab_size
        self.towers = towers
        # a row for each type and half, the first for positions that do not count; a column for each sum
        self._pairs = torch.triu_indices(towers, towers)  # of the products, row by row
        columns = 1 + 2 * towers + self._pairs.shape[1]
        self._sums = torch.zeros(2 * vocab_size + 1, columns, dtype=torch.float64)

    def update(
        self,
        log_probabilities: Float[Tensor, "towers n"],
        targets: Int[Tensor, "n"],
        halves: Int[Tensor, "n"],
    ) -> None:
        """Add n positions.

        Args:
            log_probabilities: (K, n) ln p of the target at each position, for each tower, at most 0.
            targets: (n,) types; a position with a negative target (−100: padding, not masked) does not count.
            halves: (n,) 0 or 1, the half of the corpus that contains the position, for split-half reliability.

        Raises:
            ValueError: on the CPU, if a target is not below ``vocab_size``.
        """
        log_p = exact_float(log_probabilities)
        targets = targets.to(log_p.device)
        halves = halves.to(log_p.device)
        counts = targets >= 0
        halves = torch.where(counts, halves, 0)
        if targets.device.type == "cpu" and len(targets) and int(targets.max()) >= self.vocab_size:
            raise ValueError(f"expected targets below vocab_size {self.vocab_size}, got {int(targets.max())}")
        # boolean indexing would synchronize; a target beyond the vocabulary is also beyond the table
        row = torch.where(counts, 1 + 2 * targets.long() + halves, 0)

        p = log_p.exp()
        # indexing by self._pairs would synchronize
        products = [p[tower] * p[tower:] for tower in range(self.towers)]
        terms = torch.cat([torch.ones_like(p[:1]), p, log_p, *products])
        self._sums = self._sums.to(p.device)  # copies to the device in the first update only
        self._sums.index_add_(0, row, terms.T)

    def reduce(self) -> Predictions:
        """Return the means over the positions of all ranks. Every rank must call it; more updates may follow.

        Raises:
            ValueError: if values are not probabilities (below 0, a mean above 1, NaN).
        """
        sums = all_reduce_sum(self._sums).cpu()
        K = self.towers
        by_half = sums[1:].reshape(self.vocab_size, 2, -1).permute(1, 2, 0)  # (half, column, type)
        sums = by_half.sum(0)
        count, probability, log_probability = means_of(sums, K)
        # 1e-5: tolerance for softmax in half precision
        wrong = (log_probability.isnan() & (count > 0)) | (probability > 1 + 1e-5)
        if wrong.any():
            tower, token = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"expected log-probabilities of at most 0, got NaN or higher values from tower {tower} for type {token}"
            )
        # Raw moments are acceptable here, unlike elsewhere: a variance is precise to a few roundings of the mean
        # square, so its root to about 1e-7 of p̄, and the standard error of log p̄ to 1e-7/√n, far below what is
        # reported.
        one, other = self._pairs
        upper = sums[1 + 2 * K :] / count - probability[one] * probability[other]
        deviation = upper[one == other].clamp(min=0).sqrt()
        bound = deviation[one] * deviation[other]  # Cauchy–Schwarz, which only rounding violates
        covariance = upper.new_empty(K, K, self.vocab_size)
        covariance[one, other] = torch.where(count >= 2, upper.clamp(-bound, bound), torch.nan)
        covariance[other, one] = covariance[one, other]
        half_count, half_probability, half_log_probability = means_of(by_half, K)
        return Predictions(
            count=count,
            probability=probability,
            log_probability=log_probability,
            covariance=covariance,
            half_count=half_count,
            half_probability=half_probability,
            half_log_probability=half_log_probability,
        )


def means_of(sums: Tensor, towers: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return count (…, V), mean probability and mean log-probability (…, K, V) of the sums (…, column, V)."""
    count, p, log_p = sums[..., : 1 + 2 * towers, :].split([1, towers, towers], -2)
    return count.squeeze(-2), p / count, log_p / count

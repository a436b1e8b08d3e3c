"""Which tower of a language model predicts a word better: token preference, from streaming sums of each type."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.correlation import pearson
from lmdyn.analysis.distributed import all_reduce_sum

__all__ = [
    "Pair",
    "Predictions",
    "PreferenceVariant",
    "SplitHalf",
    "TowerPredictions",
    "leading_towers",
    "most_frequent_tag",
    "preference_standard_error",
    "primary_tower",
    "split_half_reliability",
    "token_preference",
]

PreferenceVariant = Literal["mean_probability", "mean_log_probability", "printed"]
"""What log p̄ of equation 4 is: see :func:`token_preference`."""


@dataclass(frozen=True)
class Predictions:
    """How well each of K towers predicts each of V types: means over the positions whose target is the type.

    All are float64 on the CPU, the same on every rank. Means over no positions are NaN.

    Attributes:
        count: (V,) positions whose target is the type.
        probability: (K, V) mean probability of the type there, in [0, 1].
        log_probability: (K, V) mean log-probability there, in nats, at most 0; −∞ where a probability was 0.
        covariance: (K, K, V) covariance of the towers' probabilities there, divided by the count; NaN of fewer
            than 2 positions.
        half_count: (2, V) positions in each half of the corpus.
        half_probability: (2, K, V) mean probability in each half.
        half_log_probability: (2, K, V) mean log-probability in each half.
        all_positions: (K, V) mean probability of the type over all positions, whatever their target; None where
            :meth:`TowerPredictions.update_all` was not called.
    """

    count: Float[Tensor, "vocab"]
    probability: Float[Tensor, "towers vocab"]
    log_probability: Float[Tensor, "towers vocab"]
    covariance: Float[Tensor, "towers towers vocab"]
    half_count: Float[Tensor, "2 vocab"]
    half_probability: Float[Tensor, "2 towers vocab"]
    half_log_probability: Float[Tensor, "2 towers vocab"]
    all_positions: Float[Tensor, "towers vocab"] | None

    @property
    def towers(self) -> int:
        """K."""
        return len(self.probability)

    @property
    def mean_probability(self) -> Float[Tensor, "towers"]:
        """(K,) mean over all positions of the probability of the target (He & Toyoizumi 2022, equation 3)."""
        return self._over_positions(self.probability)

    @property
    def cross_entropy(self) -> Float[Tensor, "towers"]:
        """(K,) mean over all positions of −log p of the target, in nats."""
        return -self._over_positions(self.log_probability)

    def _over_positions(self, means: Tensor) -> Tensor:
        occurring = self.count > 0
        return (means * self.count)[:, occurring].sum(1) / self.count.sum()


class TowerPredictions:
    """Streaming float64 sums of the probabilities that K towers give to the targets, by type and half of the corpus.

    Memory is O(K² · vocab_size), whatever the corpus. Sums add over batches and ranks, and nothing waits for the device
    in the updates.

    Args:
        vocab_size: V, targets are 0 … V − 1.
        towers: K, from 1.

    Raises:
        ValueError: no types or no towers.

    Example:
        >>> sums = TowerPredictions(vocab_size=3, towers=2)
        >>> p = torch.tensor([[0.5, 0.1, 0.7, 0.9], [0.25, 0.2, 0.1, 0.9]])
        >>> sums.update(p.log(), torch.tensor([0, 2, 0, -100]), torch.tensor([0, 0, 1, 1]))
        >>> sums.reduce().probability
        tensor([[0.6000,    nan, 0.1000],
                [0.1750,    nan, 0.2000]], dtype=torch.float64)
    """

    def __init__(self, vocab_size: int, towers: int) -> None:
        if vocab_size < 1 or towers < 1:
            raise ValueError(f"expected at least one type and one tower, got {vocab_size} and {towers}")
        self.vocab_size = vocab_size
        self.towers = towers
        self._pairs = torch.triu_indices(towers, towers)  # of the products, row by row
        # a row for each type and half, the first for what does not count; a column for each sum
        columns = 1 + 2 * towers + self._pairs.shape[1]
        self._sums = torch.zeros(2 * vocab_size + 1, columns, dtype=torch.float64)
        # of p(a) over all positions; the last column is their number
        self._all = torch.zeros(towers, vocab_size + 1, dtype=torch.float64)

    def update(
        self,
        log_probabilities: Float[Tensor, "towers n"],
        targets: Int[Tensor, "_"],
        halves: Int[Tensor, "_"],
    ) -> None:
        """Add n positions.

        Args:
            log_probabilities: (K, n) ln p of the target at each position, from each tower, at most 0.
            targets: (n,) types; a position with a negative one (−100: padding, not masked) does not count.
            halves: (n,) 0 or 1, the half of the corpus that the position is in, for split-half reliability.

        Raises:
            ValueError: another number of towers or positions; on the CPU also a target that is not below
                ``vocab_size``, a half that is not 0 or 1.
        """
        if log_probabilities.shape != (self.towers, len(targets)) or halves.shape != targets.shape:
            raise ValueError(
                f"expected log-probabilities ({self.towers}, n), targets (n,) and halves (n,), got "
                f"{tuple(log_probabilities.shape)}, {tuple(targets.shape)} and {tuple(halves.shape)}"
            )
        log_p, targets, halves = (_with_float64(v) for v in (log_probabilities, targets, halves))
        counts = targets >= 0
        halves = torch.where(counts, halves, 0)
        if targets.device.type == "cpu" and len(targets):  # no sync elsewhere
            if int(targets.max()) >= self.vocab_size:
                raise ValueError(f"a target of {int(targets.max())} in a vocabulary of {self.vocab_size}")
            if int(halves.min()) < 0 or int(halves.max()) > 1:
                raise ValueError(f"halves are 0 or 1, got {int(halves.min())} to {int(halves.max())}")
        # boolean indexing would wait for the device; a target beyond the vocabulary is beyond the table too
        row = torch.where(counts, 1 + 2 * targets.long() + halves, 0)
        log_p = log_p.detach().double()
        p = log_p.exp()
        products = [
            p[tower] * p[tower:] for tower in range(self.towers)
        ]  # indexing by self._pairs would wait
        terms = torch.cat([torch.ones_like(p[:1]), p, log_p, *products])
        self._sums = self._sums.to(p.device)  # a copy to the device in the first update only
        self._sums.index_add_(0, row, terms.T)

    def update_all(self, sums: Float[Tensor, "towers vocab"], positions: int | Int[Tensor, ""]) -> None:
        """Add positions to the mean over all of them: needed by the variant ``printed`` alone.

        Args:
            sums: (K, V) Σ of the probability of each type over the positions, whatever their target.
            positions: number of these positions, 0 or more.

        Raises:
            ValueError: other numbers of towers or types.

        Example:
            >>> sums = TowerPredictions(vocab_size=2, towers=1)
            >>> sums.update_all(torch.tensor([[1.0, 3.0]]), 4)
            >>> sums.reduce().all_positions
            tensor([[0.2500, 0.7500]], dtype=torch.float64)
        """
        if sums.shape != (self.towers, self.vocab_size):
            raise ValueError(f"expected sums {(self.towers, self.vocab_size)}, got {tuple(sums.shape)}")
        sums = _with_float64(sums.detach())
        self._all = self._all.to(sums.device)
        self._all[:, :-1] += sums
        self._all[:, -1] += _with_float64(positions) if isinstance(positions, Tensor) else positions

    def reduce(self) -> Predictions:
        """The means over all ranks' positions. Every rank must enter; more updates may follow.

        Raises:
            ValueError: values that are no probabilities (below 0, a mean above 1, NaN).
        """
        sums, over_all = (all_reduce_sum(table).cpu() for table in (self._sums, self._all))
        K = self.towers
        by_half = sums[1:].reshape(self.vocab_size, 2, -1).permute(1, 2, 0)  # (half, column, type)
        sums = by_half.sum(0)
        count, probability, log_probability = _means(sums, K)
        # 1e-5: softmax in half precision
        wrong = (log_probability.isnan() & (count > 0)) | (probability > 1 + 1e-5)
        if bool(wrong.any()):
            tower, token = (int(i) for i in wrong.nonzero()[0])
            raise ValueError(
                f"tower {tower} gave type {token} values that are no probabilities (mean {probability[tower, token]}, "
                f"mean log {log_probability[tower, token]}): expected logarithms of at most 0, without NaN"
            )
        # Raw moments are fine here, unlike elsewhere: a variance is known to some roundings of the mean square, so its
        # root to about 1e-7 of p̄, and the standard error of log p̄ to 1e-7/√n. Nobody reads so small a one.
        one, other = self._pairs
        upper = sums[1 + 2 * K :] / count - probability[one] * probability[other]
        deviation = upper[one == other].clamp(min=0).sqrt()
        bound = deviation[one] * deviation[other]  # Cauchy–Schwarz, which rounding alone breaks
        upper = upper.clamp(-bound, bound)
        covariance = upper.new_empty(K, K, self.vocab_size)
        covariance[one, other] = covariance[other, one] = torch.where(count >= 2, upper, torch.nan)
        half_counts, half_probabilities, half_logs = zip(*(_means(half, K) for half in by_half), strict=True)
        positions = over_all[0, -1]
        return Predictions(
            count=count,
            probability=probability,
            log_probability=log_probability,
            covariance=covariance,
            half_count=torch.stack(half_counts),
            half_probability=torch.stack(half_probabilities),
            half_log_probability=torch.stack(half_logs),
            all_positions=over_all[:, :-1] / positions if positions > 0 else None,
        )


def _means(sums: Tensor, towers: int) -> tuple[Tensor, Tensor, Tensor]:
    """Count (V,), mean probability and mean log-probability (K, V) of the sums (column, V)."""
    return sums[0], sums[1 : 1 + towers] / sums[0], sums[1 + towers : 1 + 2 * towers] / sums[0]


def _with_float64(tensor: Tensor) -> Tensor:
    """``tensor`` on a device that has float64, as mps does not."""
    return tensor.cpu() if tensor.device.type == "mps" else tensor


def primary_tower(predictions: Predictions) -> int:
    """The tower that gives the targets the largest mean probability over the corpus; of equals the first.

    Raises:
        ValueError: no positions.

    Reference: He & Toyoizumi 2022, equation 3.

    Example:
        >>> sums = TowerPredictions(vocab_size=2, towers=2)
        >>> sums.update(torch.tensor([[0.5], [0.6]]).log(), torch.tensor([1]), torch.tensor([0]))
        >>> primary_tower(sums.reduce())
        1
    """
    if not bool(predictions.count.sum() > 0):
        raise ValueError("no positions with a target: there is nothing that a tower could be better at")
    return int(predictions.mean_probability.argmax())


class Pair(NamedTuple):
    """Two towers that are compared: arguments of :func:`token_preference` and its like."""

    primary: int
    other: int


def leading_towers(predictions: Predictions) -> Pair:
    """The primary tower, and the one with the next highest mean probability: the other one of two.

    Raises:
        ValueError: no positions, or one tower.

    Example:
        >>> sums = TowerPredictions(vocab_size=2, towers=3)
        >>> sums.update(torch.tensor([[0.5], [0.1], [0.6]]).log(), torch.tensor([1]), torch.tensor([0]))
        >>> leading_towers(sums.reduce())
        Pair(primary=2, other=0)
    """
    primary = primary_tower(predictions)
    means = predictions.mean_probability.clone()
    means[primary] = -1
    return Pair(*_towers(predictions, primary, int(means.argmax())))


def _towers(predictions: Predictions, primary: int | None, other: int | None) -> tuple[int, int]:
    """The primary tower and the one it is compared with."""
    K = predictions.towers
    if K < 2:
        raise ValueError(
            "a preference compares two towers, and there is one: train a model with n_towers of 2 or more"
        )
    first = primary_tower(predictions) if primary is None else primary
    if other is None and K > 2:
        raise ValueError(f"{K} towers: say which one to compare tower {first} with, as other=")
    second = 1 - first if other is None else other
    if not (0 <= first < K and 0 <= second < K and first != second):
        raise ValueError(
            f"expected two different towers of 0 … {K - 1}, got primary {first} and other {second}"
        )
    return first, second


def token_preference(
    predictions: Predictions,
    variant: PreferenceVariant = "mean_probability",
    *,
    primary: int | None = None,
    other: int | None = None,
    half: int | None = None,
) -> Float[Tensor, "vocab"]:
    """Preference s_a = log p̄₁ₐ − log p̄₂ₐ of the primary tower over another one for each type a, in nats.

    Above 0 where the primary tower predicts a better. Swapping the two towers negates it.

    ==========================  =======================================================================================
    variant                     log p̄ₖₐ
    ==========================  =======================================================================================
    ``mean_probability``        log of the mean of pₖ(a) over the positions whose target is a
    ``mean_log_probability``    mean of log pₖ(a) over the same positions: s is the difference of the losses on a
    ``printed``                 log of the mean of pₖ(a) over all positions, as equation 4 is printed. Both p̄ of
                                calibrated towers are the frequency of a: s vanishes, and tells of calibration only
    ==========================  =======================================================================================

    Args:
        predictions: of two or more towers.
        variant: see above.
        primary: None for the primary tower of the corpus (equation 3); a number holds the towers' order, and with it
            the sign, over training.
        other: tower to compare with; None for the other one of two.
        half: 0 or 1 for one half of the corpus, None for all of it. The primary tower is that of all of it.

    Returns:
        (V,) float64; NaN where a never occurs as a target, or has p̄ = 0 from both towers; ±∞ where from one.

    Raises:
        ValueError: one tower; more than two and ``other`` not given; no such towers, half or variant; ``printed``
            without :meth:`TowerPredictions.update_all`, or of a half.

    Reference: He & Toyoizumi 2022, equations 3 and 4.

    Example:
        >>> sums = TowerPredictions(vocab_size=2, towers=2)
        >>> sums.update(torch.tensor([[0.8, 0.3], [0.4, 0.6]]).log(), torch.tensor([0, 1]), torch.tensor([0, 1]))
        >>> token_preference(sums.reduce())
        tensor([ 0.6931, -0.6931], dtype=torch.float64)
    """
    if variant not in get_args(PreferenceVariant):
        raise ValueError(f"expected a variant of {list(get_args(PreferenceVariant))}, got {variant!r}")
    if half not in (None, 0, 1):
        raise ValueError(f"half is 0, 1 or None for both, got {half}")
    first, second = _towers(predictions, primary, other)
    if variant == "printed":
        if predictions.all_positions is None or half is not None:
            raise ValueError(
                "variant 'printed' needs the probabilities of all types at all positions, which are known of the whole "
                f"corpus after TowerPredictions.update_all(): got {'none' if half is None else f'half {half}'}"
            )
        log_means = torch.where(predictions.count > 0, predictions.all_positions, torch.nan).log()
    elif variant == "mean_log_probability":
        log_means = predictions.log_probability if half is None else predictions.half_log_probability[half]
    else:
        log_means = (predictions.probability if half is None else predictions.half_probability[half]).log()
    return log_means[first] - log_means[second]


def preference_standard_error(
    predictions: Predictions, *, primary: int | None = None, other: int | None = None
) -> Float[Tensor, "vocab"]:
    """Standard error of ``mean_probability`` preference, in nats: how far s_a would vary over texts of this length.

    By the delta method, the towers paired at each position: the variance of s is
    (C₁₁/p̄₁² + C₂₂/p̄₂² − 2 C₁₂/(p̄₁ p̄₂)) / n with C the sample covariance (n − 1) of the two probabilities. Positions
    are taken as independent: for words that come in bursts it is too small. It does not say how s varies over
    trainings.

    Args:
        predictions: of two or more towers.
        primary: as in :func:`token_preference`; the error of both orders is the same.
        other: as in :func:`token_preference`.

    Returns:
        (V,) float64, from 0; NaN where a type has fewer than 2 positions, or p̄ = 0 from a tower.

    Raises:
        ValueError: as :func:`token_preference`.

    Reference: Davison & Hinkley 1997, section 2.7.1.

    Example:
        >>> sums = TowerPredictions(vocab_size=1, towers=2)
        >>> p = torch.tensor([[0.5, 0.5], [0.2, 0.6]])
        >>> sums.update(p.log(), torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1]))
        >>> preference_standard_error(sums.reduce())  # that of a mean, over the mean: 0.2 / 0.4
        tensor([0.5000], dtype=torch.float64)
    """
    pair = list(_towers(predictions, primary, other))
    p = predictions.probability[pair]
    relative = predictions.covariance[pair][:, pair] / (p[:, None] * p[None])
    # adding up to exactly 0 for identical towers; rounding alone makes it negative
    variance = (relative[0, 0] + relative[1, 1] - 2 * relative[0, 1]).clamp(min=0)
    return (variance / (predictions.count - 1)).sqrt()


class SplitHalf(NamedTuple):
    """Of a preference in two halves of a corpus: their correlation, and the reliability of that of the whole."""

    correlation: float
    reliability: float


def split_half_reliability(
    predictions: Predictions,
    types: Int[Tensor, "n"],
    variant: PreferenceVariant = "mean_probability",
    *,
    primary: int | None = None,
    other: int | None = None,
) -> SplitHalf:
    """How much of the differences between types' preferences is no noise of the text they were measured on.

    The Pearson correlation r of the preferences of ``types`` in the two halves, and the reliability 2r / (1 + r) of
    their preferences in the whole corpus (Spearman–Brown): the share of their variance that is not noise. Types that
    lack in a half are left out.

    Args:
        predictions: of two or more towers, positions being assigned to halves at random or by documents.
        types: (n,) ids of the types to correlate over.
        variant: as in :func:`token_preference`, but for ``printed``, which has no halves.
        primary: as in :func:`token_preference`.
        other: as in :func:`token_preference`.

    Returns:
        The correlation, in [−1, 1], and the reliability, at most 1; below 0 (to −∞) both mean that there is none. NaN
        of fewer than 3 types, or a constant preference.

    Raises:
        ValueError: as :func:`token_preference`.

    Reference: Spearman 1910; Brown 1910.

    Example:
        >>> sums = TowerPredictions(vocab_size=3, towers=2)
        >>> p = torch.tensor([[0.2, 0.4, 0.8, 0.2, 0.4, 0.8], [0.4, 0.4, 0.4, 0.4, 0.4, 0.4]])
        >>> sums.update(p.log(), torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> [round(value, 6) for value in split_half_reliability(sums.reduce(), torch.arange(3))]
        [1.0, 1.0]
    """
    one, two = (
        token_preference(predictions, variant, primary=primary, other=other, half=half)[types].numpy()
        for half in (0, 1)
    )
    both = np.isfinite(one) & np.isfinite(two)
    r = pearson(one[both], two[both])
    return SplitHalf(r, -np.inf if r == -1 else 2 * r / (1 + r))


def most_frequent_tag(counts: Int[Tensor, "vocab tags"]) -> Int[Tensor, "vocab"]:
    """The most frequent tag of each type, −1 of a type that has none; of equally frequent ones the first.

    Args:
        counts: (V, tags) occurrences of each type under each tag.

    Reference: He & Toyoizumi 2022, section 5.2. (:func:`lmdyn.analysis.word_tags` asks for a majority.)

    Example:
        >>> most_frequent_tag(torch.tensor([[1, 3], [2, 2], [0, 0]]))
        tensor([ 1,  0, -1])
    """
    top, tag = counts.max(dim=1)
    return torch.where(top > 0, tag, -1)

"""Which tower of a language model predicts a word better: token preference, its errors and its reliability."""

from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.preference.tower_predictions import Predictions
from lmdyn.analysis.statistics.correlation import pearson

__all__ = [
    "Pair",
    "PreferenceVariant",
    "SplitHalf",
    "leading_towers",
    "most_frequent_tag",
    "preference_standard_error",
    "primary_tower",
    "split_half_reliability",
    "token_preference",
]

PreferenceVariant = Literal["mean_probability", "mean_log_probability"]
"""Definition of log p̄ in equation 4: see :func:`token_preference`."""


def primary_tower(predictions: Predictions) -> int:
    """Return the tower with the largest mean probability of the targets over the corpus; the first of equal ones.

    Raises:
        ValueError: if there are no positions.

    Reference: He & Toyoizumi 2022, equation 3.

    Example:
        >>> from lmdyn.analysis.preference.tower_predictions import TowerPredictions
        >>> sums = TowerPredictions(vocab_size=2, towers=2)
        >>> sums.update(torch.tensor([[0.5], [0.6]]).log(), torch.tensor([1]), torch.tensor([0]))
        >>> primary_tower(sums.reduce())
        1
    """
    if not bool(predictions.count.sum() > 0):
        raise ValueError("no position has a target: pass at least one target to compare towers")
    return int(predictions.mean_probability.argmax())


class Pair(NamedTuple):
    """Two towers to compare: arguments of :func:`token_preference` and similar functions."""

    primary: int
    other: int


def leading_towers(predictions: Predictions) -> Pair:
    """Return the primary tower, and the tower with the next highest mean probability.

    Raises:
        ValueError: if there are no positions, or only one tower.

    Example:
        >>> from lmdyn.analysis.preference.tower_predictions import TowerPredictions
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
    """Return the primary tower and the tower to compare it with."""
    K = predictions.towers
    first = primary_tower(predictions) if primary is None else primary
    second = 1 - first if other is None and K == 2 else other
    if second is None or not (0 <= first < K and 0 <= second < K and first != second):
        raise ValueError(
            f"expected two different towers from 0 to {K - 1}, got primary {first} and other {second}: set `primary` "
            "and `other`, or train a model with n_towers of at least 2"
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
    """Compute the preference s_a = log p̄₁ₐ − log p̄₂ₐ of the primary tower over another for each type a, in nats.

    It is positive if the primary tower predicts a better. Swapping the two towers changes its sign.

    ==========================  =======================================================================================
    variant                     log p̄ₖₐ
    ==========================  =======================================================================================
    ``mean_probability``        log of the mean of pₖ(a) over the positions whose target is a
    ``mean_log_probability``    mean of log pₖ(a) over the same positions: s is the difference of the losses on a
    ==========================  =======================================================================================

    Equation 4 as printed takes the mean of pₖ(a) over all positions: both p̄ of calibrated towers are then the frequency
    of a, and s is 0 and measures calibration only. It is not offered.

    Args:
        predictions: predictions of at least two towers.
        variant: see above.
        primary: None for the primary tower of the corpus (equation 3); a number fixes the order of the towers, and
            with it the sign, over training.
        other: tower to compare with; None for the other one if there are two.
        half: 0 or 1 for one half of the corpus, None for all of it. The primary tower is always that of the whole
            corpus.

    Returns:
        Tensor of shape (V,), float64; NaN if a never occurs as a target, or if p̄ = 0 for both towers; ±∞ if it is 0
        for one.

    Raises:
        ValueError: if there is one tower; if there are more than two and ``other`` is not given; if a tower, half or
            variant does not exist.

    Reference: He & Toyoizumi 2022, equations 3 and 4.

    Example:
        >>> from lmdyn.analysis.preference.tower_predictions import TowerPredictions
        >>> sums = TowerPredictions(vocab_size=2, towers=2)
        >>> sums.update(torch.tensor([[0.8, 0.3], [0.4, 0.6]]).log(), torch.tensor([0, 1]), torch.tensor([0, 1]))
        >>> token_preference(sums.reduce())
        tensor([ 0.6931, -0.6931], dtype=torch.float64)
    """
    first, second = _towers(predictions, primary, other)
    if variant == "mean_log_probability":
        log_means = predictions.log_probability if half is None else predictions.half_log_probability[half]
    else:
        log_means = (predictions.probability if half is None else predictions.half_probability[half]).log()
    return log_means[first] - log_means[second]


def preference_standard_error(
    predictions: Predictions, *, primary: int | None = None, other: int | None = None
) -> Float[Tensor, "vocab"]:
    """Compute the standard error of ``mean_probability`` preference over texts of this length, in nats.

    By the delta method, with the towers paired at each position, the variance of s is (C₁₁/p̄₁² + C₂₂/p̄₂² − 2
    C₁₂/(p̄₁ p̄₂)) / n, with C the sample covariance (n − 1) of the two probabilities. Positions are treated as
    independent: for words that occur in bursts, the error is too small. It does not measure how s varies over training
    runs.

    Args:
        predictions: predictions of at least two towers.
        primary: as in :func:`token_preference`; the error of both orders is the same.
        other: as in :func:`token_preference`.

    Returns:
        Tensor of shape (V,), float64, at least 0; NaN if a type has fewer than 2 positions, or if p̄ = 0 for a tower.

    Raises:
        ValueError: as in :func:`token_preference`.

    Reference: Davison & Hinkley 1997, section 2.7.1.

    Example:
        >>> from lmdyn.analysis.preference.tower_predictions import TowerPredictions
        >>> sums = TowerPredictions(vocab_size=1, towers=2)
        >>> p = torch.tensor([[0.5, 0.5], [0.2, 0.6]])
        >>> sums.update(p.log(), torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1]))
        >>> preference_standard_error(sums.reduce())  # error of a mean, divided by the mean: 0.2 / 0.4
        tensor([0.5000], dtype=torch.float64)
    """
    pair = list(_towers(predictions, primary, other))
    p = predictions.probability[pair]
    relative = predictions.covariance[pair][:, pair] / (p[:, None] * p[None])
    # exactly 0 for identical towers; only rounding makes it negative
    variance = (relative[0, 0] + relative[1, 1] - 2 * relative[0, 1]).clamp(min=0)
    return (variance / (predictions.count - 1)).sqrt()


class SplitHalf(NamedTuple):
    """Correlation of a preference in two halves of a corpus, and its reliability in the whole corpus.

    Attributes:
        correlation: Pearson's correlation r of the preferences of types in the two halves, in [−1, 1].
        reliability: 2r / (1 + r), at most 1: the share of the variance of preferences that is not noise.
    """

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
    """Compute which share of the differences between types' preferences is not noise of the measured text.

    The result is the Pearson correlation r of the preferences of ``types`` in the two halves, and the reliability 2r /
    (1 + r) of their preferences in the whole corpus (Spearman–Brown): the share of their variance that is not noise.
    Types that are missing in a half are left out.

    Args:
        predictions: predictions of at least two towers, with positions assigned to halves at random or by documents.
        types: (n,) ids of the types to correlate over.
        variant: as in :func:`token_preference`.
        primary: as in :func:`token_preference`.
        other: as in :func:`token_preference`.

    Returns:
        The correlation, in [−1, 1], and the reliability, at most 1; if r is below 0, there is no reliability (the
        value goes to −∞). NaN for fewer than 3 types, or if a preference is constant.

    Raises:
        ValueError: as in :func:`token_preference`.

    Reference: Spearman 1910; Brown 1910.

    Example:
        >>> from lmdyn.analysis.preference.tower_predictions import TowerPredictions
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
    """Return the most frequent tag of each type, −1 for types without a tag; the first of equally frequent ones.

    Args:
        counts: (V, tags) occurrences of each type under each tag; with 0 tags, no type has one.

    Reference: He & Toyoizumi 2022, section 5.2. (:func:`lmdyn.analysis.word_tags` requires a majority.)

    Example:
        >>> most_frequent_tag(torch.tensor([[1, 3], [2, 2], [0, 0]]))
        tensor([ 1,  0, -1])
    """
    if counts.shape[1] == 0:
        return torch.full(counts.shape[:1], -1, device=counts.device)
    top, tag = counts.max(dim=1)
    return torch.where(top > 0, tag, -1)

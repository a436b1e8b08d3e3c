"""Samples of words of two classes, matched for average frequency (Saphra & Lopez 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pandas import DataFrame
from torch import Tensor

from lmdyn.analysis.words.concentration import CLOSED_CLASSES, OPEN_CLASSES, word_classes

__all__ = ["MatchedSamples", "class_samples", "match_frequency"]


@dataclass(frozen=True)
class MatchedSamples:
    """Two samples of words with similar average frequency: see :func:`match_frequency`.

    Attributes:
        first: (size,) indices into the first list of frequencies.
        second: (size,) indices into the second.
        means: average frequency of each sample.
    """

    first: Int[Tensor, "size"]
    second: Int[Tensor, "size"]
    means: tuple[float, float]


def match_frequency(
    first: Float[Tensor, "n"] | Int[Tensor, "n"],
    second: Float[Tensor, "m"] | Int[Tensor, "m"],
    *,
    size: int = 120,
    tolerance: float = 0.05,
) -> MatchedSamples:
    """Select ``size`` words from each of two classes, adjacent in frequency, with similar average frequency.

    The two ranges with the closest averages are selected; of equally close ranges, the most frequent ones.

    Args:
        first: (n,) frequencies of the words of one class.
        second: (m,) frequencies of the words of the other class.
        size: number of words in each sample; 120 as published.
        tolerance: largest |ln(mean₁ / mean₂)| that counts as similar (0.05: about 5 %).

    Raises:
        ValueError: if no such ranges exist (the message names the largest size that can be matched), or if frequencies
            are negative, NaN or infinite.

    Reference: Saphra & Lopez 2019, section 3.

    Example:
        >>> match_frequency(torch.tensor([9.0, 5.0, 4.0]), torch.tensor([99.0, 5.0, 4.0, 1.0]), size=2).second
        tensor([1, 2])
    """
    for name, frequency in (("first", first), ("second", second)):
        if not bool((frequency >= 0).all() & frequency.isfinite().all()):
            raise ValueError(
                f"frequencies of the {name} class must be finite and at least 0: leave others out"
            )
    orders = [np.argsort(-f.double().numpy(), kind="stable") for f in (first, second)]
    ranked = [f.double().numpy()[order] for f, order in zip((first, second), orders, strict=True)]
    found = _closest_ranges(ranked, size)
    if found is None or found[0] > tolerance:
        sizes = (s for s in range(size - 1, 0, -1) if (f := _closest_ranges(ranked, s)) and f[0] <= tolerance)
        raise ValueError(
            f"no ranges of {size} words each with average frequencies within {tolerance:.0%} "
            f"among {len(ranked[0])} and {len(ranked[1])} words: the largest size that can be matched is "
            f"{next(sizes, 0)}; lower the sample size, raise the tolerance, lower the least count, "
            "or use a larger corpus"
        )
    _, i, j = found
    return MatchedSamples(
        torch.from_numpy(orders[0][i : i + size].copy()),
        torch.from_numpy(orders[1][j : j + size].copy()),
        (float(ranked[0][i : i + size].mean()), float(ranked[1][j : j + size].mean())),
    )


def _closest_ranges(ranked: Sequence[NDArray[np.float64]], size: int) -> tuple[float, int, int] | None:
    """Return the smallest |ln ratio| of the averages of a range from each list, and where the ranges begin."""
    if size < 1 or min(map(len, ranked)) < size:
        return None
    sums = [np.concatenate([[0.0], np.cumsum(r)]) for r in ranked]
    with np.errstate(divide="ignore"):  # words of frequency 0
        logs = [
            np.log((s[size:] - s[:-size]) / size) for s in sums
        ]  # in descending order, because frequencies are
    # for each range of the first list, the nearest averages in the second
    right = np.searchsorted(-logs[1], -logs[0])
    candidates = np.stack([np.clip(right - 1, 0, len(logs[1]) - 1), np.clip(right, 0, len(logs[1]) - 1)])
    with np.errstate(invalid="ignore"):
        gaps = np.abs(logs[0] - logs[1][candidates])
    gaps = np.where(np.isnan(gaps), np.inf, gaps)  # two ranges of frequency 0 have no ratio
    gap = gaps.min(0)
    i = int(gap.argmin())  # the first of equal gaps: the most frequent
    return float(gap[i]), i, int(candidates[gaps[:, i].argmin(), i])


def _matched_samples(counts: Tensor, classes: Sequence[Tensor], size: int, tolerance: float) -> list[Tensor]:
    """Return :func:`match_frequency` of two classes of a vocabulary, as the samples that are within each."""
    ids = [words.nonzero()[:, 0] for words in classes]
    matched = match_frequency(counts[ids[0]], counts[ids[1]], size=size, tolerance=tolerance)
    chosen = zip(ids, (matched.first, matched.second), strict=True)
    return [torch.zeros_like(classes[0]).index_fill(0, words[index], True) for words, index in chosen]


def class_samples(
    table: DataFrame,
    special: Bool[Tensor, "vocabulary"],
    *,
    min_count: int = 100,
    matched_size: int | None = 120,
    tolerance: float = 0.05,
) -> tuple[list[str], dict[str, Bool[Tensor, "vocabulary"]]]:
    """Return the Universal POS tag of each word type, empty for none, and samples of open and closed classes.

    Args:
        table: a row for each token id: its ``count``, and its occurrences under each tag in columns ``NOUN`` …
        special: (vocabulary,) which ids are no words; rows beyond them do not occur.
        min_count: see :func:`~lmdyn.analysis.words.concentration.word_tags`.
        matched_size: words in each of the samples ``open_matched`` and ``closed_matched``; None for none.
        tolerance: see :func:`match_frequency`.

    Raises:
        ValueError: without tags; if there are no samples of this size with similar average frequencies.

    Example:
        >>> table = DataFrame({"count": [9, 7, 4], "NOUN": [9, 0, 3], "DET": [0, 7, 0]})
        >>> names, samples = class_samples(table, torch.zeros(3, dtype=torch.bool), min_count=3, matched_size=None)
        >>> names, samples["open"].tolist()
        (['NOUN', 'DET', 'NOUN'], [True, False, True])
    """
    tags = [tag for tag in (*OPEN_CLASSES, *CLOSED_CLASSES) if tag in table]
    if not tags:
        raise ValueError(
            "the training data has no parts of speech: add a layer `upos` to the datamodule (gold, or by a `tagger`)"
        )
    columns = table.iloc[: len(special)][["count", *tags]]
    count, *of_tags = torch.from_numpy(columns.to_numpy(dtype="int64").T.copy())
    upos, samples = word_classes(dict(zip(tags, of_tags, strict=True)), count, special, min_count=min_count)
    if matched_size is not None:
        try:
            matched = _matched_samples(count, [*samples.values()], matched_size, tolerance)
        except ValueError as error:
            raise ValueError(f"matched_size: {error}; `matched_size: null` omits them") from None
        samples |= dict(zip(("open_matched", "closed_matched"), matched, strict=True))
    return upos, samples

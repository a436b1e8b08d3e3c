"""Which tokens a masked language model has to predict, and what it reads in their place."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Masking", "choose_positions", "mask_row"]

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Masking:
    """How tokens are masked: spans of whole words, until a share of the row is to be predicted.

    Spans of n words are drawn with p(n) ∝ 1/n, n from 1 to ``max_ngram``, in random order and without overlap; one
    that would go beyond the share is shortened, or left out. Each chosen token is replaced on its own: by the mask
    token, by a random token, or by itself.

    Attributes:
        share: of the positions of a row, special ones included; rounded, at least one.
        max_ngram: most words in a span; 1 is BERT's, 3 ALBERT's.
        whole_words: mask all pieces of a word together; otherwise each piece is a word.
        mask_share: of the chosen tokens that the mask token replaces.
        random_share: of those that a random token replaces; the rest stays.

    Raises:
        ValueError: shares outside of 0 to 1, no word in a span.

    Reference: Devlin et al. 2019, section 3.1; Lan et al. 2020, section 4.1. ELECTRA (Clark et al. 2020) replaces 85 %
        by the mask token and none by random ones.

    Example:
        >>> Masking(max_ngram=3).share
        0.15
    """

    share: float = 0.15
    max_ngram: int = 1
    whole_words: bool = True
    mask_share: float = 0.8
    random_share: float = 0.1

    def __post_init__(self) -> None:
        shares = (self.share, self.mask_share, self.random_share, self.mask_share + self.random_share)
        if not all(0 <= s <= 1 + 1e-9 for s in shares) or self.share == 0:
            raise ValueError(
                "expected share in (0, 1], and mask_share and random_share that add up to at most 1, got "
                f"{self.share}, {self.mask_share}, {self.random_share}"
            )
        if self.max_ngram < 1:
            raise ValueError(f"expected max_ngram from 1, got {self.max_ngram}")

    def count(self, length: int) -> int:
        """Positions to predict in a row of ``length``.

        Example:
            >>> Masking().count(128)
            19
        """
        return max(1, round(self.share * length))


def choose_positions(
    rng: np.random.Generator, masking: Masking, starts: Flags, maskable: Flags, count: int
) -> Ids:
    """Positions of a row to predict, rising: whole spans of words, ``count`` or as many as fit.

    Args:
        rng: the row's own generator.
        masking: how.
        starts: (time,) whether a word starts here.
        maskable: (time,) whether the position may be chosen; spans do not go over others.
        count: how many.

    Example:
        >>> starts, maskable = np.array([1, 1, 0, 0, 1], bool), np.array([0, 1, 1, 1, 1], bool)
        >>> choose_positions(np.random.default_rng(0), Masking(), starts, maskable, 4)
        array([1, 2, 3, 4])
    """
    places = np.flatnonzero(maskable)
    if len(places) == 0:
        return places
    begins = np.ones(len(places), np.bool_)
    if masking.whole_words:  # what follows a gap begins a word too
        begins[1:] = starts[places[1:]] | (np.diff(places) > 1)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(places))  # word w is places[first[w]:last[w]]
    gaps = np.cumsum(np.diff(places, prepend=places[0]) > 1)[first]  # words of different segments
    weights = 1 / np.arange(1, masking.max_ngram + 1)
    lengths = rng.choice(len(weights), size=len(first), p=weights / weights.sum()) + 1
    taken = np.zeros(len(first), np.bool_)
    left = min(count, len(places))
    for word in rng.permutation(len(first)).tolist():
        if left == 0:
            break
        n = min(int(lengths[word]), len(first) - word)
        while n and (
            taken[word : word + n].any()
            or gaps[word + n - 1] != gaps[word]
            or last[word + n - 1] - first[word] > left
        ):
            n -= 1
        if n:
            taken[word : word + n] = True
            left -= int(last[word + n - 1] - first[word])
    return places[np.repeat(taken, last - first)]


def mask_row(
    rng: np.random.Generator, masking: Masking, ids: Ids, positions: Ids, mask_id: int, ordinary: Ids
) -> Ids:
    """The row as the model reads it: chosen tokens replaced by the mask token, a random one of ``ordinary``, or not.

    Example:
        >>> always = Masking(mask_share=1, random_share=0)
        >>> mask_row(np.random.default_rng(0), always, np.arange(4), np.array([2]), 9, np.arange(4))
        array([0, 1, 9, 3])
    """
    inputs = ids.copy()
    u = rng.random(len(positions))
    drawn = ordinary[rng.integers(len(ordinary), size=len(positions))]
    inputs[positions] = np.where(
        u < masking.mask_share,
        mask_id,
        np.where(u < masking.mask_share + masking.random_share, drawn, ids[positions]),
    )
    return inputs

"""Which tokens a masked language model must predict, and what it reads in their place."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lmdyn.datamodules.files.checks import at_least

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Masking:
    """Settings of masking: spans of whole words, until a share of the row is to be predicted.

    Spans of n words are drawn with p(n) ∝ 1/n, n from 1 to ``max_ngram``, in random order and without overlap. A span
    that would exceed the share is shortened or left out. Each chosen token is replaced independently: by the mask
    token, by a random token, or by itself.

    Attributes:
        share: share of the positions of a row, including special ones, to predict; rounded, at least one position.
        max_ngram: maximum number of words in a span; 1 as in BERT, 3 as in ALBERT.
        whole_words: whether to mask all pieces of a word together; otherwise each piece is a word.
        mask_share: share of the chosen tokens that are replaced by the mask token.
        random_share: share of those that are replaced by a random token; the rest is not replaced.

    Raises:
        ValueError: if a share is outside 0 to 1, or ``max_ngram`` is below 1.

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
                f"share is {self.share}, mask_share {self.mask_share} and random_share {self.random_share}: expected a "
                "share above 0 and up to 1, and the other two from 0 to 1 with a sum of at most 1"
            )
        at_least(1, max_ngram=self.max_ngram)

    def count(self, length: int) -> int:
        """Return the number of positions to predict in a row of ``length``.

        Example:
            >>> Masking().count(128)
            19
        """
        return max(1, round(self.share * length))


def choose_positions(
    rng: np.random.Generator, masking: Masking, starts: Flags, maskable: Flags, count: int
) -> Ids:
    """Return positions of a row to predict, ascending: whole spans of words, ``count`` or as many as fit.

    Args:
        rng: the row's own generator.
        masking: the settings.
        starts: (time,) whether a word starts here.
        maskable: (time,) whether the position may be chosen; spans do not cross other positions.
        count: number of positions.

    Example:
        >>> starts, maskable = np.array([1, 1, 0, 0, 1], bool), np.array([0, 1, 1, 1, 1], bool)
        >>> choose_positions(np.random.default_rng(0), Masking(), starts, maskable, 4)
        array([1, 2, 3, 4])
    """
    places = np.flatnonzero(maskable)
    if len(places) == 0:
        return places
    begins = np.ones(len(places), np.bool_)
    if masking.whole_words:  # a position after a gap also starts a word
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
    """Return the row as read by the model: chosen tokens become the mask token, one of ``ordinary``, or stay.

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

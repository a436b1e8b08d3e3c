"""Bootstrap over sentences: at most 64 blocks of them, drawn with replacement."""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Int
from torch import Tensor

from lmdyn.analysis.distributed import rank_and_world_size
from lmdyn.callbacks.probe import Seen, sentence_numbers, token_hash

__all__ = [
    "BLOCKS",
    "SentenceBlocks",
    "basic_interval",
    "bootstrap_settings",
    "draw_blocks",
    "enough_blocks",
]

log = logging.getLogger(__name__)

BLOCKS = 64
_LEAST = 5


class SentenceBlocks:
    """Which block each token's sentence is in: a hash of the sentence's place, equal for any number of ranks.

    Sentences end at the tokenizer's end-of-sentence (or separator) token; without one a row is one sentence.

    Args:
        tokenizer: the run's, or None.
        seed: another one, other blocks.
    """

    def __init__(self, tokenizer: Any, seed: int) -> None:
        ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None} if tokenizer is not None else set()
        self._ends = sorted(ends)
        self._seed = seed
        self._sentence: Tensor | None = None

    def of(self, seen: Seen) -> Int[Tensor, "batch time"]:
        """Block of each token of the next batch of a pass, from 0 to 63."""
        numbers, self._sentence = sentence_numbers(seen, self._ends, self._sentence)
        return token_hash(seen, self._seed, numbers) % BLOCKS


def bootstrap_settings(bootstrap: int, confidence: float) -> tuple[int, float]:
    """The two settings, checked.

    Raises:
        ValueError: a number below 0, a confidence outside of (0, 1).
    """
    if bootstrap < 0 or not 0 < confidence < 1:
        raise ValueError(
            f"expected bootstrap >= 0 and confidence in (0, 1), got {bootstrap} and {confidence}"
        )
    return bootstrap, confidence


def draw_blocks(blocks: int, resamplings: int, seed: int) -> npt.NDArray[np.int64]:
    """How often each block is drawn in each resampling, (resamplings, blocks); rows add up to ``blocks``.

    Example:
        >>> draw_blocks(5, 2, seed=0).sum(1).tolist()
        [5, 5]
    """
    return np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), size=resamplings)


def enough_blocks(blocks: int, name: str, step: int) -> bool:
    """Whether there are blocks enough to resample, at least 5; if not, a warning says so."""
    if blocks < _LEAST and rank_and_world_size()[0] == 0:
        log.warning(
            "%s at step %d: no intervals from %d blocks of sentences, at least %d are needed: look at more text, or at "
            "text whose sentences end in the tokenizer's end-of-sentence token",
            name, step, blocks, _LEAST,
        )  # fmt: skip
    return blocks >= _LEAST


def basic_interval(
    value: npt.ArrayLike, resampled: npt.ArrayLike, confidence: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The basic bootstrap interval [2θ − q_high, 2θ − q_low], q being quantiles of the resampled values.

    What resampling itself adds is taken off: fewer different sentences correlate better, for example.

    Args:
        value: (…) θ of the whole sample.
        resampled: (resamplings, …) values; none of them gives NaN.
        confidence: share of resampled values between the quantiles.

    Reference: Davison & Hinkley 1997, equation 5.6.

    Example:
        >>> [round(float(end), 2) for end in basic_interval(0.5, [0.5, 0.6, 0.7], 0.9)]
        [0.31, 0.49]
    """
    values = np.asarray(resampled, dtype=np.float64)
    if len(values) == 0:
        return np.full(np.shape(value), np.nan), np.full(np.shape(value), np.nan)
    tail = (1 - confidence) / 2
    ends = 2 * np.asarray(value, dtype=np.float64) - np.quantile(values, [1 - tail, tail], axis=0)
    return ends[0], ends[1]

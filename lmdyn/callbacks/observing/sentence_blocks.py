"""Blocks of sentences, at most 64, from which intervals are bootstrapped (``bootstrap``)."""

import logging
from typing import Any

from jaxtyping import Int
from torch import Tensor

from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.observing.probe import ObservedBatch, sentence_numbers, token_hash

__all__ = ["BLOCKS", "SentenceBlocks", "bootstrap_settings", "enough_blocks"]

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

    def of(self, seen: ObservedBatch) -> Int[Tensor, "batch time"]:
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


def enough_blocks(blocks: int, name: str, step: int) -> bool:
    """Whether there are blocks enough to resample, at least 5; if not, a warning is logged."""
    if blocks < _LEAST and rank_and_world_size()[0] == 0:
        log.warning(
            "%s at step %d: no intervals from %d blocks of sentences, at least %d are needed: look at more text, or at "
            "text whose sentences end in the tokenizer's end-of-sentence token",
            name, step, blocks, _LEAST,
        )  # fmt: skip
    return blocks >= _LEAST

"""Pairs of words of sentences for models whose words may have several tokens, and batches without padding."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from lmdyn.callbacks.interdependence.encoded_words import encoded_words
from lmdyn.callbacks.interdependence.word_pairs import pair_table, pairs_fingerprint
from lmdyn.callbacks.observing.protocols import Sentence

__all__ = ["TokenBatch", "TokenPairs"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenBatch:
    """Sentences with the same number of tokens.

    Attributes:
        ids: (sentences, time) token ids, including special tokens.
        words: (sentences, time) word of each token in its sentence, -1 for special tokens.
        first: for each sentence, the number of its first word among those of all sentences.
        numbers: numbers of the sentences.
    """

    ids: Tensor
    words: Tensor
    first: list[int]
    numbers: list[int]


@dataclass(init=False)
class TokenPairs:
    """The sentences as batches of tokens, and the properties of each pair of words.

    A sentence is encoded as the tokenizer encodes text, with its special tokens; if it adds none, after the token
    that begins a sequence, or else that ends one.

    Attributes:
        words: number of words of all sentences.
        batches: batches of sentences of one length, the longest first.
        table: a row for each pair of words that have tokens: see
            :func:`~lmdyn.callbacks.interdependence.word_pairs.pair_table`.
        tokens: number of occurrences of each token id in words.
        fingerprint: hash of tokens, trees and tags.
    """

    words: int
    batches: list[TokenBatch]
    table: pd.DataFrame
    tokens: npt.NDArray[np.int64]
    fingerprint: str

    def __init__(
        self,
        sentences: Sequence[Sentence],
        tokenizer: Any,
        counts: npt.NDArray[Any] | None,
        max_distance: int,
        batch_tokens: int,
        name: str,
        controls: bool = False,
    ) -> None:
        encoded = _encoded([list(s.words) for s in sentences], tokenizer, name)
        lengths = [len(s.words) for s in sentences]
        first = (np.cumsum(lengths) - lengths).tolist()
        self.words = sum(lengths)
        unknown = [np.zeros(n, dtype=bool) for n in lengths]
        silent = [np.ones(n, dtype=bool) for n in lengths]
        single: list[list[int]] = []
        for of, none, (ids, words) in zip(unknown, silent, encoded, strict=True):
            own = [(i, w) for i, w in zip(ids, words, strict=True) if w >= 0]
            none[[w for _, w in own]] = False
            of[[w for i, w in own if i == tokenizer.unk_token_id]] = True
            single.append([i for i, _ in own])
        one_each = all(len(row) == n for row, n in zip(single, lengths, strict=True)) and not any(
            none.any() for none in silent
        )
        self.table = pair_table(
            sentences,
            max_distance,
            [of.tolist() for of in unknown],
            single if one_each else None,
            counts,
            controls,
        )
        self.tokens = np.bincount(np.concatenate([np.array(row, dtype=np.int64) for row in single]))
        if any(none.any() for none in silent):
            flat = np.concatenate(silent)
            left = self.table["index"] // max_distance
            lost = flat[left] | flat[left + self.table["distance"]]
            log.warning(
                "%s: %d of %d words have no token of this tokenizer: %d pairs with them are left out",
                name, int(flat.sum()), self.words, int(lost.sum()),
            )  # fmt: skip
            self.table = self.table[~lost].reset_index(drop=True)
        self.fingerprint = pairs_fingerprint(
            sentences, [ids for ids, _ in encoded], [words for _, words in encoded]
        )
        self.batches = _batches(encoded, first, batch_tokens)


def _encoded(sentences: list[list[str]], tokenizer: Any, name: str) -> list[tuple[list[int], list[int]]]:
    """Return the token ids of each sentence, and the word of each token, -1 for special ones."""
    pairs = encoded_words(sentences, tokenizer, name)
    adds = any(w == -1 for _, row in pairs for w in (row[:1] + row[-1:]))
    start = next((i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None), None)
    if not adds and start is not None:
        pairs = [([start, *ids], [-1, *row]) for ids, row in pairs]
    return pairs


def _batches(
    encoded: Sequence[tuple[list[int], list[int]]], first: Sequence[int], batch_tokens: int
) -> list[TokenBatch]:
    """Return sentences of two words or more by length, longest first, in batches of about ``batch_tokens``."""
    order = sorted(
        (i for i, (_, words) in enumerate(encoded) if len({w for w in words if w >= 0}) > 1),
        key=lambda i: -len(encoded[i][0]),
    )
    batches = []
    for time, group in groupby(order, key=lambda i: len(encoded[i][0])):
        rows, most = list(group), max(1, batch_tokens // time)
        for chosen in (rows[k : k + most] for k in range(0, len(rows), most)):
            ids, words = (torch.tensor([encoded[i][side] for i in chosen]) for side in (0, 1))
            batches.append(TokenBatch(ids, words, [first[i] for i in chosen], chosen))
    return batches

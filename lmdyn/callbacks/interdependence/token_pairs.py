"""The pairs of words of sentences for models whose words may have several tokens, and batches without padding."""

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

from lmdyn.callbacks.interdependence.word_pairs import pair_table, pairs_fingerprint
from lmdyn.callbacks.observing.protocols import Sentence

__all__ = ["TokenBatch", "TokenPairs"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenBatch:
    """Sentences of one number of tokens.

    Attributes:
        ids: (sentences, time) token ids, special tokens included.
        words: (sentences, time) which word of its sentence each token belongs to, -1 for special tokens.
        first: of each sentence, the number of its first word among those of all sentences.
        numbers: of each sentence.
    """

    ids: Tensor
    words: Tensor
    first: list[int]
    numbers: list[int]


@dataclass(init=False)
class TokenPairs:
    """The sentences as batches of tokens, and what is known of each pair of words.

    A sentence is encoded as the tokenizer encodes text, with its special tokens; where it adds none, after the token
    that begins a sequence, or else that ends one.

    Attributes:
        words: number of words of all sentences.
        batches: of sentences of one length, the longest first.
        table: a row for each pair of words that have tokens: see
            :func:`~lmdyn.callbacks.interdependence.word_pairs.pair_table`.
        tokens: how often each token id occurs in words.
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
    """Token ids of each sentence, and the word of each token, -1 of special ones."""
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{name}: a {type(tokenizer).__name__} does not tell which tokens make up a word: give the data a fast "
            "tokenizer of transformers, such as AutoTokenizer.from_pretrained(…) loads"
        )
    settings = {"padding": False, "truncation": False, "return_attention_mask": False, "verbose": False}
    if _reads_words(tokenizer, settings):
        found = tokenizer(sentences, is_split_into_words=True, **settings)
        words = [[-1 if w is None else w for w in found.word_ids(i)] for i in range(len(sentences))]
    else:  # tokens hold the space before a word, which a list of words does not have
        found = tokenizer([" ".join(s) for s in sentences], return_offsets_mapping=True, **settings)
        words = [
            _words_of_spans(s, spans, special)
            for s, spans, special in zip(
                sentences,
                found["offset_mapping"],
                (found.sequence_ids(i) for i in range(len(sentences))),
                strict=True,
            )
        ]
    pairs = list(zip(found["input_ids"], words, strict=True))
    adds = any(w == -1 for row in words for w in (row[:1] + row[-1:]))
    start = next((i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None), None)
    if not adds and start is not None:
        pairs = [([start, *ids], [-1, *row]) for ids, row in pairs]
    return pairs


def _reads_words(tokenizer: Any, settings: dict[str, Any]) -> bool:
    """Whether a list of words is encoded as the text is that they make up."""
    try:
        words = tokenizer(["x", "x"], is_split_into_words=True, **settings)["input_ids"]
    except (AssertionError, ValueError):  # of byte-level tokenizers that refuse it
        return False
    return bool(words == tokenizer("x x", **settings)["input_ids"])


def _words_of_spans(
    words: list[str], spans: Sequence[tuple[int, int]], sequence: Sequence[int | None]
) -> list[int]:
    """The word that each token ends in, by its span of characters in the words joined by spaces.

    A space belongs to the word behind it.
    """
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return [
        -1 if part is None or end <= start else int(np.searchsorted(ends, end - 1, side="right"))
        for (start, end), part in zip(spans, sequence, strict=True)
    ]


def _batches(
    encoded: Sequence[tuple[list[int], list[int]]], first: Sequence[int], batch_tokens: int
) -> list[TokenBatch]:
    """Sentences of two words or more by length, longest first, in batches of about ``batch_tokens``."""
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

"""Pairs of words of annotated sentences, and the sentences in batches of tokens."""

import hashlib
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lmdyn.analysis.interdependence.trees import dependency_distances, off_by_one_distances
from lmdyn.analysis.words.concentration import CLOSED_CLASSES, OPEN_CLASSES
from lmdyn.callbacks.observing.protocols import Sentence
from lmdyn.callbacks.observing.run import warn

__all__ = ["SentencePairs", "TokenBatch"]

Encoded = tuple[list[int], list[int]]
"""The token ids of a sentence, and the word of each token, -1 for special ones."""


@dataclass(frozen=True)
class TokenBatch:
    """Sentences as tokens, padded on the right.

    Attributes:
        ids: (sentences, time) token ids, including special tokens.
        words: (sentences, time) word of each token in its sentence, -1 for special tokens and padding.
        mask: (sentences, time) whether there is a token.
        first: for each sentence, the number of its first word among those of all sentences.
        numbers: numbers of the sentences.
    """

    ids: Tensor
    words: Tensor
    mask: Tensor
    first: list[int]
    numbers: list[int]


class SentencePairs:
    """The sentences as batches of tokens, and the properties of each pair of words.

    A sentence is encoded as the tokenizer encodes text, with its special tokens; if it adds none, after the token
    that begins a sequence, or else that ends one. With ``one_token``, each word is one token, and sentences begin after
    the token that ends one, if there is one.

    Args:
        sentences: the sentences; without ``heads`` in one, no pair has a syntactic distance, and without ``upos`` in
            one, none has a class.
        tokenizer: a fast tokenizer of transformers.
        counts: training counts by token id; None if they are unknown.
        max_distance: maximum distance of the words of a pair.
        batch_tokens: approximate number of tokens of a batch.
        name: name of the observer, for messages.
        one_token: whether words must be one token each; batches then have sentences of several lengths, else of one.
        controls: whether to include distances in other trees than the sentence's.

    Attributes:
        words: number of words of all sentences.
        batches: batches of the sentences of two words or more, the longest first.
        table: a row for each pair of words that have tokens: its ``index`` in (words · max_distance) values, its
            ``sentence``, ``distance``, ``syntactic`` distance (-1 under different roots, missing without trees),
            ``pos_class``, whether one of both is ``unknown``, and, if they are known and words are one token each,
            training counts ``left`` and ``right``. With controls and trees, the distance ``off_by_one`` in the tree
            whose heads are wrongly counted from 1, and ``shuffled`` in the tree of another sentence with the same
            number of words, -1 if there is none.
        tokens: number of occurrences of each token id in words.
        fingerprint: hash of tokens, trees and tags.

    Raises:
        ValueError: for a tokenizer that does not return the word of each token, or words of several tokens with
            ``one_token``.
    """

    def __init__(
        self,
        sentences: Sequence[Sentence],
        tokenizer: Any,
        counts: npt.NDArray[Any] | None,
        *,
        max_distance: int,
        batch_tokens: int,
        name: str,
        one_token: bool = False,
        controls: bool = False,
    ) -> None:
        encoded = _encoded_words(sentences, tokenizer, name, bare=one_token)
        told: Any = tokenizer.eos_token_id  # also in the hash
        ids = [row for row, _ in encoded]
        if one_token:
            _check_one_token(sentences, encoded, name)
            encoded = _begun(encoded, told)
        else:
            if not any(w == -1 for _, words in encoded for w in words[:1] + words[-1:]):
                encoded = _begun(encoded, told if tokenizer.bos_token_id is None else tokenizer.bos_token_id)
            ids, told = ([each[side] for each in encoded] for side in (0, 1))
        content = json.dumps([ids, [(s.heads, s.upos) for s in sentences], told])
        self.fingerprint = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        lengths = [len(s.words) for s in sentences]
        self.words = sum(lengths)
        first = [end - n for end, n in zip(accumulate(lengths), lengths, strict=True)]
        self.batches = _batches(encoded, first, batch_tokens, padded=one_token)
        found = [
            (start + w, i)
            for start, (row, words) in zip(first, encoded, strict=True)
            for i, w in zip(row, words, strict=True)
            if w >= 0
        ]
        word, token = np.array(found, dtype=np.int64).reshape(-1, 2).T
        self.tokens = np.bincount(token)
        pieces = np.bincount(word, minlength=self.words)
        unknown = np.zeros(self.words, dtype=bool)
        unknown[word[token == (-1 if tokenizer.unk_token_id is None else tokenizer.unk_token_id)]] = True
        table, left, right = _pairs(sentences, first, max_distance, controls)
        table["unknown"] = unknown[left] | unknown[right]
        if counts is not None and (pieces == 1).all():
            table["left"], table["right"] = counts[token[left]], counts[token[right]]
        lost = (pieces[left] == 0) | (pieces[right] == 0)
        if lost.any():
            warn(
                name,
                f"lmdyn leaves out pairs with words that have no token of this tokenizer ({int(lost.sum())} of "
                f"{len(lost)} pairs; {int((pieces == 0).sum())} of {self.words} words)",
            )
        self.table: pd.DataFrame = table[~lost].reset_index(drop=True)


def _encoded_words(sentences: Sequence[Sentence], tokenizer: Any, name: str, *, bare: bool) -> list[Encoded]:
    """Return the token ids of each sentence, and the word of each token, -1 for special ones.

    Args:
        sentences: the sentences; those without a ``text`` are their words, joined by spaces.
        tokenizer: a fast tokenizer of transformers.
        name: name of the observer, for messages.
        bare: whether to encode words, not the text of sentences if all have one, and without special tokens.

    Raises:
        ValueError: for a tokenizer that does not return the word of each token.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{name}: expected a tokenizer that returns the word of each token, got {type(tokenizer).__name__}. Load a "
            "fast tokenizer with AutoTokenizer.from_pretrained(…)"
        )
    written = not bare and all(getattr(s, "text", None) is not None for s in sentences)
    texts, ends = zip(*(_text(s, written) for s in sentences), strict=True)
    found = tokenizer(
        list(texts),
        padding=False,
        truncation=False,
        return_attention_mask=False,
        verbose=False,
        add_special_tokens=not bare,
        return_offsets_mapping=True,
    )
    words = [
        [
            # a space belongs to the following word
            bisect_right(of_words, start if written else end - 1) if end > start and part == 0 else -1
            for (start, end), part in zip(spans, found.sequence_ids(i), strict=True)
        ]
        for i, (of_words, spans) in enumerate(zip(ends, found["offset_mapping"], strict=True))
    ]
    return list(zip(found["input_ids"], words, strict=True))


def _text(sentence: Any, written: bool) -> tuple[str, list[int]]:
    """Return the text of a sentence, and the end of each word in it."""
    if not written:
        lengths = [len(word) + 1 for word in sentence.words]
        return " ".join(sentence.words), [end - 1 for end in accumulate(lengths)]
    blank = len(sentence.text) - len(sentence.text.lstrip())
    return sentence.text.strip(), [end - blank for _, end in sentence.word_places()]


def _begun(encoded: Sequence[Encoded], start: int | None) -> list[Encoded]:
    """Return the sentences after a special token."""
    return [*encoded] if start is None else [([start, *ids], [-1, *words]) for ids, words in encoded]


def _check_one_token(sentences: Sequence[Sentence], encoded: Sequence[Encoded], name: str) -> None:
    for sentence, (_, words) in zip(sentences, encoded, strict=True):
        pieces = np.bincount([w for w in words if w >= 0], minlength=len(sentence.words))
        if len(words) != len(sentence.words) or (pieces != 1).any():
            worst = int(np.argmax(pieces != 1))
            raise ValueError(
                f"{name}: the word {sentence.words[worst]!r} has {pieces[worst]} tokens, but the decomposition "
                "requires one token per word. Set `backend: shapley` for words of several tokens"
            )


def _batches(
    encoded: Sequence[Encoded], first: Sequence[int], batch_tokens: int, padded: bool
) -> list[TokenBatch]:
    """Return sentences of two words or more, longest first, in batches of about ``batch_tokens``."""
    size = [len(ids) for ids, _ in encoded]
    order = sorted(range(len(encoded)), key=lambda i: -size[i])
    order = [i for i in order if len({*encoded[i][1]} - {-1}) > 1]
    batches = []
    while order:
        longest = size[order[0]]
        chosen = [i for i in order[: max(1, batch_tokens // longest)] if padded or size[i] == longest]
        order = order[len(chosen) :]
        ids, words = (
            pad_sequence(
                [torch.tensor(encoded[i][side]) for i in chosen], batch_first=True, padding_value=empty
            )
            for side, empty in enumerate((0, -1))
        )
        mask = torch.arange(longest) < torch.tensor([size[i] for i in chosen])[:, None]
        batches.append(TokenBatch(ids, words, mask, [first[i] for i in chosen], chosen))
    return batches


def _pairs(
    sentences: Sequence[Sentence], first: Sequence[int], max_distance: int, controls: bool
) -> tuple[pd.DataFrame, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the properties of each pair of words in its sentence, and the numbers of both words."""
    trees = all(s.heads is not None for s in sentences)
    tags = all(s.upos is not None for s in sentences)
    other = _sentences_of_the_same_length(sentences)
    columns: dict[str, list[Any]] = defaultdict(list)
    for number, sentence in enumerate(sentences):
        n = len(sentence.words)
        left, right = np.triu_indices(n, 1)
        pair = tuple(side[right - left <= max_distance] for side in (left, right))
        columns["left"].append(first[number] + pair[0])
        columns["distance"].append(pair[1] - pair[0])
        columns["sentence"].append(np.full(len(pair[0]), number))
        if trees:
            columns["syntactic"].append(dependency_distances(sentence.heads or ())[pair])
        if trees and controls:
            columns["off_by_one"].append(off_by_one_distances(sentence.heads or ())[pair])
            another = dependency_distances(sentences[other[number]].heads or ())[pair]
            columns["shuffled"].append(np.where(other[number] == number, -1, another))
    table = pd.DataFrame({name: np.concatenate(parts) for name, parts in columns.items()})
    left = table.pop("left").to_numpy()
    right = left + table["distance"].to_numpy()
    table["index"] = left * max_distance + table["distance"] - 1
    if not trees:
        table["syntactic"] = pd.array([pd.NA] * len(table), dtype="Int64")
    upos = [tag for s in sentences for tag in (s.upos if tags and s.upos else [None] * len(s.words))]
    kind = np.array([(tag in OPEN_CLASSES) + 2 * (tag in CLOSED_CLASSES) for tag in upos])
    names = {4: "open", 8: "closed", 5: "mixed", 7: "mixed"}
    table["pos_class"] = pd.Series(kind[left] * 3 + kind[right]).map(names)
    return table, left, right


def _sentences_of_the_same_length(sentences: Sequence[Sentence]) -> list[int]:
    """Return for each sentence another of the same length, if there is one: the next one in a drawn cycle."""
    lengths = np.array([len(s.words) for s in sentences])
    other = np.zeros_like(lengths)
    order = np.random.default_rng(0).permutation(len(lengths))
    for n in np.unique(lengths):
        group = order[lengths[order] == n]
        other[group] = np.roll(group, -1)
    return list(map(int, other))

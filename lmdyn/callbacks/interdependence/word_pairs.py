"""Pairs of words of sentences, and batches of the sentences for an LSTM."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from lmdyn.analysis.interdependence.trees import dependency_distances, off_by_one_distances
from lmdyn.analysis.words.sparsity import CLOSED_CLASSES, OPEN_CLASSES
from lmdyn.callbacks.interdependence.encoded_words import encoded_words
from lmdyn.callbacks.observing.protocols import Sentence

__all__ = ["WordPairs", "encode_words", "pair_table", "pairs_fingerprint"]


@dataclass(init=False)
class WordPairs:
    """The sentences as batches, and the properties of each pair of words.

    Attributes:
        words: number of words of all sentences.
        batches: (ids, mask, number of each word or -1) of the sentences, by decreasing length.
        table: a row for each pair: see :func:`pair_table`.
        fingerprint: hash of tokens, trees and tags.
    """

    words: int
    batches: list[tuple[Tensor, Tensor, Tensor]]
    table: pd.DataFrame
    fingerprint: str

    def __init__(
        self,
        sentences: Sequence[Sentence],
        ids: Sequence[Sequence[int]],
        counts: npt.NDArray[Any] | None,
        max_distance: int,
        start: int | None,
        batch_tokens: int,
        unknown: int | None = None,
        controls: bool = False,
    ) -> None:
        lengths = np.array([len(s.words) for s in sentences])
        first = np.cumsum(lengths) - lengths
        self.words = int(lengths.sum())
        self.table = pair_table(
            sentences, max_distance, [[i == unknown for i in row] for row in ids], ids, counts, controls
        )
        self.batches = _batches(ids, first, start, batch_tokens)
        self.fingerprint = pairs_fingerprint(sentences, list(ids), start)


def pair_table(
    sentences: Sequence[Sentence],
    max_distance: int,
    unknown: Sequence[Sequence[bool]],
    ids: Sequence[Sequence[int]] | None,
    counts: npt.NDArray[Any] | None,
    controls: bool = False,
) -> pd.DataFrame:
    """Return the properties of each pair of words.

    Args:
        sentences: the sentences; without ``heads`` in one, no pair has a syntactic distance, and without
            ``upos`` in one, none has a class.
        max_distance: maximum distance of the words of a pair.
        unknown: for each word, whether the tokenizer does not know it.
        ids: the one token of each word; None if words have several.
        counts: training counts by token id; None if they are unknown.
        controls: whether to include distances in other trees than the sentence's.

    Returns:
        A row for each pair: its ``index`` in (words · max_distance) values, its ``sentence``, ``distance``,
        ``syntactic`` distance (-1 under different roots, missing without trees), ``pos_class``, whether one of both
        is ``unknown``, and training counts ``left`` and ``right`` of both words if they are known. With controls and
        trees, the distance ``off_by_one`` in the tree whose heads are wrongly counted from 1
        (:func:`~lmdyn.analysis.interdependence.trees.off_by_one_distances`), and ``shuffled`` in the tree of another
        sentence with the same number of words, -1 if there is none.
    """
    lengths = np.array([len(s.words) for s in sentences])
    first = np.cumsum(lengths) - lengths
    trees = all(s.heads is not None for s in sentences)
    tags = all(s.upos is not None for s in sentences)
    other = _sentences_of_the_same_length(lengths) if controls else []
    parts = []
    for number, sentence in enumerate(sentences):
        n = len(sentence.words)
        left, right = np.triu_indices(n, 1)
        near = right - left <= max_distance
        left, right = left[near], right[near]
        upos = sentence.upos if tags and sentence.upos is not None else (None,) * n
        kind = np.array([(t in OPEN_CLASSES) + 2 * (t in CLOSED_CLASSES) for t in upos])
        of_unknown = np.array(unknown[number], dtype=bool)
        columns = {
            "index": (first[number] + left) * max_distance + right - left - 1,
            "sentence": number,
            "distance": right - left,
            "kind": kind[left] * 3 + kind[right],
            "unknown": of_unknown[left] | of_unknown[right],
        }
        if trees:
            columns["syntactic"] = dependency_distances(sentence.heads or ())[left, right]
            if controls:
                columns["off_by_one"] = off_by_one_distances(sentence.heads or ())[left, right]
                columns["shuffled"] = _distances_of_another(sentences, other[number], n)[left, right]
        if ids is not None and counts is not None:
            of = np.array(ids[number])
            columns |= {"left": counts[of[left]], "right": counts[of[right]]}
        parts.append(pd.DataFrame(columns))
    table = pd.concat(parts, ignore_index=True)
    if not trees:
        table["syntactic"] = pd.array([pd.NA] * len(table), dtype="Int64")
    names = pd.Series({4: "open", 8: "closed", 5: "mixed", 7: "mixed"})
    table["pos_class"] = table.pop("kind").map(names)
    return table


def _sentences_of_the_same_length(lengths: npt.NDArray[np.int64]) -> list[int | None]:
    """Return for each sentence another of the same length, each used once: the next one in a drawn cycle."""
    other: list[int | None] = [None] * len(lengths)
    order = np.random.default_rng(0).permutation(len(lengths))
    for n in np.unique(lengths):
        group = order[lengths[order] == n]
        if len(group) > 1:
            for sentence, following in zip(group.tolist(), np.roll(group, -1).tolist(), strict=True):
                other[sentence] = following
    return other


def _distances_of_another(sentences: Sequence[Sentence], other: int | None, n: int) -> npt.NDArray[np.int64]:
    """Return distances in the tree of a sentence of n words; -1 if there is no such sentence."""
    if other is None:
        return np.full((n, n), -1)
    return dependency_distances(sentences[other].heads or ())


def pairs_fingerprint(sentences: Sequence[Sentence], tokens: Any, start: Any) -> str:
    """Return a hash of tokens, trees and tags, and of the start token or the words of the tokens."""
    content = json.dumps([tokens, [(s.heads, s.upos) for s in sentences], start])
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def encode_words(sentences: Sequence[Sentence], tokenizer: Any, name: str) -> list[list[int]]:
    """Return the token id of each word of each sentence."""
    encoded = encoded_words([s.words for s in sentences], tokenizer, name, special_tokens=False)
    for sentence, (_, words) in zip(sentences, encoded, strict=True):
        pieces = np.bincount([w for w in words if w >= 0], minlength=len(sentence.words))
        if len(words) != len(sentence.words) or (pieces != 1).any():
            worst = int(np.argmax(pieces != 1))
            raise ValueError(
                f"{name}: the word {sentence.words[worst]!r} has {pieces[worst]} tokens, but the decomposition "
                "requires models with one token per word; `backend: shapley` supports words of several tokens"
            )
    return [ids for ids, _ in encoded]


def _batches(
    ids: Sequence[Sequence[int]], first: npt.NDArray[Any], start: int | None, batch_tokens: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return sentences of two words or more, longest first, in batches of about ``batch_tokens`` with padding."""
    before = [] if start is None else [start]
    order = [i for i in np.argsort([-len(s) for s in ids], kind="stable") if len(ids[i]) > 1]
    batches = []
    while order:
        time = len(ids[order[0]]) + len(before)
        chosen, order = order[: max(1, batch_tokens // time)], order[max(1, batch_tokens // time) :]
        tokens = torch.zeros(len(chosen), time, dtype=torch.int64)
        rows = torch.full((len(chosen), time), -1)
        mask = torch.zeros(len(chosen), time, dtype=torch.bool)
        for row, i in enumerate(chosen):
            n = len(before) + len(ids[i])
            tokens[row, :n] = torch.tensor([*before, *ids[i]])
            rows[row, len(before) : n] = torch.arange(first[i], first[i] + len(ids[i]))
            mask[row, :n] = True
        batches.append((tokens, mask, rows))
    return batches

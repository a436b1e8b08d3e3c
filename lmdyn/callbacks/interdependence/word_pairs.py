"""The pairs of words of parsed sentences, and batches of the sentences for an LSTM."""

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

from lmdyn.analysis.interdependence.trees import dependency_distances
from lmdyn.analysis.words.sparsity import CLOSED_CLASSES, OPEN_CLASSES
from lmdyn.callbacks.observing.protocols import Sentence

__all__ = ["WordPairs", "encode_words"]


@dataclass(init=False)
class WordPairs:
    """The sentences as batches, and what is known of each pair of words.

    Attributes:
        words: number of words of all sentences.
        batches: (ids, mask, number of each word or -1) of the sentences, by falling length.
        table: a row for each pair: its index in (words · max_distance) values, its sentence, ``distance``,
            ``syntactic`` distance, ``pos_class``, and training counts of both words where they are known.
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
    ) -> None:
        lengths = np.array([len(s.words) for s in sentences])
        first = np.cumsum(lengths) - lengths
        self.words = int(lengths.sum())
        parts = []
        for number, sentence in enumerate(sentences):
            n = len(sentence.words)
            tree = dependency_distances(sentence.heads or ())
            left, right = np.triu_indices(n, 1)
            near = right - left <= max_distance
            left, right = left[near], right[near]
            kind = np.array([(t in OPEN_CLASSES) + 2 * (t in CLOSED_CLASSES) for t in sentence.upos or ()])
            parts.append(
                pd.DataFrame(
                    {
                        "index": (first[number] + left) * max_distance + right - left - 1,
                        "sentence": number,
                        "distance": right - left,
                        "syntactic": tree[left, right],
                        "kind": kind[left] * 3 + kind[right],
                        "left": np.array(ids[number])[left],
                        "right": np.array(ids[number])[right],
                    }
                )
            )
        table = pd.concat(parts, ignore_index=True)
        names = pd.Series({4: "open", 8: "closed", 5: "mixed", 7: "mixed"})
        table["pos_class"] = table.pop("kind").map(names)
        for side in ("left", "right"):
            words = table.pop(side)
            if counts is not None:
                table[side] = counts[words.to_numpy()]
        self.table = table
        self.batches = _batches(ids, first, start, batch_tokens)
        content = json.dumps([list(ids), [(s.heads, s.upos) for s in sentences], start])
        self.fingerprint = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def encode_words(sentences: Sequence[Sentence], tokenizer: Any, name: str) -> list[list[int]]:
    """The token id of each word of each sentence."""
    encoded = tokenizer(
        [list(s.words) for s in sentences],
        is_split_into_words=True,
        add_special_tokens=False,
        padding=False,
        truncation=False,
        return_attention_mask=False,
    )
    for i, sentence in enumerate(sentences):
        pieces = np.bincount(encoded.word_ids(i), minlength=len(sentence.words))
        if (pieces != 1).any():
            worst = int(np.flatnonzero(pieces != 1)[0])
            raise ValueError(
                f"{name}: the word {sentence.words[worst]!r} has {pieces[worst]} tokens: pairs of words are defined "
                "for models with one token a word"
            )
    return list(encoded["input_ids"])


def _batches(
    ids: Sequence[Sequence[int]], first: npt.NDArray[Any], start: int | None, batch_tokens: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Sentences of two words or more, longest first, in batches of about ``batch_tokens`` with padding."""
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

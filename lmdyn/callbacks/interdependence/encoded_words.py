"""Sentences that are given as words, encoded as the text that the words make up, and the word of each token."""

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["encoded_words"]


def encoded_words(
    sentences: Sequence[Sequence[str]], tokenizer: Any, name: str, *, special_tokens: bool = True
) -> list[tuple[list[int], list[int]]]:
    """Token ids of each sentence, and the word of each token, -1 of special ones.

    Args:
        sentences: their words.
        tokenizer: a fast one of transformers.
        name: of the observer, for messages.
        special_tokens: with those that the tokenizer adds.

    Raises:
        ValueError: a tokenizer that does not tell which tokens make up a word.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{name}: a {type(tokenizer).__name__} does not tell which tokens make up a word: give the data a fast "
            "tokenizer of transformers, such as AutoTokenizer.from_pretrained(…) loads"
        )
    settings = {
        "padding": False, "truncation": False, "return_attention_mask": False, "verbose": False,
        "add_special_tokens": special_tokens,
    }  # fmt: skip
    if _reads_words(tokenizer, settings):
        found = tokenizer([list(s) for s in sentences], is_split_into_words=True, **settings)
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
    return list(zip(found["input_ids"], words, strict=True))


def _reads_words(tokenizer: Any, settings: dict[str, Any]) -> bool:
    """Whether a list of words is encoded as the text is that they make up."""
    try:
        words = tokenizer(["x", "x"], is_split_into_words=True, **settings)["input_ids"]
    except (AssertionError, ValueError):  # of byte-level tokenizers that refuse it
        return False
    return bool(words == tokenizer("x x", **settings)["input_ids"])


def _words_of_spans(
    words: Sequence[str], spans: Sequence[tuple[int, int]], sequence: Sequence[int | None]
) -> list[int]:
    """The word that each token ends in, by its span of characters in the words joined by spaces.

    A space belongs to the word behind it.
    """
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return [
        -1 if part is None or end <= start else int(np.searchsorted(ends, end - 1, side="right"))
        for (start, end), part in zip(spans, sequence, strict=True)
    ]

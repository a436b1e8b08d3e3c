"""Encoding of sentences given as words, as the text of the words, and the word of each token."""

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["encoded_words"]


def encoded_words(
    sentences: Sequence[Sequence[str]], tokenizer: Any, name: str, *, special_tokens: bool = True
) -> list[tuple[list[int], list[int]]]:
    """Return the token ids of each sentence, and the word of each token, -1 for special ones.

    Args:
        sentences: words of the sentences.
        tokenizer: a fast tokenizer of transformers.
        name: name of the observer, for messages.
        special_tokens: whether to include those that the tokenizer adds.

    Raises:
        ValueError: for a tokenizer that does not return the word of each token.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{name}: expected a tokenizer that returns the word of each token, got {type(tokenizer).__name__}: use a "
            "fast tokenizer of transformers, as loaded by AutoTokenizer.from_pretrained(…)"
        )
    settings = {
        "padding": False, "truncation": False, "return_attention_mask": False, "verbose": False,
        "add_special_tokens": special_tokens,
    }  # fmt: skip
    if _reads_words(tokenizer, settings):
        found = tokenizer([list(s) for s in sentences], is_split_into_words=True, **settings)
        words = [[-1 if w is None else w for w in found.word_ids(i)] for i in range(len(sentences))]
    else:  # tokens include the space before a word, which a list of words lacks
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
    """Return whether a list of words is encoded as its text."""
    try:
        words = tokenizer(["x", "x"], is_split_into_words=True, **settings)["input_ids"]
    except (AssertionError, ValueError):  # from byte-level tokenizers that do not support it
        return False
    return bool(words == tokenizer("x x", **settings)["input_ids"])


def _words_of_spans(
    words: Sequence[str], spans: Sequence[tuple[int, int]], sequence: Sequence[int | None]
) -> list[int]:
    """Return the word in which each token ends, by its span of characters in the words joined by spaces.

    A space belongs to the following word.
    """
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return [
        -1 if part is None or end <= start else int(np.searchsorted(ends, end - 1, side="right"))
        for (start, end), part in zip(spans, sequence, strict=True)
    ]

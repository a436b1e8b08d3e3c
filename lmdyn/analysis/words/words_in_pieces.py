"""Words among the pieces of a tokenizer: where they begin and end, and what a model gives them."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.hashing import splitmix64
from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = ["CUT_OFF", "NO_TEXT", "FoundWords", "PieceTable", "find_words", "spell", "word_log_probability"]

NO_TEXT = -1
"""In place of a piece where the text has ended, or has not begun."""

CUT_OFF = -2
"""In place of a piece that exists but is not known: the text goes on after its row."""

_APOSTROPHES = "'’"
_POSITIONS = 1024  # whose probabilities of a word's end are computed at once


@dataclass(frozen=True)
class PieceTable:
    """What each piece of a vocabulary does, by measurement: how the tokenizer writes it after a word.

    Attributes:
        begins: (vocabulary,) whether white space precedes it: it begins a word.
        continues: (vocabulary,) whether it continues the word before it. Other pieces are no part of a word:
            punctuation, white space, special tokens, unknown ones.
        opens: (vocabulary,) whether a word begins after it also without white space: special tokens, line breaks.
    """

    begins: Bool[Tensor, "vocabulary"]
    continues: Bool[Tensor, "vocabulary"]
    opens: Bool[Tensor, "vocabulary"]

    @property
    def whole_words(self) -> bool:
        """Whether each piece is a word: none continues one."""
        return not bool(self.continues.any())

    @classmethod
    def of(cls, tokenizer: Any) -> "PieceTable":
        """Measure a tokenizer of transformers: ``Ġ`` and ``▁`` before a word, ``##`` within one, whole words.

        Raises:
            ValueError: if no piece begins a word, as where the ends of words are marked.
        """
        pieces: list[str] = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        outside = {*tokenizer.all_special_ids, tokenizer.unk_token_id}
        join = tokenizer.convert_tokens_to_string
        usual = (piece for i, piece in enumerate(pieces) if i not in outside)
        anchor = next((piece for piece in usual if join([piece]).strip().isalnum()), "")
        size = len(join([anchor]))
        table = torch.zeros(3, len(pieces), dtype=torch.bool)
        for i, piece in enumerate(pieces):
            after = join([anchor, piece])[size:]
            table[2, i] = i in outside or after[-1:].isspace()
            if i not in outside and any(map(_is_letter, after)):
                table[0, i] = after[0].isspace()
                table[1, i] = _is_letter(after[0]) or after[0] in _APOSTROPHES
        if not table[0].any():
            raise ValueError(
                f"none of {len(pieces)} tokens of the tokenizer shows where a word begins: use a tokenizer with Ġ or "
                "▁ before words, ## within words, or whole words"
            )
        return cls(*table)


def _is_letter(character: str) -> bool:
    """Return whether a character is a letter, a digit, a mark on one, or an unfinished one of several bytes."""
    return character.isalnum() or character == "\ufffd" or unicodedata.category(character)[0] == "M"


@dataclass(frozen=True)
class FoundWords:
    """The whole words of a batch.

    Attributes:
        row: (words,) row of each.
        begin: (words,) column of its first piece.
        end: (words,) column after its last piece.
        code: (words,) number of its sequence of pieces, equal in all batches.
        context: (words,) number of its place in its row: equal for equal rows.
        before: (words,) number of pieces before it in its row.
        spaced: (words,) whether it begins with white space, and not with the text.
    """

    row: Int[Tensor, "words"]
    begin: Int[Tensor, "words"]
    end: Int[Tensor, "words"]
    code: Int[Tensor, "words"]
    context: Int[Tensor, "words"]
    before: Int[Tensor, "words"]
    spaced: Bool[Tensor, "words"]

    def at(self, kept: Bool[Tensor, "words"]) -> "FoundWords":
        """Return some of the words."""
        return FoundWords(*(value[kept] for value in vars(self).values()))


def find_words(text: Int[Tensor, "batch time"], table: PieceTable) -> FoundWords:
    """Find the words of which the text shows where they begin and where they end.

    A word begins with a piece that has white space before it, and ends before the next piece that is not part of it. A
    word at the end of a row that the text does not end with is left out, unless each piece is a word.

    Args:
        text: (batch, time) pieces; :data:`NO_TEXT`, :data:`CUT_OFF`.
        table: what each piece does.

    Example:
        >>> table = PieceTable(*(torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1]]) > 0))  # a word, "s", a period
        >>> found = find_words(torch.tensor([[0, 1, 0, 2, 0]]), table)
        >>> found.begin.tolist(), found.end.tolist()
        ([0, 2], [2, 3])
    """
    size, length = text.shape
    known = text.clamp(min=0)
    begins, continues, opens = (
        values.to(text.device)[known] & (text >= 0) for values in (table.begins, table.continues, table.opens)
    )
    spaced = begins.clone()
    begins[:, 1:] |= continues[:, 1:] & opens[:, :-1]
    goes_on = (text == CUT_OFF) & (not table.whole_words)
    inside = (continues | goes_on) & ~begins
    place = torch.arange(length, device=text.device).expand(size, length)
    # the next place that is not inside of a word, or the end of the row
    outside = torch.where(inside, length, place).flip(1).cummin(1).values.flip(1)
    end = torch.cat([outside[:, 1:], outside.new_full((size, 1), length)], dim=1)
    row, begin = (begins & (end < length + table.whole_words)).nonzero(as_tuple=True)
    there = text != NO_TEXT
    before = there.cumsum(1) - there.long()
    first = torch.where(begins, place, 0).cummax(1).values
    codes = _cumulated(splitmix64((known << 24) + (place - first)))
    contexts = _cumulated(torch.where(there, splitmix64((known << 24) + before + (1 << 62)), 0))
    stop = end[row, begin]
    return FoundWords(
        row=row,
        begin=begin,
        end=stop,
        code=codes[row, stop] - codes[row, begin],
        context=splitmix64(contexts[row, begin] + splitmix64(contexts[row, -1])),
        before=before[row, begin],
        spaced=spaced[row, begin],
    )


def _cumulated(values: Tensor) -> Tensor:
    """Return the sum of all values before each place, and of all."""
    return torch.cat([values.new_zeros(len(values), 1), values.cumsum(1)], dim=1)


def word_log_probability(
    found: FoundWords,
    pieces: Float[Tensor, "batch time"],
    logits: Float[Tensor, "batch later vocabulary"],
    table: PieceTable,
    *,
    first: int,
    ends: bool,
) -> Float[Tensor, "words"]:
    """Return log p of each word: the sum over its pieces, with the probability that it ends.

    A piece with white space before it says that the word before it has ended. The probability that it does belongs to
    that word: with B the pieces that continue no word, log p(word) is increased by log P(B | word), and, as the word
    itself begins with such a piece, decreased by log P(B | what is before it), except at the beginning of a text.

    Args:
        found: the words.
        pieces: (batch, time) log-probability of each piece.
        logits: (batch, …, vocabulary); ``logits[:, k - first]`` predicts piece k.
        table: what each piece does.
        first: column of the first predicted piece.
        ends: whether to move the probability of a word's end.

    Returns:
        (words,) float64, in nats.

    Reference: Pimentel & Meister 2024, "How to compute the probability of a word", theorem 2; Oh & Schuler 2024,
        "Leading whitespaces of language models' subword vocabulary pose a confound".
    """
    sums = _cumulated(pieces.double())
    total = sums[found.row, found.end] - sums[found.row, found.begin]
    if not ends or table.whole_words:
        return total
    no_part = (~table.continues[: logits.shape[-1]]).nonzero()[:, 0].to(logits.device)

    def ending(columns: Int[Tensor, "words"]) -> Float[Tensor, "words"]:
        parts: list[Tensor] = []
        places = zip(found.row.split(_POSITIONS), (columns - first).split(_POSITIONS), strict=True)
        for rows, at in places:
            read = logits[rows.to(logits.device), at.to(logits.device)]
            read = read.to(at_least_float32(read))
            parts.append(read[:, no_part].logsumexp(-1) - read.logsumexp(-1))
        return torch.cat(parts).to(total.device).double() if parts else total

    return total + ending(found.end) - torch.where(found.spaced, ending(found.begin), 0)


def spell(tokenizer: Any, pieces: Sequence[int]) -> str:
    """Return a word as text; it has white space in it where pieces extend over several words.

    Args:
        tokenizer: a tokenizer of transformers.
        pieces: ids of its pieces.
    """
    return str(tokenizer.convert_tokens_to_string(tokenizer.convert_ids_to_tokens(list(pieces)))).strip()

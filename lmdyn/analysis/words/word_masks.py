"""Words of several tokens: masking each word in a copy of its sentence, and whether a word is predicted correctly."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lmdyn.analysis.inspection.batches import tokens_of
from lmdyn.analysis.statistics.hashing import splitmix64

__all__ = [
    "BatchWords",
    "MaskedCopies",
    "masked_copies",
    "number_words",
    "one_masked",
    "word_hash",
    "words_right",
]


@dataclass(frozen=True)
class BatchWords:
    """Words of a batch of sentences, numbered in row-major order.

    Attributes:
        number: (batch, time) number in the batch of the word that each token is a piece of, -1 for none.
        row: (words,) row of each word.
        word: (words,) index of each word in its sentence.
        first: (words,) position of each word's first piece.
        pieces: (words,) number of pieces, from 1.
    """

    number: Int[Tensor, "batch time"]
    row: Int[Tensor, "words"]
    word: Int[Tensor, "words"]
    first: Int[Tensor, "words"]
    pieces: Int[Tensor, "words"]

    def __len__(self) -> int:
        return len(self.row)


def number_words(words: Int[Tensor, "batch time"]) -> BatchWords:
    """Number the words of a batch.

    Args:
        words: index in its sentence of the word that each token is a piece of; negative for none (special tokens,
            padding). Words without a token do not count.

    Example:
        >>> number_words(torch.tensor([[-100, 0, 0, 2], [-100, 0, -100, -100]])).number
        tensor([[-1,  0,  0,  1],
                [-1,  2, -1, -1]])
    """
    inside = words >= 0
    rows, positions = inside.nonzero(as_tuple=True)
    index = words[inside].long()
    size = int(index.max()) + 1 if len(index) else 1
    keys, inverse, pieces = (rows * size + index).unique(return_inverse=True, return_counts=True)
    number = words.new_full(words.shape, -1, dtype=torch.int64)
    number[inside] = inverse
    first = words.new_full((len(keys),), words.shape[1], dtype=torch.int64)
    first.scatter_reduce_(0, inverse, positions, "amin")
    return BatchWords(number, keys // size, keys % size, first, pieces)


def word_hash(
    examples: Int[Tensor, "words"], words: Int[Tensor, "words"], seed: int = 0
) -> Int[Tensor, "words"]:
    """Return a pseudo-random number from 0 to 2⁶³ − 1 for each word, independent of batches and their order.

    Args:
        examples: number of the sentence of each word.
        words: index of each word in its sentence.
        seed: a different seed gives different numbers.

    Example:
        >>> a = word_hash(torch.tensor([4, 5]), torch.tensor([0, 2]))
        >>> bool((a.flip(0) == word_hash(torch.tensor([5, 4]), torch.tensor([2, 0]))).all())
        True
    """
    of_sentence = splitmix64(examples + seed * -0x61C8864680B583EB % 2**63)
    return splitmix64(of_sentence + words) & (2**63 - 1)


@dataclass(frozen=True)
class MaskedCopies:
    """Copies of sentences, each with all pieces of one word masked.

    Attributes:
        batch: (copies, time) tensors by name, cut to the longest copy.
        masked: (copies, time) whether each position is masked; at least one in each row.
        words: (copies,) number of the word that each row masks.
        targets: (n,) the masked tokens in row-major order.
    """

    batch: dict[str, Tensor]
    masked: Bool[Tensor, "copies time"]
    words: Int[Tensor, "copies"]
    targets: Int[Tensor, "n"]

    @property
    def word_of_target(self) -> Int[Tensor, "n"]:
        """Row of each masked token, (n,), in row-major order."""
        return self.masked.nonzero()[:, 0]


def masked_copies(
    batch: Mapping[str, Tensor],
    words: BatchWords,
    chosen: Int[Tensor, "chosen"],
    mask_id: int,
    *,
    batch_tokens: int,
    max_words: int = 512,
) -> Iterator[MaskedCopies]:
    """Yield batches of copies of the sentences, one copy for each chosen word, with all pieces of the word masked.

    Args:
        batch: ``input_ids`` and all other entries with one value for each token, (batch, time); other entries are left
            out. Columns that are padding in all copies of a batch (``attention_mask``) are cut off.
        words: the words of the batch.
        chosen: numbers of the words to mask.
        mask_id: id of the mask token.
        batch_tokens: maximum number of positions of a batch of copies, padding included; a longer sentence forms its
            own batch.
        max_words: maximum number of words in a batch, whose logits over the vocabulary are in memory at once.

    Example:
        >>> ids = torch.tensor([[1, 7, 8, 9, 2]])
        >>> words = number_words(torch.tensor([[-100, 0, 0, 1, -100]]))
        >>> copies = next(masked_copies({"input_ids": ids}, words, torch.arange(2), 3, batch_tokens=64))
        >>> copies.batch["input_ids"], copies.targets
        (tensor([[1, 3, 3, 9, 2],
                 [1, 7, 8, 3, 2]]), tensor([7, 8, 9]))
    """
    shape = batch["input_ids"].shape
    tensors = {
        name: value for name, value in batch.items() if isinstance(value, Tensor) and value.shape == shape
    }
    lengths = (tokens_of(batch) * torch.arange(1, shape[1] + 1, device=chosen.device)).amax(1)
    # similar lengths together, for little padding
    chosen = chosen[lengths[words.row[chosen]].argsort(stable=True)]
    ends = lengths[words.row[chosen]].cpu()
    start = 0
    while start < len(chosen):
        longest = ends[start : start + max_words]
        fits = longest * torch.arange(1, len(longest) + 1) <= batch_tokens  # lengths rise: True, then False
        stop = start + max(1, int(fits.sum()))
        part = chosen[start:stop]
        rows, time = words.row[part], max(1, int(ends[stop - 1]))
        copies = {name: value[rows, :time] for name, value in tensors.items()}
        masked = words.number[rows, :time] == part[:, None]
        targets = copies["input_ids"][masked]
        copies["input_ids"] = copies["input_ids"].masked_fill(masked, mask_id)
        yield MaskedCopies(copies, masked, part, targets)
        start = stop


def words_right(
    hits: Bool[Tensor, "pieces"], word_of_piece: Int[Tensor, "pieces"], n_words: int
) -> Bool[Tensor, "words"]:
    """Return which words are right: those of which all pieces are right.

    Args:
        hits: whether each piece is right.
        word_of_piece: number of the word of each piece.
        n_words: number of words; a word without pieces is right.

    Reference: Chiang, Huang & Lee 2020, section 3: "the predicted token(s) should exactly match the original token(s)
    to be deemed an accurate prediction".

    Example:
        >>> words_right(torch.tensor([True, False, True]), torch.tensor([0, 0, 1]), 2)
        tensor([False,  True])
    """
    misses = hits.new_zeros(n_words, dtype=torch.int64)
    return misses.index_add_(0, word_of_piece, (~hits).long()) == 0


def one_masked(batch: Mapping[str, Any], mask_id: int, special: Sequence[int], seed: int) -> dict[str, Any]:
    """Mask one token of each row, which is drawn by the text of the row: the same for any number of ranks.

    Args:
        batch: ``input_ids``, ``labels`` (the masked tokens, where others were masked before), ``attention_mask``.
        mask_id: id of the mask token.
        special: ids that are not masked; nor are the first token of a row, and padding.
        seed: seed of the draw.

    Returns:
        The batch with other ``input_ids`` and ``labels``; a row of special tokens has no masked one.

    Example:
        >>> ids = torch.tensor([[1, 5, 6, 2]])
        >>> masked = one_masked({"input_ids": ids, "labels": ids}, mask_id=9, special=[1, 2], seed=0)
        >>> masked["input_ids"], masked["labels"]
        (tensor([[1, 9, 6, 2]]), tensor([[-100,    5, -100, -100]]))
    """
    labels = batch["labels"]
    ids = torch.where(labels >= 0, labels, batch["input_ids"])
    real = tokens_of(batch)
    eligible = real & ~torch.isin(ids, ids.new_tensor(special))
    eligible[:, 0] = False
    places = torch.arange(ids.shape[1], device=ids.device)
    weighted = ids * (2 * places + 1)
    text = weighted.where(real, 0).sum(1, keepdim=True)
    order = splitmix64(splitmix64(text + seed) + places) & (2**63 - 1)
    chosen = order.where(eligible, -1).argmax(1, keepdim=True)
    hidden = torch.zeros_like(eligible).scatter(1, chosen, True) & eligible
    return {
        **batch,
        "input_ids": ids.masked_fill(hidden, mask_id),
        "labels": ids.masked_fill(~hidden, -100),
    }

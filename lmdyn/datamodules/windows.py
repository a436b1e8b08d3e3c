"""Rows of text of fixed length for pretraining: windows of one or two segments, with masks drawn anew."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.encoding import IGNORED
from lmdyn.datamodules.masking import Masking, choose_positions, mask_row

__all__ = [
    "Pairs",
    "RowFormat",
    "RowMaker",
    "Text",
    "ordinary_ids",
    "row_generator",
    "rows_of",
    "special_ids",
]

Pairs = Literal["order", "next"]
PAIR_LABELS = {"order": "sentence_order_label", "next": "next_sentence_label"}

Array = npt.NDArray[Any]


class Text(Protocol):
    """Encoded text: what an :class:`~lmdyn.datamodules.encoding.EncodedSplit`, or a block of a stream, has."""

    @property
    def tokens(self) -> Array:
        """(N,) token ids."""

    @property
    def word_start(self) -> Array:
        """(N,) whether a word starts here."""

    @property
    def sentence_starts(self) -> Array:
        """(sentences,) position of each sentence's first token."""

    @property
    def document_starts(self) -> Array:
        """(documents,) index of each document's first sentence."""

    def layer(self, layer: str) -> Array:
        """(N,) labels of each token, -100 where there is none."""


@dataclass(frozen=True)
class RowFormat:
    """What rows look like: ``[CLS] A [SEP] B [SEP]``, or ``[CLS] A [SEP]`` without pairs.

    A row is a window of consecutive tokens, without padding, whatever sentences and documents it cuts. For pairs, it
    is divided at the start of a sentence in the midst of a document (of a word, where there is none), drawn at
    random. ``order``: A and B are exchanged in half of the rows (label 1). ``next``: in half of the rows (label 1), B
    is replaced by as much text of another document.

    Attributes:
        sequence_length: positions of a row, special tokens included.
        pairs: ``order`` (ALBERT), ``next`` (BERT), or None for one segment.
        masking: which tokens are to be predicted.
        short_share: share of rows with a random smaller number of tokens, the rest being padding.

    Raises:
        ValueError: a length without room for text, a share outside of 0 to 1.
    """

    sequence_length: int
    pairs: Pairs | None = None
    masking: Masking = Masking()  # noqa: RUF009 (frozen)
    short_share: float = 0.0

    def __post_init__(self) -> None:
        if self.pairs not in (None, *PAIR_LABELS):
            raise ValueError(f"pairs is one of {list(PAIR_LABELS)} or null, got {self.pairs!r}")
        if self.sequence_length < 8:
            raise ValueError(f"sequence_length is at least 8, got {self.sequence_length}")
        if not 0 <= self.short_share <= 1:
            raise ValueError(f"short_share is a share of 0 to 1, got {self.short_share}")

    @property
    def width(self) -> int:
        """Tokens of text in a row: all but the special ones."""
        return self.sequence_length - (2 if self.pairs is None else 3)


def row_generator(*key: int) -> np.random.Generator:
    """A random generator of its own for each key, such as (seed, epoch, row)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def special_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Ids of the special tokens that rows need.

    Raises:
        ValueError: the tokenizer lacks one.
    """
    names = {"cls": "cls_token", "sep": "sep_token", "mask": "mask_token", "pad": "pad_token"}
    ids = {short: getattr(tokenizer, f"{name}_id") for short, name in names.items()}
    if missing := [names[short] for short, i in ids.items() if i is None]:
        raise ValueError(
            f"masked language modelling needs a tokenizer with {missing}, and this one has "
            f"{sorted(tokenizer.special_tokens_map)}: take one of BERT's kind, or train one "
            "(`vocabulary: wordpiece` or `unigram` of the corpus)"
        )
    return {short: int(i) for short, i in ids.items()}


def ordinary_ids(tokenizer: PreTrainedTokenizerFast) -> npt.NDArray[np.int64]:
    """All ids but those of special tokens."""
    return np.setdiff1d(np.arange(len(tokenizer)), np.array(tokenizer.all_special_ids)).astype(np.int64)


@dataclass(frozen=True)
class RowMaker:
    """Makes batches of rows of a :class:`RowFormat` with a tokenizer's special tokens.

    Attributes:
        format: what rows look like.
        special: ids of cls, sep, mask, pad; see :func:`special_ids`.
        ordinary: ids that may replace a token at random.
        layers: gold layers to serve at the labels.
    """

    format: RowFormat
    special: dict[str, int]
    ordinary: npt.NDArray[np.int64]
    layers: Sequence[str] = ()

    def batch(
        self, text: Text, starts: npt.NDArray[np.int64], generators: Sequence[np.random.Generator]
    ) -> dict[str, Tensor]:
        """The rows whose windows begin at ``starts``, each drawn by its own generator.

        Returns:
            ``input_ids``, ``token_type_ids``, ``labels`` (batch, time); ``masked_positions`` (batch, P), -100 where a
            row has fewer; the pair's label (batch,); ``attention_mask`` where rows may be short; ``target_<layer>``
            (batch, time), at the labels.
        """
        shape = (len(starts), self.format.sequence_length)
        source = np.full(shape, -1, np.int64)  # position of each token in the text; special ones have none
        ids = np.full(shape, self.special["pad"], np.int64)
        types, real = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
        pair = np.zeros(len(starts), np.int64)
        for row, (start, rng) in enumerate(zip(starts.tolist(), generators, strict=True)):
            width = self.format.width
            if self.format.short_share and rng.random() < self.format.short_share:
                width = int(rng.integers(2, width + 1))
            segments, pair[row] = self._segments(text, start, width, rng)
            at = 0
            for kind, segment in enumerate(segments):
                if kind == 0:
                    ids[row, 0], at = self.special["cls"], 1
                end = at + len(segment)
                source[row, at:end] = segment
                ids[row, end] = self.special["sep"]
                types[row, at : end + 1] = kind
                at = end + 1
            real[row, :at] = True
        there = source >= 0
        ids[there] = text.tokens[source[there]]
        word_start = np.zeros(shape, np.bool_)
        word_start[there] = text.word_start[source[there]]
        labels, positions = self._mask(ids, word_start, there, real, generators)
        batch = {
            "input_ids": ids,
            "token_type_ids": types,
            "labels": labels,
            "masked_positions": positions,
        }
        if self.format.pairs is not None:
            batch[PAIR_LABELS[self.format.pairs]] = pair
        if self.format.short_share:
            batch["attention_mask"] = real.astype(np.int64)
        for layer in self.layers:
            values = np.full(shape, IGNORED, np.int64)
            values[there] = text.layer(layer)[source[there]]
            batch[f"target_{layer}"] = np.where(labels == IGNORED, IGNORED, values)
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def _mask(
        self,
        ids: Array,
        word_start: Array,
        there: Array,
        real: Array,
        generators: Sequence[np.random.Generator],
    ) -> tuple[Array, Array]:
        """Mask rows in place; labels and positions."""
        masking = self.format.masking
        labels = np.full_like(ids, IGNORED)
        positions = np.full((len(ids), masking.count(ids.shape[1])), IGNORED, np.int64)
        for row, rng in enumerate(generators):
            count = masking.count(int(real[row].sum()))
            chosen = choose_positions(rng, masking, word_start[row], there[row], count)
            labels[row, chosen] = ids[row, chosen]
            ids[row] = mask_row(rng, masking, ids[row], chosen, self.special["mask"], self.ordinary)
            positions[row, : len(chosen)] = chosen
        return labels, positions

    def _segments(
        self, text: Text, start: int, width: int, rng: np.random.Generator
    ) -> tuple[list[npt.NDArray[np.int64]], int]:
        """Positions in the text of each segment of a row, and the pair's label."""
        window = np.arange(start, start + width)
        if self.format.pairs is None:
            return [window], 0
        cut = self._boundary(text, start, width, rng)
        first, second = window[:cut], window[cut:]
        changed = bool(rng.random() < 0.5)
        if changed and self.format.pairs == "order":
            first, second = second, first
        elif changed:
            second = self._elsewhere(text, start + cut, len(second), rng)
        return [first, second], int(changed)

    @staticmethod
    def _boundary(text: Text, start: int, width: int, rng: np.random.Generator) -> int:
        """Where a window is divided: at a sentence that continues its document, else at a word, else in the middle."""
        i, j = np.searchsorted(text.sentence_starts, [start + 1, start + width])
        sentences = np.arange(i, j)
        documents = text.document_starts
        k = np.searchsorted(documents, sentences)
        begins = documents[np.minimum(k, len(documents) - 1)] == sentences
        cuts = np.asarray(text.sentence_starts[i:j])[~begins] - start
        if not len(cuts):
            cuts = np.flatnonzero(text.word_start[start + 1 : start + width]) + 1
        return int(cuts[rng.integers(len(cuts))]) if len(cuts) else width // 2

    @staticmethod
    def _elsewhere(text: Text, position: int, length: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """So many positions of another document; of the same one where the text has no other."""

        def document(at: int) -> int:
            sentence = np.searchsorted(text.sentence_starts, at, side="right") - 1
            return int(np.searchsorted(text.document_starts, sentence, side="right"))

        start = 0
        for _ in range(10):
            start = int(rng.integers(max(1, len(text.tokens) - length)))
            if document(start) != document(position):
                break
        return np.arange(start, start + length)


def rows_of(text: Text, width: int, offset: int = 0) -> int:
    """Number of whole windows of ``width`` tokens from ``offset`` on; what is left over is in none."""
    return max(0, len(text.tokens) - offset) // width

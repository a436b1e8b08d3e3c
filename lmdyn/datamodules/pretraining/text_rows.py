"""Rows of text of fixed length for pretraining: windows of one or two segments, and what is predicted in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.encoding import IGNORED, EncodedSplit
from lmdyn.datamodules.corpora.tokenization import Array, Ids
from lmdyn.datamodules.files.checks import at_least
from lmdyn.datamodules.pretraining.masking import Masking, choose_positions, mask_row

Objective = Literal["masked", "causal", "cloze"]
Pairs = Literal["order", "next"]
PAIR_LABELS = {"order": "sentence_order_label", "next": "next_sentence_label"}


@dataclass
class StreamBlock:
    """Some documents of a stream in memory, with what rows need of an encoded text."""

    tokens: Ids
    word_start: npt.NDArray[np.bool_]
    sentence_starts: Ids
    document_starts: Ids


Text = EncodedSplit | StreamBlock


@dataclass(frozen=True)
class RowFormat:
    """The format of rows: ``[CLS] A [SEP] B [SEP]``, or ``[CLS] A [SEP]`` without pairs.

    Rows are full of text, without padding, and may cut documents. Without pairs, a row is a window of consecutive
    tokens. With pairs, A starts with the first sentence of the window and B with a later sentence of the same document
    (or a word, if there is none), drawn at random. B continues to the end of the sentence that fills the row; excess
    tokens are removed from either end of A or B, at random. Only the content therefore determines the label.
    ``order``: A and B are exchanged in half of the rows (label 1). ``next``: in half of the rows (label 1), B starts
    with a sentence of another document.

    The objective defines what is predicted. ``labels[t]`` is always the token that the model's logits at ``t`` predict:
    the shift of causal models is made here, and models must not shift:

    - ``masked`` (BERT, ALBERT, ELECTRA): the tokens that ``masking`` draws, each at its own position; they are replaced
      in the row that the model reads. ``masked_positions`` lists their positions.
    - ``causal`` (GPT): every token of the text at the position before it, ``labels[t] = input_ids[t + 1]``. The first
      is predicted from [CLS]; [SEP] and padding are not predicted.
    - ``cloze`` (ELMo): every token of the text at its own position, ``labels[t] = input_ids[t]``. The row is complete:
      the model itself must hide a token from the position that predicts it.

    ``labels`` are -100 elsewhere. With ``causal`` and ``cloze`` each token of a window is predicted once, and labels
    are dense, so there are no ``masked_positions``. All objectives have the same windows.

    Attributes:
        sequence_length: positions per row, including special tokens.
        pairs: ``order`` (ALBERT), ``next`` (BERT), or None for one segment; ``masked`` only.
        masking: settings of the tokens to predict; ``masked`` only.
        short_share: share of rows with a smaller, random number of tokens and padding.
        objective: what is predicted.

    Raises:
        ValueError: if the length leaves no room for text, a share is outside 0 to 1, the objective is unknown, or
            pairs or masking are given for another objective than ``masked``.

    Reference: Devlin et al. 2019, section 3.1; Lan et al. 2020, section 3.1; He & Toyoizumi 2022, section 3.1 and
        equation 1 (what each objective sees).

    Example:
        >>> RowFormat(128, objective="causal").width
        126
    """

    sequence_length: int
    pairs: Pairs | None = None
    masking: Masking = Masking()  # noqa: RUF009 (frozen)
    short_share: float = 0.0
    objective: Objective = "masked"

    def __post_init__(self) -> None:
        at_least(8, sequence_length=self.sequence_length)
        if not 0 <= self.short_share <= 1:
            raise ValueError(f"short_share must be from 0 to 1, got {self.short_share}")
        if self.objective != "masked" and (self.pairs is not None or self.masking != Masking()):
            raise ValueError(
                f"objective {self.objective!r} has neither pairs nor masking, which only 'masked' has: omit `pairs` "
                "and `masking`"
            )

    @property
    def width(self) -> int:
        """Number of text tokens in a row: all except the special ones."""
        return self.sequence_length - (2 if self.pairs is None else 3)


def row_generator(*key: int) -> np.random.Generator:
    """Return an independent random generator for each key, such as (seed, epoch, row)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def special_ids(tokenizer: PreTrainedTokenizerFast, objective: Objective) -> dict[str, int]:
    """Return the ids of the special tokens that rows require: cls, sep, pad; for ``masked`` also mask.

    Raises:
        ValueError: if the tokenizer lacks one.
    """
    names = ["cls", "sep", *["mask"] * (objective == "masked"), "pad"]
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in names}
    if missing := [f"{name}_token" for name, i in ids.items() if i is None]:
        raise ValueError(
            f"objective {objective!r} requires a tokenizer with {', '.join(missing)}, got one with "
            f"{', '.join(sorted(tokenizer.special_tokens_map)) or 'none'}. Use a tokenizer such as BERT's, or train a "
            "tokenizer (`vocabulary: wordpiece` or `unigram` of the corpus)"
        )
    return {name: int(i) for name, i in ids.items()}


def ordinary_ids(tokenizer: PreTrainedTokenizerFast) -> Ids:
    """Return all ids except those of special tokens."""
    return np.setdiff1d(np.arange(len(tokenizer)), np.array(tokenizer.all_special_ids)).astype(np.int64)


@dataclass(frozen=True)
class RowMaker:
    """Makes batches of rows of a :class:`RowFormat` with a tokenizer's special tokens.

    Attributes:
        format: format of the rows.
        special: ids of cls, sep, pad and, for ``masked``, mask; see :func:`special_ids`.
        ordinary: ids that may randomly replace a token.
        layers: gold layers to serve at the labels.
    """

    format: RowFormat
    special: dict[str, int]
    ordinary: Ids
    layers: Sequence[str] = ()

    def batch(self, text: Text, starts: Ids, generators: Sequence[np.random.Generator]) -> dict[str, Tensor]:
        """Return the rows whose windows begin at ``starts``, each drawn by its own generator.

        Returns:
            ``input_ids``, ``token_type_ids``, ``labels`` (batch, time); for ``masked``, ``masked_positions`` (batch,
            P), padded with -100; for pairs, their label (batch,); ``attention_mask`` if rows may be short;
            ``target_<layer>`` (batch, time), the labels of the tokens in ``labels``.
        """
        shape = (len(starts), self.format.sequence_length)
        source = np.full(shape, -1, np.int64)  # position of each token in the text; -1 for special ones
        ids = np.full(shape, self.special["pad"], np.int64)
        ids[:, 0] = self.special["cls"]
        types = np.zeros(shape, np.int64)
        real = np.zeros(shape, np.bool_)
        pair = np.zeros(len(starts), np.int64)
        for row, (start, rng) in enumerate(zip(starts.tolist(), generators, strict=True)):
            width = self.format.width
            if self.format.short_share and rng.random() < self.format.short_share:
                width = int(rng.integers(2, width + 1))
            segments, pair[row] = self._segments(text, start, width, rng)
            at = 1
            for kind, segment in enumerate(segments):
                end = at + len(segment)
                source[row, at:end] = segment
                ids[row, end] = self.special["sep"]
                types[row, at : end + 1] = kind
                at = end + 1
            real[row, :at] = True
        there = source >= 0
        ids[there] = text.tokens[source[there]]
        batch: dict[str, Array] = {"input_ids": ids, "token_type_ids": types}
        target, positions = self._targets(text, ids, source, real, generators)
        asked = target >= 0

        def at_targets(values: Array) -> Array:
            found = np.full(shape, IGNORED, np.int64)
            found[asked] = values[target[asked]]
            return found

        batch["labels"] = at_targets(text.tokens)
        if positions is not None:
            batch["masked_positions"] = positions
        if self.format.pairs is not None:
            batch[PAIR_LABELS[self.format.pairs]] = pair
        if self.format.short_share:
            batch["attention_mask"] = real.astype(np.int64)
        for layer in self.layers:
            assert isinstance(text, EncodedSplit)  # a stream has no gold layers
            batch[f"target_{layer}"] = at_targets(text.layer(layer))
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def _targets(
        self, text: Text, ids: Array, source: Array, real: Array, generators: Sequence[np.random.Generator]
    ) -> tuple[Array, Array | None]:
        """Return which token is predicted at each position; for ``masked``, mask the rows in place.

        Returns:
            (batch, time) position of the token in the text, -1 if nothing is predicted; for ``masked``, (batch, P)
            positions in the row, else None.
        """
        if self.format.objective == "cloze":
            return source, None
        target = np.full_like(source, -1)
        if self.format.objective == "causal":
            target[:, :-1] = source[:, 1:]
            return target, None
        masking, there = self.format.masking, source >= 0
        word_start = np.zeros(ids.shape, np.bool_)
        word_start[there] = text.word_start[source[there]]
        positions = np.full((len(ids), masking.count(ids.shape[1])), IGNORED, np.int64)
        for row, rng in enumerate(generators):
            count = masking.count(int(real[row].sum()))
            chosen = choose_positions(rng, masking, word_start[row], there[row], count)
            target[row, chosen] = source[row, chosen]
            ids[row] = mask_row(rng, masking, ids[row], chosen, self.special["mask"], self.ordinary)
            positions[row, : len(chosen)] = chosen
        return target, positions

    def _segments(
        self, text: Text, start: int, width: int, rng: np.random.Generator
    ) -> tuple[list[Ids], int]:
        """Return the positions in the text of each segment of a row, and the pair's label."""
        if self.format.pairs is None:
            return [np.arange(start, start + width)], 0
        changed = bool(rng.random() < 0.5)
        total, sentences = len(text.tokens), text.sentence_starts

        def sentence_end(at: int) -> int:
            i = int(np.searchsorted(sentences, at))
            return int(sentences[i]) if i < len(sentences) else total

        begin = sentence_end(start)  # the first sentence that starts here or later
        if begin - start >= width or begin + width > total:
            begin = min(start, total - width)
        for _ in range(10):
            cut = second = self._boundary(text, begin, width, rng)
            if changed and self.format.pairs == "next":
                second = self._elsewhere(text, cut, width, rng)
            end = min(total, sentence_end(second + begin + width - cut))
            segments = [np.arange(begin, cut), np.arange(second, end)]
            # whole sentences have too many tokens: the excess is removed from either end of either segment, so that
            # the places of the cuts do not reveal the label
            excess = cut - begin + end - second - width
            if min(map(len, segments)) > excess:
                break
        which, front = int(rng.integers(2)), bool(rng.integers(2))
        if len(segments[which]) <= excess:
            which = int(len(segments[1]) >= len(segments[0]))
        first = excess if front else 0
        segments[which] = segments[which][first : len(segments[which]) - excess + first]
        if changed and self.format.pairs == "order":
            segments.reverse()
        return segments, int(changed)

    @staticmethod
    def _boundary(text: Text, start: int, width: int, rng: np.random.Generator) -> int:
        """Return where a window is divided: at a sentence that continues its document, else a word, else the middle."""
        i, j = np.searchsorted(text.sentence_starts, [start + 1, start + width])
        sentences = np.arange(i, j)
        documents = text.document_starts
        k = np.searchsorted(documents, sentences)
        begins = documents[np.minimum(k, len(documents) - 1)] == sentences
        cuts = np.asarray(text.sentence_starts[i:j])[~begins]
        if not len(cuts):
            cuts = np.flatnonzero(text.word_start[start + 1 : start + width]) + start + 1
        return int(cuts[rng.integers(len(cuts))]) if len(cuts) else start + width // 2

    @staticmethod
    def _elsewhere(text: Text, position: int, length: int, rng: np.random.Generator) -> int:
        """Return the start of a sentence of another document; of the same one if the text has no other."""

        def document(sentence: int) -> int:
            return int(np.searchsorted(text.document_starts, sentence, side="right"))

        sentences = text.sentence_starts
        here = document(int(np.searchsorted(sentences, position, side="right")) - 1)
        usable = max(1, int(np.searchsorted(sentences, len(text.tokens) - length, side="right")))
        sentence = 0
        for _ in range(10):
            sentence = int(rng.integers(usable))
            if document(sentence) != here:
                break
        return int(sentences[sentence])

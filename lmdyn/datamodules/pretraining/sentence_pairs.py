"""Rows of text of fixed length for pretraining: windows of one or two segments, and what is predicted in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.encoding import IGNORED
from lmdyn.datamodules.pretraining.masking import Masking, choose_positions, mask_row

__all__ = [
    "Objective",
    "Pairs",
    "RowFormat",
    "RowMaker",
    "Text",
    "ordinary_ids",
    "row_generator",
    "rows_of",
    "special_ids",
]

Objective = Literal["masked", "causal", "cloze"]
Pairs = Literal["order", "next"]
PAIR_LABELS = {"order": "sentence_order_label", "next": "next_sentence_label"}

Array = npt.NDArray[Any]


class Text(Protocol):
    """Encoded text: what an :class:`~lmdyn.datamodules.corpora.encoding.EncodedSplit`, or a block of a stream, has."""

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

    A row is full of text, without padding, whatever documents it cuts. Without pairs it is a window of consecutive
    tokens. For pairs, A begins with the first sentence of the window and B with a later sentence of the same document
    (a word, where there is none), drawn at random; B goes on to the end of the sentence with which the row is full, and
    what is too much is taken off from either end of A or of B, at random. So nothing but the content tells the label.
    ``order``: A and B are exchanged in half of the rows (label 1). ``next``: in half of the rows (label 1), B begins
    with a sentence of another document.

    The objective says what is predicted. ``labels[t]`` is always the token that the model's logits at ``t`` predict, so
    the shift of causal models is made here, and models make none:

    - ``masked`` (BERT, ALBERT, ELECTRA): the tokens that ``masking`` draws, each at its own position; the row that the
      model reads has them replaced. ``masked_positions`` lists where they are.
    - ``causal`` (GPT): every token of the text at the position before it, ``labels[t] = input_ids[t + 1]``. The first
      is predicted from [CLS]; nothing predicts [SEP] or padding.
    - ``cloze`` (ELMo): every token of the text at its own position, ``labels[t] = input_ids[t]``. The row is whole: it
      is the model that must not see a token where it predicts it.

    Elsewhere ``labels`` are -100. With ``causal`` and ``cloze`` each token of a window is predicted once, and labels
    are dense, so there are no ``masked_positions``. Windows are the same with each objective.

    Attributes:
        sequence_length: positions of a row, special tokens included.
        pairs: ``order`` (ALBERT), ``next`` (BERT), or None for one segment; ``masked`` only.
        masking: which tokens are to be predicted; ``masked`` only.
        short_share: share of rows with a random smaller number of tokens, the rest being padding.
        objective: what is predicted.

    Raises:
        ValueError: a length without room for text, a share outside of 0 to 1, an unknown objective, pairs or a masking
            of one's own with an objective that has none.

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
        if self.objective not in get_args(Objective):
            raise ValueError(f"objective is one of {list(get_args(Objective))}, got {self.objective!r}")
        if self.pairs not in (None, *PAIR_LABELS):
            raise ValueError(f"pairs is one of {list(PAIR_LABELS)} or null, got {self.pairs!r}")
        if self.sequence_length < 8:
            raise ValueError(f"sequence_length is at least 8, got {self.sequence_length}")
        if not 0 <= self.short_share <= 1:
            raise ValueError(f"short_share is a share of 0 to 1, got {self.short_share}")
        if self.objective != "masked" and self.pairs is not None:
            raise ValueError(
                f"sentence pairs belong to objective 'masked', got pairs {self.pairs!r} with objective "
                f"{self.objective!r}: leave pairs out (null)"
            )
        if self.objective != "masked" and self.masking != Masking():
            raise ValueError(
                f"objective {self.objective!r} masks nothing, got {self.masking}: leave masking out, or take objective "
                "'masked'"
            )

    @property
    def width(self) -> int:
        """Tokens of text in a row: all but the special ones."""
        return self.sequence_length - (2 if self.pairs is None else 3)


def row_generator(*key: int) -> np.random.Generator:
    """A random generator of its own for each key, such as (seed, epoch, row)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def special_ids(tokenizer: PreTrainedTokenizerFast, objective: Objective) -> dict[str, int]:
    """Ids of the special tokens that rows need: cls, sep, pad; for ``masked`` also mask.

    Raises:
        ValueError: the tokenizer lacks one.
    """
    names = {"cls": "cls_token", "sep": "sep_token", "mask": "mask_token", "pad": "pad_token"}
    if objective != "masked":
        del names["mask"]
    ids = {short: getattr(tokenizer, f"{name}_id") for short, name in names.items()}
    if missing := [names[short] for short, i in ids.items() if i is None]:
        raise ValueError(
            f"objective {objective!r} needs a tokenizer with {missing}, and this one has "
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
        special: ids of cls, sep, pad and, for ``masked``, mask; see :func:`special_ids`.
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
            ``input_ids``, ``token_type_ids``, ``labels`` (batch, time); of ``masked``, ``masked_positions`` (batch, P),
            -100 where a row has fewer; the pair's label (batch,); ``attention_mask`` where rows may be short;
            ``target_<layer>`` (batch, time), those of the tokens that ``labels`` hold.
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
            batch[f"target_{layer}"] = at_targets(text.layer(layer))
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def _targets(
        self, text: Text, ids: Array, source: Array, real: Array, generators: Sequence[np.random.Generator]
    ) -> tuple[Array, Array | None]:
        """Which token is to be predicted at each position; of ``masked``, rows are masked in place.

        Returns:
            (batch, time) position in the text of the token, -1 where nothing is predicted; (batch, P) positions in the
            row of ``masked``, else None.
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
    ) -> tuple[list[npt.NDArray[np.int64]], int]:
        """Positions in the text of each segment of a row, and the pair's label."""
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
            # whole sentences are too many tokens: what is too much goes from either end of either segment, so that
            # where sentences are cut does not tell the label
            excess = cut - begin + end - second - width
            if min(map(len, segments)) > excess:
                break
        which, front = int(rng.integers(2)), bool(rng.integers(2))
        if len(segments[which]) <= excess:
            which = int(len(segments[1]) >= len(segments[0]))
        segments[which] = (
            segments[which][excess:] if front else segments[which][: len(segments[which]) - excess]
        )
        if changed and self.format.pairs == "order":
            segments.reverse()
        return segments, int(changed)

    @staticmethod
    def _boundary(text: Text, start: int, width: int, rng: np.random.Generator) -> int:
        """Where a window is divided: at a sentence that continues its document, else at a word, else in the middle."""
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
        """Where a sentence of another document begins; of the same one where the text has no other."""

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


def rows_of(text: Text, width: int, offset: int = 0) -> int:
    """Number of whole windows of ``width`` tokens from ``offset`` on; what is left over is in none."""
    return max(0, len(text.tokens) - offset) // width

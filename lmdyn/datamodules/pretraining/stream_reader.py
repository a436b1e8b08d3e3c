"""One reader of a stream: the rows of its share of the documents, in its own order, from a state on."""

import logging
import re
from collections.abc import Iterator
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.tokenization import Ids, plain_backend, trained_here
from lmdyn.datamodules.files.data_sets import in_words, read_rows
from lmdyn.datamodules.pretraining.streamed_text import StreamedText
from lmdyn.datamodules.pretraining.text_rows import RowMaker, StreamBlock, row_generator

logger = logging.getLogger(__name__)

State = dict[str, Any]

_LEFTOVER = {"tokens": torch.empty(0, dtype=torch.int32), "word_start": torch.empty(0, dtype=torch.bool)}
START: State = {"pass": 0, "shares": None, **_LEFTOVER, "block": 0, "row": 0}
"""The initial state of a reader; the leftover of a block is in tensors, which checkpoints store compactly."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\s*\n\s*")


def _documents(dataset: State, stream: Any, column: str, state: State) -> Iterator[tuple[str, State]]:
    """Yield the documents of a dataset that one reader reads in a pass, as they are written, each with the new state.

    Args:
        dataset: its arguments, which name it in errors.
        stream: an iterable dataset of this reader's documents only.
        column: column of the text.
        state: state of the stream, None for the start, and the number of characters read so far in this pass.

    Raises:
        ValueError: if the dataset cannot be read, has no text in the column, or ends without any text.
    """
    if state["stream"] is not None:
        stream.load_state_dict(state["stream"])
    given = state["given"]
    for row in read_rows(stream, dataset):
        if column not in row or not isinstance(row[column], str | None):
            raise ValueError(
                f"{in_words(dataset)}: expected text in column {column!r}, got {row.get(column)!r:.100}: set "
                f"text_column to a column with text (columns: {', '.join(sorted(row))})"
            )
        text = row[column] or ""
        given += len(text.strip())
        yield text, {"stream": stream.state_dict(), "given": given}
    if not given:
        remedy = "use more documents, or lower `readers`"
        raise ValueError(f"{in_words(dataset)} has no text for one of the readers: {remedy}")


class _Gatherer:
    """Collects documents of a stream as growing arrays: as they are written, unless lmdyn trained the tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = plain_backend(tokenizer)
        self._own = trained_here(tokenizer)
        self._line_end = self._backend.encode("\n", add_special_tokens=False).ids
        self.clear(**_LEFTOVER)

    def clear(self, tokens: Tensor, word_start: Tensor) -> None:
        """Restart with the leftover of the previous block, as a separate document."""
        self.tokens, self.word_start = tokens.tolist(), word_start.tolist()
        self.sentences, self.documents = ([0], [0]) if self.tokens else ([], [])

    def add(self, text: str) -> None:
        """Add a document."""
        sentences = [s for s in _SENTENCE_END.split(text.strip()) if s.strip()] if self._own else [text]
        encodings = [e for e in self._backend.encode_batch(sentences, add_special_tokens=False) if e.ids]
        if not encodings or not text.strip():
            return
        self.documents.append(len(self.sentences))
        for e in encodings:
            begins = [0]
            if not self._own:  # a piece of white space belongs to the sentence after it
                gaps = [0, *(gap.start() for gap in _SENTENCE_END.finditer(text.rstrip()))]
                first = np.unique(np.searchsorted([start for start, _ in e.offsets], gaps))
                begins = first[first < len(e.ids)].tolist()
            self.sentences += [len(self.tokens) + begin for begin in begins]
            self.tokens += e.ids
            words = [-1 if word is None else word for word in e.word_ids]
            self.word_start += (np.diff(words, prepend=-2) != 0).tolist()
        if not self._own and not text.endswith("\n"):
            self.tokens += self._line_end
            self.word_start += [0] * len(self._line_end)

    def block(self) -> StreamBlock:
        """Return the added text."""
        return StreamBlock(
            np.array(self.tokens, np.int64),
            np.array(self.word_start, np.bool_),
            np.array(self.sentences, np.int64),
            np.array(self.documents, np.int64),
        )


def documents_of(text: StreamedText, reader: int, readers: int, state: State) -> Iterator[tuple[str, State]]:
    """Yield texts of a reader from a state on, each with the streams' new state; restart when all datasets end."""
    from datasets.distributed import split_dataset_by_node

    whole = text.open()
    start = {"stream": None, "given": 0}
    number = int(state["pass"])
    states = state["shares"] or [start] * len(whole)
    while True:
        # each dataset is divided separately: if alternating documents (as from `interleave_datasets`) were dealt to
        # two readers in turn, each reader would get only one dataset
        shares = [
            _documents(dataset, split_dataset_by_node(stream, reader, readers), text.text_column, begin)
            for dataset, stream, begin in zip(text.datasets, whole, states, strict=True)
        ]
        states = list(states)
        left = list(range(len(shares)))
        empty = [0] * len(shares)
        while left:
            at = min(left, key=lambda share: states[share]["given"])
            if (found := next(shares[at], None)) is None:
                left.remove(at)
                continue
            document, states[at] = found
            empty[at] += not document.strip()
            yield document, {"pass": number, "shares": list(states)}
        for dataset, count in zip(text.datasets, empty, strict=True):
            if count and number == 0:
                logger.warning("dataset %s: lmdyn left out %d documents without text", dataset["path"], count)
        number, states = number + 1, [start] * len(whole)


@dataclass(eq=False)
class RowReader:
    """The rows of one reader, endless, from a state on.

    The text is read in blocks of rows. The order of a block's rows and their masks are drawn from (seed, reader, number
    of the block). A state consists of the streams' state at the start of the block, the leftover of the previous block,
    and the number of rows of the block that were served.

    Args:
        text: the stream.
        maker: makes the rows.
        tokenizer: encodes the text.
        reader: number of the reader.
        readers: number of all readers.
        block_rows: rows per block.
        seed: seed of all random draws.
        state: state to start from.
    """

    text: StreamedText
    maker: RowMaker
    tokenizer: InitVar[PreTrainedTokenizerFast]
    reader: int
    readers: int
    block_rows: int
    seed: int
    state: State

    def __post_init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._key = (self.seed, self.reader)
        self._documents = documents_of(self.text, self.reader, self.readers, self.state)
        self._gatherer = _Gatherer(tokenizer)
        self._block: StreamBlock | None = None
        self._order: Ids = np.empty(0, np.int64)
        self._after: State = {}  # state of the streams after the block

    def take(self, count: int, mine: Ids) -> tuple[list[dict[str, Tensor]], State]:
        """Take the next ``count`` rows, of which only those numbered ``mine`` (ascending) are made.

        Returns:
            The rows as a list of batches, one for each block that they come from; and the changed entries of the state
            after all ``count`` rows.
        """
        made: list[dict[str, Tensor]] = []
        changed: State = {}
        done = 0
        while done < count:
            first = int(self.state["row"])
            number = min(count - done, self.block_rows - first)
            here = mine[(mine >= done) & (mine < done + number)] - done + first
            block = self._block = self._block or self._read_block()
            if len(here):
                rows = self._order[here]
                generators = [row_generator(*self._key, self.state["block"], 1, int(row)) for row in rows]
                made.append(self.maker.batch(block, rows * self.maker.format.width, generators))
            done += number
            # the leftover may be long, and does not change within a block
            now: State = {"row": first + number}
            if first + number == self.block_rows:
                used = self.block_rows * self.maker.format.width
                now = {**self._after, "block": self.state["block"] + 1, "row": 0}
                now["tokens"] = torch.tensor(block.tokens[used:], dtype=torch.int32)
                now["word_start"] = torch.tensor(block.word_start[used:])
                self._block = None
            self.state = {**self.state, **now}
            changed |= now
        return made, changed

    def _read_block(self) -> StreamBlock:
        """Collect the text of the current block."""
        self._gatherer.clear(self.state["tokens"], self.state["word_start"])
        while len(self._gatherer.tokens) < self.block_rows * self.maker.format.width:
            text, self._after = next(self._documents)
            self._gatherer.add(text)
        self._order = row_generator(*self._key, self.state["block"], 0).permutation(self.block_rows)
        return self._gatherer.block()

"""Text larger than memory or disk: Hugging Face datasets, read as they come, cut into rows, resumable exactly."""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.tokenization import plain_backend
from lmdyn.datamodules.files.data_sets import load_dataset, read_rows
from lmdyn.datamodules.pretraining.sentence_pairs import RowMaker, row_generator

__all__ = ["StreamLoaderOfRows", "StreamedText"]

logger = logging.getLogger(__name__)

_START: dict[str, Any] = {
    "pass": 0, "shares": None, "tokens": [], "word_start": [], "block": 0, "batch": 0,
}  # fmt: skip
"""Where a worker begins."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\s*\n\s*")


class StreamedText:
    """Names a dataset to stream, or several to mix: Wikipedia, OpenWebText, books, files of any size.

    Several datasets take turns: the next document is of the dataset that has given the least text so far in this pass
    (in characters; at first, of the first one). Documents of one length so alternate, and where the documents of one
    dataset are books and those of another sentences, each still gives as much as the other, in passages as long as a
    document of the other. Nothing is drawn, and a pass reads each document of each dataset once: a dataset that has
    ended leaves the rest of the pass to the others.

    Args:
        dataset: arguments of ``datasets.load_dataset``: ``path``, ``name``, ``data_files``, …; it is streamed. A list
            of such for several datasets.
        split: of every dataset that does not name its own ``split`` among these arguments.
        text_column: the column that holds a document's text, in every dataset.
        tokenizer: folder or hub name; None takes that of the corpus next to the stream.
        epoch_batches: batches of an epoch, for each rank: a stream has no length of its own. When the text ends, it
            begins again, in rows of another order, with other masks.
        block_rows: rows that are gathered and put in random order at a time.

    Raises:
        ValueError: sizes below 1, no dataset, one without a ``path``; with the first batch, a dataset that cannot be
            opened; with the batch that meets it, one that cannot be read, or has no text.

    Example:
        >>> wikipedia = {"path": "wikimedia/wikipedia", "name": "20231101.en"}
        >>> StreamedText(wikipedia, epoch_batches=1000).datasets
        [{'path': 'wikimedia/wikipedia', 'name': '20231101.en'}]
        >>> books = {"path": "text", "data_files": "books/*.txt", "sample_by": "document"}
        >>> len(StreamedText([wikipedia, books], epoch_batches=1000).datasets)
        2
    """

    def __init__(
        self,
        dataset: dict[str, Any] | list[dict[str, Any]],
        *,
        epoch_batches: int,
        split: str = "train",
        text_column: str = "text",
        tokenizer: str | None = None,
        block_rows: int = 2048,
    ) -> None:
        if epoch_batches < 1 or block_rows < 1:
            raise ValueError(
                f"epoch_batches and block_rows are at least 1, got {epoch_batches}, {block_rows}"
            )
        self.datasets = [dict(one) for one in (dataset if isinstance(dataset, list) else [dataset])]
        if not self.datasets:
            raise ValueError("dataset is an empty list, expected at least one dataset to stream")
        for one in self.datasets:
            if "path" not in one:
                raise ValueError(f"dataset needs a `path`, as datasets.load_dataset does, got {sorted(one)}")
        self.split = split
        self.text_column = text_column
        self.tokenizer = tokenizer
        self.epoch_batches = epoch_batches
        self.block_rows = block_rows

    def required_tokenizer(self) -> str:
        """The tokenizer's name.

        Raises:
            ValueError: none was given.
        """
        if self.tokenizer is None:
            raise ValueError(
                "a stream without a corpus next to it needs a `tokenizer`: a folder or a hub name"
            )
        return self.tokenizer

    def open(self) -> list[Any]:
        """The streaming datasets.

        Raises:
            ValueError: one cannot be opened, or lacks the column.
        """
        return [self._open(dataset) for dataset in self.datasets]

    def _open(self, dataset: dict[str, Any]) -> Any:
        stream = load_dataset(
            {"split": self.split, **dataset, "streaming": True},
            "give the path of local files (path: text, parquet or json, with data_files), or a hub name that can be "
            "reached",
        )
        columns = stream.column_names
        if columns is not None and self.text_column not in columns:
            raise ValueError(
                f"dataset {dataset} has no column {self.text_column!r}: set text_column to one of {columns}"
            )
        return stream


class _Share:
    """The documents of a dataset that one reader reads in one pass.

    Args:
        dataset: its arguments, which name it in errors.
        stream: the documents, an iterable dataset of this reader's alone.
        column: holds their text.
        state: where to go on; None begins.
    """

    def __init__(
        self, dataset: dict[str, Any], stream: Any, column: str, state: dict[str, Any] | None
    ) -> None:
        self._dataset, self._stream, self._column = dataset, stream, column
        self.state: dict[str, Any] = state or {"stream": None, "given": 0}
        """Where the stream stands, and the characters of text given so far in this pass."""
        self.empty = 0
        """Documents without text that were read."""
        if self.state["stream"] is not None:
            stream.load_state_dict(self.state["stream"])
        self._rows = read_rows(stream, dataset)

    def next(self) -> str | None:
        """The text of the next document, empty where it has none; None at the end.

        Raises:
            ValueError: the dataset cannot be read, holds no text in the column, or ends without having given any.
        """
        row = next(self._rows, None)
        if row is None:
            if not self.state["given"]:
                raise ValueError(
                    f"dataset {self._dataset} has no text for one of the readers: it is empty, or has fewer documents "
                    "than ranks × workers"
                )
            return None
        text = row.get(self._column)
        if text is not None and not isinstance(text, str):
            raise ValueError(
                f"dataset {self._dataset}: column {self._column!r} holds {type(text).__name__}, expected text: set "
                f"text_column to one of {sorted(row)}"
            )
        text = (text or "").strip()
        self.empty += not text
        self.state = {"stream": self._stream.state_dict(), "given": self.state["given"] + len(text)}
        return text


@dataclass
class _Block:
    """Some documents in memory; see :class:`~lmdyn.datamodules.pretraining.sentence_pairs.Text`."""

    tokens: npt.NDArray[np.int64]
    word_start: npt.NDArray[np.bool_]
    sentence_starts: npt.NDArray[np.int64]
    document_starts: npt.NDArray[np.int64]

    def layer(self, layer: str) -> npt.NDArray[Any]:
        raise ValueError(f"a stream has no gold layers, so none {layer!r}: leave `layers` out")


class _Gatherer:
    """Documents of a stream, one after the other, as arrays that grow."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = plain_backend(tokenizer)
        self.clear([], [])

    def clear(self, tokens: Sequence[int], word_start: Sequence[int]) -> None:
        """Start with what the block before left over, as a document of its own."""
        self.tokens, self.word_start = [int(t) for t in tokens], [int(w) for w in word_start]
        self.sentences, self.documents = ([0], [0]) if self.tokens else ([], [])

    def add(self, text: str) -> None:
        """Add a document."""
        sentences = [s for s in _SENTENCE_END.split(text) if s.strip()]
        encodings = self._backend.encode_batch(sentences, add_special_tokens=False)
        encodings = [e for e in encodings if e.ids]
        if not encodings:
            return
        self.documents.append(len(self.sentences))
        for e in encodings:
            self.sentences.append(len(self.tokens))
            self.tokens.extend(e.ids)
            before = [None, *e.word_ids[:-1]]
            self.word_start.extend(int(a != b) for a, b in zip(before, e.word_ids, strict=True))

    def block(self) -> _Block:
        """What was added."""
        return _Block(
            np.array(self.tokens, np.int64),
            np.array(self.word_start, np.bool_),
            np.array(self.sentences, np.int64),
            np.array(self.documents, np.int64),
        )


class _RowStream(IterableDataset[tuple[dict[str, Tensor], dict[str, Any]]]):
    """Endless batches of one reader, each with the state from which the next one follows.

    The text is read in blocks of rows. A block's rows come in an order, and with masks, drawn by (seed, reader, number
    of the block). A state is where the streams stood when the block began, what the block before had left over, and how
    many batches of the block are out.
    """

    def __init__(
        self,
        text: StreamedText,
        maker: RowMaker,
        tokenizer: PreTrainedTokenizerFast,
        batch_size: int,
        seed: int,
        first_reader: int,
        readers: int,
    ) -> None:
        self.text, self.maker, self.tokenizer = text, maker, tokenizer
        self.batch_size, self.seed = batch_size, seed
        self.first_reader, self.readers = first_reader, readers
        self.states: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
        info = get_worker_info()
        # `datasets` would divide the documents among the workers once more, by files, of which there may be too few
        torch.utils.data._utils.worker._worker_info = None
        return self.batches(0 if info is None else info.id)

    def batches(self, worker: int) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
        """Batches of a worker, from the state set for it on."""
        state = self.states[worker]
        reader = self.first_reader + state["worker"]
        per_block = max(1, self.text.block_rows // self.batch_size)
        width = self.maker.format.width
        gatherer = _Gatherer(self.tokenizer)
        documents = self._documents(reader, state)
        after: dict[str, Any] = {}
        while True:
            gatherer.clear(state["tokens"], state["word_start"])
            while len(gatherer.tokens) < per_block * self.batch_size * width:
                text, after = next(documents)
                gatherer.add(text)
            block = gatherer.block()
            key = (self.seed, reader, state["block"])
            order = row_generator(*key, 0).permutation(per_block * self.batch_size)
            for number in range(state["batch"], per_block):
                rows = order[number * self.batch_size : (number + 1) * self.batch_size]
                generators = [row_generator(*key, 1, int(row)) for row in rows]
                batch = self.maker.batch(block, rows * width, generators)
                state = {**state, "batch": number + 1}
                if number + 1 == per_block:
                    used = per_block * self.batch_size * width
                    state = {
                        **state, **after, "block": state["block"] + 1, "batch": 0,
                        "tokens": block.tokens[used:], "word_start": block.word_start[used:],
                    }  # fmt: skip
                # what is left over may be long, and is the same all through a block
                yield batch, state if number + 1 == per_block else {"batch": number + 1}

    def _documents(self, reader: int, state: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Texts from a state on, each with the state of the streams after it; begins again when all end."""
        from datasets.distributed import split_dataset_by_node

        whole = self.text.open()
        number, states = int(state["pass"]), state["shares"] or [None] * len(whole)
        while True:
            # each dataset is divided by itself: documents that alternate, dealt out to two readers in turn as
            # `interleave_datasets` would have it, leave each reader with one dataset
            shares = [
                _Share(
                    dataset, split_dataset_by_node(stream, reader, self.readers), self.text.text_column, begin
                )
                for dataset, stream, begin in zip(self.text.datasets, whole, states, strict=True)
            ]
            left = list(shares)
            while left:
                share = min(left, key=lambda share: share.state["given"])
                text = share.next()
                if text is None:
                    left.remove(share)
                else:
                    yield text, {"pass": number, "shares": [s.state for s in shares]}
            for dataset, share in zip(self.text.datasets, shares, strict=True):
                if share.empty and number == 0:
                    logger.warning("%s: %d documents without text are left out", dataset, share.empty)
            number, states = number + 1, [None] * len(whole)


class StreamLoaderOfRows:
    """Serves a stream as rows of fixed length: sized by ``epoch_batches``, sharded by rank and worker, resumable.

    Each rank and worker reads its own share of the documents, and every rank has ``epoch_batches`` batches. The next
    epoch goes on where this one ended. Memory holds a block of rows for each worker, whatever the corpus.

    The state holds where each worker of each rank stands, so a run resumes at the very example, on as many ranks and
    workers.

    Args:
        text: what to stream.
        maker: makes rows.
        tokenizer: encodes the text.
        batch_size: rows of a batch of this process.
        seed: of everything that is drawn.
        num_workers: processes that read and encode; 0 does it in this one.
        limit: fewer batches in an epoch than ``text`` says.
        rank: this process.
        world_size: number of processes.
    """

    label_convention = "aligned"
    """``labels[b, t]`` belongs to ``logits[b, t]``."""

    def __init__(
        self,
        text: StreamedText,
        maker: RowMaker,
        tokenizer: PreTrainedTokenizerFast,
        *,
        batch_size: int,
        seed: int = 0,
        num_workers: int = 0,
        limit: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._workers = max(1, num_workers)
        self._processes = num_workers > 0
        self._rank, self._world_size = rank, world_size
        self._dataset = _RowStream(
            text, maker, tokenizer, batch_size, seed, rank * self._workers, world_size * self._workers
        )
        self._length = text.epoch_batches if limit is None else min(limit, text.epoch_batches)
        self._settings: dict[str, int | str] = {
            "batch_size": batch_size, "block_rows": text.block_rows, "seed": seed, "objective": maker.format.objective,
            "datasets": len(text.datasets),
        }  # fmt: skip
        self._read = f"{text.datasets}, split {text.split}"
        self._position = 0
        self._states: list[dict[str, Any] | None] = [None] * self._workers
        """Where each logical worker stands; None at its start."""
        self._turn = 0
        """Which of them makes the next batch."""
        self.label_names: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        if self._position >= self._length:
            self._position = 0
        # processes take turns from the first on: give it the state of the one whose turn it is
        turns = [(self._turn + k) % self._workers for k in range(self._workers)]
        self._dataset.states = [self._states[t] or {**_START, "worker": t} for t in turns]
        made: Any
        if self._processes:
            made = DataLoader(
                self._dataset, batch_size=None, num_workers=self._workers,
                pin_memory=torch.cuda.is_available(), generator=torch.Generator(),
            )  # fmt: skip
        else:
            made = self._dataset.batches(0)
        if self._position >= self._length:
            return
        for batch, state in made:
            before = self._states[self._turn] or {**_START, "worker": self._turn}
            self._states[self._turn] = {**before, **state}
            self._turn = (self._turn + 1) % self._workers
            self._position += 1  # before the yield: the trainer saves while it works on this batch
            yield batch
            if self._position >= self._length:
                return

    def state_dict(self) -> dict[str, Any]:
        """Where every worker of every rank stands; with a process group, every rank must ask."""
        states = [None if s is None else {**s, **_packed(s)} for s in self._states]
        mine = {"position": self._position, "turn": self._turn, "states": states}
        ranks: list[Any] = [mine]
        if self._world_size > 1 and torch.distributed.is_initialized():
            ranks = [None] * self._world_size
            torch.distributed.all_gather_object(ranks, mine)
        return {"ranks": ranks, "settings": self._settings, "read": self._read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved state with the next iteration.

        Raises:
            ValueError: a state of other settings, or of other numbers of ranks or workers.
        """
        if state["settings"] != self._settings:
            raise ValueError(
                f"the stream was read with {state['settings']}, this run has {self._settings}: exact resuming needs "
                "the same"
            )
        if len(state["ranks"]) != self._world_size:
            raise ValueError(
                f"the stream was read by {len(state['ranks'])} ranks, this run has {self._world_size}: exact resuming "
                "needs as many"
            )
        if (
            read := state.get("read", self._read)
        ) != self._read:  # a state of earlier versions does not say it
            said = "the stream was read from %s and goes on in %s: the same run only if these are the same documents"
            logger.warning(said, read, self._read)
        mine = state["ranks"][self._rank]
        if len(mine["states"]) != self._workers:
            raise ValueError(
                f"the stream was read by {len(mine['states'])} workers a rank, this run has {self._workers}: set "
                "num_workers as it was"
            )
        self._position, self._turn = int(mine["position"]), int(mine["turn"])
        self._states = [None if s is None else {**s, **_unpacked(s)} for s in mine["states"]]


def _packed(state: dict[str, Any]) -> dict[str, Tensor]:
    """What is left over, as tensors, which checkpoints hold in little space."""
    return {
        "tokens": torch.tensor(np.asarray(state["tokens"], np.int32)),
        "word_start": torch.tensor(np.asarray(state["word_start"], np.bool_)),
    }


def _unpacked(state: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.asarray(state[name]) for name in ("tokens", "word_start")}

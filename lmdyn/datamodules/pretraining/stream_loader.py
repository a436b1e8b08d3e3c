"""Batches of a stream: rows of several readers, assigned to ranks and workers, resumable on other numbers of both."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.tokenization import Ids, trained_here
from lmdyn.datamodules.loading.global_batch import GlobalBatch, ResumeError, check_settings
from lmdyn.datamodules.loading.loader import Batch, in_workers
from lmdyn.datamodules.pretraining.stream_reader import START, RowReader, State
from lmdyn.datamodules.pretraining.streamed_text import StreamedText
from lmdyn.datamodules.pretraining.text_rows import RowMaker

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Deal:
    """The assignment of a stream's rows to readers, a function of the row's number only.

    The rows of all ranks together are one sequence, in sections of ``parts`` × ``rows``. Each part of a section comes
    from one reader; readers / parts readers take turns at it.

    Attributes:
        readers: number of readers.
        parts: number of parts of a section.
        rows: number of rows of a part.

    Example:
        >>> Deal(readers=4, parts=2, rows=3).reader(np.arange(12)).tolist()
        [0, 0, 0, 2, 2, 2, 1, 1, 1, 3, 3, 3]
    """

    readers: int
    parts: int
    rows: int

    @classmethod
    def begun(cls, readers: int | None, batch: GlobalBatch, workers: int) -> "Deal":
        """Return the assignment of a new run.

        Args:
            readers: number of readers, if given: the assignment then depends only on the rows of an update. If None,
                each worker of each rank is a reader, and makes whole batches.
            batch: the batch of all ranks.
            workers: number of workers per rank.

        Example:
            >>> {Deal.begun(4, GlobalBatch(8, ranks), workers).parts for ranks in (1, 2, 4) for workers in (1, 3)}
            {4}
        """
        if readers is None:
            return cls(batch.ranks * workers, batch.ranks, batch.rows // batch.ranks)
        parts = math.gcd(readers, batch.update)
        return cls(readers, parts, batch.update // parts)

    @property
    def period(self) -> int:
        """Number of rows after which the order of readers repeats."""
        return self.readers * self.rows

    def reader(self, number: Ids) -> Ids:
        """Return the readers of the rows with these numbers."""
        section, place = np.divmod(number, self.parts * self.rows)
        turns = self.readers // self.parts
        found: Ids = place // self.rows * turns + section % turns
        return found

    def of_rank(self, batch: GlobalBatch, rank: int, start: int) -> list[int]:
        """Return the readers of a rank's rows, from the batch that begins with row ``start`` on."""
        own = batch.rows // batch.ranks
        found: set[int] = set()
        for i in range(self.period // math.gcd(self.period, batch.rows)):
            first = start + i * batch.rows + rank * own
            found |= set(self.reader(np.arange(first, first + own)).tolist())
        return sorted(found)


@dataclass(eq=False)
class _Parts(IterableDataset[Any]):
    """For each batch of a rank, endlessly, the rows of a worker's readers: their places, the rows, changed state."""

    deal: Deal
    batch: GlobalBatch
    rank: int
    start: int
    make: Callable[[int, State], RowReader]
    states: Mapping[int, State]
    workers: int = 1

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        # otherwise `datasets` divides the documents again among the workers, by files, of which there may be too few
        torch.utils.data._utils.worker._worker_info = None
        return self.parts(0 if info is None else info.id)

    def parts(self, worker: int) -> Iterator[tuple[Ids, Batch | None, dict[int, State]]]:
        """Yield the parts of a worker."""
        mine = list(self.states)[worker :: self.workers]
        readers: dict[int, RowReader] = {r: self.make(r, self.states[r]) for r in mine}
        own = self.batch.rows // self.batch.ranks
        first, start = self.rank * own, self.start
        while True:
            who = self.deal.reader(start + np.arange(self.batch.rows))
            places, made, changed = [], [], {}
            for number, reader in readers.items():
                of_all = np.flatnonzero(who == number)
                of_rank = np.flatnonzero((of_all >= first) & (of_all < first + own))
                if len(of_all):
                    rows, changed[number] = reader.take(len(of_all), of_rank)
                    made += rows
                    places.append(of_all[of_rank] - first)
            place = np.concatenate(places) if made else np.empty(0, np.int64)
            yield place, _joined(made, place) if made else None, changed
            start = (start + self.batch.rows) % self.deal.period


def _joined(batches: Sequence[Batch], places: Ids) -> Batch:
    """Join the rows of several batches, ordered by their places."""
    if len(batches) == 1 and (np.diff(places) > 0).all():
        return batches[0]
    order = torch.from_numpy(np.argsort(places, kind="stable"))
    return {name: torch.cat([b[name] for b in batches])[order] for name in batches[0]}


@dataclass(eq=False)
class StreamLoaderOfRows:
    """Serves a stream as rows of fixed length: sized by ``epoch_batches``, sharded by rank and worker, resumable.

    Documents are divided among readers, each of which cuts its own into rows. Batch i of all ranks together has the
    next rows of the readers, assigned by a :class:`Deal`. Every rank has ``epoch_batches`` batches, and in each of them
    the rows from rank × batch_size on. An epoch continues where the previous one ended. Memory holds one block of rows
    per reader, regardless of the size of the corpus.

    The assignment is fixed when a run starts; the state contains it and the position of each reader. A run therefore
    resumes at exactly the same row, also on other numbers of ranks and workers. The readers of a rank's rows run in
    that rank, divided among its workers. If the number of ranks does not divide the number of readers, several ranks
    read the same documents; workers in excess of a rank's readers are idle.

    Args:
        text: the stream.
        maker: makes the rows.
        tokenizer: encodes the text.
        batch_size: rows per batch of this process.
        seed: seed of all random draws.
        num_workers: number of processes that read and encode; 0 does it in this process.
        accumulated: batches per update.
        epoch_batches: maximum number of batches per epoch, if below that of ``text``.
        rank: rank of this process.
        world_size: number of processes.
    """

    text: StreamedText
    maker: RowMaker
    tokenizer: PreTrainedTokenizerFast
    _: KW_ONLY
    batch_size: int
    seed: int = 0
    num_workers: int = 0
    accumulated: int = 1
    epoch_batches: int | None = None
    rank: int = 0
    world_size: int = 1

    label_convention: ClassVar[str] = "aligned"
    """``labels[b, t]`` belongs to ``logits[b, t]``."""

    def __post_init__(self) -> None:
        text, seed = self.text, self.seed
        self._batch = GlobalBatch(self.batch_size * self.world_size, self.world_size, self.accumulated)
        self._deal = Deal.begun(text.readers, self._batch, max(1, self.num_workers))
        batches = text.epoch_batches
        self._length = batches if self.epoch_batches is None else min(self.epoch_batches, batches)
        self._settings: dict[str, int | str] = {
            "batch_size": self.batch_size,
            "block_rows": text.block_rows,
            "seed": seed,
            "objective": self.maker.format.objective,
            "datasets": len(text.datasets),
        }
        # a stream of an earlier version, which did not read as written, is said to be another one
        written = "" if trained_here(self.tokenizer) else ", as written"
        self._read = f"{text.datasets}, split {text.split}{written}"
        self._position = 0
        self._start = 0
        """The row with which the next batch begins, modulo the assignment's period."""
        self._states: dict[int, State] = {}
        """Position of each reader of this rank; missing ones are at their start."""
        self.label_names: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        if self._position >= self._length:
            self._position = 0
        readers = self._deal.of_rank(self._batch, self.rank, self._start)
        self._states = {r: self._states.get(r, START) for r in readers}
        parts = _Parts(self._deal, self._batch, self.rank, self._start, self._reader, self._states)
        if self.num_workers:
            parts.workers = min(self.num_workers, len(readers))
            if parts.workers < self.num_workers:
                said = "%d of %d workers start, since `readers` is low: set `readers` to ranks × workers in a new run"
                log.info(said, parts.workers, self.num_workers)
            made = in_workers(parts, parts.workers, prefetch_factor=2 * parts.workers)
        else:
            made = parts.parts(0)
        while self._position < self._length:
            # each worker has a part of each batch, which may be empty; they take turns from the first on
            of_batch = list(islice(made, parts.workers))
            for _, _, changed in of_batch:
                for number, change in changed.items():
                    self._states[number] = {**self._states[number], **change}
            self._start = (self._start + self._batch.rows) % self._deal.period
            self._position += 1  # before the yield: the trainer saves while it works on this batch
            there = [(place, rows) for place, rows, _ in of_batch if rows is not None]
            batch = _joined([rows for _, rows in there], np.concatenate([place for place, _ in there]))
            if len(there) > 1 and self.num_workers and torch.cuda.is_available():
                batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
            yield batch

    def _reader(self, number: int, state: State) -> RowReader:
        rows = self._deal.rows
        return RowReader(
            self.text,
            self.maker,
            self.tokenizer,
            reader=number,
            readers=self._deal.readers,
            seed=self.seed,
            block_rows=max(1, self.text.block_rows // rows) * rows,
            state=state,
        )

    def state_dict(self) -> State:
        """Return the position of every reader of every rank; with a process group, every rank must call it."""
        ranks: list[Any] = [dict(self._states)]
        if self._batch.ranks > 1 and torch.distributed.is_initialized():
            ranks = [None] * self._batch.ranks
            torch.distributed.all_gather_object(ranks, self._states)
        return {
            "position": self._position,
            "start": self._start,
            "deal": asdict(self._deal),
            "readers": {number: state for states in ranks for number, state in states.items()},
            "global_batch": asdict(self._batch),
            "epoch_batches": self._length,
            "settings": self._settings,
            "read": self._read,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue at a saved state with the next iteration.

        Raises:
            ResumeError: if the state has other settings or updates of another size, or lacks a reader of this rank.
        """
        check_settings(state["settings"], self._settings)
        position, ended = self._batch.position(state, self._length, "epoch_batches")
        deal = Deal(**state["deal"])
        if self.text.readers not in (None, deal.readers):
            raise ResumeError(
                f"`readers` is {self.text.readers}, but the saved run divided the stream among {deal.readers} readers: "
                f"set `readers: {deal.readers}`"
            )
        if state["read"] != self._read:
            said = "the run read %s before and reads %s now: the run resumes exactly only if both are equal"
            log.warning(said, state["read"], self._read)
        mine = deal.of_rank(self._batch, self.rank, int(state["start"]))
        if state["readers"] and not {*mine} <= {*state["readers"]}:
            raise ResumeError(
                f"the checkpoint has the state of {len(state['readers'])} of {deal.readers} readers of the stream, "
                "since not all processes saved their part: use a checkpoint of all processes, or start a new run"
            )
        self._position = self._length if ended else position
        self._deal, self._start = deal, int(state["start"])
        self._states = {r: dict(s) for r, s in state["readers"].items() if r in mine}

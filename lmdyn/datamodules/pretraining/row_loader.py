"""Rows of fixed length from an encoded text: the loader that shuffles, masks, shards and resumes."""

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, astuple, dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch

from lmdyn.datamodules.corpora.encoding import EncodedSplit
from lmdyn.datamodules.corpora.tokenization import Ids, digest
from lmdyn.datamodules.loading.loader import Batch, IndexedLoader, in_workers
from lmdyn.datamodules.pretraining.text_rows import RowMaker, row_generator


@dataclass(eq=False)
class RowLoader(IndexedLoader):
    """Serves a split as rows of fixed length, cut and masked again in each epoch; sized, sharded, resumable.

    In training (``shuffle``), the windows of an epoch start at a random offset and are served in random order; rows
    that do not fill an update of all ranks are left out, so that all ranks have equally many. Otherwise the windows
    are served in the order of the text, each once, with the masks of epoch 0. Batch i of epoch e of all ranks together
    depends only on (seed, e, i), and rank r has its rows r, r + world_size, …; a row's masks depend on (seed, e, row).
    A run can therefore resume with the same rows on another number of ranks, if its updates have the same size. See
    ``RowMaker`` for the contents of a batch; ``example`` numbers the windows.

    Args:
        data: the encoded split.
        maker: makes the rows.
        batch_size: rows per batch of all ranks together.
        shuffle: whether to serve rows for training.
        seed: seed of all random draws.
        num_workers: number of processes that make batches; 0 makes them in this process.
        accumulated: batches per update, in training.
        max_tokens: serve only about this many positions, in windows evenly spaced over the text; see :meth:`limit`.
        rank: rank of this process; see :meth:`shard`.
        world_size: number of processes.

    Raises:
        ValueError: if sizes are below 1, the text is shorter than a row, or there are fewer rows than a batch.
    """

    data: EncodedSplit
    maker: RowMaker
    _: KW_ONLY
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    num_workers: int = 0

    _sizes: ClassVar[tuple[str, ...]] = ("batch_size",)
    _rows: ClassVar[str] = "batch_size"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._reorders = self.shuffle
        width = self.maker.format.width
        length = self.maker.format.sequence_length
        # in training, every epoch must have the same number of rows for any offset within a row
        self._windows = (self.data.num_tokens - (width - 1 if self.shuffle else 0)) // width
        if self._windows < 1:
            raise ValueError(
                f"the split has {self.data.num_tokens} tokens, fewer than required for rows of {length} positions: "
                "lower sequence_length or use more text"
            )
        self._chosen = np.arange(self._windows)
        if self.max_tokens is not None:
            number = min(self._windows, max(1, round(self.max_tokens / length)))
            self._chosen = np.linspace(0, self._windows - 1, number).round().astype(np.int64)
        rows, size = len(self._chosen), self.batch_size
        whole = rows // size if self.shuffle else math.ceil(rows / size)
        if whole < 1:
            raise ValueError(f"{rows} rows do not fill a batch of {size}: lower batch_size or use more text")
        if self.shuffle and whole > self.accumulated:
            whole -= whole % self.accumulated
        self._length = self.epoch_batches = whole
        self.label_names = {layer: list(self.data.names[layer]) for layer in self.maker.layers}

    def fingerprint_of(self, rows: int) -> str:
        """Return the fingerprint with another number of rows per batch."""
        layout, maker = self.maker.format, self.maker
        served = {
            "batch_size": rows,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
        }
        predicted = list(astuple(layout.masking)) if layout.objective == "masked" else layout.objective
        of_rows = [layout.sequence_length, layout.pairs, layout.short_share, predicted]
        return digest([self.data.fingerprint(maker.layers), served, of_rows, maker.special])

    def resumable(self) -> dict[str, int | str]:
        """Return the settings that a resumed run must keep."""
        layout = self.maker.format
        return {
            "batch_size": self.batch_size,
            "seed": self.seed,
            "world_size": self.world_size,
            "sequence_length": layout.sequence_length,
            "rows": self._windows,
            "objective": layout.objective,
        }

    def __len__(self) -> int:
        return self._length

    def rows(self, epoch: int) -> tuple[list[Ids], int]:
        """Return the window numbers in each of this rank's batches of an epoch, and where window 0 begins."""
        order, offset, size = self._chosen, 0, self.batch_size
        if self.shuffle:
            order = row_generator(self.seed, epoch, 0).permutation(order)
            offset = int(row_generator(self.seed, epoch, 1).integers(self.maker.format.width))
        groups = (order[i * size : (i + 1) * size][self.rank :: self.world_size] for i in range(self._length))
        return [rows for rows in groups if len(rows)], offset

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, from number ``first`` on."""
        rows, offset = self.rows(epoch)
        make = partial(self._batch, epoch, offset)
        if not self.num_workers:
            return map(make, rows[first:])
        return in_workers(rows[first:], self.num_workers, collate_fn=make)

    def _batch(self, epoch: int, offset: int, rows: Ids) -> Batch:
        """Return a batch of an epoch, which workers can make: a pure function of seed, epoch and rows."""
        generators = [row_generator(self.seed, epoch, 2, int(row)) for row in rows]
        batch = self.maker.batch(self.data, offset + rows * self.maker.format.width, generators)
        return {**batch, "example": torch.from_numpy(rows)}

    def with_batch_size(self, rows: int) -> "RowLoader":
        """Return a loader of the same rows in batches of ``rows`` rows, of all ranks together, each an update."""
        return self._replace(batch_size=rows)

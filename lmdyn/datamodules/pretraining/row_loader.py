"""Rows of fixed length from an encoded text: the loader that shuffles, masks, shards and resumes."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lmdyn.datamodules.corpora.encoding import EncodedSplit
from lmdyn.datamodules.corpora.tokenization import digest
from lmdyn.datamodules.loading.global_batch import ORDER_VERSION, GlobalBatch, ResumeError, size_that
from lmdyn.datamodules.pretraining.masking import Masking
from lmdyn.datamodules.pretraining.sentence_pairs import RowMaker, row_generator, rows_of

__all__ = ["RowLoader"]


class _Batches(Dataset[dict[str, Tensor]]):
    """Batches of an epoch by number: pure functions of seed, epoch and number, so that workers can make them."""

    def __init__(
        self,
        text: EncodedSplit,
        maker: RowMaker,
        batches: Sequence[npt.NDArray[np.int64]],
        offset: int,
        key: tuple[int, ...],
    ) -> None:
        self.text, self.maker, self.batches, self.offset, self.key = text, maker, batches, offset, key

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        rows = self.batches[number]
        generators = [row_generator(*self.key, int(row)) for row in rows]
        batch = self.maker.batch(self.text, self.offset + rows * self.maker.format.width, generators)
        batch["example"] = torch.from_numpy(rows)
        return batch


class RowLoader:
    """Serves a split as rows of fixed length, cut and masked again in each epoch; sized, sharded, resumable.

    In training (``shuffle``), the windows of an epoch start at a random offset and are served in random order; rows
    that do not fill an update of all ranks are left out, so that all ranks have equally many. Otherwise the windows
    are served in the order of the text, each once, with the masks of epoch 0. Batch i of epoch e of all ranks together
    depends only on (seed, e, i), and rank r has its rows r, r + world_size, …; a row's masks depend on (seed, e, row).
    A run can therefore resume with the same rows on another number of ranks, if its updates have the same size. See
    ``RowMaker`` for the contents of a batch; ``example`` numbers the windows.

    Args:
        text: the encoded split.
        maker: makes the rows.
        batch_size: rows per batch of all ranks together.
        shuffle: whether to serve rows for training.
        seed: seed of all random draws.
        num_workers: number of processes that make batches; 0 makes them in this process.
        accumulated: batches per update.
        order: version of the order; in version 1, of earlier runs, an epoch may end within an update.
        max_tokens: serve only about this many positions, in windows evenly spaced over the text; see :meth:`limit`.
        rank: rank of this process; see :meth:`shard`.
        world_size: number of processes.

    Raises:
        ValueError: if sizes are below 1, the text is shorter than a row, or there are fewer rows than a batch.
    """

    label_convention = "aligned"
    """``labels[b, t]`` belongs to ``logits[b, t]``."""

    def __init__(
        self,
        text: EncodedSplit,
        maker: RowMaker,
        *,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        num_workers: int = 0,
        accumulated: int = 1,
        order: int = ORDER_VERSION,
        max_tokens: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1 or world_size < 1 or (max_tokens is not None and max_tokens < 1):
            raise ValueError(
                f"batch_size, world_size and max_tokens are at least 1, got {batch_size}, {world_size}, {max_tokens}"
            )
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in [0, world_size), got rank {rank} of {world_size}")
        self._settings: dict[str, Any] = {
            "batch_size": batch_size, "shuffle": shuffle, "seed": seed, "num_workers": num_workers,
            "accumulated": accumulated, "order": order, "max_tokens": max_tokens, "rank": rank,
            "world_size": world_size,
        }  # fmt: skip
        self._text, self._maker = text, maker
        width = maker.format.width
        # in training, every epoch must have the same number of rows for any offset within a row
        self._rows = rows_of(text, width, width - 1 if shuffle else 0)
        if self._rows < 1:
            raise ValueError(
                f"the split has {text.num_tokens} tokens, fewer than required for rows of "
                f"{maker.format.sequence_length} positions: use shorter rows or more text"
            )
        chosen = np.arange(self._rows)
        if max_tokens is not None:
            number = min(self._rows, max(1, round(max_tokens / maker.format.sequence_length)))
            chosen = np.linspace(0, self._rows - 1, number).round().astype(np.int64)
        self._chosen = chosen
        whole = len(chosen) // batch_size if shuffle else math.ceil(len(chosen) / batch_size)
        if whole < 1:
            raise ValueError(
                f"{len(chosen)} rows do not fill a batch of {batch_size}: use smaller batches or more text"
            )
        if shuffle and order > 1 and whole > accumulated:
            whole -= whole % accumulated
        self._length = whole
        self.epoch_batches = whole
        """Batches after which a trainer ends the epoch: a state saved there restores as the start of the next."""
        self.label_names = {layer: list(text.names[layer]) for layer in maker.layers}
        self._epoch = 0
        self._position = 0
        self._resume: tuple[int, int] | None = None
        self._begun = False

    @property
    def fingerprint(self) -> str:
        """Hash of the rows that all ranks together receive."""
        return self._fingerprint(self._settings["batch_size"])

    def _fingerprint(self, batch_size: int) -> str:
        private = ("rank", "world_size", "num_workers", "accumulated", "order")
        served = {k: v for k, v in self._settings.items() if k not in private} | {"batch_size": batch_size}
        layout = self._maker.format
        predicted = masking_settings(layout.masking) if layout.objective == "masked" else layout.objective
        return digest(
            [
                self._text.fingerprint(self._maker.layers),
                served,
                [layout.sequence_length, layout.pairs, layout.short_share, predicted],
                self._maker.special,
            ]
        )

    def __len__(self) -> int:
        return self._length

    def batches(self, epoch: int) -> list[npt.NDArray[np.int64]]:
        """Return the window numbers in each of this rank's batches of an epoch."""
        s = self._settings
        size, rank, world_size = s["batch_size"], s["rank"], s["world_size"]
        order = self._chosen
        if s["shuffle"]:
            order = row_generator(s["seed"], epoch, 0).permutation(order)
        groups = (order[i * size : (i + 1) * size][rank::world_size] for i in range(self._length))
        return [rows for rows in groups if len(rows)]

    def _dataset(self, epoch: int) -> _Batches:
        s = self._settings
        offset = 0
        if s["shuffle"]:
            offset = int(row_generator(s["seed"], epoch, 1).integers(self._maker.format.width))
        return _Batches(self._text, self._maker, self.batches(epoch), offset, (s["seed"], epoch, 2))

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        # The position is restored with the first batch, not here: Lightning opens iterators that it never reads.
        if self._resume is not None:
            self._epoch, first = self._resume
            self._resume = None
        elif self._settings["shuffle"]:
            self._epoch, first = self._epoch + self._begun, 0
        else:
            first = 0
        self._begun = True
        dataset = self._dataset(self._epoch)
        workers = self._settings["num_workers"]
        made: Any = (dataset[i] for i in range(first, len(dataset)))
        if workers:
            made = DataLoader(
                dataset, batch_size=None, sampler=range(first, len(dataset)), num_workers=workers,
                pin_memory=torch.cuda.is_available(), generator=torch.Generator(),
            )  # fmt: skip
        for index, batch in enumerate(made, start=first):
            self._position = index + 1  # before the yield: the trainer saves while it works on this batch
            yield batch

    def _replace(self, **changes: Any) -> "RowLoader":
        return RowLoader(self._text, self._maker, **{**self._settings, **changes})

    def _looked_at(self, **changes: Any) -> "RowLoader":
        """Return a loader for observation, not for training, in which epochs need not end with a whole update."""
        return self._replace(accumulated=1, **changes)

    def shard(self, rank: int, world_size: int) -> "RowLoader":
        """Return a loader of every ``world_size``-th row of each batch, from row ``rank`` on."""
        return self._looked_at(rank=rank, world_size=world_size)

    def limit(self, max_tokens: int) -> "RowLoader":
        """Return a loader of about ``max_tokens`` positions of the split, in windows evenly spaced over it."""
        return self._looked_at(max_tokens=max_tokens)

    def with_batch_size(self, rows: int) -> "RowLoader":
        """Return a loader of the same rows in batches of ``rows`` rows, of all ranks together, each an update."""
        return self._looked_at(batch_size=rows)

    def recut(self, fingerprints: Collection[str]) -> "RowLoader | None":
        """Return a loader of the same rows with the batch size of one of these fingerprints; None if none matches."""
        rows = size_that(lambda n: self._fingerprint(n) in fingerprints)
        return None if rows is None else self._looked_at(batch_size=rows)

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of batches served in it, including the current one."""
        epoch, position = (self._epoch, self._position) if self._resume is None else self._resume
        return {
            "epoch": epoch, "position": position, "settings": self._resumable, "order": self._settings["order"],
            "global_batch": self._global_batch.state(), "epoch_batches": min(self.epoch_batches, len(self)),
            "text": self._text.fingerprint(),
        }  # fmt: skip

    @property
    def _resumable(self) -> dict[str, int | str]:
        settings = {name: int(self._settings[name]) for name in ("batch_size", "seed", "world_size")}
        layout = self._maker.format
        return {
            **settings, "sequence_length": layout.sequence_length, "rows": self._rows, "objective": layout.objective,
        }  # fmt: skip

    @property
    def _global_batch(self) -> GlobalBatch:
        s = self._settings
        return GlobalBatch(s["batch_size"], s["world_size"], s["accumulated"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position with the next iteration; the end of an epoch becomes the start of the next.

        Raises:
            ResumeError: if the state is of a loader with other settings or updates of another size, or of order 1 with
                longer epochs.
        """
        epoch, position = int(state["epoch"]), int(state["position"])
        saved = GlobalBatch.saved(state)
        divided = () if saved is None else ("batch_size", "world_size")
        if _without(divided, state["settings"]) != _without(divided, self._resumable):
            raise ResumeError(
                f"the saved run read its rows with {state['settings']}, this one has {self._resumable}: exact resuming "
                "requires equal settings"
            )
        self._text.compare(state.get("text"))
        order = int(state.get("order", 1))
        if order != self._settings["order"] and len(self._replace(order=order)) != len(self):
            raise ResumeError(
                f"the saved run has epochs of order {order}, this loader of order {self._settings['order']}, with "
                f"another length: set order_version {order} in the datamodule"
            )
        length = min(self.epoch_batches, len(self))
        ended = position >= length
        if saved is not None:
            here = self._global_batch
            here.check(saved)
            here.check_epoch(length, saved, state["epoch_batches"], "--trainer.limit_train_batches")
            ended = position >= (length if here == saved else state["epoch_batches"])
            position = 0 if ended else here.position(position, saved)
        self._resume = (epoch + 1, 0) if ended else (epoch, position)


def _without(names: Collection[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def masking_settings(masking: Masking) -> list[float]:
    """Return the numbers of a masking, for a hash."""
    return [getattr(masking, name) for name in masking.__dataclass_fields__]

"""Rows of fixed length out of an encoded text: the loader that shuffles, masks, shards and resumes."""

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
    """Batches of an epoch by their number: pure functions of seed, epoch and number, so that workers may make them."""

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
    """Serves a split as rows of fixed length, cut and masked anew in each epoch; sized, sharded, resumable.

    Training (``shuffle``): the windows of an epoch begin at an offset drawn for it, and come in a random order; what
    does not fill an update of all ranks is left out, so that ranks have equally many. Otherwise the windows are those
    of the text in order, with the masks of epoch 0, and each is served once. Batch i of epoch e of all ranks together
    depends on (seed, e, i) alone, and rank r has its rows r, r + world_size, …; a row's masks depend on (seed, e, row).
    So a run goes on with the same rows on another number of ranks, if its updates stay as large. See ``RowMaker`` for
    what a batch holds; ``example`` numbers the windows.

    Args:
        text: the encoded split.
        maker: makes rows.
        batch_size: rows of a batch of all ranks together.
        shuffle: serve as for training.
        seed: of everything that is drawn.
        num_workers: processes that make batches; 0 makes them in this one.
        accumulated: batches of an update.
        order: version of the order; 1 lets an epoch end within an update, as runs of before do.
        max_tokens: only about so many positions, of windows evenly spread over the text; see :meth:`limit`.
        rank: this process; see :meth:`shard`.
        world_size: number of processes.

    Raises:
        ValueError: sizes below 1, a text shorter than a row, fewer rows than a batch.
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
        # of training, offsets of up to a row must leave every epoch equally many
        self._rows = rows_of(text, width, width - 1 if shuffle else 0)
        if self._rows < 1:
            raise ValueError(
                f"the split has {text.num_tokens} tokens, fewer than rows of {maker.format.sequence_length} positions "
                "need: take shorter rows or more text"
            )
        chosen = np.arange(self._rows)
        if max_tokens is not None:
            number = min(self._rows, max(1, round(max_tokens / maker.format.sequence_length)))
            chosen = np.linspace(0, self._rows - 1, number).round().astype(np.int64)
        self._chosen = chosen
        whole = len(chosen) // batch_size if shuffle else math.ceil(len(chosen) / batch_size)
        if whole < 1:
            raise ValueError(
                f"{len(chosen)} rows do not fill a batch of {batch_size}: take smaller batches or more text"
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
        """Hash of what all ranks together are served."""
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
        """Numbers of the windows in each of this rank's batches of an epoch."""
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
        # A position is taken up with the first batch, not here: Lightning opens iterators that it never reads.
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
        """To be looked at, not trained on: epochs of training end with a whole update, however it is divided."""
        return self._replace(accumulated=1, **changes)

    def shard(self, rank: int, world_size: int) -> "RowLoader":
        """Every ``world_size``-th row of each batch from row ``rank`` on."""
        return self._looked_at(rank=rank, world_size=world_size)

    def limit(self, max_tokens: int) -> "RowLoader":
        """About ``max_tokens`` positions of the split, in windows evenly spread over it."""
        return self._looked_at(max_tokens=max_tokens)

    def with_batch_size(self, rows: int) -> "RowLoader":
        """The same rows in batches of another size, of all ranks together, each an update."""
        return self._looked_at(batch_size=rows)

    def recut(self, fingerprints: Collection[str]) -> "RowLoader | None":
        """The same rows, in batches of the size that one of these fingerprints is of; None where it is of none."""
        rows = size_that(lambda n: self._fingerprint(n) in fingerprints)
        return None if rows is None else self._looked_at(batch_size=rows)

    def state_dict(self) -> dict[str, Any]:
        """Epoch and number of batches handed out in it, the one that is being worked on included."""
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
        """Continue at a saved position with the next iteration; a position at the end is the next epoch's start.

        Raises:
            ResumeError: a state of a loader with other settings, or with updates of another size; one of order 1 whose
                epochs are longer.
        """
        epoch, position = int(state["epoch"]), int(state["position"])
        saved = GlobalBatch.saved(state)
        divided = () if saved is None else ("batch_size", "world_size")
        if _without(divided, state["settings"]) != _without(divided, self._resumable):
            raise ResumeError(
                f"the saved run read its rows with {state['settings']}, this one has {self._resumable}: exact resuming "
                "needs the same"
            )
        self._text.compare(state.get("text"))
        order = int(state.get("order", 1))
        if order != self._settings["order"] and len(self._replace(order=order)) != len(self):
            raise ResumeError(
                f"the saved run has epochs of order {order}, this loader of order {self._settings['order']}, which "
                f"have another length: give the datamodule order_version {order}"
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
    """A masking's numbers, for a hash."""
    return [getattr(masking, name) for name in masking.__dataclass_fields__]

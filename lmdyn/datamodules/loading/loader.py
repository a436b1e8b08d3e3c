"""Loaders whose batch i of epoch e, of all ranks together, is a pure function of (seed, e, i)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lmdyn.datamodules.loading.global_batch import GlobalBatch, ResumeError, check_settings

T = TypeVar("T", bound="IndexedLoader")
Batch = dict[str, Tensor]


_LARGEST = 4096  # maximum number of rows that is tried: each costs a hash of a few settings
_ORDER = 2  # version of the order of training data


@dataclass(kw_only=True, eq=False)
class ShardedLoader:
    """A loader that ranks share, and that can be limited: both are settings, and make another loader of the same data.

    Attributes:
        max_tokens: serve only about this many tokens; None for all.
        rank: rank of this process.
        world_size: number of processes.

    Raises:
        ValueError: if a size is below 1, or the rank is outside [0, world_size).
    """

    max_tokens: int | None = None
    rank: int = 0
    world_size: int = 1

    label_convention: ClassVar[str] = "aligned"
    """``labels[b, t]`` belongs to ``logits[b, t]``."""

    _sizes: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in (*self._sizes, "world_size", "max_tokens")}
        if low := [f"{name} {size}" for name, size in sizes.items() if size is not None and size < 1]:
            raise ValueError(f"expected sizes of at least 1, got {', '.join(low)}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be from 0 to {self.world_size - 1}, got {self.rank}")

    def _replace(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def shard(self, rank: int, world_size: int) -> Self:
        """Return a loader of every ``world_size``-th row of each batch of the whole set, from row ``rank`` on."""
        return self._replace(rank=rank, world_size=world_size)

    def limit(self, max_tokens: int) -> Self:
        """Return a loader of about ``max_tokens`` tokens of the set; see the class."""
        return self._replace(max_tokens=max_tokens)


@dataclass(eq=False)
class IndexedLoader(ShardedLoader, ABC):
    """A loader of an encoded split, resumable on other numbers of ranks; a subclass makes the batches by number.

    The position is restored with the first batch, not by ``iter``: Lightning opens iterators that it never reads.

    Attributes:
        data: the encoded split; see :class:`~lmdyn.datamodules.corpora.encoding.EncodedSplit`.
        accumulated: batches per update.
    """

    data: Any
    accumulated: int = field(default=1, kw_only=True)

    _rows: ClassVar[str]
    """Name of the setting with the rows of a batch of all ranks."""
    _rows_stay: ClassVar[bool] = False
    """Whether each row of a batch continues that of the previous one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.epoch_batches = 0
        """Batches after which a trainer ends the epoch: a state saved there restores as the start of the next."""
        self._reorders = False
        """Whether each epoch has another order."""
        self._epoch = self._position = 0
        self._begun = False
        self._resume: tuple[int, int] | None = None

    def _replace(self, **changes: Any) -> Self:
        return super()._replace(accumulated=1, **changes)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, from number ``first`` on."""

    @abstractmethod
    def resumable(self) -> dict[str, int | str]:
        """Return the settings that a resumed run must keep; ``batch_size`` and ``world_size`` are compared apart."""

    @abstractmethod
    def fingerprint_of(self, rows: int) -> str:
        """Return the fingerprint with another number of rows per batch."""

    @property
    def fingerprint(self) -> str:
        """Hash of the data served to all ranks together: equal for equal tokens, labels and division."""
        return self.fingerprint_of(getattr(self, self._rows))

    def __iter__(self) -> Iterator[Batch]:
        first = 0
        if self._resume is not None:
            (self._epoch, first), self._resume = self._resume, None
        elif self._begun and self._reorders:
            self._epoch += 1
        self._begun = True
        for index, batch in enumerate(self.batches(self._epoch, first), start=first):
            self._position = index + 1  # before the yield: the trainer saves while it works on this batch
            yield batch

    def recut(self, fingerprints: Collection[str]) -> Self | None:
        """Return a loader of the same data with the rows per batch of one of these fingerprints; None if none fits."""
        for rows in range(1, _LARGEST + 1):
            if self.fingerprint_of(rows) in fingerprints:
                return self._replace(**{self._rows: rows})
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of batches served in it, including the current one.

        Saved in ``on_train_batch_end`` or later, these are the batches that the model was trained on. A checkpoint
        written during a training step, as on an exception, also counts the batch of that step.
        """
        epoch, position = self._resume or (self._epoch, self._position)
        return {
            "epoch": epoch,
            "position": position,
            "settings": self.resumable(),
            "order": _ORDER,
            "global_batch": asdict(self._global_batch),
            "epoch_batches": min(self.epoch_batches, len(self)),
            "text": self.data.fingerprint(),
        }

    @property
    def _global_batch(self) -> GlobalBatch:
        return GlobalBatch(getattr(self, self._rows), self.world_size, self.accumulated)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position with the next iteration; the end of an epoch becomes the start of the next.

        Raises:
            ResumeError: if the state is of a loader with other settings, updates of another size, or another order.
        """
        if "global_batch" not in state:
            raise ResumeError("a version of lmdyn before 0.1 saved the run: resume with that version")
        here = {**self.resumable(), "order": _ORDER}
        check_settings({**here, **state.get("settings", {}), "order": state.get("order", _ORDER)}, here)
        self.data.compare(state.get("text"))
        length = min(self.epoch_batches, len(self))
        position, ended = self._global_batch.position(
            state, length, "--trainer.limit_train_batches", rows_stay=self._rows_stay
        )
        if not 0 <= position <= len(self):
            raise ResumeError(
                f"position {position} is outside an epoch of {len(self)} batches: resume with the text of the saved run"
            )
        epoch = int(state.get("epoch", 0))
        self._resume = (epoch + 1, 0) if ended else (epoch, position)


def in_workers(data: Any, workers: int, **settings: Any) -> Iterator[Any]:
    """Iterate over ready batches that worker processes make, whose seeds do not come from the global generator."""
    loader: Any = DataLoader(
        data,
        batch_size=None,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),
        **settings,
    )
    return iter(loader)


class SplitLoaders(L.LightningDataModule):
    """The loaders that Lightning requests, defined by :meth:`loader` and ``splits``."""

    splits: Any

    def loader(self, split: str) -> Any:
        """Return the batches of a split."""
        raise NotImplementedError

    def train_dataloader(self) -> Any:
        """Return the batches of the training split."""
        return self.loader("train")

    def val_dataloader(self) -> Any:
        """Return the batches of the validation split; an empty list, which skips validation, if there is none."""
        return self.loader("validation") if "validation" in self.splits else []

    def test_dataloader(self) -> Any:
        """Return the batches of the test split."""
        return self.loader("test")

    predict_dataloader = test_dataloader

    @property
    def _place(self) -> tuple[int, int]:
        """Rank and number of processes."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    @property
    def _accumulated(self) -> int:
        """Batches per update; 1 without a trainer."""
        return int(getattr(self.trainer, "accumulate_grad_batches", 1))

    def _epoch_batches(self, batches: int) -> int:
        """Return the batches after which the trainer ends an epoch: a loader must know it, to restart after the last.

        Args:
            batches: batches of an epoch of the data.
        """
        whole = getattr(self.trainer, "limit_train_batches", 1.0)
        limit = getattr(self.trainer, "overfit_batches", 0) or whole
        return min(batches, limit) if isinstance(limit, int) else math.floor(batches * limit)

    def _for_training(self, loader: T) -> T:
        """Tell a loader about the trainer's updates and epochs."""
        loader.accumulated = self._accumulated
        loader.epoch_batches = self._epoch_batches(len(loader))
        return loader

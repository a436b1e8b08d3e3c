"""Contiguous streams of text for truncated backpropagation through time."""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmdyn.datamodules.corpora.encoding import BATCH_LAYERS, IGNORED, EncodedSplit
from lmdyn.datamodules.corpora.tokenization import digest
from lmdyn.datamodules.loading.global_batch import GlobalBatch, ResumeError, size_that

__all__ = ["SHUFFLED", "StreamLoader", "StreamState"]

SHUFFLED = "shuffled_"
"""Prefix of the layers whose labels are permuted: ``shuffled_upos``."""


class StreamState(TypedDict):
    """The saved state of a :class:`StreamLoader`."""

    position: int
    """Number of batches served in this epoch."""
    global_batch: NotRequired[dict[str, int]]
    """Rows of a batch of all ranks, and their division; states of earlier versions lack it."""
    text: NotRequired[str]
    """Hash of the tokens; states of earlier versions lack it."""


class StreamLoader:
    """Serves a split as parallel contiguous streams, window by window; sized, resumable, without randomness.

    The N - 1 next-token predictions of a split of N tokens are cut into ``streams`` runs of equal length (up to
    one), and batch i contains window i of each run, so that row b of a batch continues row b of the previous one.
    Each prediction is used exactly once; if the lengths of runs differ by one token, the shorter ones end with one
    position of padding. Text stays in memory-mapped files.

    Batch i of all ranks together is window i of each stream, for any number of ranks. A run can therefore resume on
    another number of ranks with the same number of streams; its model must move their hidden states to the new ranks.

    A batch is a dict of tensors:

    =================== =========== ====================================================================
    ``input_ids``       (B, T) long tokens
    ``labels``          (B, T) long the next token, -100 on padding
    ``attention_mask``  (B, T) long 1, 0 on padding
    ``continues``       (B,) bool   whether the row continues the row of the previous batch
    ``<layer>``         (B, T) long label of the input token, -100 if it has none
    ``target_<layer>``  (B, T) long label of the next token, -100 if it has none
    =================== =========== ====================================================================

    with T = ``sequence_length``, or less in the last window.

    Args:
        data: the encoded split.
        streams: number of streams of all ranks together; the rows of a batch are this rank's share of them.
        sequence_length: predictions per window.
        layers: gold layers to serve; ``shuffled_<layer>`` serves the layer's labels under one permutation.
        pad_id: token id on padding.
        seed: seed of the permutation of ``shuffled_`` layers.
        max_tokens: serve only this many predictions, from the start; see :meth:`limit`.
        rank: rank of this process; see :meth:`shard`.
        world_size: number of processes.

    Raises:
        ValueError: if sizes are below 1, the split has fewer than two tokens or lacks a layer.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from lmdyn.datamodules import Document, Sentence
        >>> from lmdyn.datamodules.corpora.encoding import encode_documents
        >>> from lmdyn.datamodules.corpora.tokenization import word_tokenizer
        >>> text = Document("d", (Sentence(("a", "b", "c", "d", "e")),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = encode_documents([text], Path(folder), word_tokenizer(dict.fromkeys("abcde", 1)), eos=True)
        ...     loader = StreamLoader(data, streams=2, sequence_length=2)
        ...     [(batch["input_ids"].tolist(), batch["labels"].tolist()) for batch in loader]
        [([[3, 4], [6, 7]], [[4, 5], [7, 2]]), ([[5], [0]], [[6], [-100]])]
    """

    label_convention = "aligned"
    """``labels[b, t]`` belongs to ``logits[b, t]``."""

    def __init__(
        self,
        data: EncodedSplit,
        streams: int,
        sequence_length: int,
        *,
        layers: Sequence[str] = (),
        pad_id: int = 0,
        seed: int = 0,
        max_tokens: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        for name, value in (
            ("streams", streams),
            ("sequence_length", sequence_length),
            ("world_size", world_size),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in [0, world_size), got rank {rank} of {world_size}")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
        if data.num_tokens < 2:
            raise ValueError(f"a stream requires at least two tokens, got {data.num_tokens}: use more text")
        servable = tuple(layer for layer in BATCH_LAYERS if layer in data.names)
        for layer in layers:
            if layer.removeprefix(SHUFFLED) not in servable:
                raise ValueError(
                    f"layer {layer!r} is not in this split, which has {list(servable)} (and {SHUFFLED}<layer> of each)"
                )
        self._settings: dict[str, Any] = {
            "streams": streams,
            "sequence_length": sequence_length,
            "layers": tuple(layers),
            "pad_id": pad_id,
            "seed": seed,
            "max_tokens": max_tokens,
            "rank": rank,
            "world_size": world_size,
        }
        self._data = data
        self.streams = streams
        self.sequence_length = sequence_length
        self.rank = rank
        self.world_size = world_size
        self.total_tokens = min(data.num_tokens - 1, max_tokens or data.num_tokens)
        """Number of predictions of the whole set, for all ranks together."""
        shortest, longer = divmod(self.total_tokens, streams)
        rows = np.arange(rank, streams, world_size)
        self._starts = rows * shortest + np.minimum(rows, longer)
        self._lengths = shortest + (rows < longer)
        self._longest = shortest + (longer > 0)
        self.epoch_batches = len(self)
        """Batches after which a trainer ends the epoch: a state saved there restores as the start of the next."""
        self.accumulated = 1
        """Batches per update."""
        self._position = 0
        self._resume: int | None = None

    @property
    def num_tokens(self) -> int:
        """Number of predictions served to this rank in one epoch."""
        return int(self._lengths.sum())

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers in each batch."""
        return tuple(self._settings["layers"])

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Names of the labels of each served layer; batches hold indices into these lists."""
        return {layer: self._data.names[layer.removeprefix(SHUFFLED)] for layer in self.layers}

    @property
    def fingerprint(self) -> str:
        """Hash of the data served to all ranks together: equal for equal tokens, labels and division."""
        return self._fingerprint(self.streams)

    def _fingerprint(self, streams: int) -> str:
        served = {k: v for k, v in self._settings.items() if k not in ("rank", "world_size")}
        served |= {"streams": streams, "max_tokens": self.total_tokens}
        if not any(layer.startswith(SHUFFLED) for layer in self.layers):
            del served["seed"]
        return digest([self._data.fingerprint(name.removeprefix(SHUFFLED) for name in self.layers), served])

    def __len__(self) -> int:
        return -(-self._longest // self.sequence_length) if len(self._starts) else 0

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        # The position is restored with the first batch, not here: Lightning opens iterators that it never reads.
        first, self._resume = self._resume or 0, None
        for index in range(first, len(self)):
            self._position = index + 1  # before the yield: the trainer saves while it works on this batch
            yield self._window(index)

    @cached_property
    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return memory-mapped labels of the served layers."""
        seed = self._settings["seed"]
        return {
            layer: (
                self._data.shuffled(layer.removeprefix(SHUFFLED), seed)
                if layer.startswith(SHUFFLED)
                else self._data.layer(layer)
            )
            for layer in self.layers
        }

    def _window(self, index: int) -> dict[str, Tensor]:
        offset = index * self.sequence_length
        steps = np.arange(offset, min(offset + self.sequence_length, self._longest) + 1)
        # one gather of T + 1 positions gives inputs and targets; padding reads a real token, overwritten below
        positions = np.minimum(self._starts[:, None] + steps, self.total_tokens)
        padding = torch.from_numpy(steps[:-1] >= self._lengths[:, None])
        tokens = torch.from_numpy(self._data.tokens[positions].astype(np.int64))
        batch = {
            "input_ids": tokens[:, :-1].masked_fill(padding, self._settings["pad_id"]),
            "labels": tokens[:, 1:].masked_fill(padding, IGNORED),
            "attention_mask": (~padding).long(),
            "continues": torch.full((len(self._starts),), index > 0),
        }
        for layer, array in self._arrays.items():
            labels = torch.from_numpy(array[positions].astype(np.int64))
            batch[layer] = labels[:, :-1].masked_fill(padding, IGNORED)
            batch[f"target_{layer}"] = labels[:, 1:].masked_fill(padding, IGNORED)
        return batch

    def _replace(self, **changes: Any) -> "StreamLoader":
        settings = {**self._settings, **changes}
        return StreamLoader(self._data, settings.pop("streams"), settings.pop("sequence_length"), **settings)

    def shard(self, rank: int, world_size: int) -> "StreamLoader":
        """Return a loader of the streams ``rank, rank + world_size, ...`` of the whole set, also from a shard.

        All ranks have the same number of batches, except that a rank without streams has none.
        """
        return self._replace(rank=rank, world_size=world_size)

    def limit(self, max_tokens: int) -> "StreamLoader":
        """Return a loader of the first ``max_tokens`` predictions of the split, in the same number of streams."""
        return self._replace(max_tokens=max_tokens)

    def recut(self, fingerprints: Collection[str]) -> "StreamLoader | None":
        """Return a loader with the number of streams of one of these fingerprints; None if none matches."""
        streams = size_that(lambda n: self._fingerprint(n) in fingerprints)
        return None if streams is None else self._replace(streams=streams)

    def state_dict(self) -> StreamState:
        """Return the number of batches served in this epoch, including the current one.

        Saved in ``on_train_batch_end`` or later, these are the batches that the model was trained on. A checkpoint
        written during a training step, as on an exception, also counts the batch of that step.
        """
        position = self._position if self._resume is None else self._resume
        return {
            "position": position,
            "global_batch": self._global_batch.state(),
            "text": self._data.fingerprint(),
        }

    @property
    def _global_batch(self) -> GlobalBatch:
        return GlobalBatch(self.streams, self.world_size, self.accumulated)

    def load_state_dict(self, state: StreamState) -> None:
        """Continue at a saved position with the next iteration; the end of an epoch becomes the start of the next.

        Raises:
            ResumeError: if the number of streams, or of windows per update, differs, or the position is beyond the end,
                as for a loader with other settings.
        """
        if (saved := GlobalBatch.saved(state)) is not None:
            self._global_batch.check_streams(saved)
        self._data.compare(state.get("text"))
        position = int(state["position"])
        if not 0 <= position <= len(self):
            raise ResumeError(
                f"position {position} is outside an epoch of {len(self)} batches: resume with the batch_size, "
                "sequence_length, number of processes and text of the saved run"
            )
        self._resume = 0 if position >= min(self.epoch_batches, len(self)) else position

"""Contiguous streams of text for truncated backpropagation through time."""

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from lmdyn.datamodules.corpora.encoding import BATCH_LAYERS, IGNORED, EncodedSplit
from lmdyn.datamodules.corpora.tokenization import Array, digest
from lmdyn.datamodules.loading.loader import Batch, IndexedLoader

SHUFFLED = "shuffled_"
"""Prefix of the layers whose labels are permuted: ``shuffled_upos``."""


@dataclass(eq=False)
class StreamLoader(IndexedLoader):
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
        rank: rank of this process; see :meth:`shard`. A rank without streams has no batches.
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

    data: EncodedSplit
    streams: int
    sequence_length: int
    _: KW_ONLY
    layers: Sequence[str] = ()
    pad_id: int = 0
    seed: int = 0

    _sizes: ClassVar[tuple[str, ...]] = ("streams", "sequence_length")
    _rows: ClassVar[str] = "streams"
    _rows_stay: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data.num_tokens < 2:
            raise ValueError(f"expected 2 tokens or more, got {self.data.num_tokens}: use a longer text")
        self.layers = tuple(self.layers)
        servable = tuple(layer for layer in BATCH_LAYERS if layer in self.data.names)
        if lacking := [name for name in self.layers if name.removeprefix(SHUFFLED) not in servable]:
            has = ", ".join(servable) or "none"
            raise ValueError(f"`layers` names {lacking[0]!r}, expected layers of the batches: {has}")
        self.total_tokens = min(self.data.num_tokens - 1, self.max_tokens or self.data.num_tokens)
        """Number of predictions of the whole set, for all ranks together."""
        shortest, longer = divmod(self.total_tokens, self.streams)
        rows = np.arange(self.rank, self.streams, self.world_size)
        self._starts = rows * shortest + np.minimum(rows, longer)
        self._lengths = shortest + (rows < longer)
        self._longest = shortest + (longer > 0)
        self.num_tokens = int(self._lengths.sum())
        """Number of predictions served to this rank in one epoch."""
        self._arrays: dict[str, Array] = {}
        self.label_names: dict[str, list[str]] = {}
        """Names of the labels of each served layer; batches hold indices into these lists."""
        for layer in self.layers:
            name = layer.removeprefix(SHUFFLED)
            self._arrays[layer] = (
                self.data.layer(name) if name == layer else self.data.shuffled(name, self.seed)
            )
            self.label_names[layer] = self.data.names[name]
        self.epoch_batches = len(self)

    def fingerprint_of(self, rows: int) -> str:
        """Return the fingerprint with another number of streams."""
        served: dict[str, Any] = {
            "streams": rows,
            "sequence_length": self.sequence_length,
            "layers": self.layers,
            "pad_id": self.pad_id,
            "max_tokens": self.total_tokens,
        }
        if any(layer.startswith(SHUFFLED) for layer in self.layers):
            served["seed"] = self.seed
        return digest([self.data.fingerprint(name.removeprefix(SHUFFLED) for name in self.layers), served])

    def resumable(self) -> dict[str, int | str]:
        """Return the settings that a resumed run must keep."""
        return {"sequence_length": self.sequence_length}

    def __len__(self) -> int:
        return -(-self._longest // self.sequence_length) if len(self._starts) else 0

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the windows from number ``first`` on, which are the same in each epoch."""
        return (self._window(index) for index in range(first, len(self)))

    def _window(self, index: int) -> Batch:
        offset = index * self.sequence_length
        steps = np.arange(offset, min(offset + self.sequence_length, self._longest) + 1)
        # one gather of T + 1 positions gives inputs and targets; padding reads a real token, overwritten below
        positions = np.minimum(self._starts[:, None] + steps, self.total_tokens)
        padding = torch.from_numpy(steps[:-1] >= self._lengths[:, None])
        tokens = torch.from_numpy(self.data.tokens[positions].astype(np.int64))
        batch = {
            "input_ids": tokens[:, :-1].masked_fill(padding, self.pad_id),
            "labels": tokens[:, 1:].masked_fill(padding, IGNORED),
            "attention_mask": (~padding).long(),
            "continues": torch.full((len(self._starts),), index > 0),
        }
        for layer, array in self._arrays.items():
            labels = torch.from_numpy(array[positions].astype(np.int64))
            batch[layer] = labels[:, :-1].masked_fill(padding, IGNORED)
            batch[f"target_{layer}"] = labels[:, 1:].masked_fill(padding, IGNORED)
        return batch

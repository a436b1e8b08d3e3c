"""Batches of independent examples of different lengths: sentences with spans, cloze questions, pairs to classify."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from lmdyn.datamodules.corpora.tokenization import Array, Ids, digest
from lmdyn.datamodules.loading.loader import Batch, ShardedLoader

Example = Mapping[str, Array]
"""Arrays by name: ``input_ids`` is required, with one axis, time; scalars have none; others vary in the first axis."""


@dataclass(eq=False)
class ExampleLoader(ShardedLoader):
    """Serves examples in batches of similar length, with little padding; each example exactly once.

    The examples are sorted by length. A batch ends when another example would exceed ``batch_tokens``, including
    padding. A shard has every n-th row of each batch. The arrays of a batch are padded along their first axis to
    the longest in the batch: ``input_ids`` with ``pad_id``, all others with -100. The loader adds:

    ================== ======= =====================================================
    ``attention_mask`` (B, T)  1, 0 on padding
    ``example``        (B,)    number of each example, the same for any number of ranks
    ================== ======= =====================================================

    Args:
        examples: arrays by name, the same names in each.
        batch_tokens: positions per batch, including padding; a longer example is a batch by itself.
        pad_id: token id on padding.
        label_names: names of the entries that are indices, by key.
        attributes: further facts about the set, which become attributes of the loader and its shards.
        max_tokens: serve only about this many positions, in examples drawn with a fixed seed; see :meth:`limit`.
        rank: rank of this process; see :meth:`shard`.
        world_size: number of processes.

    Raises:
        ValueError: if there is no example, a size is below 1, or the rank is outside [0, world_size).

    Example:
        >>> import numpy as np
        >>> examples = [{"input_ids": np.arange(n), "label": np.array(n)} for n in (3, 1, 2)]
        >>> loader = ExampleLoader(examples, batch_tokens=4)
        >>> [(batch["input_ids"].tolist(), batch["label"].tolist()) for batch in loader]
        [([[0, 0], [0, 1]], [1, 2]), ([[0, 1, 2]], [3])]
    """

    examples: Sequence[Example]
    _: KW_ONLY
    batch_tokens: int = 4096
    pad_id: int = 0
    label_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)

    _sizes: ClassVar[tuple[str, ...]] = ("batch_tokens",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.examples:
            raise ValueError("no example is left: use more data, or settings that leave out less")
        for name, value in self.attributes.items():
            setattr(self, name, value)
        lengths = np.array([len(e["input_ids"]) for e in self.examples])
        kept = np.arange(len(lengths))
        if self.max_tokens is not None:
            drawn = np.random.default_rng(0).permutation(len(lengths))
            within = np.cumsum(lengths[drawn]) - lengths[drawn] < self.max_tokens
            kept = np.sort(drawn[within])
        order = kept[np.argsort(lengths[kept], kind="stable")]
        self._batches: list[Ids] = []
        first = 0
        for i in range(len(order) + 1):
            if i == len(order) or (i > first and (i - first + 1) * lengths[order[i]] > self.batch_tokens):
                self._batches.append(order[first:i])
                first = i
        # a batch with fewer rows than ranks leaves some of them without any
        shares = (rows[self.rank :: self.world_size] for rows in self._batches)
        self._shares = [rows for rows in shares if len(rows)]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the data served to all ranks together: names, types, shapes and bytes of the arrays, in order."""
        content = hashlib.blake2b(digest([self.label_names]).encode(), digest_size=16)
        for rows in self._batches:
            for i in rows:
                example = self.examples[i]
                for name in sorted(example):
                    array = np.asarray(example[name])
                    content.update(repr((name, array.dtype.str, array.shape)).encode())
                    content.update(array.tobytes())
                content.update(b";")
        return content.hexdigest()

    def __len__(self) -> int:
        return len(self._shares)

    def __iter__(self) -> Iterator[Batch]:
        return (self.collate(rows) for rows in self._shares)

    def collate(self, rows: Ids) -> Batch:
        """Return the batch of the examples with these numbers."""
        chosen = [self.examples[i] for i in rows]
        batch = {}
        for name in chosen[0]:
            arrays = [torch.as_tensor(e[name]) for e in chosen]
            padding = self.pad_id if name == "input_ids" else -100
            batch[name] = pad_sequence(arrays, True, padding) if arrays[0].ndim else torch.stack(arrays)
        lengths = torch.tensor([len(e["input_ids"]) for e in chosen])
        batch["attention_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        batch["example"] = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        return batch

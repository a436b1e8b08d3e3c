"""What the benchmarks share: text by Zipf's law, a clock, and tables.py's part."""

import logging
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from tables import machine, spread, table

from lmdyn.analysis.words.concentration import CLOSED_CLASSES, OPEN_CLASSES
from lmdyn.datamodules.corpora.corpus import Corpus
from lmdyn.datamodules.corpora.sentence import Document, Sentence
from lmdyn.datamodules.corpora.tokenization import word_tokenizer

__all__ = [
    "EPOCH", "ROWS", "TIME", "TYPES", "Clock", "Seconds", "ZipfCorpus", "machine", "memory", "now", "quiet", "spread",
    "table",
]  # fmt: skip

TYPES = 15_800  # word types of WikiText-2 as Saphra & Lopez (2019) prepare it
EPOCH = 1_390_000  # its training tokens
ROWS, TIME = 40, 35  # of a batch

_WORDS = 19  # of a sentence; <eos> is the twentieth token
_SENTENCES = 1000  # of a document


class ZipfCorpus(Corpus):
    """Words drawn by Zipf's law, each with a tag of its own: a corpus of any size that needs no files.

    Args:
        train: tokens of the training split.
        validation: tokens of the validation split.
        types: size of the vocabulary.
        cache_dir: folder of the encoded text.
    """

    splits = ("train", "validation")

    def __init__(self, train: int, validation: int, types: int = TYPES, cache_dir: str | None = None) -> None:
        super().__init__(batch_size=ROWS, sequence_length=TIME, cache_dir=cache_dir)
        self.sizes = {"train": train, "validation": validation}
        words = [f"w{rank}" for rank in range(types - 3)]  # three are special: <pad>, <unk>, <eos>
        tags = (*OPEN_CLASSES, *CLOSED_CLASSES)
        self.words = np.array(words)
        self.tags = np.array([tags[rank % len(tags)] for rank in range(len(words))])
        self.tokenizer = word_tokenizer({word: len(words) - rank for rank, word in enumerate(words)})

    def documents(self, split: str) -> Iterator[Document]:
        """Documents of 1000 sentences of 19 words."""
        random = np.random.default_rng(0 if split == "train" else 1)
        shares = 1 / (np.arange(len(self.words)) + 2.7)
        shares /= shares.sum()
        sentences = -(-(self.sizes[split] + 1) // (_WORDS + 1))
        for start in range(0, sentences, _SENTENCES):
            ranks = random.choice(len(shares), (min(_SENTENCES, sentences - start), _WORDS), p=shares)
            yield Document(
                f"{split}-{start}",
                tuple(
                    Sentence(tuple(words), upos=tuple(tags))
                    for words, tags in zip(self.words[ranks].tolist(), self.tags[ranks].tolist(), strict=True)
                ),
            )

    def content_key(self) -> dict[str, Any]:
        """The sizes."""
        return {"sizes": self.sizes, "types": len(self.words)}


class Seconds(NamedTuple):
    """Of the clock on the wall, and of all threads on the CPU, which other processes disturb less."""

    wall: float
    cpu: float

    def since(self, start: "Seconds") -> "Seconds":
        return Seconds(self.wall - start.wall, self.cpu - start.cpu)


def now(device: torch.device) -> Seconds:
    """The time when the device has done what it was told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Seconds(time.perf_counter(), time.process_time())


class Clock(L.Callback):
    """Notes the time when training starts (put it first) or ends (put it last), the device's work included."""

    def __init__(self) -> None:
        self.start = self.end = Seconds(0.0, 0.0)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start = now(pl_module.device)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.end = now(pl_module.device)


def quiet() -> None:
    """No log lines and warnings among the numbers."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


def memory(field: str) -> float:
    """Bytes, of this process alone: getrusage's peak would have the parent's in it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * float(next(line for line in lines if line.startswith(field)).split()[1])

"""How fast are n-grams counted, in how much memory, and what do five orders cost beside a model's pass?

Question: tokens a second, order and core of :class:`~lmdyn.analysis.NgramCounts` on text drawn from Zipf's law over
50,000 types (nearly all of its longer n-grams are different, which is the worst case), and the largest memory
(``RssAnon``: without the mapped files). CPU seconds of an observation by ``NgramDivergence`` of order 5 with all
smoothings and no drawn text, beside the pass over the same 2,048 tokens that ``LearningCurves`` alone makes, of a
GPT-2 with 4 layers of 256 units, for 2,000 and 50,000 types. Goals: 2 million tokens a second; 2 GB at 100 million
tokens.

Run: ``python benchmarks/ngrams.py [--tokens 100000000]`` (``--smoke`` for seconds)
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from common import machine, quiet, table
from transformers import GPT2Config, GPT2LMHeadModel

from lmdyn.analysis import NgramCounts
from lmdyn.analysis.words import ngram_counts
from lmdyn.callbacks import LearningCurves, NgramDivergence, Observer, Run
from lmdyn.integrations.loop_data import data_of

TYPES = 50_000


def zipf(tokens: int, types: int, seed: int) -> np.ndarray:
    ends = np.cumsum(1 / (np.arange(types) + 2.7))
    random = np.random.default_rng(seed)
    parts = np.array_split(np.arange(tokens), max(1, tokens // 1_000_000))
    drawn = [ends.searchsorted(random.random(len(part)) * ends[-1]).astype(np.int32) for part in parts]
    return np.concatenate(drawn)


class Memory:
    """The largest memory of this process without mapped files, in bytes, sampled."""

    def __enter__(self) -> "Memory":
        self.most, self._on = self.now(), True
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while self._on:
            self.most = max(self.most, self.now())
            time.sleep(0.05)

    @staticmethod
    def now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

    def __exit__(self, *_: object) -> None:
        self._on = False
        self._thread.join()


def counting(tokens: int) -> None:
    """Count by order, each order timed."""
    seconds: list[float] = []

    def timed(count):  # type: ignore[no-untyped-def]
        def call(*args):  # type: ignore[no-untyped-def]
            begin = time.process_time()
            found = count(*args)
            seconds.append(time.process_time() - begin)
            return found

        return call

    ngram_counts._count_words = timed(ngram_counts._count_words)
    ngram_counts._count = timed(ngram_counts._count)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "drawn.npy")
        np.save(text, zipf(tokens, TYPES, 0))
        mapped = np.load(text, mmap_mode="r")
        before = Memory.now()
        with Memory() as memory:
            counts = NgramCounts.of(mapped.reshape(-1, 1000), TYPES, 5, folder)
        sizes = [len(level.words) for level in counts.levels]
        disk = sum(path.stat().st_size for path in Path(folder).iterdir() if path != text)
    print(f"\n{tokens:,} tokens; memory {(memory.most - before) / 1e9:.2f} GB, files {disk / 1e9:.2f} GB\n")
    rows = [
        [str(n), f"{size:,}", f"{time:.1f}", f"{tokens / time / 1e6:.1f}"]
        for n, (size, time) in enumerate(zip(sizes, seconds, strict=True), 1)
    ]
    print(table(["order", "different n-grams", "CPU seconds", "million tokens a second"], rows))


def batches(types: int, rows: int, seed: int) -> list[dict[str, torch.Tensor]]:
    ids = torch.from_numpy(zipf(64 * rows, types, seed).astype(np.int64)).view(-1, 64)
    return [{"input_ids": part, "labels": part} for part in ids.split(8)]


def observing(types: int, smoke: bool) -> list[str]:
    """Time observations of one model."""
    layers, units, rows = (1, 32, 8) if smoke else (4, 256, 32)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=types, n_layer=layers, n_embd=units, n_head=4, n_positions=64)
    module = GPT2LMHeadModel(config).eval()
    data = data_of(batches(types, rows, 1), batches(types, 100 if smoke else 30_000, 0))

    def cost(observer: Observer) -> float:
        with tempfile.TemporaryDirectory() as folder:
            observer.attach(Run(Path(folder), datamodule=data))
            observer.bind(module)
            observer.observe(module, 0)
            begin = time.process_time()
            for _ in range(3):
                observer.observe(module, 0)
            return (time.process_time() - begin) / 3

    alone = cost(LearningCurves(labels="next", bands=()))
    five = cost(NgramDivergence(labels="next", drawn_tokens=0))
    return [f"{types:,}", f"{alone:.2f}", f"{five:.2f}", f"**{five / alone:.2f}**"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    quiet()
    print(machine())
    counting(20_000 if given.smoke else given.tokens)
    found = [observing(types, given.smoke) for types in ((200, 1_000) if given.smoke else (2_000, 50_000))]
    print()
    print(table(["types", "pass by LearningCurves", "by NgramDivergence", "ratio"], found))


if __name__ == "__main__":
    main()

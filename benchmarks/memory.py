"""Does memory grow with the corpus? Encoding and training on ten times the text.

Question: the peak of resident anonymous memory (``RssAnon`` of /proc/self/status; mapped pages of files, which the
system drops as it likes, do not count) for text of ``--words`` words over that for a tenth of it. Goal: below 1.10.

Run: ``python benchmarks/memory.py --words 10000000 --reps 5`` (Linux; half an hour)

Compared: TextCorpus (two passes to count words and drop rare sentences, one to encode) over generated files in the
layout of WikiText, articles of 3,000 words, one vocabulary of 2,000 words for both sizes; then one epoch of a tiny
LSTMLanguageModel (16 units, so that the text, not the weights, is the memory to look at) with validation, fit by
L.Trainer over the encoded files; then (``streaming``) the rows of a StreamedText over the same words as JSON, read to
the end and encoded on the way, as pretraining reads them.

Counts: each of encoding, training and streaming in a fresh process, sampled every 5 ms by a thread, from before lmdyn
is imported to the end. ``grown`` is the difference in MB, to be seen beside what torch and lightning take by
themselves (``imports``); titles of articles are kept as names of the layer ``topic``, and do grow.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ARTICLE, PARAGRAPH, SENTENCE = 3_000, 100, 20  # words


class Peak(threading.Thread):
    """The greatest RssAnon so far, in MB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0
        self.now()

    def now(self) -> float:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                megabytes = int(line.split()[1]) / 1024
                self.peak = max(self.peak, megabytes)
                return megabytes
        raise RuntimeError("/proc/self/status has no RssAnon: this benchmark needs Linux 4.5 or newer")

    def run(self) -> None:
        while True:
            self.now()
            time.sleep(0.005)


def write_text(path: Path, words: int, types: int, seed: int) -> None:
    """Articles in the layout of WikiText; every type occurs in any file of some size."""
    import numpy as np

    random = np.random.default_rng(seed)
    vocabulary = np.array([f"word{i}" for i in range(types)])
    shares = 1 / (np.arange(types) + 2.7)
    shares /= shares.sum()
    with path.open("w", encoding="utf-8") as file, path.with_suffix(".jsonl").open("w") as documents:
        for article in range(-(-words // ARTICLE)):
            drawn = vocabulary[random.choice(types, ARTICLE, p=shares)]
            drawn[SENTENCE - 1 :: SENTENCE] = "."
            documents.write(json.dumps({"text": " ".join(drawn)}) + "\n")
            file.write(f" \n = Article {article} of {path.stem} = \n \n")
            for start in range(0, ARTICLE, PARAGRAPH):
                file.write(f" {' '.join(drawn[start : start + PARAGRAPH])} \n")


def write_tokenizer(folder: Path, types: int) -> None:
    """The vocabulary of the text, with the special tokens of masked language models."""
    from lmdyn.datamodules.corpora.tokenization import word_tokenizer

    tokenizer = word_tokenizer({f"word{i}": types - i for i in range(types)} | {".": types})
    tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"})
    tokenizer.save_pretrained(str(folder))


def work(stage: str, folder: Path, size: int) -> dict[str, float]:
    """In a process of its own: encode, or train on what is encoded."""
    peak = Peak()
    peak.start()

    import lightning as L
    import torch
    from common import quiet

    from lmdyn.datamodules import TextCorpus
    from lmdyn.models import LSTMLanguageModel

    quiet()
    torch.set_num_threads(1)  # a model as small as this one waits for its threads, more than it works
    imports = peak.now()
    start = time.perf_counter()
    if stage == "streaming":
        tokens = stream(folder)
        peak.now()
        return {
            "peak": peak.peak,
            "imports": imports,
            "tokens": tokens,
            "seconds": time.perf_counter() - start,
        }
    corpus = TextCorpus(
        train=str(folder / "train.txt"),
        validation=str(folder / "validation.txt"),
        min_count=5,
        cache_dir=str(folder / "cache"),
    )
    corpus.prepare_data()
    if stage == "training":
        L.seed_everything(0, verbose=False)
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        trainer.fit(LSTMLanguageModel(None, size, size), datamodule=corpus)
    else:
        corpus.setup()
        _ = corpus.token_counts
    peak.now()
    tokens = corpus.encoded("train").num_tokens
    return {"peak": peak.peak, "imports": imports, "tokens": tokens, "seconds": time.perf_counter() - start}


def stream(folder: Path) -> int:
    """Read the text to its end in rows of 128 tokens; the number of tokens."""
    from lmdyn.datamodules import PretrainingCorpus, StreamedText

    words = sum(len(line.split()) for line in (folder / "train.jsonl").open(encoding="utf-8"))
    text = StreamedText(
        {"path": "json", "data_files": str(folder / "train.jsonl")}, tokenizer=str(folder / "tokenizer"),
        epoch_batches=max(1, words // (32 * 126)), block_rows=256,
    )  # fmt: skip
    data = PretrainingCorpus(stream=text, sequence_length=128, batch_size=32)
    data.prepare_data()
    return sum(batch["input_ids"].numel() for batch in data.train_dataloader())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--words", type=int, default=10_000_000, help="of the larger text; the other has a tenth"
    )
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes: does it run? The numbers mean nothing"
    )
    parser.add_argument("--work", nargs=3, metavar=("STAGE", "FOLDER", "SIZE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        stage, folder, size = args.work
        print(json.dumps(work(stage, Path(folder), int(size))))
        return

    from common import machine, spread, table

    words, reps, types, size = (60_000, 1, 100, 4) if args.smoke else (args.words, args.reps, 2_000, 16)
    # training encodes what is not there
    stages = ("training", "streaming") if args.smoke else ("encoding", "training", "streaming")
    print(machine())
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folders = {n: Path(temporary) / str(n) for n in (words // 10, words)}
        for n, folder in folders.items():
            folder.mkdir()
            write_text(folder / "train.txt", n, types, seed=1)
            write_text(folder / "validation.txt", n // 10, types, seed=2)
            write_tokenizer(folder / "tokenizer", types)
        for rep in range(reps):
            for n, folder in folders.items():
                for stage in stages:
                    if stage == stages[0]:
                        shutil.rmtree(folder / "cache", ignore_errors=True)
                    command = [sys.executable, __file__, "--work", stage, str(folder), str(size)]
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
                    found.setdefault((stage, n), []).append(json.loads(done.stdout.splitlines()[-1]))
                    print(
                        f"{rep + 1}/{reps} {stage} {n:,}: {found[stage, n][-1]}", file=sys.stderr, flush=True
                    )
    rows = []
    for stage in stages:
        small, large = found[stage, words // 10], found[stage, words]
        columns = [[run[key] for run in runs] for runs in (small, large) for key in ("tokens", "peak")]
        ratios = [b["peak"] / a["peak"] for a, b in zip(small, large, strict=True)]
        grown = statistics.median(b["peak"] - a["peak"] for a, b in zip(small, large, strict=True))
        imports = statistics.median(run["imports"] for run in (*small, *large))
        cells = [f"{columns[i][0]:,.0f} tokens: {spread(columns[i + 1], '{:.0f}')}" for i in (0, 2)]
        rows.append([stage, *cells, spread(ratios), f"{grown:+.1f}", f"{imports:.0f}"])
    print(f"\n{reps} repetitions; {machine()}\n")
    print(table(["stage", "peak (MB)", "peak (MB), ten times", "ratio", "grown (MB)", "imports (MB)"], rows))


if __name__ == "__main__":
    main()

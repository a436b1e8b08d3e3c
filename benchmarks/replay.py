"""What does a replay cost beside reading and observing, and what where there is nothing to do?

Question: is the next checkpoint read while one is observed? The wall time of ``analyze`` over checkpoints that take
known seconds to fetch and to observe (both asleep), against the greater of both sums; goal: at most 1.15. And how long
does ``analyze`` take over many checkpoints at first, and once all is there (goal at 1,000: 5 s after its imports)?

Run: ``python benchmarks/replay.py`` (``--smoke`` for seconds)
"""

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import lightning as L
import torch
import yaml
from common import machine, quiet, table
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from lmdyn.callbacks import LearningCurves
from lmdyn.cli.__main__ import main as lmdyn
from lmdyn.cli.analyze import analyze
from lmdyn.cli.replay.replay import Replay

GOAL, NOTHING_S = 1.15, 5.0
READ, OBSERVE = "LMDYN_BENCHMARK_READ_S", "LMDYN_BENCHMARK_OBSERVE_S"  # this module is imported a second time


class Slow(LearningCurves):
    """Learning curves that take so many seconds more."""

    def observe(self, *args, **kwargs):
        """As learning curves."""
        time.sleep(float(os.environ[OBSERVE]))
        return super().observe(*args, **kwargs)


class Rows(L.LightningDataModule):
    """A few random rows."""

    def val_dataloader(self) -> DataLoader:
        """Two batches."""
        ids = torch.randint(40, (4, 8), generator=torch.Generator().manual_seed(0))
        return DataLoader([{"input_ids": row, "labels": row.roll(-1)} for row in ids], batch_size=2)


def series(folder: Path, n: int) -> None:
    """Checkpoints in Hugging Face's format."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=8, n_layer=1, n_head=1, n_positions=16))
    for step in range(n):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.01 * torch.randn_like(p))
        model.save_pretrained(folder / f"step{step}")


def pipeline(folder: Path, n: int, read: float, observe: float, name: str) -> float:
    """Seconds of the replay itself."""
    observer = {"class_path": "replay.Slow", "init_args": {
        "probe": {"class_path": "replay.Rows"}, "labels": "aligned", "bands": [], "layers": [],
        "log_figures": False,
    }}  # fmt: skip
    config = folder / "observers.yaml"
    config.write_text(yaml.safe_dump({"trainer": {"callbacks": [observer]}}))
    took, run = [], Replay.run

    def fetch(name: str, revision: str | None = None) -> Path:
        if Path(name).is_dir():
            return Path(name)
        time.sleep(float(os.environ[READ]))
        return folder / "series" / str(revision)

    def timed(replay):
        os.environ.update({READ: str(read), OBSERVE: str(observe)})
        began = time.monotonic()
        run(replay)
        took.append(time.monotonic() - began)

    os.environ.update({READ: "0", OBSERVE: "0"})  # until it begins
    with mock.patch("lmdyn.models.pretrained.hub_folder", fetch), mock.patch.object(Replay, "run", timed):
        revisions = ",".join(f"step{i}" for i in range(n))
        analyze("org/lm", revisions=revisions, configs=[config], out=folder / name, loggers=["none"])
    return took[0]


def nothing_to_do(folder: Path, n: int) -> tuple[float, float]:
    """Seconds of the first replay over many checkpoints of a run, and of the second."""
    data = {"n_train_tokens": 600, "n_validation_tokens": 60, "n_test_tokens": 50, "batch_size": 4,
            "sequence_length": 10, "cache_dir": str(folder / "cache"), "n_nouns": 40, "n_verbs": 30,
            "n_adjectives": 20, "n_adverbs": 10, "n_names": 20, "n_facts": 10}  # fmt: skip
    config = {
        "trainer": {
            "max_steps": 1, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False,
            "log_every_n_steps": 1, "limit_val_batches": 0,
            "callbacks": [
                {"class_path": "ScheduledCheckpoint", "init_args": {"schedule": {"at": [1]}}},
                {"class_path": "LearningCurves", "init_args": {"schedule": {"at": []}, "log_figures": False}},
            ],
            "logger": {"class_path": "CSVLogger",
                       "init_args": {"save_dir": str(folder), "name": None, "version": "run"}},
        },
        "model": {"class_path": "LSTMLanguageModel", "init_args": {"embedding_size": 4, "hidden_size": 4}},
        "data": {"class_path": "GrammarCorpus", "init_args": data},
    }  # fmt: skip
    (folder / "lm.yaml").write_text(yaml.safe_dump(config))
    lmdyn(["fit", "--config", str(folder / "lm.yaml")])
    path = folder / "run" / "checkpoints" / "step=000000001.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    for step in range(2, n + 1):
        for tensor in checkpoint["state_dict"].values():
            tensor += 0.01 * torch.randn_like(tensor)
        torch.save({**checkpoint, "global_step": step}, path.with_name(f"step={step:09d}.ckpt"))
    took = []
    for _ in range(2):
        began = time.monotonic()
        analyze(folder / "run", loggers=["none"])
        took.append(time.monotonic() - began)
    return took[0], took[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=int, default=1000)
    parser.add_argument("--pipeline", type=int, default=20, help="checkpoints of known costs")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.checkpoints, args.pipeline = 4, 3
    quiet()
    sys.path.insert(0, str(Path(__file__).parent))
    unit = 0.05 if args.smoke else 0.5
    rows = []
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        series(folder / "series", args.pipeline)
        for read, observe in ((unit, unit), (unit, unit / 2), (unit / 2, unit)):
            seconds = pipeline(folder, args.pipeline, read, observe, f"{read}_{observe}")
            least = args.pipeline * max(read, observe)
            assert seconds > least  # else it did not wait
            rows.append([
                f"{args.pipeline} checkpoints, {read:g} s to read and {observe:g} s to observe", f"{seconds:.2f}",
                f"{seconds / least:.3f}", f"{GOAL:g} times the greater sum",
            ])  # fmt: skip
        first, again = nothing_to_do(folder, args.checkpoints)
        rows.append([f"{args.checkpoints} checkpoints, the first time", f"{first:.1f}", "", ""])
        rows.append(
            [
                f"{args.checkpoints} checkpoints, nothing to do",
                f"{again:.2f}",
                "",
                f"{NOTHING_S:g} s at 1,000",
            ]
        )
    print(machine())
    print(table(["replay", "seconds", "to the greater sum", "goal"], rows))


if __name__ == "__main__":
    main()

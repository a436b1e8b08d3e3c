"""Workers over many checkpoints, of which some are killed, some come late and one has a slow disk.

``LMDYN_WORKERS=8 LMDYN_CHECKPOINTS=1000`` is the whole; the slow tier takes fewer of both.
"""

import os
import random
import re
import shutil
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from lmdyn.callbacks import ObservationStore
from lmdyn.cli.__main__ import main
from lmdyn.cli.replay import read_ahead
from tests.cli.tiny_run import FEW_WORDS, at_steps, tiny_run, trained
from tests.helpers import ranks

pytestmark = pytest.mark.slow

N = int(os.environ.get("LMDYN_CHECKPOINTS", "36"))
WORKERS = int(os.environ.get("LMDYN_WORKERS", "4"))
KILLED, LATE = (WORKERS - 2) // 2, WORKERS // 4
SLOW_S = 5.0  # a checkpoint, from the slow disk


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of many small checkpoints."""
    folder = tmp_path_factory.mktemp("workers")
    observers = [at_steps(cls, log_figures=False) for cls in ("LearningCurves", "Sparsity")]
    callbacks = [at_steps("ScheduledCheckpoint", 1), *observers]
    run = trained(folder, tiny_run(folder, *callbacks, size=4, data=FEW_WORDS, max_steps=1))
    shutil.rmtree(run / "observations", ignore_errors=True)
    path = run / "checkpoints" / "step=000000001.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    generator = torch.Generator().manual_seed(0)
    for step in range(2, N + 1):
        for tensor in checkpoint["state_dict"].values():
            tensor += 0.01 * torch.randn(tensor.shape, generator=generator)
        checkpoint["global_step"] = step
        torch.save(checkpoint, path.with_name(f"step={step:09d}.ckpt"))
    return run


def work(words, seconds):
    """The command, where each checkpoint takes so many seconds to read."""
    read = read_ahead.read_checkpoint

    def slowly(path):
        time.sleep(seconds)
        return read(path)

    read_ahead.read_checkpoint = slowly
    main(words)


def start(run, out, log, i, seconds=0.0):
    words = ["analyze", str(run), "--out", str(out), "--logger=none", f"--shard={i}/{WORKERS}"]
    return ranks.start(log, work, words, seconds, CUDA_VISIBLE_DEVICES="")


def n_there(out):
    return len(list(Path(out).glob("observations/*/*.parquet")))


def test_workers_of_which_some_die_and_some_come_late(run, tmp_path):
    out, random_ = tmp_path / "out", random.Random(0)
    began = time.monotonic()
    logs = [tmp_path / f"{i}.log" for i in range(WORKERS)]
    workers = [start(run, out, logs[i], i, SLOW_S if i == 0 else 0.0) for i in range(WORKERS - LATE)]
    killed = []
    while len(killed) < KILLED:  # at random, in the first half
        due = 2 * N * (len(killed) + random_.random()) / (2 * KILLED + 2)
        while n_there(out) < due:
            assert any(worker.is_alive() for worker in workers), [ranks.tail(log) for log in logs]
            time.sleep(0.01)
        worker = random_.choice([w for w in workers[1:] if w not in killed])
        worker.kill()
        killed.append(worker)
    workers += [start(run, out, logs[i], i) for i in range(WORKERS - LATE, WORKERS)]
    for worker in workers:
        worker.join(1800)
    seconds = time.monotonic() - began
    texts = [log.read_text() for log in logs]
    lived = [worker.exitcode for worker in workers if worker not in killed]
    assert lived == [0] * (WORKERS - KILLED), texts
    # each is stored once, and right
    for observer in ("learning_curves", "sparsity"):
        store = ObservationStore(out / "observations" / observer)
        assert store.steps() == list(range(1, N + 1))
        assert sorted(p.name for p in store.folder.iterdir()) == [f"{s:09d}.parquet" for s in range(1, N + 1)]
    some = sorted(random_.sample(range(1, N + 1), 12))
    (tmp_path / "some").mkdir()
    for step in some:
        shutil.copy(run / "checkpoints" / f"step={step:09d}.ckpt", tmp_path / "some")
    main(["analyze", str(run), "--checkpoints", str(tmp_path / "some"), "--out", str(tmp_path / "alone")])
    for observer in ("learning_curves", "sparsity"):
        alone = ObservationStore(tmp_path / "alone" / "observations" / observer).read()
        table = ObservationStore(out / "observations" / observer).read()
        pd.testing.assert_frame_equal(
            table[table["step"].isin(some)].reset_index(drop=True), alone, rtol=1e-6, atol=1e-9
        )
    audit = pd.read_parquet(out / "weights_audit.parquet")
    assert audit["step"].tolist() == list(range(1, N + 1))
    assert audit["digest"].nunique() == N
    # no observation of theirs counts twice
    made = [int(match[1]) for text in texts if (match := re.search(r"new observations: (\d+)", text))]
    assert len(made) == WORKERS - KILLED
    assert sum(made) <= 2 * N
    assert not any("dropped" in text for text in texts)
    # the slow disk: its worker has made what it could in the time, and the others did not wait for it
    assert made[0] <= 2 * (1 + seconds / SLOW_S)

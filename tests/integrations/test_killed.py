"""Trainings that are killed, in the middle of an observation and between two, and continued: nothing is lost."""

import os
import signal

import pandas as pd
import pytest
import torch
from transformers import TrainerCallback

from lmdyn.integrations.transformers import WatchCallback
from lmdyn.runs.store import ObservationStore
from tests.helpers.ranks import start
from tests.integrations import test_transformers, test_watcher
from tests.integrations.test_watcher import Bigrams, tables, watch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_quiet")]
_quiet = test_transformers._quiet
KILLED_AT = {"observation": 5, "step": 7}  # after checkpoints of step 4


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_observation(step):
    write = ObservationStore.write

    def killed(self, at, table):
        if at == step and self.folder.name == "geometry":  # that of LearningCurves is written
            kill()
        write(self, at, table)

    ObservationStore.write = killed


class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == KILLED_AT["step"]:
            kill()


def of_trainer(folder, resume=None, *more):
    callback = WatchCallback(test_transformers.kinds(), schedule=test_transformers.SCHEDULE)
    test_transformers.train(folder, callback, *more, resume=resume)


def of_loop(folder, start=0, end=None):
    net = Bigrams()
    if start:
        net.load_state_dict(torch.load(folder / "own.pt"))
    with watch(net, folder / "lmdyn", step=start or None) as watcher:
        for step in range(start, len(test_watcher.TRAIN)):
            test_watcher.train(net, watcher, start=step, end=step + 1)
            if step + 1 == 4:
                torch.save(net.state_dict(), folder / "own.pt")
            if step + 1 == end:
                kill()


def killed_trainer(folder, where):
    if where == "observation":
        kill_in_observation(KILLED_AT[where])
    of_trainer(folder, None, *([Kill()] if where == "step" else []))


def killed_loop(folder, where):
    if where == "observation":
        kill_in_observation(KILLED_AT[where])
    of_loop(folder, end=KILLED_AT[where])


@pytest.mark.parametrize(("face", "where"), [("loop", "observation"), ("trainer", "step")])
def test_continued_after_a_kill_it_is_the_run_that_was_not_killed(tmp_path, face, where):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    run, killed = (of_loop, killed_loop) if face == "loop" else (of_trainer, killed_trainer)
    run(whole)
    process = start(tmp_path / "log.txt", killed, cut, where)
    process.join(120)
    assert process.exitcode == -signal.SIGKILL, (tmp_path / "log.txt").read_text()
    assert (cut / "lmdyn" / "observations" / "learning_curves" / "000000005.parquet").exists()
    run(cut, 4) if face == "loop" else run(cut, str(cut / "checkpoint-4"))
    expected = tables(whole / "lmdyn")
    found = tables(cut / "lmdyn")
    assert found.keys() == expected.keys()
    for name, table in expected.items():
        pd.testing.assert_frame_equal(found[name], table)

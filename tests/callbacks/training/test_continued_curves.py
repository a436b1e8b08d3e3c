"""The curves of a run that was killed and resumed: TensorBoard shows each point once, and none is lost."""

import shutil

import lightning as L
import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from lmdyn.callbacks import LearningCurves, RunState, ScheduledCheckpoint, Steps
from tests.callbacks.training.test_updates import Automatic, windows
from tests.helpers.modules import quiet_trainer


class Logging(Automatic):
    """Logs by Lightning, per step and epoch, and at the number of updates; has hyperparameters."""

    def __init__(self, width=3):
        super().__init__()
        self.save_hyperparameters()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.loggers[0].log_metrics({"direct": loss.item()}, step=self.global_step)
        return loss


class Killed(L.Callback):
    """Copies the run's folder at the start of a batch: what SIGKILL would leave there."""

    def __init__(self, step, to):
        self.step, self.to = step, to

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            shutil.copytree(trainer.log_dir, self.to)


def fit(folder, *callbacks, ckpt_path=None):
    curves = LearningCurves(schedule=Steps(every=1), log_figures=False)
    saver = ScheduledCheckpoint(Steps(every=2, at=()), weights_only=False)
    logger = TensorBoardLogger(folder.parent, name="", version=folder.name)
    how = {"max_epochs": 2, "limit_train_batches": 4, "log_every_n_steps": 1, "num_sanity_val_steps": 0}
    trainer = quiet_trainer(folder, RunState(), curves, saver, *callbacks, logger=logger, **how)
    trainer.fit(Logging(), windows(), ckpt_path=ckpt_path, weights_only=True)


def points(folder):
    """Steps and values by tag, as TensorBoard's own reader shows them."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    # Lightning's mean over an epoch is over its batches since resuming
    return found | {"loss_epoch": [(step, None) for step, _ in found["loss_epoch"]]}


@pytest.mark.parametrize("step", [3, pytest.param(4, marks=pytest.mark.slow)])  # 4 is the end of an epoch
def test_each_point_is_shown_once_and_none_is_lost(tmp_path, step, monkeypatch):
    # files of one process and one second are sorted by a number, as text
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(1000))
    whole, run = tmp_path / "whole", tmp_path / "run"
    fit(whole, Killed(step, run))
    before = points(whole)
    assert [s for s, _ in before["loss_step"]] == [s for s, _ in before["direct"]] == list(range(8))
    assert [s for s, _ in before["learning_curves/loss"]] == list(range(9))
    again = tmp_path / "again"
    fit(run, Killed(step + 1, again), ckpt_path=run / f"resume/step={step - step % 2:09d}.ckpt")
    assert {tag: sorted(found) for tag, found in points(run).items()} == before
    fit(again, ckpt_path=again / f"resume/step={(step + 1) - (step + 1) % 2:09d}.ckpt")  # killed once more
    assert {tag: sorted(found) for tag, found in points(again).items()} == before

"""Steps under manual optimization: an update is a batch in which an optimizer stepped."""

import lightning as L
import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from lmdyn.callbacks import LearningCurves, RunState, ScheduledCheckpoint, Steps
from lmdyn.callbacks.training.updates import updates
from lmdyn.cli.__main__ import main
from lmdyn.runs.checkpoint_files import checkpoint_step, updates_in
from tests.cli.tiny_run import tiny_run, trained
from tests.helpers.loaders import Resumable
from tests.helpers.modules import quiet_trainer

BATCHES, AT = 12, Steps(every=2, at=(0, 3))


def windows():
    ids = torch.randint(5, (BATCHES, 2, 4), generator=torch.Generator().manual_seed(0))
    return Resumable(BATCHES, lambda i: {"input_ids": ids[i], "labels": ids[i]})


class Automatic(L.LightningModule):
    """One optimizer that Lightning steps."""

    automatic = True

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = self.automatic
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)

    def forward(self, input_ids):
        return self.head(self.embed(input_ids))

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def val_dataloader(self):
        return torch.utils.data.DataLoader(list(windows()), batch_size=None)

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


class Manual(Automatic):
    automatic = False

    def step(self, optimizer, batch):
        loss = self.loss(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


class One(Manual):
    """One optimizer, one step a batch."""

    def training_step(self, batch, batch_idx):
        self.step(self.optimizers(), batch)


class Two(Manual):
    """Two optimizers, as of a generator and a discriminator."""

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            self.step(optimizer, batch)
        self.log("loss", self.loss(batch))

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), lr=0.1) for part in (self.embed, self.head)]


class Accumulating(Two):
    """Both optimizers step once in three batches."""

    def training_step(self, batch, batch_idx):
        self.manual_backward(self.loss(batch))
        self.log("loss", self.loss(batch))
        if batch_idx % 3 == 2:
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()


def fit(module, folder, *, state=True, ckpt_path=None, until=1, logger=False):
    callbacks = [LearningCurves(schedule=AT), ScheduledCheckpoint(AT)]
    callbacks += [RunState(), ScheduledCheckpoint(Steps(every=1), weights_only=False)] if state else []
    how = {"logger": logger, "max_epochs": until, "log_every_n_steps": 1, "num_sanity_val_steps": 0}
    trainer = quiet_trainer(folder, *callbacks, **how)
    trainer.fit(module, windows(), ckpt_path=ckpt_path, weights_only=True)
    return trainer


def observed(folder):
    return pd.read_parquet(folder / "observations/learning_curves").drop_duplicates("step").set_index("step")


def saved(folder, kind="checkpoints"):
    return sorted(checkpoint_step(p) for p in (folder / kind).iterdir())


STEPS_AND_UPDATES = {
    Automatic: (12, 12), One: (12, 12), Two: (24, 12), Accumulating: (8, 4)
}  # fmt: skip
EACH = [
    pytest.param(of, id=of.__name__, marks=[] if of in (Two, Accumulating) else pytest.mark.slow)
    for of in STEPS_AND_UPDATES
]


@pytest.mark.parametrize("of", EACH)
@pytest.mark.parametrize("state", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_update_is_a_batch_that_stepped(tmp_path, of, state):
    steps, number = STEPS_AND_UPDATES[of]
    trainer = fit(of(), tmp_path, state=state)
    assert (trainer.global_step, updates(trainer)) == (steps, number)
    due = sorted({0, 3, *range(2, number + 1, 2)})
    assert list(observed(tmp_path).index) == saved(tmp_path) == due
    batches = [0, 3, 6, 9, 12] if of is Accumulating else range(13)
    if state:  # labelled tokens trained on: 8 a batch
        assert list(observed(tmp_path)["tokens"]) == [8 * batches[step] for step in due]
        assert saved(tmp_path, "resume") == list(range(number + 1))
    for path in (tmp_path / "checkpoints").iterdir():
        checkpoint = torch.load(path, weights_only=True)
        assert updates_in(checkpoint) == checkpoint["lmdyn"]["step"] == checkpoint_step(path)


@pytest.mark.slow
@pytest.mark.parametrize("of", EACH)
def test_a_run_resumed_in_the_middle_counts_on(tmp_path, of):
    whole, resumed = of(), of()
    number = updates(fit(whole, tmp_path / "whole", until=2))
    fit(of(), tmp_path / "cut")
    path = tmp_path / "cut/resume/step=000000003.ckpt"
    assert updates(fit(resumed, tmp_path / "cut", until=2, ckpt_path=path)) == number
    assert saved(tmp_path / "cut") == saved(tmp_path / "whole")
    pd.testing.assert_frame_equal(observed(tmp_path / "cut"), observed(tmp_path / "whole"))
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("of", [pytest.param(Two, marks=pytest.mark.slow), Accumulating])
def test_every_axis_counts_updates(tmp_path, of):
    """Observations and what the module logs have one axis in TensorBoard."""
    from lightning.pytorch.loggers import TensorBoardLogger

    logger = TensorBoardLogger(tmp_path, name="tb", version=0)
    number = updates(fit(of(), tmp_path, logger=logger))
    events = EventAccumulator(logger.log_dir, size_guidance={"scalars": 0}).Reload()
    assert max(e.step for e in events.Scalars("learning_curves/loss")) == number
    per_update = 3 if of is Accumulating else 1
    assert [e.step for e in events.Scalars("loss")] == [i // per_update for i in range(BATCHES)]


def old(path):
    """A checkpoint from before 0.1: its step is Lightning's."""
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["lmdyn"]["step"] = checkpoint["global_step"]
    del checkpoint["lmdyn"]["counts"]
    return checkpoint


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return windows()

    def val_dataloader(self):
        return torch.utils.data.DataLoader(list(windows()), batch_size=None)


def test_replay_refuses_checkpoints_with_doubled_steps(tmp_path, capsys):
    at = {"schedule": {"every": 2, "at": [0, 3]}}
    callbacks = [{"class_path": c, "init_args": at} for c in ("ScheduledCheckpoint", "LearningCurves")]
    config = tiny_run(tmp_path, *callbacks, max_epochs=1, max_steps=-1)
    config |= {"model": {"class_path": f"{__name__}.Two"}, "data": {"class_path": f"{__name__}.Data"}}
    run = trained(tmp_path, config)
    assert saved(run) == [0, 2, 3, 4, 6, 8, 10, 12]
    for path in (run / "checkpoints").iterdir():
        torch.save(old(path), path)
    with pytest.raises(SystemExit):
        main(["analyze", str(run), "--out", str(tmp_path / "replayed"), "--logger", "none"])
    assert "steps of all optimizers" in capsys.readouterr().err

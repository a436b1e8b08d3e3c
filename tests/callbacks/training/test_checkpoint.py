import lightning as L
import pytest
import torch
from torch import nn

from lmdyn.callbacks import RunState, ScheduledCheckpoint, Steps
from lmdyn.runs.checkpoint_files import checkpoint_step
from tests.helpers.loaders import Resumable
from tests.helpers.modules import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore:GPU available but not used")


def windows():
    labels = torch.zeros(2, dtype=torch.long)
    return Resumable(6, lambda i: {"x": torch.full((2, 3), float(i)), "labels": labels})


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.layer(batch["x"]), batch["labels"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(folder, *savers, state=True, ckpt_path=None, **settings):
    states = [RunState()] if state else []
    trainer = quiet_trainer(folder, *states, *savers, **{"max_epochs": 2, **settings})
    trainer.fit(Module(), windows(), ckpt_path=ckpt_path, weights_only=True)
    return trainer


def names(folder):
    return [checkpoint_step(p) for p in sorted(folder.iterdir())]


@pytest.mark.parametrize(
    ("schedule", "accumulated", "expected"),
    [
        (Steps(every=5, at=(0, 2, 6), epochs=True), 1, [0, 2, 5, 6, 10, 12]),
        (Steps(every=1), 4, [0, 1, 2, 3, 4]),  # of 6 batches: 2 updates
    ],
)
def test_every_scheduled_step_is_there_once(tmp_path, monkeypatch, schedule, accumulated, expected):
    written, save = [], ScheduledCheckpoint._save
    noted = lambda self, t: (written.append(t.global_step), save(self, t))  # noqa: E731
    monkeypatch.setattr(ScheduledCheckpoint, "_save", noted)
    fit(tmp_path, ScheduledCheckpoint(schedule), accumulate_grad_batches=accumulated)
    assert written == expected
    assert names(tmp_path / "checkpoints") == written


def test_weights_only_carry_progress_and_no_resume_state(tmp_path):
    fit(tmp_path, ScheduledCheckpoint(Steps(every=3)))
    checkpoint = torch.load(tmp_path / "checkpoints/step=000000003.ckpt", weights_only=True)
    about = {"step": 3, "counts": "updates", "tokens": 6, "learning_rate": 0.5, "tokenizer": "tokenizer"}
    assert checkpoint["lmdyn"] == about
    assert checkpoint["global_step"] == 3
    assert not {"optimizer_states", "callbacks", "lr_schedulers"} & checkpoint.keys()
    first = torch.load(tmp_path / "checkpoints/step=000000000.ckpt", weights_only=True)
    assert first["lmdyn"]["tokens"] == 0
    assert not torch.equal(first["state_dict"]["layer.weight"], checkpoint["state_dict"]["layer.weight"])


def test_keep_keeps_the_newest_and_leaves_other_files_and_later_steps_alone(tmp_path):
    with pytest.raises(ValueError, match="keep is 0"):
        ScheduledCheckpoint(keep=0)
    folder = tmp_path / "checkpoints"
    fit(tmp_path, ScheduledCheckpoint(Steps(at=(99,)), weights_only=False))  # of this run, to be resumed
    for name in ("best.ckpt", "step=x.ckpt", "step=000000099.ckpt"):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    resumed = {"ckpt_path": tmp_path / "resume/step=000000012.ckpt", "max_epochs": 3}
    fit(tmp_path, ScheduledCheckpoint(Steps(every=1), keep=2), **resumed)
    there = {p.name for p in folder.iterdir()}
    newest = {"step=000000017.ckpt", "step=000000018.ckpt"}
    assert there == {"best.ckpt", "step=x.ckpt", "step=000000099.ckpt", *newest}


def test_lost_weights_are_written_after_resuming(tmp_path):
    every = Steps(every=1, epochs=True)
    fit(tmp_path, ScheduledCheckpoint(every, weights_only=False), ScheduledCheckpoint(every))
    for step in (4, 5, 12):
        (tmp_path / f"checkpoints/step={step:09d}.ckpt").unlink()
    savers = ScheduledCheckpoint(every, weights_only=False), ScheduledCheckpoint(every)
    fit(tmp_path, *savers, ckpt_path=tmp_path / "resume/step=000000004.ckpt")
    assert names(tmp_path / "checkpoints") == list(range(13))
    checkpoint = torch.load(tmp_path / "checkpoints/step=000000004.ckpt", weights_only=True)
    assert checkpoint["lmdyn"]["tokens"] == 8


def test_full_checkpoints_need_a_run_state(tmp_path):
    with pytest.raises(ValueError, match="requires a RunState"):
        fit(tmp_path, ScheduledCheckpoint(weights_only=False), state=False)

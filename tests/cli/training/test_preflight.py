"""Schedules, checkpoints, memory and disk of a run, before its first batch."""

import shutil

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lmdyn.callbacks import LearningCurves, RunState, ScheduledCheckpoint, Similarity
from lmdyn.callbacks.observing import findings as finding
from lmdyn.callbacks.observing.amounts import parameter_bytes
from lmdyn.callbacks.observing.findings import ForeseenError
from lmdyn.callbacks.observing.reference import Earlier
from lmdyn.cli.training import preflight
from lmdyn.runs.schedule import Steps
from tests.helpers.modules import Own

PLAN = preflight.Plan(100, 40)


@pytest.mark.parametrize(
    "schedule",
    [
        Steps(), Steps(every=7), Steps(per_decade=4), Steps(at=(3, 99, 101), last=False), Steps(at=(), last=False),
        Steps(per_decade=3, epochs=True), Steps(every=200, at=()),
    ],
)  # fmt: skip
def test_due_steps_are_those_of_the_schedule(schedule):
    """A second way: each step is asked."""
    asked = {s for s in range(101) if s in schedule}
    asked |= {40, 80} if schedule.epochs else set()
    asked |= {100} if schedule.last else set()
    assert preflight.due(schedule, PLAN) == sorted(asked)


def found_of(*callbacks, plan=PLAN, folder=None, optimizers=None):
    return preflight.foreseen_of_training(callbacks, Own(), plan, folder, optimizers)[0]


def test_schedules_that_never_fire(tmp_path):
    never = LearningCurves(name="late", schedule=Steps(at=(500,), last=False))
    (found,) = found_of(never, folder=tmp_path)
    assert found.stops
    assert "expected steps up to 100, the end of training, in the schedule of late" in found.why
    partly = ScheduledCheckpoint(Steps(at=(0, 500), every=300))
    (found,) = found_of(partly, folder=tmp_path)
    assert not found.stops
    assert "got at 500; every 300, which never applies" in found.why
    assert found_of(LearningCurves(schedule=Steps(per_decade=3, at=(0, 100))), folder=tmp_path) == []
    assert found_of(never, plan=preflight.Plan(None, None), folder=tmp_path) == []  # nobody knows its end


def test_earlier_checkpoints_that_are_not_made(tmp_path):
    saver = ScheduledCheckpoint(Steps(every=10))
    compared = Similarity(reference=Earlier(at=[0, 10, 15]))
    (found,) = found_of(saver, compared, folder=tmp_path)
    assert not found.stops
    assert "got none of 15" in found.why
    (found,) = found_of(saver, Similarity(reference=Earlier(at=[15])), folder=tmp_path)
    assert found.stops
    kept = ScheduledCheckpoint(Steps(every=10), keep=2)
    (found,) = found_of(kept, Similarity(reference=Earlier(at=[0, 10])), folder=tmp_path)
    assert "got none of 0, 10" in found.why
    assert found_of(saver, Similarity(reference=Earlier(at=[0, 10])), folder=tmp_path) == []


def test_replay_at_steps_that_are_not_there():
    assert preflight.foreseen_of_replay([LearningCurves()], [0, 10]) == []
    (found,) = preflight.foreseen_of_replay([Similarity(reference=Earlier(at=[5]))], [0, 10])
    assert found.stops


@pytest.mark.parametrize(
    ("kind", "settings", "states"),
    [("SGD", {}, 0), ("SGD", {"momentum": 0.9}, 1), ("AdamW", {}, 2), ("Adam", {"amsgrad": True}, 3)],
)
def test_states_of_optimizers_are_those_that_they_keep(kind, settings, states):
    module = nn.Linear(10, 9)
    optimizer = getattr(torch.optim, kind)(module.parameters(), lr=0.1, **settings)
    foreseen = preflight.training_bytes(module, [optimizer])
    module(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    kept = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    held = sum(t.numel() * t.element_size() for t in kept if t.numel() > 1)
    gradients = sum(p.grad.numel() * 4 for p in module.parameters())
    assert foreseen == gradients + held == (1 + states) * gradients


def trainer_of(folder, *callbacks, **arguments):
    return L.Trainer(
        accelerator="cpu", devices=1, logger=False, default_root_dir=folder, max_steps=4,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[preflight.Preflight(), RunState(), *callbacks], **arguments,
    )  # fmt: skip


def batches():
    ids = torch.arange(28).reshape(4, 7) % 7
    return DataLoader([{"input_ids": row, "labels": row.roll(-1)} for row in ids], batch_size=2)


class Steps2(Own):
    """Counts what was trained."""

    trained = 0

    def training_step(self, batch, batch_idx):
        self.trained += 1
        return super().training_step(batch, batch_idx)


def test_fit_stops_before_the_first_batch_and_observation(tmp_path):
    module = Steps2()
    curves = LearningCurves(frequency="probe", bands=[], layers=[])
    late = LearningCurves(
        name="late", frequency="probe", bands=[], layers=[], schedule=Steps(at=(50,), last=False)
    )
    with pytest.raises(ForeseenError, match=r"this run: expected steps up to 4.* in the schedule of late"):
        trainer_of(tmp_path, curves, late).fit(module, batches(), batches())
    assert module.trained == 0
    assert not list(tmp_path.rglob("*.parquet"))
    trainer_of(tmp_path, curves).fit(module, batches(), batches())  # the control
    assert module.trained == 4
    assert list(tmp_path.rglob("*.parquet"))


def test_fit_stops_for_memory_and_disk(tmp_path, monkeypatch):
    saver = ScheduledCheckpoint(Steps(every=1))
    monkeypatch.setattr(preflight, "free_disk", lambda folder: 100)
    module = Steps2()
    with pytest.raises(ForeseenError, match=r"expected about .* of disk for checkpoints, got 100 B free"):
        trainer_of(tmp_path, saver).fit(module, batches(), batches())
    monkeypatch.setattr(preflight, "free_disk", lambda folder: 1 << 40)
    monkeypatch.setattr(finding, "free_memory", lambda device: 10)
    with pytest.raises(ForeseenError, match=r"expected about .* of memory .*gradients"):
        trainer_of(tmp_path, saver).fit(module, batches(), batches())
    assert module.trained == 0


class Wide(Own):
    def __init__(self):
        super().__init__(nn.Sequential(nn.Embedding(7, 4000), nn.Linear(4000, 7)))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def test_foreseen_disk_is_what_is_used(tmp_path):
    """Within a fifth, for weights and for full checkpoints; a run that goes on adds only what follows."""
    savers = [ScheduledCheckpoint(Steps(every=1)), ScheduledCheckpoint(Steps(every=2), weights_only=False)]
    for name, number, begin in (("run", 5 + 3, 0), ("fork", 3 + 1, 2)):
        folder = tmp_path / name
        before = list(folder.rglob("*.ckpt"))
        trainer, module = trainer_of(folder, *savers), Wide()
        weights, plan = parameter_bytes(module), preflight.Plan(4, 2, begin)
        states = preflight.training_bytes(module, [module.configure_optimizers()])
        foreseen = preflight.disk_of_checkpoints(trainer.callbacks, weights, states, plan)
        trainer.fit(module, batches(), batches(), ckpt_path=before[0] if before else None)
        made = [p for p in folder.rglob("*.ckpt") if p not in before]
        assert len(made) == number
        assert 0.8 * foreseen <= sum(p.stat().st_size for p in made) <= 1.1 * foreseen
        (tmp_path / "fork" / "resume").mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "run" / "resume" / "step=000000002.ckpt", tmp_path / "fork" / "resume")
    kept = [ScheduledCheckpoint(Steps(every=1), keep=2)]
    assert preflight.disk_of_checkpoints(kept, 100, 300, preflight.Plan(4, 2)) == 3 * 100

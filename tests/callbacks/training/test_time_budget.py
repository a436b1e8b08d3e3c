"""A budget of time under a clock of our own: rates in closed form, the end, resuming, what is refused."""

import itertools
import json

import lightning as L
import pytest
import torch
from torch import nn

from lmdyn.callbacks import RunState, ScheduledCheckpoint, Steps, TimeBudget
from tests.helpers.loaders import Resumable
from tests.helpers.modules import quiet_trainer
from tests.helpers.ranks import TORCHRUN, run_ranks
from tests.helpers.refusals import assert_refused

pytestmark = pytest.mark.filterwarnings("ignore:GPU available but not used")

TICK = 36.0  # seconds of a batch: a hundred of them are an hour


class Clock:
    """Stands still but for what the module spends on each batch."""

    def __init__(self, start=0.0):
        self.time = start

    def __call__(self):
        return self.time


def windows():
    return Resumable(30, lambda i: {"labels": torch.zeros(1, dtype=torch.long)})


class Module(L.LightningModule):
    """The gradient of each weight is 1: a weight falls by the rate with each update of SGD."""

    def __init__(self, clock, rates=(1.0,), scheduler=False):
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(1, dtype=torch.float64) for _ in rates)
        self.clock, self.rates, self.scheduler = clock, rates, scheduler
        self.steps = [[0.0] for _ in rates]

    def training_step(self, batch, batch_idx):
        self.clock.time += TICK
        return torch.cat(list(self.weights)).sum()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        for weight, values in zip(self.weights, self.steps, strict=True):
            values.append(-weight.item())

    def configure_optimizers(self):
        groups = [{"params": [w], "lr": rate} for w, rate in zip(self.weights, self.rates, strict=True)]
        optimizer = torch.optim.SGD(groups, lr=1.0)
        if not self.scheduler:
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)]

    def taken(self, group=0):
        """Rate of each batch's update, read off the weight."""
        values = self.steps[group]
        return [after - before for before, after in itertools.pairwise(values)]


def fit(folder, budget, module, *callbacks, ckpt_path=None, **settings):
    budget._now = module.clock
    settings = {"max_epochs": -1, "enable_checkpointing": bool(callbacks), **settings}
    trainer = quiet_trainer(folder, RunState(), budget, *callbacks, **settings)
    trainer.fit(module, windows(), ckpt_path=ckpt_path, weights_only=True)
    return trainer


def rates(shares, w):
    """The formula as printed."""
    return [max(0.0, min(p / w, (1 - p) / (1 - w))) for p in shares]


@pytest.mark.parametrize("w", [0.06, 0.25])
def test_each_update_has_the_rate_of_the_time_spent(w, tmp_path):
    """Update k comes when k of a hundred ticks are over; the last one has rate 0 and ends the training."""
    module = Module(Clock(start=1e6), rates=(0.5, 2.0))
    trainer = fit(tmp_path, TimeBudget(1.0, w, every_n_steps=1), module)
    expected = rates([k / 100 for k in range(1, 101)], w)
    assert trainer.global_step == 100
    assert expected[0] > 0
    assert expected[-1] == 0
    assert module.taken(0) == pytest.approx([0.5 * r for r in expected], abs=1e-9)
    assert module.taken(1) == pytest.approx([2.0 * r for r in expected], abs=1e-9)


def test_accumulated_batches_are_one_update(tmp_path):
    module = Module(Clock())
    trainer = fit(tmp_path, TimeBudget(1.0, every_n_steps=1), module, accumulate_grad_batches=5)
    assert trainer.global_step == 20
    assert module.taken()[4::5] == pytest.approx(rates([k / 100 for k in range(5, 101, 5)], 0.06), abs=1e-9)
    assert not any(module.taken()[3::5])


@pytest.mark.parametrize("step", [20, 37, 60, 99])
def test_resuming_goes_on_where_the_time_stood(step, tmp_path):
    """Whatever the clock shows then, also at the end of an epoch; the same weights, since this clock is exact."""
    saver = ScheduledCheckpoint(Steps(at=(step,), last=False), weights_only=False)
    whole = Module(Clock(), rates=(0.5, 2.0))
    fit(tmp_path, TimeBudget(1.0, every_n_steps=1), whole, saver)
    path = tmp_path / f"resume/step={step:09d}.ckpt"
    state = torch.load(path, weights_only=True)["callbacks"]["TimeBudget"]
    assert state["seconds"] == pytest.approx(step * TICK)
    for start in (0.0, 1e9):  # another machine, a year later
        resumed = Module(Clock(start), rates=(0.5, 2.0))
        trainer = fit(tmp_path, TimeBudget(1.0, every_n_steps=1), resumed, ckpt_path=path)
        assert trainer.global_step == 100
        left = resumed.taken(0)[1:]  # the first holds the weight that was loaded
        assert left == pytest.approx(whole.taken(0)[step + 1 :], abs=1e-9)
        for a, b in zip(whole.weights, resumed.weights, strict=True):
            assert a.item() == pytest.approx(b.item(), abs=1e-9)


def rank_main(folder):
    """Rank 1's clock runs five times as fast, and its budget would end five times as early."""
    budget = TimeBudget(1.0, every_n_steps=3)
    ranks = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
    trainer = quiet_trainer(folder, budget, **ranks, max_epochs=-1, enable_checkpointing=False)
    module = Module(Clock())
    rank = trainer.global_rank
    budget._now = lambda: module.clock.time * (1 + 4 * rank)
    trainer.fit(module, windows())
    own = {"updates": trainer.global_step, "rates": module.taken(), "spent": budget.seconds_spent}
    (folder / f"rank{rank}.json").write_text(json.dumps(own), encoding="utf-8")


@pytest.mark.slow
def test_two_ranks_follow_one_clock(tmp_path):
    run_ranks(__file__, tmp_path, tmp_path / "cache", timeout=120, **TORCHRUN)
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text("utf-8")) for rank in (0, 1))
    assert second["spent"] == 5 * first["spent"]
    assert first["updates"] == second["updates"] == 100  # the last is asked with a hundred ticks over
    expected = rates([(k // 3 * 3 + 1) / 100 for k in range(100)], 0.06)
    assert first["rates"] == second["rates"] == pytest.approx(expected, abs=1e-9)


def test_what_is_refused(tmp_path):
    assert_refused(
        TimeBudget,
        ({"hours": 0}, "hours is 0"),
        ({"hours": float("nan")}, "hours is nan"),
        ({"hours": 1, "warmup_share": 1.0}, "warmup_share is 1.0"),
        ({"hours": 1, "every_n_steps": 0}, "every_n_steps is 0"),
    )
    with pytest.raises(ValueError, match=r"module has a scheduler, LambdaLR.*decay_power: null"):
        fit(tmp_path, TimeBudget(1.0), Module(Clock(), scheduler=True))

    class Anneal(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step == 15:
                trainer.optimizers[0].param_groups[0]["lr"] /= 4

    with pytest.raises(ValueError, match=r"other code changed the rates to .*anneal_factor: null"):
        fit(tmp_path, TimeBudget(1.0), Module(Clock()), Anneal())
    saver = ScheduledCheckpoint(Steps(at=(20,), last=False), weights_only=False)
    fit(tmp_path, TimeBudget(1.0), Module(Clock()), saver)
    path = tmp_path / "resume/step=000000020.ckpt"
    with pytest.raises(ValueError, match=r"had hours 1 and .* has 2 and .*Resume with the saved budget"):
        fit(tmp_path, TimeBudget(2.0), Module(Clock()), ckpt_path=path)

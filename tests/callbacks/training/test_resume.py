import random

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

from lmdyn.callbacks import RunState, ScheduledCheckpoint, Steps
from lmdyn.callbacks.training.resume import save_tokenizer, tokenizer_of
from tests.helpers.loaders import Resumable
from tests.helpers.modules import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore:GPU available but not used")


def batches():
    batch = {"labels": torch.tensor([[1, 2, -100], [3, -100, -100]]), "x": torch.ones(2, 3)}
    return Resumable(4, lambda i: dict(batch))


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.drawn = []

    def training_step(self, batch, batch_idx):
        self.drawn.append((float(torch.rand(())), float(np.random.normal()), random.gauss(0, 1)))
        return self.layer(batch["x"]).sum()

    def test_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.25)


def trainer(folder, *callbacks):
    return quiet_trainer(folder, *callbacks, max_epochs=2)


def run(folder, ckpt_path=None):
    state, module = RunState(), Module()
    t = trainer(folder, state, ScheduledCheckpoint(Steps(every=1), weights_only=False))
    t.fit(module, batches(), ckpt_path=ckpt_path, weights_only=True)
    return t, state, module


@pytest.fixture
def finished(tmp_path):
    L.seed_everything(1, verbose=False)
    return run(tmp_path)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_another_fit_counts_from_its_own_start(tmp_path):
    state = RunState()
    for folder in ("first", "second"):
        t = trainer(tmp_path / folder, state)
        t.fit(Module(), batches())
        assert (t.global_step, state.tokens) == (8, 24)
    t.fit_loop.max_epochs = 3  # the same Trainer goes on, and so does its count of steps
    t.fit(Module(), batches())
    assert (t.global_step, state.tokens) == (12, 36)


@pytest.mark.parametrize("step", [0, 3, 4, 5])
def test_every_generator_goes_on(finished, tmp_path, step):
    _, state, whole = finished
    L.seed_everything(99, verbose=False)
    _, resumed_state, resumed = run(tmp_path / "again", tmp_path / f"resume/step={step:09d}.ckpt")
    assert resumed.drawn == whole.drawn[step:]
    assert resumed_state.tokens == state.tokens


def of_two_ranks(path, **entries):
    """A checkpoint as two ranks would have written it; ``global_batch`` is the loader's, ``module`` the module's."""
    checkpoint = torch.load(path, weights_only=True)
    (rank,) = checkpoint["lmdyn"]["ranks"]
    checkpoint["lmdyn"]["ranks"] = [{**rank, "module": entries.get("module")}] * 2
    (loader,) = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    loader |= {name: value for name, value in entries.items() if name != "module"}
    torch.save(checkpoint, path)


def test_another_number_of_ranks_is_refused_where_data_does_not_say_how_it_is_divided(finished, tmp_path):
    path = tmp_path / "resume/step=000000003.ckpt"
    of_two_ranks(path)
    with pytest.raises(
        ValueError, match=r"has world size 2, but this run has world size 1.*does not declare"
    ):
        run(tmp_path / "again", path)
    # evaluation needs no resume state, whatever wrote the checkpoint
    trainer(tmp_path, RunState()).test(Module(), batches(), ckpt_path=path, weights_only=True, verbose=False)


DIVIDED = {"global_batch": {"rows": 2, "ranks": 2, "accumulated": 1}}


def test_another_number_of_ranks_goes_on_where_data_says_it(finished, tmp_path):
    """Rank 0 draws on from rank 0's generators."""
    _, state, whole = finished
    path = tmp_path / "resume/step=000000003.ckpt"
    of_two_ranks(path, **DIVIDED)
    _, resumed_state, resumed = run(tmp_path / "again", path)
    assert resumed.drawn == whole.drawn[3:]
    assert resumed_state.tokens == state.tokens


class OfOneBatch(Resumable):
    """A loader that was made by hand, and does not know how many batches its trainer accumulates."""

    def state_dict(self):
        return {**super().state_dict(), "global_batch": {"rows": 2, "ranks": 1, "accumulated": 1}}


def test_batches_are_counted_as_before_with_a_loader_that_knows_no_accumulation(tmp_path):
    class Count(L.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            module.drawn.append((trainer.current_epoch, batch_idx))

    def fit(folder, checkpoint=None):
        L.seed_everything(1, verbose=False)
        module = Module()
        t = trainer(folder, RunState(), ScheduledCheckpoint(Steps(every=1), weights_only=False), Count())
        t.accumulate_grad_batches = 2
        t.fit(module, OfOneBatch(6, batches().make), ckpt_path=checkpoint, weights_only=True)
        return t, module

    t, whole = fit(tmp_path / "whole")
    assert (t.global_step, len(whole.drawn)) == (6, 24)
    t, resumed = fit(tmp_path / "again", tmp_path / "whole/resume/step=000000002.ckpt")
    assert t.global_step == 6
    assert resumed.drawn == whole.drawn[8:]


def test_a_carried_state_is_dealt_out_anew_or_refused(finished, tmp_path, monkeypatch):
    path = tmp_path / "resume/step=000000003.ckpt"
    of_two_ranks(path, **DIVIDED, module={"x": torch.ones(1)})
    with pytest.raises(ValueError, match=r"add `redistribute_resume_state"):
        run(tmp_path / "again", path)
    asked, given = [], []
    monkeypatch.setattr(Module, "resume_state", lambda self: {}, raising=False)
    monkeypatch.setattr(Module, "load_resume_state", lambda self, state: given.append(state), raising=False)
    anew = lambda self, *known: asked.append(known) or {"mine": 1}  # noqa: E731
    monkeypatch.setattr(Module, "redistribute_resume_state", anew, raising=False)
    run(tmp_path / "again", path)
    assert given == [{"mine": 1}]
    assert asked == [([{"x": torch.ones(1)}] * 2, 0, 1)]


def test_a_checkpoint_without_resume_state_is_warned_of(finished, tmp_path, caplog):
    path = tmp_path / "resume/step=000000003.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["lmdyn"]
    torch.save(checkpoint, path)
    run(tmp_path / "again", path)
    assert "so resuming is inexact" in caplog.text


def test_a_bug_in_the_tokenizers_property_ends_the_run(tmp_path):
    """It was taken for a datamodule without tokenizer: the run began, and could not be replayed."""

    class Data(L.LightningDataModule):
        @property
        def tokenizer(self):
            return self.typo

    with pytest.raises(AttributeError, match="typo"):
        tokenizer_of(Data(), L.LightningModule())
    save_tokenizer(tmp_path / "tokenizer", None, None)
    assert not (tmp_path / "tokenizer").exists()

"""Resuming is exact: from every kind of position, and after SIGKILL, weights are compared bit by bit."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmdyn.callbacks import LearningCurves, RunState, ScheduledCheckpoint, Sparsity, Steps
from lmdyn.cli.__main__ import main
from lmdyn.datamodules import GrammarCorpus
from lmdyn.models import LSTMLanguageModel
from tests.cli.tiny_run import tiny_run

pytestmark = [
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    # one case is meant to train without validation
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]

CORPUS = {
    "n_train_tokens": 350, "n_validation_tokens": 150, "n_test_tokens": 50, "batch_size": 4, "sequence_length": 12,
    "n_topics": 3, "n_nouns": 40, "n_verbs": 20, "n_adjectives": 10, "n_adverbs": 3, "n_names": 20, "n_facts": 5,
    "layers": ["upos"],
}  # fmt: skip
BATCHES = 8  # of an epoch
MODEL = {"embedding_size": 16, "hidden_size": 16, "num_layers": 2, "dropout": 0.2, "anneal_factor": 4.0}

KINDS = {
    "epochs": {"max_epochs": 2},
    "accumulation": {"max_epochs": 2, "accumulate_grad_batches": 2},
    # validation between the two batches of an update
    "validation in mid-accumulation": {
        "max_epochs": 2,
        "accumulate_grad_batches": 2,
        "val_check_interval": 3,
    },
    # batch 3 and 6 of 8: validation in mid-epoch, and the end of the epoch without one
    "max_steps": {"max_steps": 19, "max_epochs": -1, "val_check_interval": 3},
    "max_steps without validation": {"max_steps": 19, "max_epochs": -1, "limit_val_batches": 0},
    "short epochs": {
        "max_steps": 100,
        "max_epochs": 3,
        "limit_train_batches": 5,
        "check_val_every_n_epoch": 2,
    },
    "validation across epochs": {"max_epochs": 2, "check_val_every_n_epoch": None, "val_check_interval": 5},
}
FAST = ("epochs", "accumulation")


class Watch(L.Callback):
    """What happened after each batch and in each validation."""

    def __init__(self):
        self.batches, self.validations = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.batches.append(
            (trainer.current_epoch, batch_idx, trainer.global_step, float(outputs["loss"]), rate)
        )

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.validations.append((trainer.global_step, float(trainer.callback_metrics["val_loss"])))


def fit(folder, resume_from=None, seed=0, **settings):
    """Train with fresh objects; everything that may differ between two runs."""
    L.seed_everything(seed, verbose=False)
    module = LSTMLanguageModel(**MODEL)
    schedule = Steps(every=4, epochs=True)
    observers = [
        Sparsity(schedule=schedule, matched_size=None, class_min_count=5, log_figures=False),
        LearningCurves(schedule=schedule, log_figures=False),
    ]
    state, watch = RunState(), Watch()
    saver = ScheduledCheckpoint(Steps(every=1, epochs=True), weights_only=False)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, logger=False, default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[state, watch, *observers, saver], **settings,
    )  # fmt: skip
    trainer.fit(module, datamodule=GrammarCorpus(**CORPUS), ckpt_path=resume_from, weights_only=True)
    return {
        "weights": [p.detach().clone() for p in module.parameters()],
        "state": {k: v.clone() for k, v in module.resume_state().items()},
        "batches": watch.batches,
        "validations": watch.validations,
        "tokens": state.tokens,
        "rate": trainer.optimizers[0].param_groups[0]["lr"],
        "best_val_loss": module.best_val_loss,
        "step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "logged_step": trainer.fit_loop.epoch_loop._batches_that_stepped,
        "random": (torch.rand(2).tolist(), np.random.rand()),
    }  # fmt: skip


def observations(folder):
    paths = sorted(Path(folder).glob("observations/*/*"))
    assert all(p.suffix == ".parquet" for p in paths), f"half files: {paths}"
    return {str(p.relative_to(folder)): pd.read_parquet(p) for p in paths}


def assert_same_observations(there, here):
    assert list(there) == list(here)
    for name, table in there.items():
        pd.testing.assert_frame_equal(table, here[name], check_exact=True)


# every kind of position there is in the fast tier: an epoch, a validation in its midst, an update of two batches
@pytest.mark.parametrize(
    "kind", [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_resuming_from_every_position_is_exact(kind, tmp_path):
    whole = fit(tmp_path / "whole", **KINDS[kind])
    seen = observations(tmp_path / "whole")
    assert len(seen) >= 4
    if "val_check_interval" in KINDS[kind]:
        assert whole["rate"] < 20, "the learning rate must drop in this test"
    checkpoints = sorted((tmp_path / "whole" / "resume").glob("step=*.ckpt"))
    assert [int(p.stem[5:]) for p in checkpoints] == list(range(whole["step"] + 1))  # each step once
    updates = BATCHES // KINDS[kind].get("accumulate_grad_batches", 1)
    # the first epoch, its end, and the beginning of the next one have every kind of position; in the slow tier, from
    # the middle of the epoch on, where the first validation is
    for checkpoint in checkpoints[0 if kind in FAST else updates // 2 - 1 : updates + 2]:
        step = int(checkpoint.stem[5:])
        # the run's folder as a kill after this checkpoint may have left it
        folder = tmp_path / f"from{step}"
        for name in seen:
            if int(Path(name).stem) <= step:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tmp_path / "whole" / name, folder / name)
        (folder / "resume").mkdir(parents=True, exist_ok=True)
        own = Path(shutil.copy(checkpoint, folder / "resume"))
        resumed = fit(folder, own, seed=1000 + step, **KINDS[kind])
        here = f"{kind}, resumed from step {step}"
        for quantity in ("batches", "validations"):  # what is left of them, nothing twice
            left = resumed.pop(quantity)
            assert left == whole[quantity][len(whole[quantity]) - len(left) :], f"{quantity} of {here}"
            expected = [entry for entry in whole[quantity] if entry[2 if quantity == "batches" else 0] > step]
            assert len(left) >= len(expected), f"{quantity} of {here}"
        for quantity in ("weights", "state"):
            a, b = whole[quantity], resumed.pop(quantity)
            pairs = zip(a, b, strict=True) if quantity == "weights" else ((a[k], b[k]) for k in a)
            assert all(torch.equal(x, y) for x, y in pairs), f"{quantity} of {here}"
        assert resumed == {k: whole[k] for k in resumed}, here
        assert_same_observations(seen, observations(folder))
        saved = sorted(int(p.stem[5:]) for p in (folder / "resume").iterdir())
        assert saved == list(range(step, whole["step"] + 1)), f"saved of {here}"
        shutil.rmtree(folder)


@pytest.mark.parametrize("stop", [{"max_steps": 11, "max_epochs": -1}, {"max_epochs": 1}])
@pytest.mark.parametrize("schedule", [Steps(at=(), last=True), Steps(at=(), epochs=True, last=False)])
def test_a_finished_run_goes_on_as_if_it_had_not_ended(stop, schedule, tmp_path, monkeypatch):
    longer = {"max_steps": 20, "max_epochs": -1} if "max_steps" in stop else {"max_epochs": 3}
    whole = fit(tmp_path / "whole", **longer)
    init = ScheduledCheckpoint.__init__
    monkeypatch.setattr(ScheduledCheckpoint, "__init__", lambda self, _, **k: init(self, schedule, **k))
    fit(tmp_path / "short", **stop)
    *_, last = sorted((tmp_path / "short" / "resume").glob("*.ckpt"))
    resumed = fit(tmp_path / "short", last, seed=5, **longer)
    assert all(torch.equal(a, b) for a, b in zip(whole["weights"], resumed["weights"], strict=True))
    assert resumed["batches"] == whole["batches"][-len(resumed["batches"]) :]
    assert [resumed[k] for k in ("tokens", "rate", "epoch")] == [
        whole[k] for k in ("tokens", "rate", "epoch")
    ]


# ---------------------------------------------------------------- SIGKILL, through the command line


def config(folder, version):
    saver = {"class_path": "ScheduledCheckpoint"}
    observer = {"schedule": {"every": 2, "epochs": True}, "log_figures": False}
    callbacks = [
        {**saver, "init_args": {"schedule": {"every": 3, "epochs": True}}},
        {**saver, "init_args": {"schedule": {"every": 5}, "weights_only": False, "keep": 2}},
        {"class_path": "LearningCurves", "init_args": observer},
        {"class_path": "Sparsity", "init_args": {**observer, "matched_size": None, "class_min_count": 5}},
    ]
    length = {"max_steps": -1, "max_epochs": 3, "val_check_interval": 0.5, "limit_val_batches": 1.0}
    content = tiny_run(folder, *callbacks, version=version, devices=1, **length)
    content["model"]["init_args"], content["data"]["init_args"] = MODEL, CORPUS
    return {"seed_everything": 3, **content}


KILLER = """
import os, signal
import lightning as L

class Killer(L.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == 13:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def write(path, content):
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def one_line_error(args, capsys):
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 1
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1
    return error[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_a_killed_run_ends_as_one_that_was_not(tmp_path, capsys, interpreter, without_report):
    (tmp_path / "killer.py").write_text(KILLER, encoding="utf-8")
    killer = write(tmp_path / "kill.yaml", {"trainer": {"callbacks+": {"class_path": "killer.Killer"}}})
    killed = write(tmp_path / "killed.yaml", config(tmp_path, "killed"))
    whole = write(tmp_path / "whole.yaml", config(tmp_path, "whole"))
    folder = tmp_path / "killed"

    assert "no checkpoint to resume from" in one_line_error(
        ["fit", "--config", killed, "--ckpt_path", "last"], capsys
    )
    assert not folder.exists() or not list(folder.glob("**/*.ckpt"))

    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [interpreter.executable, "-m", "lmdyn.cli", "fit", "--config", killed, "--config", killer],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [p.name for p in sorted((folder / "resume").iterdir())] == [
        "step=000000005.ckpt", "step=000000010.ckpt",
    ]  # fmt: skip
    assert max(int(Path(name).stem) for name in observations(folder)) == 12

    assert "contains a run" in one_line_error(["fit", "--config", killed], capsys)
    other = ["fit", "--config", killed, "--ckpt_path", "last", "--model.init_args.dropout", "0.5"]
    error = one_line_error(other, capsys)
    assert "dropout: 0.2 in the checkpoint, 0.5 in the configuration" in error

    main(["fit", "--config", killed, "--ckpt_path", "last"])
    main(["fit", "--config", whole])
    assert_same_observations(observations(tmp_path / "whole"), observations(folder))
    for kind in ("checkpoints", "resume"):
        names = [p.name for p in sorted((folder / kind).iterdir())]
        assert names == [p.name for p in sorted((tmp_path / "whole" / kind).iterdir())]
        steps = [0, 3, 6, 8, 9, 12, 15, 16, 18, 21, 24] if kind == "checkpoints" else [20, 24]
        assert names == [f"step={step:09d}.ckpt" for step in steps]
        for name in names:
            a, b = (
                torch.load(tmp_path / run / kind / name, weights_only=True) for run in ("whole", "killed")
            )
            assert a["lmdyn"].pop("ranks", None) is None or kind == "resume"
            b["lmdyn"].pop("ranks", None)
            assert a["lmdyn"] == b["lmdyn"]
            assert a["state_dict"].keys() == b["state_dict"].keys()
            for key in a["state_dict"]:
                assert torch.equal(a["state_dict"][key], b["state_dict"][key]), f"{kind}/{name}: {key}"

    # one curve, without what the killed run wrote after the checkpoint
    events = {run: EventAccumulator(str(tmp_path / run)).Reload() for run in ("whole", "killed")}
    for tag in ("learning_curves/loss", "train_loss", "val_loss"):
        a, b = ([(e.step, e.value) for e in events[run].Scalars(tag)] for run in ("whole", "killed"))
        assert a == b, tag

"""Each run has a folder of its own, whatever its logger."""

import gc
import os
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
import torch
import yaml
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import Logger

from lmdyn.callbacks import LearningCurves, RunState, ScheduledCheckpoint, Steps
from lmdyn.callbacks.training.run_folder import run_folder
from lmdyn.cli.__main__ import main
from tests.callbacks.training.test_updates import Automatic, windows
from tests.cli.tiny_run import tiny_run
from tests.helpers.modules import quiet_trainer
from tests.helpers.ranks import TORCHRUN, run_ranks


class Remote(Logger):
    """Like MLFlow's: a number of the experiment, an id of the run, and perhaps a folder for all of them."""

    experiment = None

    def __init__(self, version, save_dir=None):
        super().__init__()
        self._version, self._dir = version, save_dir

    name = "7"

    @property
    def version(self):
        return self._version

    @property
    def save_dir(self):
        return self._dir

    def log_metrics(self, metrics, step=None):
        pass

    def log_hyperparams(self, params, *args, **kwargs):
        pass


def fit(folder, logger=False, *, seed=0, ckpt_path=None, until=1, **settings):
    saver = ScheduledCheckpoint(Steps(every=1), weights_only=False)
    how = {"max_epochs": until, "limit_train_batches": 3, "log_every_n_steps": 1, "num_sanity_val_steps": 0}
    curves = LearningCurves(schedule=Steps(every=1), log_figures=False)
    trainer = quiet_trainer(folder, RunState(), curves, saver, logger=logger, **{**how, **settings})
    module = Automatic()
    with torch.no_grad():
        module.head.bias += seed
    trainer.fit(module, windows(), ckpt_path=ckpt_path, weights_only=True)
    return trainer


def curve(folder):
    return pd.read_parquet(folder / "observations/learning_curves").drop_duplicates("step")["value"].tolist()


@pytest.fixture
def offline(tmp_path, monkeypatch):
    for name in ("WANDB_SILENT", "WANDB_DISABLE_GIT", "WANDB_DISABLE_CODE"):
        monkeypatch.setenv(name, "true")

    def logger(**settings):
        return WandbLogger(save_dir=str(tmp_path / "wb"), offline=True, **settings)

    yield logger
    wandb = pytest.importorskip("wandb")
    wandb.finish()
    wandb.teardown()


def finished():
    import wandb

    wandb.finish()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_each_run_of_wandb_has_its_folder_and_a_resumed_one_goes_on_in_its_own(tmp_path, offline):
    loggers = [offline(), offline()]
    folders = []
    for seed, logger in enumerate(loggers):
        folders.append(run_folder(fit(tmp_path, logger, seed=seed)))
        finished()
    assert folders == [tmp_path / "wb" / "lightning_logs" / logger.version for logger in loggers]
    first, second = (curve(folder) for folder in folders)
    assert first != second
    again = offline()  # another id
    trainer = fit(tmp_path, again, ckpt_path=folders[0] / "resume/step=000000002.ckpt", until=2)
    assert run_folder(trainer) == folders[0]
    assert not (tmp_path / "wb/lightning_logs" / again.version).exists()
    assert curve(folders[0])[:4] == first
    assert (len(curve(folders[0])), curve(folders[1])) == (7, second)


def test_the_root_holds_one_run_and_further_ones_are_below_it(tmp_path):
    folders = [run_folder(fit(tmp_path, seed=seed)) for seed in range(3)]
    assert folders == [tmp_path, tmp_path / "version_0", tmp_path / "version_1"]
    curves = [curve(folder) for folder in folders]
    assert len({tuple(c) for c in curves}) == 3
    trainer = fit(tmp_path, ckpt_path=folders[1] / "resume/step=000000002.ckpt", until=2)
    assert run_folder(trainer) == folders[1]
    assert [len(curve(folder)) for folder in folders] == [4, 7, 4]
    assert [curve(folder)[:4] for folder in folders] == curves


@pytest.mark.parametrize("place", [None, pytest.param("mlruns", marks=pytest.mark.slow)])
def test_loggers_by_name_and_id(tmp_path, place):
    base = tmp_path / (place or "")
    folder = None if place is None else str(base)
    for version in ("abc", "def", 3):
        found = run_folder(fit(tmp_path, Remote(version, folder)))
        assert found == base / "7" / ("version_3" if version == 3 else version)
    found = [run_folder(fit(tmp_path, Remote(None, folder))) for _ in range(2)]  # without an id
    assert found == [base / "7", base / "7/version_0"]


@pytest.mark.slow
def test_a_folder_of_another_run_is_refused_and_its_own_is_not(tmp_path):
    def logger(version):
        return TensorBoardLogger(tmp_path, name="", version=version)

    fit(tmp_path, logger("a"), seed=1)
    fit(tmp_path, logger("b"), seed=2)
    before = curve(tmp_path / "a")
    with pytest.raises(ValueError, match="contains the observations of another run"):
        fit(tmp_path, logger("a"))
    path = tmp_path / "b/resume/step=000000002.ckpt"
    with pytest.raises(ValueError, match="contains the observations of another run"):
        fit(tmp_path, logger("a"), ckpt_path=path, until=2)
    assert curve(tmp_path / "a") == before
    copies = [tmp_path / "elsewhere/copy.ckpt", tmp_path / "beside_others/step=000000002.ckpt"]
    for copy in copies:
        copy.parent.mkdir()
        copy.write_bytes(path.read_bytes())
    for own in (path, *copies):  # the same run, resumed
        fit(tmp_path, logger("b"), ckpt_path=own, until=2)
        assert len(curve(tmp_path / "b")) == 7


def test_a_moved_run_goes_on_where_it_is(tmp_path):
    fit(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    trainer = fit(tmp_path / "old", ckpt_path=tmp_path / "new/resume/step=000000002.ckpt", until=2)
    assert run_folder(trainer) == tmp_path / "new"
    assert not (tmp_path / "old/observations").exists()


def test_fast_dev_run_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = fit(tmp_path, fast_dev_run=True)
    folder = run_folder(trainer)
    assert (folder / "observations/learning_curves").is_dir()
    assert not list(tmp_path.iterdir())
    del trainer
    gc.collect()
    assert not folder.exists()


def configured(tmp_path, **trainer):
    every = {"schedule": {"every": 1}}
    curves = {"class_path": "LearningCurves", "init_args": every}
    saver = {"class_path": "ScheduledCheckpoint", "init_args": {**every, "weights_only": False}}
    own = {"max_steps": -1, "limit_train_batches": 3, "default_root_dir": str(tmp_path / "runs"), **trainer}
    there = "tests.callbacks.training.test_updates"
    config = tiny_run(tmp_path, curves, saver, **own)
    config |= {"model": {"class_path": f"{there}.Automatic"}, "data": {"class_path": f"{there}.Data"}}
    path = tmp_path / "in.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")

    def run(*words):
        with mock.patch("lmdyn.cli.report.write_report"):
            main(["fit", "--config", str(path), *words])

    return run


@pytest.mark.slow
def test_the_command_line_without_logger(tmp_path, capsys):
    run = configured(tmp_path, logger=False)
    first, second = tmp_path / "runs", tmp_path / "runs/version_0"
    run("--trainer.max_epochs=1")
    run("--trainer.max_epochs=2", "--ckpt_path=last")  # there is one
    assert len(curve(first)) == 7
    run("--trainer.max_epochs=1", "--seed_everything=1")
    with pytest.raises(SystemExit):
        run("--trainer.max_epochs=2", "--ckpt_path=last")
    assert f"expected one run, got {first}, {second}" in capsys.readouterr().err
    run("--trainer.max_epochs=2", f"--ckpt_path={second}/resume/step=000000003.ckpt")
    assert (len(curve(first)), len(curve(second))) == (7, 7)
    assert (second / "config.yaml").is_file()


def rank_main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    for logger in (False, Remote("abc" if rank == 0 else None), False):
        trainer = fit(folder / "runs", logger, strategy="ddp", devices=2)
        with (folder / f"rank{rank}.txt").open("a", encoding="utf-8") as file:
            file.write(f"{run_folder(trainer)}\n")


@pytest.mark.slow
def test_two_ranks_have_the_folder_of_the_first(tmp_path):
    run_ranks(__file__, tmp_path, tmp_path / "cache", **TORCHRUN)
    first, second = ((tmp_path / f"rank{rank}.txt").read_text(encoding="utf-8") for rank in range(2))
    runs = tmp_path / "runs"
    assert first == second == f"{runs}\n{runs}/7/abc\n{runs}/version_0\n"

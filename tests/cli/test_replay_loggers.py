"""Where the curves of a replay go: to the loggers that are named, never among those of the training."""

import logging
import shutil
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
import yaml
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from lmdyn.callbacks import LearningCurves, Sparsity
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.cli.__main__ import main
from lmdyn.cli.replay.replay_loggers import Destination, logger_settings, make_loggers
from tests.cli.tiny_run import at_steps, tiny_run, trained
from tests.helpers.recorded import in_tensorboard
from tests.helpers.wandb_files import offline_runs

CURVES = at_steps("LearningCurves", 0, 2, 4, log_figures=False)


class Bare(Logger):
    """A user's: nothing says where it writes."""

    logged: list = []

    name = version = "bare"

    def log_hyperparams(self, *_, **__):
        """Nothing."""

    def log_metrics(self, metrics, step=None):
        self.logged.append((step, metrics))


class Named(Bare):
    """A user's: its arguments say where it writes, as those of the CSVLogger do."""

    def __init__(self, save_dir: str, name: str = "x", version: int | None = None):
        super().__init__()
        self.where = (save_dir, name, version)


def fitted(folder, loggers, observers):
    """A tiny run."""
    saver = at_steps("ScheduledCheckpoint", 0, 2, 4)
    return trained(folder, tiny_run(folder, saver, *observers, logger=loggers))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose training logged to a CSV file."""
    folder = tmp_path_factory.mktemp("loggers")
    arguments = {"save_dir": str(folder), "name": None, "version": "run"}
    return fitted(folder, {"class_path": "CSVLogger", "init_args": arguments}, [CURVES])


def observed(folder, steps=(0, 2, 4), name="learning_curves"):
    """Each scalar of the observations by its tag and step."""
    tables = {s: pd.read_parquet(Path(folder) / "observations" / name / f"{s:09d}.parquet") for s in steps}
    cls = {"learning_curves": LearningCurves, "sparsity": Sparsity}[name]
    found = {}
    for step, table in tables.items():
        tags = scalar_tags(name, table[cls.is_scalar(table) & table["quantity"].ne("learning_rate")])
        found |= {(tag, step): value for tag, value in tags.items()}
    return found


def in_csv(path):
    """Each value of a CSVLogger's file by its column and step."""
    rows = pd.read_csv(path)
    values = rows.melt("step").dropna()
    assert not values.duplicated(["variable", "step"]).any()
    found = zip(values["variable"], values["step"], values["value"], strict=True)
    return {(name, int(step)): value for name, step, value in found}


def of_observers(values):
    return {key: value for key, value in values.items() if "/" in key[0]}


def test_a_training_logs_to_csv_whatever_its_observers_see(run):
    logged = in_csv(run / "metrics.csv")
    assert of_observers(logged) == pytest.approx(observed(run))
    assert {step for name, step in logged if name == "train_loss"} == {0, 1, 2, 3}  # the training's own


def test_a_replay_leaves_the_trainings_file_alone(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "observations")
    before = (run / "metrics.csv").read_bytes()
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["trainer"]["logger"]["init_args"]["save_dir"] = str(tmp_path)  # where the copy is
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    main(["analyze", str(copy)])
    assert (copy / "metrics.csv").read_bytes() == before
    assert in_csv(copy / "replay" / "version_0" / "metrics.csv") == pytest.approx(observed(run))
    main(["analyze", str(copy)])  # nothing to be logged: no empty folder
    assert [p.name for p in (copy / "replay").iterdir()] == ["version_0"]
    assert not list(copy.rglob("events.out*"))


def test_a_worker_that_slurm_or_torchrun_ranks_second_logs_too(run, tmp_path, monkeypatch, capsys):
    """Lightning's loggers do nothing in processes of rank 1 and above."""
    monkeypatch.setattr(rank_zero_only, "rank", 1)  # as its environment says when Lightning is imported
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    main(["analyze", str(run), "--out", str(tmp_path), "--logger", "TensorBoardLogger"])
    # the first worker never came, so that this one has made everything
    shown = in_tensorboard(tmp_path / "replay")
    assert {step: sum(step == at for of in shown.values() for at, _ in of) for step in (0, 2, 4)} == {
        step: len(observed(run, [step])) for step in (0, 2, 4)
    }
    loss = {
        step: value
        for (tag, step), value in observed(run, [0, 2, 4]).items()
        if tag == "learning_curves/loss"
    }
    assert dict(shown["learning_curves/loss"]) == pytest.approx(loss, rel=1e-6)
    assert rank_zero_only.rank == 1
    assert f"-m tensorboard.main --logdir {tmp_path}/replay" in capsys.readouterr().err


# ---------------------------------------------------------------- where each logger is moved


def moved(tmp_path, own=None, overlays=(), named=(), shard=(0, 1)):
    return logger_settings(own, overlays, named, Destination(tmp_path, "lm", shard))


def test_tensorboard_is_the_default_and_goes_where_it_always_went(tmp_path):
    given = {"save_dir": "runs", "name": "x", "version": 3, "sub_dir": "y"}
    name = "lightning.pytorch.loggers.TensorBoardLogger"
    own = {"class_path": name, "init_args": given, "dict_kwargs": {"purge_step": 7}}
    for one in (None, True, False, "TensorBoardLogger", own):
        (settings,) = moved(tmp_path, one)
        assert settings["init_args"] == {"save_dir": str(tmp_path), "name": "", "version": "replay"}
        assert "dict_kwargs" not in settings


WANDB = {
    "class_path": "lightning.pytorch.loggers.WandbLogger",
    "init_args": {"project": "p", "name": "big", "version": "training", "id": "training", "save_dir": "runs",
                  "offline": True, "log_model": "all", "prefix": "x", "experiment": None},
    "dict_kwargs": {"entity": "lab", "resume": "must", "tags": ["a"]},
}  # fmt: skip


def test_a_named_class_keeps_what_the_configuration_says_of_it(tmp_path):
    (grouped,) = moved(tmp_path, {**WANDB, "dict_kwargs": {"group": "g"}}, shard=(1, 4))
    assert grouped["dict_kwargs"] == {"job_type": "replay", "group": "g"}
    csv = {"class_path": "CSVLogger", "init_args": {"save_dir": "runs", "prefix": "own"}}
    over = {"class_path": "CSVLogger", "init_args": {"save_dir": "runs", "prefix": "over"}}
    (wandb,) = moved(tmp_path, [csv, WANDB], named=["WandbLogger"])
    assert wandb["init_args"]["project"] == "p"
    (found,) = moved(tmp_path, [csv], [over], ["CSVLogger"])
    moved_to = {"save_dir": str(tmp_path), "prefix": "over", "name": "replay", "version": None}
    assert found["init_args"] == moved_to
    (found,) = moved(tmp_path, [csv], named=["CSVLogger"])
    assert found["init_args"]["prefix"] == "own"
    gone = {"class_path": "no_such_package.Logger"}
    for expected, *given in (
        (["CSVLogger"], [csv], [WANDB, csv]),  # the last file counts
        (["CSVLogger", WANDB["class_path"]], [csv, WANDB], [True]),
        (["CSVLogger"], [gone], [], ["CSVLogger"]),
    ):
        assert [settings["class_path"] for settings in moved(tmp_path, *given)] == expected
    assert moved(tmp_path, [csv], [False]) == []
    assert moved(tmp_path, [csv], named=["none"]) == []


def test_a_users_logger_is_moved_where_it_can_be(tmp_path, caplog):
    own = {"class_path": f"{__name__}.Named", "init_args": {"save_dir": "runs", "version": 4}}
    for n in range(2):
        (logger,) = make_loggers(moved(tmp_path, own))
        assert logger.where == (str(tmp_path), "replay", n)
    with caplog.at_level(logging.WARNING, "lmdyn"):
        assert moved(tmp_path, {"class_path": f"{__name__}.Bare"}) == []
    assert "lmdyn leaves out the logger Bare, which has no argument" in caplog.text
    assert f"`--logger {__name__}.Bare`" in caplog.text
    assert moved(tmp_path, named=[f"{__name__}.Bare"]) == [{"class_path": f"{__name__}.Bare"}]


def test_an_unknown_logger_is_one_line(run, tmp_path, capsys):
    for named, message in (
        (["CSVLoger"], "unknown logger 'CSVLoger', did you mean 'CSVLogger'? loggers are "),
        (["nowhere.Logger"], "cannot import 'nowhere.Logger'"),
        (["none", "CSVLogger"], "give either none, or only loggers"),
    ):
        with pytest.raises(SystemExit, match="1"):
            main(["analyze", str(run), "--out", str(tmp_path), *(f"--logger={name}" for name in named)])
        (error,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
        assert message in error


# ---------------------------------------------------------------- Weights & Biases


@pytest.fixture
def offline(monkeypatch):
    quiet = {"MODE": "offline", "SILENT": "true", "CONSOLE": "off", "ERROR_REPORTING": "false", "DISABLE_GIT": "true",
             "DISABLE_CODE": "true", "_DISABLE_STATS": "true"}  # fmt: skip
    patient = {"_SERVICE_WAIT": "300", "INIT_TIMEOUT": "300"}  # on a busy machine
    resuming = {"RUN_ID": "training"}  # as on a cluster; what a logger is given counts first
    for name, value in {**quiet, **patient, **resuming}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    yield
    import wandb

    wandb.teardown()


def logged_in(run):
    """Each value of a W&B run by its name and the training's step; W&B's own steps only count."""
    steps = [entry["_step"] for entry in run["history"]]
    assert all(a < b for a, b in pairwise(steps))
    found = {}
    for entry in run["history"]:
        for name, value in entry.items():
            if "/" in name and name != "trainer/global_step":
                assert (name, entry["trainer/global_step"]) not in found
                found[name, entry["trainer/global_step"]] = value
    return found


def images(run):
    return {key: value for key, value in logged_in(run).items() if key[0].endswith("/filenames")}


def scalars(run):
    return {
        key: v for key, v in logged_in(run).items() if key[0].count("/") and not isinstance(v, (list, str))
    }


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_weights_and_biases_live_and_replayed(tmp_path, capsys):
    """In one process, so that the replay finds the training's run in progress."""
    wandb = {"class_path": "WandbLogger", "init_args": {"project": "p", "name": "lm", "version": "training",
                                                        "save_dir": str(tmp_path / "run")}}  # fmt: skip
    drawn = at_steps("Sparsity", 0, 2, 4, matched_size=None, class_min_count=5)
    run = fitted(tmp_path, wandb, [CURVES, drawn]) / "p" / "training"
    both = {**observed(run), **observed(run, name="sparsity")}
    # the first does its share, and then what is missing of the other's, which finds nothing to do
    for i in (1, 0):
        main(["analyze", str(run), "--out", str(tmp_path / "out"), "--shard", f"{i}/2"])
    main(["analyze", str(run), "--logger", "WandbLogger", "--out", str(tmp_path / "out")])
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("to see the curves: ")]
    import wandb as package

    package.finish()  # the training's
    package.teardown()  # W&B's process, which may still write what finished runs have handed over
    runs = offline_runs(tmp_path)
    assert runs.keys() == {"lm", "lm-replay", "lm-replay-1of2"}
    folders = [runs[f"lm{name}"]["folder"] for name in ("", "-replay-1of2", "-replay")]
    assert said == [f"to see the curves: wandb sync {folder}" for folder in folders]
    for name, found in runs.items():
        assert found["run"].project == "p"
        assert (found["run"].run_id == "training") == (name == "lm")
        assert found["run"].job_type == ("" if name == "lm" else "replay")
        assert found["run"].run_group == ("lm-replay" if "of" in name else "")
        axis = "trainer/global_step"
        assert {found["axes"][f"{observer}/*"] for observer in ("learning_curves", "sparsity")} == {axis}
        numbers = {
            k: v for k, v in scalars(found).items() if not k[0].endswith(("/count", "/width", "/height"))
        }
        assert numbers == pytest.approx(both)
        pictures = images(found)
        assert {step for _, step in pictures} == {4}  # drawn once, at the end
        for files in pictures.values():
            assert all((found["folder"] / "files" / file).stat().st_size > 1000 for file in files)
    assert {entry["train_loss"] for entry in runs["lm"]["history"] if "train_loss" in entry}
    assert not any("train_loss" in entry for name in runs if name != "lm" for entry in runs[name]["history"])

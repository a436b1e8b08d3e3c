"""Every shipped yaml parses, makes its classes, and trains where its data can be had."""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

from lmdyn.callbacks import Observer
from lmdyn.callbacks.run import callbacks_of
from lmdyn.cli.fit import LmdynCLI

ROOT = Path(__file__).parents[1]
PROFILES = sorted((ROOT / "configs").rglob("config.yaml"))  # Snakemake's settings, see test_workflows.py
CONFIGS = sorted(set((ROOT / "configs").rglob("*.yaml")) - set(PROFILES))
OVERLAYS = [
    path
    for path in CONFIGS
    if "class_path: LightningModule" not in path.read_text() and "\nmodel:" not in path.read_text()
]
EXPERIMENTS = [path for path in CONFIGS if path not in OVERLAYS]
BASE = (
    ROOT / "configs" / "quickstart.yaml"
)  # what overlays are laid over that have no language model beside them

SMALL = [
    "--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.max_steps=2", "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false",
    "--model.init_args.embedding_size=4", "--model.init_args.hidden_size=4",
]  # fmt: skip
SMALL_GRAMMAR = [
    "--data.init_args.n_train_tokens=20000", "--data.init_args.n_validation_tokens=1000",
    "--data.init_args.n_test_tokens=1000", "--data.init_args.batch_size=4",
]  # fmt: skip


SMALL_SCAFFOLD = [
    "--data.init_args.n_train_tokens=2000", "--data.init_args.n_validation_tokens=400",
    "--data.init_args.n_test_tokens=400", "--data.init_args.n_rules=10", "--data.init_args.n_outside=1",
    "--data.init_args.n_types=100", "--data.init_args.batch_size=4",
]  # fmt: skip


def base_of(path: Path) -> Path:
    """What an overlay is laid over."""
    return path.with_name("lm.yaml") if path.with_name("lm.yaml").exists() else BASE


def files_of(path: Path) -> list[str]:
    files = [base_of(path), path] if path in OVERLAYS else [path]
    return [argument for file in files for argument in ("--config", str(file))]


def small(file: str, folder: Path) -> str:
    """A copy of a configuration for a tiny corpus: small samples, a short look, no figures at each step."""
    document = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    for callbacks in document["trainer"].values():
        for callback in callbacks if isinstance(callbacks, list) else []:
            if callback["class_path"] in ("Sparsity", "LearningCurves"):
                callback["init_args"] |= {"log_figures": False, "max_tokens": 1000}
            if callback["class_path"] == "Sparsity":
                callback["init_args"] |= {"class_min_count": 5, "matched_size": 5}
    copy = folder / f"small-{Path(file).name}"
    copy.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(copy)


def small_files_of(path: Path, folder: Path) -> list[str]:
    return [file if file == "--config" else small(file, folder) for file in files_of(path)]


def data_class(path: Path) -> str:
    document = yaml.safe_load((base_of(path) if path in OVERLAYS else path).read_text(encoding="utf-8"))
    return str(document["data"]["class_path"])


def name(path: Path) -> str:
    return str(path.relative_to(ROOT / "configs"))


def plain(value: Any) -> Any:
    """A value with the types of everything in it, to compare."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(v) for v in value]
    return type(value).__qualname__, value if isinstance(value, str | int | float | bool | None) else repr(
        value
    )


def settings(cli: LmdynCLI) -> dict[str, Any]:
    """What the instances were made with."""
    described = {type(o).__qualname__: plain(dict(o.hparams)) for o in (cli.model, cli.datamodule)}
    for callback in callbacks_of(cli.trainer):
        if isinstance(callback, Observer):
            described[callback.name] = plain(dict(callback.hparams))
        elif hasattr(callback, "schedule"):
            described[str(callback.state_key)] = plain(vars(callback))
    return described


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """Runs go to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMDYN_DATA", os.environ.get("LMDYN_DATA", str(tmp_path)))
    return tmp_path


def test_there_are_configs():
    assert BASE in EXPERIMENTS
    assert OVERLAYS


@pytest.mark.parametrize("path", CONFIGS, ids=name)
def test_opens_with_its_origin(path):
    header = "".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    for field in ("Publication:", "Command:", "Expected:", "Measured:"):
        assert field in header
    assert f"configs/{name(path)}" in header


@pytest.mark.parametrize("path", CONFIGS, ids=name)
def test_saved_configuration_gives_the_same_types_and_values(path, in_tmp):
    first = LmdynCLI(files_of(path), run=False)
    first.parser.save(first.config, in_tmp / "saved.yaml", skip_none=False, overwrite=True, multifile=False)
    again = LmdynCLI(["--config", str(in_tmp / "saved.yaml")], run=False)
    assert settings(again) == settings(first)
    observers = [c for c in callbacks_of(first.trainer) if isinstance(c, Observer)]
    assert bool(observers) == (path.with_name("config.yaml") not in PROFILES or path.name == "observers.yaml")
    assert all(o.name in settings(first) for o in observers)


def test_settings_can_differ(in_tmp):
    """The control of the comparison above."""
    first = LmdynCLI(files_of(BASE), run=False)
    other = LmdynCLI([*files_of(BASE), "--model.init_args.dropout=0"], run=False)
    assert settings(other) != settings(first)


def own_vocabulary(path: Path) -> list[str]:
    """A tokenizer of its own, where the chain of runs makes one for all."""
    return ["--data.init_args.tokenizer=null"] if "tokenizer: runs/" in path.read_text() else []


SMALL_DATA = {"GrammarCorpus": SMALL_GRAMMAR, "ScaffoldCorpus": SMALL_SCAFFOLD}

# what observes a chain's models needs all of them: test_workflows.py
ALONE = [p for p in CONFIGS if p.name != "observers.yaml"]


@pytest.mark.parametrize("path", [p for p in ALONE if data_class(p) in SMALL_DATA], ids=name)
def test_trains_and_observes(path, in_tmp):
    sizes = SMALL_DATA[data_class(path)]
    cli = LmdynCLI(["fit", *small_files_of(path, in_tmp), *SMALL, *sizes, *own_vocabulary(path)])
    check_run(cli)


@pytest.mark.realdata
@pytest.mark.parametrize(
    "path", [p for p in EXPERIMENTS if "${LMDYN_DATA}" in p.read_text(encoding="utf-8")], ids=name
)
@pytest.mark.skipif("LMDYN_DATA" not in os.environ, reason="LMDYN_DATA is not set")
def test_trains_and_observes_real_data(path, in_tmp):
    cli = LmdynCLI(["fit", *small_files_of(path, in_tmp), *SMALL, *own_vocabulary(path)])
    check_run(cli)


def check_run(cli: LmdynCLI) -> None:
    assert cli.trainer.global_step == 2
    assert all(torch.isfinite(p).all() for p in cli.model.parameters())
    run = Path(cli.trainer.log_dir or "")
    for observer in (c for c in callbacks_of(cli.trainer) if isinstance(c, Observer)):
        observations = pd.read_parquet(run / "observations" / observer.name)
        assert {0, 2} <= set(observations["step"])
    assert (run / "report" / "index.html").exists() == (run / "observations").is_dir()
    assert (run / "checkpoints" / "step=000000002.ckpt").exists()
    assert (run / "resume" / "step=000000002.ckpt").exists()

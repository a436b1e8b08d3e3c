"""Replay over checkpoints, and the report."""

import json
import shutil
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
import torch
import yaml

from lmdyn.callbacks import LearningCurves
from lmdyn.cli.__main__ import main
from lmdyn.cli.analyze import end_tokens
from lmdyn.cli.commands import parse_shard
from lmdyn.cli.replay.subject import _run_config
from lmdyn.datamodules import GrammarCorpus, PretrainingCorpus
from lmdyn.models import LSTMLanguageModel
from lmdyn.runs.checkpoint_files import find_checkpoints, load_weights
from lmdyn.runs.observed_run import RunFolder, SeedPair
from lmdyn.runs.store import ObservationStore
from tests.cli.tiny_run import at_steps, tiny_run, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    observer = at_steps("LearningCurves", 0, 2, 4, log_figures=False)
    return trained(folder, tiny_run(folder, at_steps("ScheduledCheckpoint", 0, 2, 4), observer))


def curves(folder):
    return pd.read_parquet(Path(folder) / "observations" / "learning_curves")


def with_another(run, folder):
    """The command with an overlay that adds an observer."""
    added = {"class_path": "Sparsity", "init_args": {"pos_classes": False, "max_tokens": 100}}
    folder.mkdir(exist_ok=True)
    (folder / "more.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks+": [added]}}))
    return ["analyze", str(run), "--out", str(folder), "--config", str(folder / "more.yaml"), "--logger=none"]


@pytest.mark.slow
def test_other_observers_by_an_overlay(run, tmp_path):
    main(with_another(run, tmp_path))
    assert sorted(p.name for p in (tmp_path / "observations").iterdir()) == ["learning_curves", "sparsity"]
    sparsity = pd.read_parquet(tmp_path / "observations" / "sparsity")
    assert sorted(sparsity["step"].unique()) == [0, 2, 4]
    assert not any(run.glob(".analyze*"))
    main([*with_another(run, tmp_path / "only"), "--only", "spars*"])
    assert [p.name for p in (tmp_path / "only" / "observations").iterdir()] == ["sparsity"]
    with pytest.raises(SystemExit, match="1"):
        main([*with_another(run, tmp_path / "only"), "--only", "svcca"])


@pytest.mark.parametrize("kind", [pytest.param("of the training", marks=pytest.mark.slow), "saved"])
def test_the_yaml_of_a_training_gives_its_observers(run, tmp_path, capsys, kind):
    """What is of a training only is left out, and named in one line: devices, other callbacks, model and data."""
    path = run.parent / "in.yaml" if kind == "of the training" else run / "config.yaml"
    given = yaml.safe_load(path.read_text())
    given["trainer"] |= {"accelerator": "gpu", "devices": 8, "strategy": "ddp"}
    given["trainer"]["callbacks"] += ["ModelCheckpoint", {"class_path": "RichProgressBar"}]
    given |= {"ckpt_path": "last"}
    (tmp_path / "training.yaml").write_text(yaml.safe_dump(given))
    command = [str(run), "--out", str(tmp_path), "--device=cpu", "--config", str(tmp_path / "training.yaml")]
    main(["analyze", *command])
    pd.testing.assert_frame_equal(curves(tmp_path), curves(run), check_exact=True)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "and ignores" in line]
    assert line.startswith(f"lmdyn uses the observers of {tmp_path}/training.yaml, and ignores ")
    assert ", and ignores ckpt_path, model, data, " in line
    main(["analyze", *command, "--status"])
    assert "learning_curves" in capsys.readouterr().out


@pytest.mark.slow
def test_what_is_observed_and_where_is_said_in_the_command(run, tmp_path, capsys):
    def steps(out, *words, observer="weight_spectra"):
        main(["analyze", *words, "--out", str(tmp_path / out), "--logger=none"])
        names = sorted(p.name for p in (tmp_path / out / "observations").iterdir())
        assert names == [observer]
        return sorted(int(p.stem) for p in (tmp_path / out / "observations" / observer).glob("*.parquet"))

    few = ["--observe", "WeightSpectra"]
    assert steps("all", str(run), *few) == [0, 2, 4]
    assert steps("one", str(run), *few, "--checkpoints", "2") == [2]
    assert steps("from", str(run), "--observe", "weight_spectra", "--checkpoints", "1:4") == [2, 4]
    assert steps("named", str(run), *few, "--checkpoints", "step=*4.ckpt") == [4]
    assert steps("file", str(run / "checkpoints" / "step=000000002.ckpt"), *few) == [2]
    assert steps("class", str(run), "--only", "LearningCurves", observer="learning_curves") == [0, 2, 4]
    for words, said in (
        ([*few, "--checkpoints", "7"], "selects no checkpoint: choose from the steps 0, 2, 4"),
        (["--observe", "WeightSpectrum"], "unknown observer 'WeightSpectrum', did you mean 'WeightSpectra'?"),
    ):
        with pytest.raises(SystemExit, match="1"):
            main(["analyze", str(run), "--out", str(tmp_path / "none"), *words])
        assert said in capsys.readouterr().err


def test_a_run_says_who_it_is(run, tmp_path):
    """Next to its config.yaml, too; and a run without one file is read by the other."""
    about = json.loads((run / "run.json").read_text())
    assert about["model"]["class"].endswith("LSTMLanguageModel")
    assert about["seed"] == {"value": 0, "known_from": "seed_everything"}
    folder = shutil.copytree(run, tmp_path / "run")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"seed_everything": True}))
    assert RunFolder(folder).seeds == SeedPair(0)
    (folder / "run.json").unlink()
    assert RunFolder(folder).seeds == SeedPair()
    assert RunFolder(folder).condition == RunFolder(run).condition
    words = [
        "--observe",
        "LearningCurves",
        "--data",
        __file__,
        "--out",
        str(tmp_path / "out"),
        "--logger=none",
    ]
    main(["analyze", str(run), *words])
    folders = [f / "observations" / "learning_curves" for f in (run, tmp_path / "out")]
    own, other = (ObservationStore(f).about()["settings"]["probe_set"] for f in folders)
    assert own != other


def test_a_report_of_the_folder_around_a_run(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "runs" / "mine")
    replaced = tmp_path / "runs" / "mine" / "later_steps" / "20261129T000441Z"
    shutil.copytree(run / "observations", replaced / "observations")
    with mock.patch("lmdyn.cli.report.write_report") as write:
        main(["report", str(tmp_path)])
    assert write.call_args.args == ([tmp_path / "runs" / "mine"], tmp_path / "runs" / "mine" / "report")
    shutil.copytree(run, tmp_path / "runs" / "other")
    with pytest.raises(SystemExit, match="1"):
        main(["report", str(tmp_path)])
    assert "contains 2 runs: give runs to draw, such as" in capsys.readouterr().err


def test_prepare_reads_a_saved_configuration_of_other_devices(run, tmp_path, capsys):
    given = yaml.safe_load((run / "config.yaml").read_text()) | {"ckpt_path": "last"}
    given["trainer"] |= {"accelerator": "gpu", "devices": 8}
    (tmp_path / "saved.yaml").write_text(yaml.safe_dump(given))
    main(["prepare", "--config", str(tmp_path / "saved.yaml")])
    said = capsys.readouterr().err.splitlines()
    assert "lmdyn ignores these options, which only `fit` uses: ckpt_path last" in said
    assert said[-1] == "data prepared"


class CheckpointCurves(LearningCurves):
    """Learning curves of checkpoints."""


@pytest.mark.slow
@pytest.mark.parametrize("as_list", [True, False])
def test_a_users_observer_may_be_single_and_be_called_anything(run, tmp_path, as_list):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "observations")
    config = yaml.safe_load((copy / "config.yaml").read_text())
    own = {"class_path": f"{__name__}.CheckpointCurves"}
    config["trainer"]["callbacks"] = (
        [own, {"class_path": "lmdyn.callbacks.ScheduledCheckpoint"}] if as_list else own
    )
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    main(["analyze", str(copy), "--checkpoints", str(copy / "checkpoints" / "step=000000002.ckpt")])
    assert [p.name for p in (copy / "observations").iterdir()] == ["checkpoint_curves"]


def test_a_checkpoint_that_does_not_fit_names_what_does_not(run):
    path = run / "checkpoints" / "step=000000002.ckpt"
    weights = torch.load(path, weights_only=True)["state_dict"]
    model = LSTMLanguageModel(vocab_size=len(weights["decoder.weight"]), embedding_size=8, hidden_size=8)
    weights |= {"decoder.extra": torch.zeros(1), "embedding.weight": weights["embedding.weight"][:, :3]}
    del weights["decoder.bias"]
    expected = (
        r"missing in the checkpoint: decoder\.bias; not in the model: decoder\.extra; "
        r"embedding\.weight: \(\d+, 3\) in the checkpoint, \(\d+, 8\) in the model"
    )
    with pytest.raises(ValueError, match=expected):
        load_weights(model, weights, path)


def test_of_a_checkpoint_only_numbers_are_configuration(run, tmp_path):
    """A text could name a class, which would be imported for an argument that the configuration leaves open."""
    checkpoint = torch.load(run / "checkpoints" / "step=000000002.ckpt", weights_only=True)
    checkpoint["hyper_parameters"].update(init_range="os.system", dropout=0.5)
    torch.save(checkpoint, tmp_path / "step=000000002.ckpt")
    config = yaml.safe_load((run / "config.yaml").read_text())
    arguments = config["model"]["init_args"]
    arguments |= {"vocab_size": None, "init_range": None, "dropout": None}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    found = _run_config(tmp_path, [tmp_path / "step=000000002.ckpt"])["model"]["init_args"]
    assert (found["init_range"], found["dropout"]) == (None, 0.5)
    assert found["vocab_size"] > 0


def test_finding_checkpoints(run, tmp_path):
    found = find_checkpoints(str(run / "checkpoints" / "step=00000000[02].ckpt"))
    assert list(found) == [0, 2]
    shutil.copy(run / "checkpoints" / "step=000000002.ckpt", tmp_path / "epoch=1.ckpt")
    assert list(find_checkpoints(str(tmp_path))) == [2]  # from inside
    own = shutil.copy(tmp_path / "epoch=1.ckpt", tmp_path / "step=000000002.ckpt")
    assert find_checkpoints(str(tmp_path)) == {2: own}  # the other is of a ModelCheckpoint
    own.rename(tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match="both have step 2"):
        find_checkpoints(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no checkpoints"):
        find_checkpoints(str(tmp_path / "none"))
    (tmp_path / "stepless").mkdir()
    torch.save({"state_dict": {}}, tmp_path / "stepless" / "epoch=1.ckpt")
    with pytest.raises(ValueError, match="has no step in its name or in an entry global_step"):
        find_checkpoints(str(tmp_path / "stepless"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "x.ckpt").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        find_checkpoints(str(tmp_path / "broken"))


def test_shards(monkeypatch):
    assert parse_shard("0/3") == (0, 3)
    for wrong in ("3/3", "-1/2", "x", "1"):
        with pytest.raises(ValueError, match="expected i/n"):
            parse_shard(wrong)
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    assert parse_shard(None) == (0, 1)
    for names, found in ((("SLURM_PROCID", "SLURM_NTASKS"), (2, 5)), (("RANK", "WORLD_SIZE"), (1, 2))):
        for name, number in zip(names, found, strict=True):
            monkeypatch.setenv(name, str(number))
        assert parse_shard(None) == found
    for rank, size in (("5", "2"), ("0", "0"), ("x", "2")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", size)
        with pytest.raises(ValueError, match=f"RANK/WORLD_SIZE is '{rank}/{size}'"):
            parse_shard(None)


def test_end_tokens_that_others_models_may_not_know_are_said():
    """Only where a causal model reads them: sentences of masked models end as in their pretraining."""
    (said,) = end_tokens([GrammarCorpus(), None, GrammarCorpus(eos=True), GrammarCorpus(eos=False)])
    assert said.startswith(
        "GrammarCorpus puts the tokenizer's end token after each document or sentence (`eos: true`)"
    )
    assert not end_tokens([GrammarCorpus(eos=False), PretrainingCorpus(GrammarCorpus()), [{"input_ids": 1}]])
    assert end_tokens([PretrainingCorpus(GrammarCorpus(), objective="causal")])


def test_a_checkpoint_under_the_name_of_another_step_is_told(run, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    saved = folder / "checkpoints"
    (saved / "step=000000004.ckpt").rename(saved / "step=000000003.ckpt")
    main(["analyze", str(folder), "--logger", "none"])
    assert "contains step 4; lmdyn uses step 3" in capsys.readouterr().err

"""The Trainer's subcommands by the command line, and mixed precision under observers."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pandas as pd
import pytest
import torch
import yaml
from lightning.pytorch.utilities import rank_zero_only

from lmdyn.cli.__main__ import main
from lmdyn.cli.fit import LmdynCLI
from lmdyn.cli.training.progress_lines import ProgressLines
from tests.cli.tiny_run import tiny_run


@pytest.fixture
def config(tmp_path):
    def write(version="run", **trainer):
        small = {"matched_size": None, "class_min_count": 5, "log_figures": False}
        callbacks = [{"class_path": "ScheduledCheckpoint"}, {"class_path": "Sparsity", "init_args": small}]
        own = {"max_steps": -1, "max_epochs": 1, "limit_val_batches": 1.0}
        content = tiny_run(tmp_path, *callbacks, version=version, **{**own, **trainer})
        path = tmp_path / f"{version}.yaml"
        path.write_text(yaml.safe_dump(content))
        return str(path)

    return write


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_a_trained_run_is_validated_tested_and_predicted_and_its_configuration_stays(
    config, tmp_path, capsys
):
    main(["fit", "--config", config()])
    saved = (tmp_path / "run" / "config.yaml").read_text()
    assert yaml.safe_load(saved)["trainer"]["max_epochs"] == 1
    last = str(max((tmp_path / "run" / "checkpoints").glob("*.ckpt")))
    for command in ("validate", "test", "predict"):
        main([command, "--config", config(), "--ckpt_path", last])
    assert (tmp_path / "run" / "config.yaml").read_text() == saved
    printed = capsys.readouterr().out
    assert "val_perplexity" in printed
    assert "test_perplexity" in printed


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_observations_under_mixed_precision_are_float32(config, tmp_path):
    """The same weights give the same observations, whatever precision the training runs in."""
    main(["fit", "--config", config("mixed", precision="bf16-mixed", max_steps=2)])
    main(["analyze", str(tmp_path / "mixed"), "--out", str(tmp_path / "replayed")])
    live = pd.read_parquet(tmp_path / "mixed" / "observations" / "sparsity")
    step = live["step"].max()
    replayed = pd.read_parquet(tmp_path / "replayed" / "observations" / "sparsity")
    pd.testing.assert_frame_equal(
        live[live["step"].eq(step)].reset_index(drop=True),
        replayed[replayed["step"].eq(step)].reset_index(drop=True),
    )
    weights = torch.load(max((tmp_path / "mixed" / "checkpoints").glob("*.ckpt")), weights_only=True)[
        "state_dict"
    ]
    assert all(w.dtype == torch.float32 for w in weights.values())


def test_whole_numbers_may_be_written_with_a_point_or_an_exponent(config, tmp_path, capsys):
    """Only where nothing else is accepted: 1.0 of the batches is not one batch, and a version is a name."""
    (tmp_path / "numbers.yaml").write_text(
        "trainer: {max_steps: 1e6, limit_val_batches: 1.0, accumulate_grad_batches: 2.0, callbacks: "
        "[{class_path: Sparsity, init_args: {max_tokens: 1e3, schedule: {every: 12.0, at: [0, 1e2], "
        "words: babylm, tokens: [1e3]}}}]}\n"
        "data: {init_args: {batch_size: 8.0}}\n"
    )
    given = [config(version="1.0"), str(tmp_path / "numbers.yaml")]
    with pytest.raises(SystemExit):
        main(["fit", *(f"--config={path}" for path in given), "--trainer.max_epochs=1e1", "--print_config"])
    found = yaml.safe_load(capsys.readouterr().out)
    trainer, (sparsity,) = found["trainer"], found["trainer"]["callbacks"]
    assert (trainer["max_steps"], trainer["max_epochs"], trainer["accumulate_grad_batches"]) == (10**6, 10, 2)
    assert isinstance(trainer["limit_val_batches"], float)
    assert trainer["logger"]["init_args"]["version"] == "1.0"
    assert sparsity["init_args"]["max_tokens"] == 1000
    assert sparsity["init_args"]["schedule"] | {"at": list(sparsity["init_args"]["schedule"]["at"])} == {
        "every": 12, "per_decade": None, "at": [0, 100], "epochs": False, "last": True, "tokens": [1000],
        "words": "babylm"
    }  # fmt: skip
    assert found["data"]["init_args"]["batch_size"] == 8


@pytest.mark.slow
def test_ddp_spawn_trains_and_observes(config, tmp_path):
    """In a process of its own: the spawned ones import its main module."""
    given = config(max_steps=2, strategy="ddp_spawn", devices=2, limit_val_batches=0)
    subprocess.run([sys.executable, "-m", "lmdyn.cli", "fit", "--config", given], check=True)
    steps = [p.stem for p in (tmp_path / "run" / "observations").rglob("*.parquet")]
    assert sorted(map(int, steps)) == [0, 2]
    assert (tmp_path / "run" / "report" / "index.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_a_checkpoint_is_a_file_of_this_machine(config, tmp_path, monkeypatch, capsys, command):
    """Lightning would fetch an address, and unpickle what it finds there; a sharded folder is unpickled too."""
    (tmp_path / "a_folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", lambda *_, **__: pytest.fail("fetched"))
    given = ["http://127.0.0.1:9/x.ckpt", "memory://x.ckpt", "best", "last", "a_folder", "not_there.ckpt"]
    for path in given[:1] if command in ("validate", "predict") else given:
        with pytest.raises(SystemExit):
            main([command, "--config", config(callbacks=[]), "--ckpt_path", path])
        said = capsys.readouterr().err
        begins = (
            "no checkpoint to resume from" if (command, path) == ("fit", "last") else f"checkpoint {path}"
        )
        assert said.count(begins) == 1
        assert "Traceback" not in said


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_every_subcommand_reads_weights_only(config, monkeypatch, command):
    seen = []
    monkeypatch.setattr(L.Trainer, command, lambda *_, **kwargs: seen.append(kwargs["weights_only"]))
    monkeypatch.setattr(LmdynCLI, f"after_{command}", lambda _: None, raising=False)
    main([command, "--config", config()])
    assert seen == [True]


def test_a_report_that_fails_is_one_line_and_no_success(config, tmp_path, monkeypatch, capsys, survived):
    monkeypatch.setattr("lmdyn.cli.report.write_report", lambda *_: {}["a bug"])
    with pytest.raises(SystemExit, match="1"):
        main(["fit", "--config", config(max_steps=1)])
    said = capsys.readouterr().err.splitlines()
    (error,) = [line for line in said if "error:" in line]
    survived.clear()
    assert (
        f"the report failed; to write the report, run `lmdyn report {tmp_path / 'run'}` (KeyError: " in error
    )
    assert not any("Traceback" in line or "stopped at step" in line for line in said)
    assert list((tmp_path / "run" / "observations").rglob("000000001.parquet"))


@pytest.mark.slow
@pytest.mark.parametrize("none", [{"max_steps": 0}, {"limit_train_batches": 0}])
def test_the_untrained_model_is_observed_and_saved_if_there_is_nothing_to_train(config, tmp_path, none):
    main(["fit", "--config", config(**none)])
    run = tmp_path / "run"
    assert [p.name for p in (run / "observations").rglob("*.parquet")] == ["000000000.parquet"]
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step=000000000.ckpt"]
    assert (run / "report" / "index.html").is_file()
    main(["analyze", str(run), "--out", str(tmp_path / "replayed"), "--device", "cpu"])
    live, replayed = (pd.read_parquet(f / "observations" / "sparsity") for f in (run, tmp_path / "replayed"))
    pd.testing.assert_frame_equal(live, replayed, check_exact=True)


def test_a_later_list_of_callbacks_replaces_and_a_plus_appends(config, tmp_path, capsys):
    def callbacks(content):
        (tmp_path / "over.yaml").write_text(yaml.safe_dump({"trainer": content}))
        with pytest.raises(SystemExit):
            main(["fit", "--config", config(), "--config", str(tmp_path / "over.yaml"), "--print_config"])
        found = yaml.safe_load(capsys.readouterr().out)["trainer"]["callbacks"]
        return [(c["class_path"].split(".")[-1], c["init_args"].get("matched_size")) for c in found]

    sparsity = {"class_path": "Sparsity", "init_args": {"min_count": 2}}
    own = [("ScheduledCheckpoint", None), ("Sparsity", None)]
    assert callbacks({"max_steps": 3}) == own
    # the default again, not the earlier file's
    assert callbacks({"callbacks": [sparsity]}) == [("Sparsity", 120)]
    named = {**sparsity, "init_args": {"name": "more"}}
    assert callbacks({"callbacks+": [named]}) == [*own, ("Sparsity", 120)]


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_a_start_that_failed_can_be_repeated_and_a_run_is_never_overwritten(config, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--config", config(max_steps=1), '--trainer.callbacks.sites={"h9": "nowhere"}'])
    assert (tmp_path / "run" / "config.yaml").exists()
    main(["fit", "--config", config(max_steps=1)])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["fit", "--config", config(max_steps=1)])
    assert "contains a run" in capsys.readouterr().err


def test_every_rank_refuses_a_used_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    (tmp_path / "config.yaml").touch()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".step=000000000.ckpt.tmp").touch()  # of a killed process
    this = SimpleNamespace(trainer=SimpleNamespace(callbacks=[]))
    LmdynCLI._refuse_used_folder(this, tmp_path)
    (tmp_path / "checkpoints" / "step=000000000.ckpt").touch()
    with pytest.raises(ValueError, match="contains a run"):
        LmdynCLI._refuse_used_folder(this, tmp_path)


class Terminate(L.Callback):
    def on_train_batch_end(self, *_):
        os.kill(os.getpid(), signal.SIGTERM)


class Interrupt(L.Callback):
    def on_train_batch_end(self, *_):
        raise KeyboardInterrupt


def stopped(config, capsys, how="Interrupt", schedule=(1,), **trainer):
    """What a run says at its end that is stopped after its first update."""
    full = {"schedule": {"at": list(schedule), "last": False}, "weights_only": False}
    saver = {"class_path": "ScheduledCheckpoint", "init_args": full}
    callbacks = [*([saver] if schedule else []), {"class_path": f"{__name__}.{how}"}]
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config", config(callbacks=callbacks, **trainer)])
    (said,) = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("the training stopped at step 1")
    ]
    return stop.value.code, said


def test_a_stopped_run_says_so_and_how_to_go_on(config, capsys):
    goes_on = "the training stopped at step 1; to resume from {}, run the same command with --ckpt_path {}"
    code, said = stopped(config, capsys, "Terminate")
    path = said.rpartition(" ")[2]
    assert (code, said) == (143, goes_on.format("step 1", path))
    assert path.endswith("resume/step=000000001.ckpt")
    assert Path(path).exists()
    assert stopped(config, capsys, schedule=(9,), version="b") == (1, goes_on.format("the beginning", "last"))


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_where_no_bar_can_be_drawn_lines_say_where_a_training_is(config, capsys, monkeypatch):
    monkeypatch.setattr(ProgressLines.__init__, "__defaults__", (0.0, 0.0))
    for quiet, steps in ((False, [1, 2, 3, 4]), (True, [])):
        main(["fit", "--config", config(f"{quiet}", max_steps=4, enable_progress_bar=not quiet)])
        said = [
            line.split(",")[0]
            for line in capsys.readouterr().err.splitlines()
            if "updates per second" in line
        ]
        assert said == [f"step {n} of 4" for n in steps]

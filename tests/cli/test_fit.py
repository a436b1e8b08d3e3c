"""The Trainer's subcommands by the command line, and mixed precision under observers."""

import pandas as pd
import pytest
import torch
import yaml

from lmdyn.cli.__main__ import main

DATA = {"n_train_tokens": 1500, "n_validation_tokens": 300, "n_test_tokens": 200, "n_nouns": 40, "n_verbs": 30,
        "n_adjectives": 20, "n_adverbs": 10, "n_names": 20, "n_facts": 10, "batch_size": 8,
        "sequence_length": 20}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    def write(version="run", **trainer):
        content = {
            "trainer": {
                "max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False,
                "logger": {"class_path": "TensorBoardLogger",
                           "init_args": {"save_dir": str(tmp_path), "name": None, "version": version}},
                "callbacks": [
                    {"class_path": "ScheduledCheckpoint"},
                    {"class_path": "Sparsity", "init_args": {"matched_size": None, "class_min_count": 5}},
                ],
                **trainer,
            },
            "model": {"class_path": "LSTMLanguageModel", "init_args": {"embedding_size": 8, "hidden_size": 8}},
            "data": {"class_path": "GrammarCorpus", "init_args": DATA},
        }  # fmt: skip
        path = tmp_path / f"{version}.yaml"
        path.write_text(yaml.safe_dump(content))
        return str(path)

    return write


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ["--trainer.callbacks+=Sparsity", "--trainer.callbacks.matched_size=100000"],
            "observers are called 'sparsity'",
        ),
        (["--data.init_args.n_train_tokens=0"], "n_train_tokens"),
        (["--model.init_args.tie_weights=true", "--model.init_args.hidden_size=9"], "tie_weights expects"),
        (["--ckpt_path=/nowhere/step=000000001.ckpt"], "there is no checkpoint /nowhere"),
    ],
)
def test_a_mistake_is_one_line(config, capsys, change, message):
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config", config(), *change])
    assert stop.value.code != 0
    lines = [line for line in capsys.readouterr().err.splitlines() if message in line]
    assert len(lines) == 1
    assert "Traceback" not in lines[0]

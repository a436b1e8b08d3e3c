"""A tiny training, which tests of commands observe, change and go on with."""

from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from lmdyn.cli.__main__ import main
from tests.helpers.small_runs import DATA

__all__ = ["FEW_WORDS", "at_steps", "tiny_run", "trained"]

FEW_WORDS = {"n_train_tokens": 600, "n_validation_tokens": 60, "batch_size": 4, "sequence_length": 10}


def at_steps(cls: str, *steps: int, **arguments: Any) -> dict[str, Any]:
    """A callback at these steps."""
    return {"class_path": cls, "init_args": {"schedule": {"at": list(steps)}, **arguments}}


def tiny_run(
    folder: Path,
    *callbacks: Any,
    version: str | None = "run",
    size: int = 8,
    data: Any = None,
    **trainer: Any,
) -> dict[str, Any]:
    """The configuration of four updates of an LSTM, in the folder's ``run``."""
    logger = {"save_dir": str(folder), "name": None, "version": version}
    return {
        "trainer": {
            "max_steps": 4, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False,
            "log_every_n_steps": 1, "limit_val_batches": 0, "callbacks": list(callbacks),
            "logger": {"class_path": "TensorBoardLogger", "init_args": logger}, **trainer,
        },
        "model": {"class_path": "LSTMLanguageModel", "init_args": {"embedding_size": size, "hidden_size": size}},
        "data": {"class_path": "GrammarCorpus",
                 "init_args": {**DATA, "cache_dir": str(folder / "cache"), **(data or {})}},
    }  # fmt: skip


def trained(folder: Path, content: dict[str, Any]) -> Path:
    """The run of a configuration, without its report."""
    (folder / "in.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with mock.patch("lmdyn.cli.report.write_report"):
        main(["fit", "--config", str(folder / "in.yaml")])
    return folder / "run"

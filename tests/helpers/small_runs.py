"""Runs that are small enough to be damaged, killed and gone on with: text, encoder, stream, configuration."""

from pathlib import Path

import pandas as pd
import torch
import yaml

from lmdyn.cli.__main__ import main
from lmdyn.datamodules import GrammarCorpus

GRAMMAR = {
    "n_train_tokens": 500, "n_validation_tokens": 150, "n_test_tokens": 50, "n_topics": 3, "n_nouns": 40, "n_verbs": 20,
    "n_adjectives": 10, "n_adverbs": 3, "n_names": 20, "n_facts": 5,
}  # fmt: skip
PIECES = {**GRAMMAR, "vocabulary": "wordpiece", "vocab_size": 200}
ENCODER = {
    "hidden_size": 16, "embedding_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip


def stream_files(folder):
    """A stream's files in a folder: the documents of the grammar, and its tokenizer."""
    corpus = GrammarCorpus(**{**PIECES, "n_train_tokens": 1500}, cache_dir=str(folder / "cache"))
    corpus.prepare_data()
    corpus.tokenizer.save_pretrained(str(folder / "tokenizer"))
    texts = [" ".join(" ".join(s.words) for s in d) for d in corpus.documents("train")]
    for part in range(2):
        pd.DataFrame({"text": texts[part::2]}).to_parquet(folder / f"{part}.parquet")
    return folder


DATA = {"n_train_tokens": 1500, "n_validation_tokens": 300, "n_test_tokens": 200, "n_nouns": 40, "n_verbs": 30,
        "n_adjectives": 20, "n_adverbs": 10, "n_names": 20, "n_facts": 10, "batch_size": 8,
        "sequence_length": 20}  # fmt: skip
SGD = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}}
MODEL = {"embedding_size": 8, "hidden_size": 8, "optimizer": SGD}
AT = {"at": [0, 4], "last": False}


def configuration(folder: Path, version: str) -> Path:
    """A file of a run of four updates that saves and observes at its ends."""
    callbacks = [
        {"class_path": "ScheduledCheckpoint", "init_args": {"schedule": AT}},
        {"class_path": "ScheduledCheckpoint", "init_args": {"schedule": AT, "weights_only": False}},
        {"class_path": "LearningCurves", "init_args": {"schedule": AT, "log_figures": False}},
    ]
    logger = {"save_dir": str(folder), "name": None, "version": version}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    trainer = {"max_steps": 4, "max_epochs": -1, "accelerator": "cpu", **quiet, "callbacks": callbacks}
    trainer["logger"] = {"class_path": "TensorBoardLogger", "init_args": logger}
    content = {"seed_everything": 3, "trainer": trainer}
    content["model"] = {"class_path": "LSTMLanguageModel", "init_args": MODEL}
    content["data"] = {"class_path": "GrammarCorpus", "init_args": DATA}
    path = folder / f"{version}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def says(words, capsys):
    """The error that a command ends with, the empty text where it ends well; a traceback fails the test."""
    try:
        main(words)
    except SystemExit:
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1
        return lines[0]
    return ""


def weights_of(run):
    """The weights of each checkpoint, by its name."""
    paths = sorted(run.glob("checkpoints/*.ckpt"))
    return {path.name: torch.load(path, weights_only=True)["state_dict"] for path in paths}


def observations_of(run):
    """Each observation, by its observer and its file."""
    paths = sorted(run.glob("observations/*/*.parquet"))
    return {f"{path.parent.name}/{path.name}": pd.read_parquet(path) for path in paths}


def assert_same_weights(there, here):
    assert list(there) == list(here)
    for name, state in there.items():
        assert all(torch.equal(weight, here[name][key]) for key, weight in state.items()), name


def assert_same_observations(there, here):
    assert list(there) == list(here)
    for name, table in there.items():
        pd.testing.assert_frame_equal(table, here[name], check_exact=True)

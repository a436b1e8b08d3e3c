"""Pretraining goes on exactly: the same batches follow and the weights are the same, bit by bit, also of a stream."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml

from lmdyn.callbacks import RunState, ScheduledCheckpoint, Steps
from lmdyn.cli.__main__ import main
from lmdyn.datamodules import GrammarCorpus, PretrainingCorpus, StreamedText
from lmdyn.models import LAMB, MaskedLanguageModel
from tests.cli.tiny_run import at_steps, tiny_run
from tests.helpers.small_runs import PIECES, stream_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
]

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return stream_files(tmp_path_factory.mktemp("text"))


def data_of(source, files):
    settings = {"sequence_length": 24, "batch_size": 4}
    corpus = GrammarCorpus(**PIECES, cache_dir=str(files / "cache"))
    if source == "corpus":
        return PretrainingCorpus(corpus, **settings)
    stream = StreamedText(
        {"path": "parquet", "data_files": str(files / "*.parquet")}, tokenizer=str(files / "tokenizer"),
        epoch_batches=7, block_rows=12,
    )  # fmt: skip
    return PretrainingCorpus(corpus, stream, **settings, num_workers=2 * (source == "stream with workers"))


class Watch(L.Callback):
    def __init__(self):
        self.batches = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.batches.append(
            (trainer.current_epoch, batch_idx, float(outputs["loss"]), batch["input_ids"].tolist())
        )


def fit(folder, family, source, files, checkpoint=None, seed=0):
    L.seed_everything(seed, verbose=False)
    module = MaskedLanguageModel(
        family, {**SIZES, **({} if family == "bert" else {"embedding_size": 8})}, generator_size=0.5, warmup_steps=3,
        optimizer=lambda params: LAMB(params, lr=0.01),
    )  # fmt: skip
    watch = Watch()
    trainer = L.Trainer(
        accelerator="cpu", devices=1, logger=False, default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, max_epochs=2, limit_val_batches=1, accumulate_grad_batches=2,
        callbacks=[RunState(), watch, ScheduledCheckpoint(Steps(every=1, epochs=True), weights_only=False)],
    )  # fmt: skip
    trainer.fit(module, datamodule=data_of(source, files), ckpt_path=checkpoint, weights_only=True)
    return {
        "weights": {k: v.clone() for k, v in module.state_dict().items()},
        "batches": watch.batches,
        "rate": trainer.optimizers[0].param_groups[0]["lr"],
        "random": torch.rand(2).tolist(),
    }


@pytest.mark.parametrize(
    ("family", "source"), [("albert", "corpus"), ("electra", "stream"), ("bert", "stream with workers")]
)
def test_resuming_from_every_position_is_exact(family, source, files, tmp_path):
    whole = fit(tmp_path / "whole", family, source, files)
    checkpoints = sorted((tmp_path / "whole" / "resume").glob("*.ckpt"))
    assert len(checkpoints) > 6
    checkpoints = checkpoints[:: 1 if source == "corpus" else 2]
    if source == "stream with workers":  # processes take their time to start
        checkpoints = checkpoints[1::3]
    for checkpoint in checkpoints:
        resumed = fit(tmp_path / checkpoint.stem, family, source, files, checkpoint, seed=9)
        left = resumed["batches"]
        assert left == whole["batches"][len(whole["batches"]) - len(left) :], checkpoint.stem
        assert all(torch.equal(v, resumed["weights"][k]) for k, v in whole["weights"].items()), (
            checkpoint.stem
        )
        assert resumed["rate"] == whole["rate"]
        if left:  # what was drawn is taken up with the first batch
            assert resumed["random"] == whole["random"]
    other = fit(tmp_path / "other", family, source, files, seed=9)
    assert not all(torch.equal(v, other["weights"][k]) for k, v in whole["weights"].items())


@pytest.mark.slow
def test_killed_while_streaming_and_resumed(files, tmp_path):
    """SIGKILL in mid-epoch, by the command line."""
    (tmp_path / "killer.py").write_text(
        "import os, signal\nimport lightning as L\nclass Killer(L.Callback):\n"
        "    def on_train_batch_start(self, trainer, module, batch, batch_idx):\n"
        "        if trainer.global_step == 10:\n            os.kill(os.getpid(), signal.SIGKILL)\n",
        encoding="utf-8",
    )

    def config(version):
        full = {"schedule": {"every": 4}, "weights_only": False}
        savers = [{"class_path": "ScheduledCheckpoint", "init_args": full}, at_steps("ScheduledCheckpoint")]
        length = {"max_steps": -1, "max_epochs": 2, "limit_val_batches": 1.0, "log_every_n_steps": 50}
        stream = {
            "dataset": {"path": "parquet", "data_files": str(files / "*.parquet")},
            "tokenizer": str(files / "tokenizer"), "epoch_batches": 8, "block_rows": 12,
        }  # fmt: skip
        rows = {
            "corpus": {"class_path": "GrammarCorpus", "init_args": {**PIECES, "cache_dir": str(files / "cache")}},
            "stream": {"class_path": "StreamedText", "init_args": stream}, "sequence_length": 24, "batch_size": 4,
        }  # fmt: skip
        model = {"family": "electra", "config": {**SIZES, "embedding_size": 8}, "generator_size": 0.5}
        return tiny_run(tmp_path, *savers, version=version, devices=1, **length) | {
            "model": {"class_path": "MaskedLanguageModel", "init_args": model},
            "data": {"class_path": "PretrainingCorpus", "init_args": rows},
        }

    paths = {}
    for version in ("whole", "killed"):
        paths[version] = tmp_path / f"{version}.yaml"
        paths[version].write_text(yaml.safe_dump(config(version)), encoding="utf-8")
    kill = tmp_path / "kill.yaml"
    kill.write_text("trainer: {callbacks+: {class_path: killer.Killer}}", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "lmdyn.cli", "fit", "--config", str(paths["killed"]), "--config", str(kill)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    main(["fit", "--config", str(paths["killed"]), "--ckpt_path", "last"])
    main(["fit", "--config", str(paths["whole"])])
    a, b = (
        torch.load(Path(tmp_path, run, "checkpoints", "step=000000016.ckpt"), weights_only=True)["state_dict"]
        for run in ("whole", "killed")
    )
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)

"""Pretraining goes on exactly: the same batches follow and the weights are the same, bit by bit, also of a stream."""

import lightning as L
import pytest
import torch

from lmdyn.callbacks import RunState, ScheduledCheckpoint, Steps
from lmdyn.datamodules import GrammarCorpus, PretrainingCorpus, StreamedText
from lmdyn.models import LAMB, MaskedLanguageModel
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

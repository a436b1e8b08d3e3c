"""One run on 1, 2, 4 and 1 ranks, and with 0, 2 and 1 workers: the same samples in the same order, the same losses."""

import hashlib
import json
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch

from lmdyn.callbacks import LearningCurves, RunState, ScheduledCheckpoint, Steps
from lmdyn.datamodules import Masking, PretrainingCorpus, StreamedText, TextCorpus
from lmdyn.models import LSTMLanguageModel, MaskedLanguageModel
from tests.helpers.ranks import TORCHRUN, run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]

TEXT = Path(__file__).parent / "fixtures" / "short_documents"
UPDATE, STEPS = 4, 24  # rows of an update, updates of a run: of two epochs and more
SIZES = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "embedding_size": 8,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0,
}  # fmt: skip
KINDS = ("rows", "bptt", "stream")


def data_of(kind, batch_size, workers, short_share):
    """Rows, with unequally many labels where some are short; a stream that begins with one reader."""
    tokenizer = str(TEXT / "tokenizer")
    text = {"train": str(TEXT / "text.txt"), "validation": str(TEXT / "text.txt")}
    corpus = TextCorpus(
        **text, layout="paragraphs", tokenizer=tokenizer, batch_size=batch_size, sequence_length=35
    )
    if kind == "bptt":
        return corpus
    files = {"path": "json", "data_files": str(TEXT / "text.jsonl")}
    stream = StreamedText(files, tokenizer=tokenizer, epoch_batches=10, block_rows=12)
    return PretrainingCorpus(
        corpus, stream if kind == "stream" else None, sequence_length=24, batch_size=batch_size, num_workers=workers,
        pairs="order", short_share=short_share, masking=Masking(whole_words=False),
    )  # fmt: skip


class Watch(L.Callback):
    """The samples of each update, and its loss, of this rank."""

    def __init__(self):
        self.rows, self.losses = {}, {}

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.step = trainer.global_step
        rows = torch.cat([batch["input_ids"], batch["labels"]], 1).tolist()
        self.rows[self.step] = self.rows.get(self.step, []) + [str(row) for row in rows]

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        loss = float(outputs["loss"]) * trainer.accumulate_grad_batches  # Lightning has divided it
        self.losses[self.step] = [*self.losses.get(self.step, []), loss]


def fit(kind, folder, *, ranks=1, accumulated=1, workers=0, short_share=0.5, checkpoint=None, steps=STEPS):
    L.seed_everything(0 if checkpoint is None else 1, verbose=False)
    if kind == "bptt":
        module = LSTMLanguageModel(embedding_size=12, hidden_size=12, dropout=0.0, optimizer=sgd)
    else:
        module = MaskedLanguageModel("albert", SIZES, warmup_steps=3, decay_power=None, optimizer=sgd)
    watch = Watch()
    trainer = L.Trainer(
        accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", logger=False, precision="64-true",
        default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False, max_epochs=-1, max_steps=steps,
        limit_val_batches=0, num_sanity_val_steps=0, accumulate_grad_batches=accumulated,
        callbacks=[
            RunState(), watch, LearningCurves(schedule=Steps(at=(0,), every=4, last=False), max_tokens=600),
            ScheduledCheckpoint(Steps(at=(), last=True), weights_only=False),
        ],
    )  # fmt: skip
    data = data_of(kind, UPDATE // ranks // accumulated, workers, short_share)
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    return watch, module


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def rank_main(folder):
    """The part of each run that ``part.json`` says, of this rank."""
    part = json.loads((folder / "part.json").read_text(encoding="utf-8"))
    for kind in KINDS:
        watch, _ = fit(
            kind, folder / kind, checkpoint=checkpoint_of(folder / kind, part.pop(kind)), **part["settings"]
        )
        rank = torch.distributed.get_rank()
        path = folder / f"{kind}-{part['settings']['steps']}-{rank}.json"
        path.write_text(json.dumps([watch.rows, watch.losses]), encoding="utf-8")


def checkpoint_of(folder, step):
    return folder / f"resume/step={step:09d}.ckpt"


def order(watches):
    """A hash of the samples of each update, whose order within it is no matter."""
    rows = {}
    for watch in watches:
        for step, some in watch[0].items():
            rows[int(step)] = rows.get(int(step), []) + some
    return {step: hashlib.sha256(str(sorted(all_)).encode()).hexdigest() for step, all_ in rows.items()}


def losses(watches):
    """The loss of each update: the mean over its ranks and batches."""
    found = {}
    for watch in watches:
        for step, some in watch[1].items():
            found[int(step)] = found.get(int(step), []) + some
    return {step: sum(some) / len(some) for step, some in found.items()}


def assert_observed_alike(folder, whole, tolerance):
    """The run's own validation text was looked at in the batches that the run began with: the same observations."""
    found, expected = (pd.read_parquet(run / "observations" / "learning_curves") for run in (folder, whole))
    keys = [name for name in expected if name != "value"]
    pd.testing.assert_frame_equal(found[keys], expected[keys])
    assert found["step"].nunique() >= 4
    np.testing.assert_allclose(found["value"], expected["value"], rtol=tolerance, atol=tolerance)


def seen(watch):
    return [(watch.rows, watch.losses)]


def test_one_run_on_1_2_4_and_1_ranks(tmp_path):
    """The losses agree to rounding: ranks add up the same gradients in another order.

    A sum of float64 is rounded by 1e-16 of it, and one of float32, in which the masked model takes its losses whatever
    its weights, by 6e-8; 24 updates carry that on, to 4e-16 and 2e-7 here. Rows that were others, or that weighed
    otherwise, make 1e-3: so does the weight of ranks with unequally many labels (``rank_weight``).
    """
    cut = {1: 5, 2: 11, 4: 17, "1 again": STEPS}  # within epochs, of 19 and 10 batches, and after their ends
    found = {kind: ({}, {}) for kind in KINDS}

    def keep(kind, watches):
        found[kind][0].update(order(watches))
        found[kind][1].update(losses(watches))

    whole = {}
    for kind in KINDS:
        watch, _ = fit(kind, tmp_path / "whole" / kind)
        whole[kind] = order(seen(watch)), losses(seen(watch))
        watch, _ = fit(kind, tmp_path / kind, steps=cut[1])
        keep(kind, seen(watch))
    before = 1
    for ranks in (2, 4):
        part = {"settings": {"ranks": ranks, "steps": cut[ranks]}, **dict.fromkeys(KINDS, cut[before])}
        (tmp_path / "part.json").write_text(json.dumps(part), encoding="utf-8")
        environment = {**TORCHRUN, "LOCAL_WORLD_SIZE": str(ranks)}
        cache = tmp_path.parent / "cache"
        run_ranks(__file__, tmp_path, cache, timeout=240, ranks=ranks, **environment)
        for kind in KINDS:
            paths = [tmp_path / f"{kind}-{cut[ranks]}-{rank}.json" for rank in range(ranks)]
            keep(kind, [json.loads(path.read_text(encoding="utf-8")) for path in paths])
        before = ranks
    for kind in KINDS:
        watch, _ = fit(kind, tmp_path / kind, checkpoint=checkpoint_of(tmp_path / kind, cut[4]))
        keep(kind, seen(watch))
        assert found[kind][0] == whole[kind][0], kind
        assert len(set(whole[kind][0].values())) >= 8
        differences = [abs(found[kind][1][step] / loss - 1) for step, loss in whole[kind][1].items()]
        assert max(differences) < (1e-13 if kind == "bptt" else 2e-6), (kind, differences)
        assert_observed_alike(tmp_path / kind, tmp_path / "whole" / kind, 1e-12 if kind == "bptt" else 1e-5)
        ends = [
            torch.load(checkpoint_of(run / kind, STEPS), weights_only=True)
            for run in (tmp_path / "whole", tmp_path)
        ]
        assert ends[0]["lmdyn"]["tokens"] == ends[1]["lmdyn"]["tokens"] > 200


def along(kind, folder, *parts, **settings):
    """One run in parts of six updates, each under other settings: its samples and losses, and the module."""
    rows, means = {}, {}
    for number, part in enumerate(parts):
        checkpoint = checkpoint_of(folder, 6 * number) if number else None
        watch, module = fit(kind, folder, checkpoint=checkpoint, steps=6 * (number + 1), **part, **settings)
        rows |= order(seen(watch))
        means |= losses(seen(watch))
    return rows, means, module.state_dict()


@pytest.mark.parametrize("kind", ["stream", "rows"])
def test_one_run_with_0_2_and_1_workers(kind, tmp_path):
    rows, means, weights = along(kind, tmp_path / "run", {"workers": 0}, {"workers": 2}, {"workers": 1})
    watch, whole = fit(kind, tmp_path / "whole", steps=18)
    assert rows == order(seen(watch))
    assert means == losses(seen(watch))
    assert_observed_alike(tmp_path / "run", tmp_path / "whole", 0)
    assert all(torch.equal(value, weights[name]) for name, value in whole.state_dict().items())


def test_one_run_with_other_accumulation(tmp_path):
    """Updates of equally many labels in each batch: batches of an update weigh the same, whatever they hold."""
    parts = ({"accumulated": 1}, {"accumulated": 4}, {"accumulated": 2}, {"accumulated": 1})
    rows, means, _ = along("rows", tmp_path / "run", *parts, short_share=0.0)
    watch, _ = fit("rows", tmp_path / "whole", short_share=0.0)
    assert_observed_alike(tmp_path / "run", tmp_path / "whole", 1e-5)
    assert rows == order(seen(watch))
    assert max(abs(means[step] / loss - 1) for step, loss in losses(seen(watch)).items()) < 2e-6

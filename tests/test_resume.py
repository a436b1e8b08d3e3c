"""Resuming is exact: from every kind of position weights are compared bit by bit; of kills: tests/test_kills.py."""

import shutil
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch

from lmdyn.callbacks import LearningCurves, RunState, ScheduledCheckpoint, Sparsity, Steps
from lmdyn.datamodules import GrammarCorpus, PretrainingCorpus, StreamedText
from lmdyn.models import LAMB, LSTMLanguageModel, MaskedLanguageModel
from tests.helpers import small_runs as S

pytestmark = [
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # one case is meant to train without validation
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]

CORPUS = {**S.GRAMMAR, "n_train_tokens": 350, "batch_size": 4, "sequence_length": 12, "layers": ["upos"]}
BATCHES = 8  # of an epoch
MODEL = {"embedding_size": 16, "hidden_size": 16, "num_layers": 2, "dropout": 0.2, "anneal_factor": 4.0}

UPDATES = {"max_epochs": 2, "accumulate_grad_batches": 2}
MASKED = ("albert", "electra", "bert")  # of a corpus, of a stream, of a stream with workers
KINDS = {
    "epochs": {"max_epochs": 2},
    "accumulation": UPDATES,
    # validation between the two batches of an update
    "validation in mid-accumulation": {**UPDATES, "val_check_interval": 3},
    # batch 3 and 6 of 8: validation in mid-epoch, and the end of the epoch without one
    "max_steps": {"max_steps": 19, "max_epochs": -1, "val_check_interval": 3},
    "max_steps without validation": {"max_steps": 19, "max_epochs": -1, "limit_val_batches": 0},
    "short epochs": {"max_epochs": 3, "limit_train_batches": 5, "check_val_every_n_epoch": 2},
    "validation across epochs": {"max_epochs": 2, "check_val_every_n_epoch": None, "val_check_interval": 5},
    **{family: {**UPDATES, "limit_val_batches": 1} for family in MASKED},
}
# each kind of position once, in updates: the start, within an epoch, with an observation and without, the end of an
# epoch, the beginning of the next one; the slow tier has all positions
FAST = {"epochs": (0, 4, 8, 9), "accumulation": (1, 4, 5), "electra": (), "bert": ()}


class Watch(L.Callback):
    """What happened after each batch and in each validation."""

    def __init__(self):
        self.batches, self.validations = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        rate, loss = trainer.optimizers[0].param_groups[0]["lr"], float(outputs["loss"])
        self.batches.append((trainer.current_epoch, batch_idx, trainer.global_step, loss, rate))

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.validations.append((trainer.global_step, float(trainer.callback_metrics["val_loss"])))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return S.stream_files(tmp_path_factory.mktemp("text"))


def masked(family, files):
    """A masked model and its data."""
    sizes = {name: size for name, size in S.ENCODER.items() if name != "embedding_size" or family != "bert"}
    lamb = lambda parameters: LAMB(parameters, lr=0.01)  # noqa: E731
    module = MaskedLanguageModel(family, sizes, generator_size=0.5, warmup_steps=3, optimizer=lamb)
    stream = {"path": "parquet", "data_files": str(files / "*.parquet")}
    given = {"tokenizer": str(files / "tokenizer"), "epoch_batches": 7, "block_rows": 12}
    stream = None if family == "albert" else StreamedText(stream, **given)
    corpus = GrammarCorpus(**S.PIECES, cache_dir=str(files / "cache"))
    workers = 2 * (family == "bert")
    return module, PretrainingCorpus(corpus, stream, sequence_length=24, batch_size=4, num_workers=workers)


def fit(folder, resume_from=None, seed=0, family=None, files=None, observers=2, **settings):
    """Train with fresh objects; everything that may differ between two runs."""
    L.seed_everything(seed, verbose=False)
    module, data = masked(family, files) if family else (LSTMLanguageModel(**MODEL), GrammarCorpus(**CORPUS))
    schedule = Steps(every=4, epochs=True)
    observing = [
        LearningCurves(schedule=schedule, log_figures=False),
        Sparsity(schedule=schedule, matched_size=None, pos_classes=False, log_figures=False),
    ][: 0 if family else observers]
    state, watch = RunState(), Watch()
    saver = ScheduledCheckpoint(Steps(every=1, epochs=True), weights_only=False)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, logger=False, default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[state, watch, *observing, saver], **settings,
    )  # fmt: skip
    trainer.fit(module, datamodule=data, ckpt_path=resume_from, weights_only=True)
    return {
        "weights": [p.detach().clone() for p in module.parameters()],
        "state": {k: v.clone() for k, v in getattr(module, "resume_state", dict)().items()},
        "batches": watch.batches,
        "validations": watch.validations,
        "tokens": state.tokens,
        "rate": trainer.optimizers[0].param_groups[0]["lr"],
        "best_val_loss": getattr(module, "best_val_loss", None),
        "step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "logged_step": trainer.fit_loop.epoch_loop._batches_that_stepped,
        "random": (torch.rand(2).tolist(), np.random.rand()),
    }  # fmt: skip


def position_cases():
    """A kind and its updates to resume from: of ELECTRA and BERT each third, of the others in the slow tier all."""
    fast = [pytest.param(kind, FAST[kind], id=kind) for kind in KINDS if kind in FAST]
    every = [kind for kind in KINDS if kind not in ("electra", "bert")]
    return fast + [pytest.param(kind, None, id=f"{kind}, every", marks=pytest.mark.slow) for kind in every]


@pytest.mark.parametrize(("kind", "steps"), position_cases())
def test_resuming_from_every_position_is_exact(kind, steps, files, tmp_path):
    given = {**KINDS[kind], **({"family": kind, "files": files} if kind in MASKED else {})}
    whole = fit(tmp_path / "whole", **given)
    seen = S.observations_of(tmp_path / "whole")
    assert len(seen) >= 4 or kind in MASKED
    if "val_check_interval" in KINDS[kind]:
        assert whole["rate"] < 20, "the learning rate must drop in this test"
    checkpoints = sorted((tmp_path / "whole" / "resume").glob("step=*.ckpt"))
    assert [int(p.stem[5:]) for p in checkpoints] == list(range(whole["step"] + 1))  # each step once
    updates = BATCHES // KINDS[kind].get("accumulate_grad_batches", 1)
    # the first epoch, its end, and the beginning of the next one have every kind of position; where there is a
    # validation within an epoch, from the middle of the epoch on
    positions = range(0 if kind in FAST else updates // 2 - 1, updates + 2)
    if kind in MASKED:
        positions = range(0, whole["step"])
    for step in positions if steps is None else steps or positions[::3]:
        checkpoint = checkpoints[step]
        # the run's folder as a kill after this checkpoint may have left it
        folder = tmp_path / f"from{step}"
        for name in seen:
            if int(Path(name).stem) <= step:
                (folder / "observations" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tmp_path / "whole" / "observations" / name, folder / "observations" / name)
        (folder / "resume").mkdir(parents=True, exist_ok=True)
        own = Path(shutil.copy(checkpoint, folder / "resume"))
        resumed = fit(folder, own, seed=1000 + step, **given)
        here = f"{kind}, resumed from step {step}"
        for quantity in ("batches", "validations"):  # what is left of them, nothing twice
            left = resumed.pop(quantity)
            assert left == whole[quantity][len(whole[quantity]) - len(left) :], f"{quantity} of {here}"
            expected = [entry for entry in whole[quantity] if entry[2 if quantity == "batches" else 0] > step]
            assert len(left) >= len(expected), f"{quantity} of {here}"
        for quantity in ("weights", "state"):
            a, b = whole[quantity], resumed.pop(quantity)
            pairs = zip(a, b, strict=True) if quantity == "weights" else ((a[k], b[k]) for k in a)
            assert all(torch.equal(x, y) for x, y in pairs), f"{quantity} of {here}"
        assert resumed == {k: whole[k] for k in resumed}, here
        S.assert_same_observations(seen, S.observations_of(folder))
        saved = sorted(int(p.stem[5:]) for p in (folder / "resume").iterdir())
        assert saved == list(range(step, whole["step"] + 1)), f"saved of {here}"
        shutil.rmtree(folder)


@pytest.fixture(scope="module", params=["max_steps", "max_epochs"])
def lengths(request, tmp_path_factory):
    """Where a run stops, where a longer one does, and the longer one without a stop."""
    stop, longer = {
        "max_steps": ({"max_steps": 11, "max_epochs": -1}, {"max_steps": 20, "max_epochs": -1}),
        "max_epochs": ({"max_epochs": 1}, {"max_epochs": 3}),
    }[request.param]
    return stop, longer, fit(tmp_path_factory.mktemp("whole"), observers=1, **longer)


@pytest.mark.parametrize("schedule", [Steps(at=(), last=True), Steps(at=(), epochs=True, last=False)])
def test_a_finished_run_goes_on_as_if_it_had_not_ended(lengths, schedule, tmp_path, monkeypatch):
    stop, longer, whole = lengths
    init = ScheduledCheckpoint.__init__
    monkeypatch.setattr(ScheduledCheckpoint, "__init__", lambda self, _, **k: init(self, schedule, **k))
    fit(tmp_path / "short", observers=1, **stop)
    *_, last = sorted((tmp_path / "short" / "resume").glob("*.ckpt"))
    resumed = fit(tmp_path / "short", last, seed=5, observers=1, **longer)
    assert all(torch.equal(a, b) for a, b in zip(whole["weights"], resumed["weights"], strict=True))
    assert resumed["batches"] == whole["batches"][-len(resumed["batches"]) :]
    assert all(resumed[k] == whole[k] for k in ("tokens", "rate", "epoch"))

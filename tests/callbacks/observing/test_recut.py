"""A run that goes on with another batch_size is observed in the batches that it began with, live and in replay."""

import hashlib
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml

from lmdyn.callbacks import ProbeSet
from lmdyn.cli.__main__ import main
from lmdyn.datamodules import GrammarCorpus, PretrainingCorpus
from tests.cli.tiny_run import tiny_run
from tests.helpers.small_runs import ENCODER, GRAMMAR, PIECES


@pytest.fixture(params=["rows", "streams"])
def loader(request, tmp_path):
    if request.param == "streams":
        data = GrammarCorpus(**GRAMMAR, batch_size=6, sequence_length=12, cache_dir=str(tmp_path))
    else:
        corpus = GrammarCorpus(**PIECES, cache_dir=str(tmp_path))
        data = PretrainingCorpus(corpus, sequence_length=24, batch_size=6)
    data.prepare_data()
    data.setup("fit")

    def of(batch_size, max_tokens=None):
        data.batch_size = batch_size
        found = data.val_dataloader()
        return found if max_tokens is None else found.limit(max_tokens)

    return of


def contents(probe):
    return [{name: tensor.tolist() for name, tensor in batch.items()} for batch in probe.batches()]


def test_the_cut_is_found_by_its_fingerprint(loader):
    earlier = ProbeSet(loader(3, 120))
    now = ProbeSet(loader(2), max_tokens=120)
    assert now.fingerprint != earlier.fingerprint
    assert contents(now) != contents(earlier)
    found = now.recut({"auto", "train", earlier.fingerprint})
    assert found.fingerprint == earlier.fingerprint
    assert found.source == earlier.source
    assert contents(found) == contents(earlier)


def test_other_data_has_no_such_cut(loader):
    now = ProbeSet(loader(2))
    other = ProbeSet(loader(3, 30)).fingerprint, hashlib.sha256().hexdigest()
    assert now.recut(other) is now
    assert now.recut(()) is now
    assert now.recut({now.fingerprint, ProbeSet(loader(3)).fingerprint}) is now


class Recuttable(list):
    """A loader of a user's own: it has a hash and can be cut, and cannot limit itself."""

    fingerprint = "now"

    def recut(self, fingerprints):
        found = Recuttable(self)
        found.fingerprint = "before"
        return found if "before" in fingerprints else None


def test_its_limit_stays():
    batches = Recuttable([{"labels": torch.zeros(2, 5, dtype=torch.int64)} for _ in range(9)])
    probe = ProbeSet(batches, max_tokens=30)
    assert [len(list(p.batches())) for p in (probe, probe.recut({"before"}))] == [3, 3]


def test_training_rows_are_looked_at_whole_whatever_the_accumulation(tmp_path):
    """Epochs of training end with a whole update; what is looked at does not."""
    corpus = GrammarCorpus(**PIECES, cache_dir=str(tmp_path))
    data = PretrainingCorpus(corpus, sequence_length=24, batch_size=2)
    data.prepare_data()
    data.setup("fit")
    loaders = []
    for accumulated in (1, 8):
        alone = {"global_rank": 0, "world_size": 1, "limit_train_batches": 1.0}
        data.trainer = SimpleNamespace(accumulate_grad_batches=accumulated, **alone)
        loaders.append(data.train_dataloader())
    assert len(loaders[1]) < len(loaders[0])
    for limit in (None, 600):
        one, eight = (ProbeSet(loader, max_tokens=limit) for loader in loaders)
        assert one.fingerprint == eight.fingerprint
        assert contents(one) == contents(eight)
        wanted = ProbeSet(loaders[0].with_batch_size(3), max_tokens=limit)
        assert contents(eight.recut({wanted.fingerprint})) == contents(wanted)


EVERY = {"schedule": {"every": 2, "last": False}, "log_figures": False}


def configuration(folder, batch_size, accumulated, steps, more=()):
    full = {"schedule": {"at": [], "last": True}, "weights_only": False}
    callbacks = [
        {"class_path": "ScheduledCheckpoint", "init_args": of} for of in ({"schedule": {"every": 2}}, full)
    ]
    callbacks += [{"class_path": "LearningCurves", "init_args": EVERY}, *more]
    how = {"max_steps": steps, "max_epochs": -1, "accumulate_grad_batches": accumulated}
    corpus = {"class_path": "GrammarCorpus", "init_args": PIECES}
    rows = {"sequence_length": 24, "batch_size": batch_size, "corpus": corpus}
    content = {
        "seed_everything": 3,
        **tiny_run(folder, *callbacks, num_sanity_val_steps=0, **how),
        "model": {"class_path": "MaskedLanguageModel", "init_args": {"family": "albert", "config": ENCODER}},
        "data": {"class_path": "PretrainingCorpus", "init_args": rows},
    }
    path = folder / f"{batch_size}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_a_run_goes_on_with_another_batch_size_and_is_replayed(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LMDYN_CACHE", str(tmp_path / "cache"))
    settings = {**EVERY, "matched_size": None, "class_min_count": 5}
    sparsity = {"class_path": "Sparsity", "init_args": settings}
    run = tmp_path / "run"
    main(["fit", "--config", configuration(tmp_path, 4, 1, 4)])
    main(["fit", "--config", configuration(tmp_path, 2, 2, 8, [sparsity]), "--ckpt_path", "last"])
    assert "lmdyn keeps the earlier batches" in caplog.text
    folders = {name: run / "observations" / name for name in ("learning_curves", "sparsity")}
    live = {name: pd.read_parquet(folder) for name, folder in folders.items()}
    assert live["learning_curves"]["step"].unique().tolist() == [0, 2, 4, 6, 8]
    assert live["sparsity"]["step"].unique().tolist() == [4, 6, 8]
    for folder in folders.values():
        (folder / "000000006.parquet").unlink()
    main(["analyze", str(run)])
    for name, folder in folders.items():
        replayed = pd.read_parquet(folder)
        replayed = replayed[replayed["step"].isin(live[name]["step"])].reset_index(drop=True)
        pd.testing.assert_frame_equal(replayed, live[name])

"""A run that goes on with another batch_size is observed in the batches that it began with, live and in replay."""

import hashlib

import pandas as pd
import pytest
import yaml

from lmdyn.callbacks import ProbeSet
from lmdyn.cli.__main__ import main
from lmdyn.datamodules import GrammarCorpus, PretrainingCorpus
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
    assert found.identity == earlier.identity
    assert contents(found) == contents(earlier)


def test_other_data_has_no_such_cut(loader):
    now = ProbeSet(loader(2))
    other = ProbeSet(loader(3, 30)).fingerprint, hashlib.sha256().hexdigest()
    assert now.recut(other) is now
    assert now.recut(()) is now
    assert now.recut({now.fingerprint, ProbeSet(loader(3)).fingerprint}) is now


def configuration(folder, batch_size, accumulated, steps, more=()):
    schedule = {"every": 2, "last": False}
    curves = {"class_path": "LearningCurves", "init_args": {"schedule": schedule, "log_figures": False}}
    content = {
        "seed_everything": 3,
        "trainer": {
            "accelerator": "cpu", "max_steps": steps, "max_epochs": -1, "accumulate_grad_batches": accumulated,
            "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0,
            "limit_val_batches": 0,
            "logger": {"class_path": "TensorBoardLogger",
                       "init_args": {"save_dir": str(folder), "name": None, "version": "run"}},
            "callbacks": [
                {"class_path": "ScheduledCheckpoint", "init_args": {"schedule": {"every": 2}}},
                {"class_path": "ScheduledCheckpoint",
                 "init_args": {"schedule": {"at": [], "last": True}, "weights_only": False}},
                curves, *more,
            ],
        },
        "model": {"class_path": "MaskedLanguageModel", "init_args": {"family": "albert", "config": ENCODER}},
        "data": {"class_path": "PretrainingCorpus", "init_args": {
            "sequence_length": 24, "batch_size": batch_size,
            "corpus": {"class_path": "GrammarCorpus", "init_args": PIECES},
        }},
    }  # fmt: skip
    path = folder / f"{batch_size}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def test_a_run_goes_on_with_another_batch_size_and_is_replayed(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LMDYN_CACHE", str(tmp_path / "cache"))
    sparsity = {"class_path": "Sparsity", "init_args": {
        "schedule": {"every": 2, "last": False}, "matched_size": None, "class_min_count": 5, "log_figures": False,
    }}  # fmt: skip
    run = tmp_path / "run"
    main(["fit", "--config", configuration(tmp_path, 4, 1, 4)])
    main(["fit", "--config", configuration(tmp_path, 2, 2, 8, [sparsity]), "--ckpt_path", "last"])
    assert "data is looked at in batches as before" in caplog.text
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

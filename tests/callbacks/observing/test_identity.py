"""Observations on disk belong to an observer and its settings, wherever source files are."""

import json
import re
from enum import Enum, StrEnum
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import yaml

import lmdyn.callbacks
from lmdyn.callbacks import LearningCurves, ObservationStore, Observer, Run
from lmdyn.callbacks.observing.store import UNDECIDED, canonical_settings, current_name, public_name
from lmdyn.cli.fit import LmdynCLI

HEADERS = Path(__file__).parents[2] / "fixtures" / "v0_1" / "observer_headers"
REGISTRY = yaml.safe_load((HEADERS / "registry.yaml").read_text())
FILES = {path.stem: path for path in sorted(HEADERS.glob("*.parquet"))}


def test_each_observer_has_one_public_name_and_its_old_paths_lead_to_it():
    for name in REGISTRY["observers"]:
        assert public_name(getattr(lmdyn.callbacks, name)) == f"lmdyn.callbacks.{name}"
    old = [json.loads(pq.read_schema(path).metadata[b"lmdyn"])["observer"] for path in FILES.values()]
    assert len(old) == 16
    assert {current_name(path) for path in old} == {f"lmdyn.callbacks.{n}" for n in REGISTRY["observers"]}
    assert not {current_name(path) for path in old} & set(old)
    assert current_name("lmdyn.callbacks.words.sparsity.Sparsity") == "lmdyn.callbacks.Sparsity"
    assert current_name("my_lab.lmdyn.callbacks.Own") == "my_lab.lmdyn.callbacks.Own"


class Added(LearningCurves):
    """An observer of a later version: an argument more, one renamed, and one more in a dataclass."""

    legacy_settings = {"smoothing": 0, "classifier.kind": "linear"}
    renamed_settings = {"ranks": "bands"}


class AddedLater(Added):
    """A subclass adds to what its base declares."""

    legacy_settings = {"unit": "nats"}


def table(step=0):
    return pd.DataFrame({"step": step, "quantity": ["loss"], "site": [""], "value": [0.5]})


def store(folder, cls, **settings):
    return ObservationStore(folder, "an.Observer", settings, lambda s: canonical_settings(cls, s))


def test_what_is_absent_in_a_file_is_the_declared_value(tmp_path):
    old = store(tmp_path, LearningCurves, ranks=[5], classifier={"epochs": 3})
    old.write(0, table())
    same = {"bands": [5], "classifier": {"epochs": 3, "kind": "linear"}, "smoothing": 0}
    store(tmp_path, Added, **same).write(1, table(1))
    store(tmp_path, AddedLater, **same, unit="nats").check_settings()
    for changed, message in (
        ({"smoothing": 2}, r"smoothing: 0 there, 2 here"),
        ({"bands": [6]}, r"bands: \[5\] there, \[6\] here"),
        ({"classifier": {"epochs": 3, "kind": "relu"}}, r"'kind': 'linear'.* there, .*'relu'"),
    ):
        with pytest.raises(ValueError, match=message):
            store(tmp_path, Added, **{**same, **changed}).check_settings()
    with pytest.raises(ValueError, match="unit: 'nats' there, 'bits' here"):
        store(tmp_path, AddedLater, **same, unit="bits").check_settings()


class Kind(Enum):
    X = 1
    Y = 2


class Text(StrEnum):
    Z = "as in version 0.1"


def test_settings_are_told_apart_whatever_their_types():
    def settings(value):
        return LearningCurves(bands=value).settings["bands"]

    assert settings([np.int64(3)]) == settings([3]) == settings(torch.tensor([3])) == [3]
    plain = [LearningCurves(forward=forward).settings["forward"] for forward in (Kind.X, Kind.Y, len, table)]
    assert plain[:2] == ["X", "Y"]
    assert plain[3].endswith(".table")
    assert LearningCurves(forward=Text.Z).settings["forward"] == "as in version 0.1"
    assert LearningCurves(layers={"c", "a", "b"}).settings["layers"] == ["a", "b", "c"]


def test_an_argument_that_was_renamed_twice():
    class Renamed(Added):
        renamed_settings = {"bands": "rank_bands"}

    assert canonical_settings(Renamed, {"ranks": [5]})["rank_bands"] == [5]


def test_a_file_that_was_moved_between_source_files_is_the_same_observer(tmp_path):
    ObservationStore(tmp_path, "lmdyn.callbacks.sparsity.Sparsity", {"n": 1}).write(0, table())
    assert ObservationStore(tmp_path).about()["observer"] == "lmdyn.callbacks.Sparsity"
    ObservationStore(tmp_path, "lmdyn.callbacks.Sparsity", {"n": 1}).write(1, table(1))
    with pytest.raises(ValueError, match=r"observer: lmdyn\.callbacks\.Sparsity there, my\.Sparsity here"):
        ObservationStore(tmp_path, "my.Sparsity", {"n": 1}).check_settings()


@pytest.fixture(scope="module", params=REGISTRY["languages"])
def attached(request, tmp_path_factory):
    """The observers that look at one language, attached as to a run of version 0.1."""
    folder = tmp_path_factory.mktemp("attached")
    callbacks = [
        {"class_path": name, "init_args": {**about["arguments"], "log_figures": False}}
        for name, about in REGISTRY["observers"].items()
        if about["language"] == request.param
    ]
    trainer = {"callbacks": callbacks, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    config = {"trainer": trainer, **REGISTRY["languages"][request.param]}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMDYN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        cli = LmdynCLI(["--config", str(folder / "config.yaml")], run=False)
        data = cli.datamodule
        data.prepare_data()
        data.setup("fit")
        run = Run(folder, data.tokenizer, data.token_counts, data, checkpoint_folder=folder)
        observers = [o for o in cli.trainer.callbacks if isinstance(o, Observer)]
        for observer in observers:
            observer.attach(run)
    assert len(observers) == len(callbacks)
    return request.param, observers


def without_hashes(settings):
    return json.loads(re.sub(r'"[0-9a-f]{32}"', '"a hash of content"', json.dumps(settings)))


def test_settings_of_version_0_1_are_todays(attached, tmp_path):
    language, observers = attached
    for observer in observers:
        file = FILES[observer.name]
        there = json.loads(pq.read_schema(file).metadata[b"lmdyn"])
        own = observer.store
        old = ObservationStore(tmp_path / observer.name, own.observer, own.settings, own._canonical)
        old.folder.mkdir()
        (old.folder / "000000000.parquet").write_bytes(file.read_bytes())
        if language in ("grammar", "scaffold"):  # the same text and word vocabulary: content and all
            old.check_settings()
            continue
        # word pieces of version 0.1 were numbered in another order in each process
        canonical = without_hashes(observer._as_today(there["settings"]))
        here = without_hashes(observer._as_today(own.settings))
        for name in ("sites", "attention_sites", "embedding"):  # found when the module is met
            if here.get(name) == UNDECIDED:
                assert here.pop(name)
                assert canonical.pop(name) in (None, "embedding")
        canonical.pop("candidates", None), here.pop("candidates", None)  # answers of one word piece
        assert canonical == here

"""Observations on disk."""

import os
import shutil

import pandas as pd
import pyarrow.parquet as pq
import pytest

from lmdyn.callbacks import ObservationStore
from lmdyn.runs.schedule import Progress
from lmdyn.runs.schema import tidy


def table(step, value=1.0, word=None):
    rows = {"step": step, "tokens": [None], "quantity": ["chi"], "site": ["h1"], "word": [word]}
    return pd.DataFrame({**rows, "value": [value]})


def test_one_file_a_step_and_pandas_reads_the_folder(tmp_path):
    store = ObservationStore(tmp_path / "sparsity", "a.B", {"n": 1})
    store.write(0, table(0, 0.25, "the"))
    store.write(120, table(120, 0.5))  # a column of nothing but nulls keeps its type
    store.write(7, table(7, 0.75, "cat").assign(tokens=99))
    assert [p.name for p in sorted((tmp_path / "sparsity").iterdir())] == [
        "000000000.parquet", "000000007.parquet", "000000120.parquet"
    ]  # fmt: skip
    assert store.steps() == [0, 7, 120]
    whole = pd.read_parquet(tmp_path / "sparsity")
    assert list(whole.columns) == ["step", "tokens", "quantity", "site", "word", "value"]
    assert whole.set_index("step")["value"].to_dict() == {0: 0.25, 7: 0.75, 120: 0.5}
    assert store.read(until=7)["step"].tolist() == [0, 7]
    assert store.read(quantities=["other"]).empty
    schemas = {pq.read_schema(store.path(s)).remove_metadata() for s in store.steps()}
    assert len(schemas) == 1


def test_rewriting_a_step_replaces_it_and_leaves_no_temporary_file(tmp_path):
    store = ObservationStore(tmp_path, "a.B")
    store.write(3, table(3, 1.0))
    store.write(3, table(3, 2.0))
    assert store.read()["value"].tolist() == [2.0]
    with pytest.raises(KeyError):
        store.write(4, table(4).drop(columns="value"))
    assert [p.name for p in tmp_path.iterdir()] == ["000000003.parquet"]


def test_a_damaged_file_is_named_and_old_leftovers_go(tmp_path):
    store = ObservationStore(tmp_path, "a.B")
    store.write(3, table(3))
    assert store.has(3)
    assert not store.has(4)
    store.path(3).write_bytes(store.path(3).read_bytes()[:-9])
    for look in (lambda: store.has(3), store.about, store.read):
        with pytest.raises(ValueError, match=r"000000003\.parquet cannot be read .* remove the file"):
            look()
    store.path(3).unlink()
    store.write(3, table(3))
    shutil.copy(store.path(3), store.path(7))
    with pytest.raises(ValueError, match=r"000000007\.parquet .* contains step 3, and may be a copy"):
        store.read()
    store.path(7).unlink()
    store.path(3).unlink()
    old, young = tmp_path / ".000000004.x.tmp", tmp_path / ".000000005.x.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    store.write(6, table(6))
    assert young.exists()
    assert not old.exists()


def test_settings_are_kept_and_never_mixed(tmp_path):
    ObservationStore(tmp_path, "a.B", {"n": 1, "m": 2}).write(0, table(0))
    ObservationStore(tmp_path, "a.B", {"m": 2, "n": 1}).write(1, table(1))
    assert ObservationStore(tmp_path).about()["settings"] == {"m": 2, "n": 1}
    with pytest.raises(ValueError, match=r"n: 1 there, 5 here.*another `name`"):
        ObservationStore(tmp_path, "a.B", {"n": 5, "m": 2}).write(2, table(2))
    with pytest.raises(ValueError, match=r"observer: a\.B there, a\.C here"):
        ObservationStore(tmp_path, "a.C", {"n": 1, "m": 2}).check_settings()


def test_what_was_there_before_a_setting_was_decided_is_compared_then(tmp_path):
    for step in (0, 1):
        ObservationStore(tmp_path, "a.B", {"n": 1}).write(step, table(step))
    settings = {"n": "auto"}
    store = ObservationStore(tmp_path, "a.B", lambda: settings)
    assert store.has(0)
    settings["n"] = 5
    with pytest.raises(ValueError, match="n: 1 there, 5 here"):
        store.has(1)


def test_nothing_there_and_foreign_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no observations"):
        ObservationStore(tmp_path / "none").read()
    table(0).to_parquet(tmp_path / "000000000.parquet")
    with pytest.raises(ValueError, match="is not an observation of lmdyn"):
        ObservationStore(tmp_path).about()


def test_columns_that_lmdyn_adds_are_not_an_observers():
    table = pd.DataFrame({"quantity": ["x"], "site": [""], "training_stage": ["a"], "value": [1.0]})
    with pytest.raises(ValueError, match="'training_stage' is one that lmdyn adds"):
        tidy(table, Progress(1))

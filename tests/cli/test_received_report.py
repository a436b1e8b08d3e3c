"""A report of a run that somebody else has made: what it writes through, what its tables hold, what it survives."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmdyn.cli.pages.html_parts import csv_table
from lmdyn.cli.report import write_report
from lmdyn.runs.store import ObservationStore

CURVES = "observations/learning_curves"


@pytest.fixture
def run(tmp_path):
    store = ObservationStore(tmp_path / "run" / CURVES, "lmdyn.callbacks.LearningCurves", {"by": []})
    for step in (0, 10, 20):
        rows = pd.DataFrame({"step": step, "quantity": ["loss", "accuracy"], "value": [3.0, 0.5]})
        store.write(step, rows.assign(tokens=step, site="", by="", group=""))
    shutil.copytree(tmp_path / "run" / CURVES, tmp_path / "run" / "observations" / "sound")
    return tmp_path / "run"


def alter(run, change):
    """Change what its files hold, and leave what they say of themselves."""
    for path in (run / CURVES).glob("*.parquet"):
        table = pq.read_table(path)
        changed = pa.Table.from_pandas(change(table.to_pandas()), preserve_index=False)
        about = table.schema.metadata[b"lmdyn"].replace(b'"schema"', b'"former"')
        pq.write_table(changed.replace_schema_metadata({b"lmdyn": about}), path)


def test_a_link_is_replaced_and_not_written_through(run, tmp_path):
    (tmp_path / "secret").write_text("mine")
    write_report([run], tmp_path / "once")
    files = [path.name for path in (tmp_path / "once").iterdir()]
    assert {Path(name).suffix for name in files} >= {".html", ".png", ".svg"}
    (run / "report").mkdir()
    for name in files:
        (run / "report" / name).symlink_to(tmp_path / "secret")
    write_report([run], run / "report")
    assert (tmp_path / "secret").read_text() == "mine"
    assert not any(path.is_symlink() for path in (run / "report").iterdir())
    assert sorted(path.name for path in (run / "report").iterdir()) == sorted(files)  # nothing unfinished


def test_a_table_replaces_a_link(tmp_path):
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "a.csv").symlink_to(tmp_path / "secret")
    csv_table(pd.DataFrame({"x": [1.5]}), tmp_path / "a.csv", "a")
    assert (tmp_path / "secret").read_text() == "mine"
    assert pd.read_csv(tmp_path / "a.csv")["x"].tolist() == [1.5]


@pytest.mark.slow
def test_observations_on_another_disk_are_read_and_written(run, tmp_path):
    shutil.move(run / "observations", tmp_path / "scratch")
    (run / "observations").symlink_to(tmp_path / "scratch")
    assert ">Sound</h2>" in write_report([run], tmp_path / "out").read_text()
    store = ObservationStore(run / CURVES, "lmdyn.callbacks.LearningCurves", {"by": []})
    store.write(30, store.read(steps=[20]).assign(step=30))
    assert (run / "observations").is_symlink()
    assert (tmp_path / "scratch" / "learning_curves" / "000000030.parquet").is_file()
    with pytest.raises(ValueError, match="outside the folder"):
        write_report([run], tmp_path / "out", untrusted=True)


def test_no_text_of_a_table_is_a_formula(tmp_path):
    texts = ["=1+1", "+1", "-1", "@a", "\t=1", "sound", None]
    table = pd.DataFrame({"=name": texts, "kind": pd.Categorical(texts), "value": [-1.5, *range(6)]})
    csv_table(table, tmp_path / "a.csv", "a")
    found = pd.read_csv(tmp_path / "a.csv")
    assert found.columns.tolist() == ["'=name", "kind", "value"]
    for name in ("'=name", "kind"):
        assert found[name].tolist()[:6] == ["'=1+1", "'+1", "'-1", "'@a", "'\t=1", "sound"]
        assert found[name].isna().tolist() == [*[False] * 6, True]
    assert found["value"].tolist() == [-1.5, *range(6)]  # numbers never


HOSTILE = {
    "infinite": lambda table: table.assign(value=[np.inf, -np.inf]),
    "1e308": lambda table: table.assign(value=[1e308, -1e308]),
    "twice": lambda table: pd.concat([table, table]),
    "no value": lambda table: table.drop(columns="value"),
    "no quantity": lambda table: table.drop(columns="quantity"),
    "no site": lambda table: table.drop(columns="site"),
    "no step": lambda table: table.drop(columns="step"),
    "text": lambda table: table.assign(value="x"),
    "nested": lambda table: table.assign(site=[{"a": 1}, {"a": 2}]),
    "no rows": lambda table: table.iloc[:0],
}


DRAWN = ("infinite", "1e308", "twice", "no rows")  # as well as they can be


@pytest.mark.slow
@pytest.mark.parametrize("change", HOSTILE)
def test_of_what_cannot_be_drawn_there_is_one_line(run, tmp_path, survived, change):
    alter(run, HOSTILE[change])
    page = write_report([run], tmp_path / "out", untrusted=True).read_text()
    said = [record.getMessage() for record in survived]
    assert len(said) == page.count("<p>Without ") == (change not in DRAWN)
    assert not any(record.exc_info or "\n" in record.getMessage() for record in survived)
    survived.clear()
    sound = page[page.index(">Sound</h2>") :]
    sound = sound[: sound.index("</article>")]
    assert "<p>Without" not in sound
    assert "<img" in sound
    if change.startswith("no ") and change != "no rows":
        assert f"lack columns ({change[3:]})" in page


@pytest.mark.parametrize("name", ["curves\udcff", "curves\n"], ids=["byte", "line"])
def test_a_name_that_is_no_text_is_left_out(run, tmp_path, caplog, name):
    (run / CURVES).rename(run / "observations" / name)  # the first is the byte 0xff
    page = write_report([run], tmp_path / "out", untrusted=True).read_text()
    assert "(unprintable characters): rename the folder" in caplog.text
    assert ">Sound</h2>" in page

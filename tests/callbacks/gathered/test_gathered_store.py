"""The cache of observations: the same rows as the files, in the same types, whatever becomes of files and cache."""

import json
import logging
import os
import random
import shutil
import threading
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lmdyn.callbacks.gathered import gathered_store, segments
from lmdyn.callbacks.gathered.gathered_store import GatheredStore
from lmdyn.callbacks.gathered.segments import (
    BrokenSegment,
    Gathered,
    Source,
    gather,
    partition,
    read_segment,
    segment_name,
    write_segment,
)
from lmdyn.callbacks.observing.schema import from_arrow, to_arrow
from lmdyn.callbacks.observing.store import ObservationStore
from lmdyn.callbacks.training import atomic_files
from lmdyn.claims.runs import RunFolder

RARE = (pc.field("quantity") == "rare") | (pc.field("word") == "ein")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Few files are many, and segments and groups small; what is written need not reach the disk."""
    monkeypatch.setattr(gathered_store, "LEAST", 5)
    monkeypatch.setattr(segments, "_STEPS", 8)
    monkeypatch.setattr(segments, "_GROUP_ROWS", 16)
    monkeypatch.setattr(atomic_files, "_to_disk", lambda path: None)


def observation(step, words=("der", "ein", None), layer=True, values=(0.5, -0.0, np.nan)):
    """A few rows, with missing names, numbers and values; another set of names at each step."""
    table = pd.DataFrame({
        "step": step, "tokens": pd.Series([10 * step, None, 7], dtype="Int64"),
        "quantity": ["loss", "rare", f"at {step}"], "site": ["h1", "", "h2"], "word": list(words),
        "value": list(values),
    })  # fmt: skip
    return table.assign(layer=pd.Series([1, None, step], dtype="Int64")) if layer else table


def written(folder, steps, **kwargs):
    store = ObservationStore(folder, "my.Observer", {"n": 1})
    for step in steps:
        store.write(step, observation(step, **kwargs))
    return store


@pytest.fixture
def folder(tmp_path):
    return written(tmp_path / "observations" / "curves", range(0, 60, 2)).folder


@pytest.fixture
def read(monkeypatch):
    """Which steps are read from their own files, how often."""
    counts, original = Counter(), ObservationStore._read

    def reading(store, step):
        counts[step] += 1
        return original(store, step)

    monkeypatch.setattr(ObservationStore, "_read", reading)
    return counts


def cache_of(folder):
    return folder.parents[1] / ".cache" / "observations" / folder.name


def segments_of(folder):
    return sorted(cache_of(folder).glob("*.parquet"))


def check(folder):
    """Equal to the files in rows, order and types, also in parts."""
    plain, some = ObservationStore(folder), {0, 4, 26, 58}
    for arguments in (
        {},
        {"where": RARE},
        {"quantities": ["loss"]},
        {"until": 20},
        {"steps": some},
        {"steps": some, "where": RARE},
    ):
        expected = plain.read(**arguments)
        assert len(expected)
        pd.testing.assert_frame_equal(GatheredStore(folder).read(**arguments), expected, check_exact=True)
    signs = [np.signbit(store.read()["value"]).tolist() for store in (plain, GatheredStore(folder))]
    assert signs[0] == signs[1]


def test_equal_at_first_and_later(folder, read):
    check(folder)
    read.clear()
    assert len(segments_of(folder)) > 3
    assert GatheredStore(folder).read().equals(GatheredStore(folder).read())
    assert not read


def test_files_of_other_columns_and_types(tmp_path):
    """As of several versions of lmdyn: a column that came later, one of nothing but nulls, no metadata of pandas'."""
    store = written(tmp_path / "observations" / "curves", range(0, 30), layer=False)
    written(store.folder, range(30, 50))
    written(store.folder, range(50, 53), words=(None, None, None))
    for step in range(53, 60):
        table = pq.read_table(store.path(2)).replace_schema_metadata(None)
        pq.write_table(table.append_column("late", pa.array([step] * 3, pa.int32())), store.path(step))
    none = pq.read_table(store.path(2))[:0].replace_schema_metadata(None)
    pq.write_table(none, store.path(60))  # no row at all
    check(store.folder)
    check(store.folder)
    for step in (3, 31, 55):
        store.path(step).unlink()
    check(store.folder)


def test_of_one_file_that_changes_only_that_one_is_read(folder, read):
    GatheredStore(folder).read()
    read.clear()
    store = ObservationStore(folder)
    changed = pq.read_table(store.path(26))
    value = pa.array([1.5, 2.5, 3.5])
    pq.write_table(
        changed.set_column(changed.schema.get_field_index("value"), "value", value), store.path(26)
    )
    there = GatheredStore(folder).read()
    assert read == {26: 1}
    assert there[there["step"].eq(26)]["value"].tolist() == [1.5, 2.5, 3.5]
    check(folder)


def test_equal_size_and_another_time(folder, read):
    GatheredStore(folder).read()
    path, before = ObservationStore(folder).path(26), len(segments_of(folder))
    read.clear()
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    GatheredStore(folder).read()
    assert read == {26: 1}
    read.clear()
    GatheredStore(folder).read()
    assert not read
    assert len(segments_of(folder)) == before  # the earlier one is gone


def test_new_files_and_files_that_are_gone(folder, read):
    GatheredStore(folder).read()
    read.clear()
    written(folder, [31, 60])
    ObservationStore(folder).path(10).unlink()
    there = GatheredStore(folder).read()
    assert read == {31: 1, 60: 1}
    assert there["step"].unique().tolist() == sorted({*range(0, 61, 2), 31} - {10})
    check(folder)


def test_columns_of_several_types_are_told_as_without_a_cache(folder):
    path = ObservationStore(folder).path(26)
    table = pq.read_table(path).replace_schema_metadata(None)
    pq.write_table(table.set_column(table.schema.get_field_index("site"), "site", pa.array([1, 2, 3])), path)
    for store in (ObservationStore(folder), GatheredStore(folder)):
        with pytest.raises(pa.ArrowException, match="site"):
            store.read()
        assert len(store.read(until=20)) == 33


def test_which_files_there_are_is_found_out_once(folder):
    store = GatheredStore(folder)
    assert len(store.steps()) == 30
    written(folder, [61])
    assert len(store.steps()) == 30
    assert len(GatheredStore(folder).steps()) == 31


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "foreign":
        pd.DataFrame({"step": [1], "value": [9.0]}).to_parquet(path)
    elif how == "of others":
        shutil.copy(min(path.parent.iterdir()), path)
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "a bit":  # of the first page
        content[60] ^= 1
        path.write_bytes(content)
    elif how == "said otherwise":
        table = pq.read_table(path)
        about = json.loads(table.schema.metadata[b"lmdyn_cache"])
        about["rows"][0] += 1
        pq.write_table(table.replace_schema_metadata({b"lmdyn_cache": json.dumps(about).encode()}), path)


@pytest.mark.parametrize("how", ["foreign", "of others", "cut", "empty", "a bit", "said otherwise"])
def test_a_broken_or_foreign_file_is_made_again(folder, how, read):
    GatheredStore(folder).read()
    path = segments_of(folder)[2]
    good = path.read_bytes()
    damage(path, how)
    assert path.read_bytes() != good
    read.clear()
    assert GatheredStore(folder).read().equals(ObservationStore(folder).read())
    assert path.read_bytes() == good


def test_any_bit_of_what_a_segment_says_of_its_columns(tmp_path):
    table = from_arrow(to_arrow(pd.DataFrame({"step": [1, 2], "quantity": "loss", "site": "", "value": 0.5})))
    part, path = (Source(1, 10, 0, 0), Source(2, 10, 0, 0)), tmp_path / "a.parquet"
    write_segment(path, part, Gathered(table, (1, 1), alike=True))
    good, expected = path.read_bytes(), table.to_pandas()
    broken = 0
    for at in range(good.index(b"ARROW:schema"), len(good), 11):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
        try:
            read = read_segment(path, part)
        except BrokenSegment:
            broken += 1
        else:
            pd.testing.assert_frame_equal(read.to_pandas(), expected)
    assert broken > 20


def test_a_link_that_leads_nowhere_is_told_as_without_a_cache(folder):
    link = folder / "000000777.parquet"
    link.symlink_to(folder / "none")
    for store in (ObservationStore(folder), GatheredStore(folder)):
        with pytest.raises(ValueError, match=r"000000777\.parquet cannot be read"):
            store.read()


def test_the_cache_can_be_deleted_at_any_moment(folder, monkeypatch):
    GatheredStore(folder).read()
    original, seen = gathered_store.read_segment, []

    def deleted_meanwhile(*args):
        seen.append(args)
        if len(seen) == 2:
            shutil.rmtree(folder.parents[1] / ".cache")
        return original(*args)

    monkeypatch.setattr(gathered_store, "read_segment", deleted_meanwhile)
    assert GatheredStore(folder).read().equals(ObservationStore(folder).read())
    check(folder)


@pytest.mark.parametrize("there", [False, True])
def test_where_it_cannot_be_written_files_are_read_and_one_line_says_so(
    folder, there, monkeypatch, caplog, read
):
    gathered_store._say_unwritten.cache_clear()
    if there:
        GatheredStore(folder).read()
        written(folder, [60])
    read.clear()

    def refused(path, *args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(segments, "write_file", refused)
    with caplog.at_level(logging.INFO, "lmdyn"):
        for _ in range(2):
            check(folder)
    assert [r.message for r in caplog.records] == [
        f"{folder.parents[1] / '.cache'} cannot be written (Read-only file system): missing parts are read again "
        "each time"
    ]
    read.clear()
    GatheredStore(folder).read()
    assert max(read.values()) == 1
    assert len(read) == (1 if there else 30)


def test_few_files_have_no_cache(tmp_path):
    store = written(tmp_path / "observations" / "curves", range(4))
    GatheredStore(store.folder).read()
    assert not (tmp_path / ".cache").exists()
    elsewhere = written(tmp_path / "elsewhere", range(9))  # of no run
    GatheredStore(elsewhere.folder).read()
    assert not list(tmp_path.rglob(".cache"))


def test_a_cache_that_is_not_believed_is_neither_read_nor_written(folder, read):
    GatheredStore(folder).read()
    path = segments_of(folder)[0]
    (part,) = (p for p in GatheredStore(folder)._parts if segment_name(p) == path.name)
    gathered = gather(part, GatheredStore(folder)._read_all, [])
    forged = gathered.table.set_column(
        gathered.table.schema.get_field_index("value"), "value", pa.array([9.0] * gathered.table.num_rows)
    )
    write_segment(path, part, segments.Gathered(forged, gathered.rows, True))
    content = path.read_bytes()
    assert GatheredStore(folder).read()["value"].eq(9.0).any()  # one of our own is believed
    assert GatheredStore(folder, cached=False).read().equals(ObservationStore(folder).read())
    assert path.read_bytes() == content
    shutil.rmtree(folder.parents[1] / ".cache")
    GatheredStore(folder, cached=False).read()
    assert not (folder.parents[1] / ".cache").exists()


def test_several_at_once_do_not_disturb_each_other(folder):
    """While the observations change."""
    wrong: list[object] = []

    def reads():
        try:
            for _ in range(6):
                there = GatheredStore(folder).read()
                whole = there.groupby("step").size().eq(3).all()
                if not whole or len(there) < 90:
                    wrong.append(there)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=reads) for _ in range(3)]
    for thread in threads:
        thread.start()
    written(folder, range(61, 90, 2))
    for thread in threads:
        thread.join()
    assert not wrong
    check(folder)
    assert len(segments_of(folder)) == len(GatheredStore(folder)._parts)
    assert not list(cache_of(folder).glob(".*"))


def test_claims_read_it_and_what_lists_runs_does_not_see_it(folder):
    run = RunFolder(folder.parents[1])
    assert run.read("curves", quantities=["loss"])["value"].eq(0.5).all()
    assert segments_of(folder)
    assert dict(RunFolder(folder.parents[1]).observers()) == {"curves": "my.Observer"}
    files = sorted(p.name for p in folder.iterdir())
    assert files == [f"{step:09d}.parquet" for step in range(0, 60, 2)]
    assert len(pd.read_parquet(folder)) == 90


# ------------------------------------------------------------------------------------------ segments


def test_parts_hold_all_in_order_and_change_where_a_source_does(monkeypatch):
    draw = random.Random(0)
    for _ in range(200):
        monkeypatch.setattr(segments, "_MOST_BYTES", draw.randint(1, 200))
        steps = sorted(draw.sample(range(300), draw.randint(0, 80)))
        sources = [Source(step, draw.randint(0, 50), 1, 1) for step in steps]
        parts = list(partition(sources))
        assert [s for part in parts for s in part] == sources
        assert all(sum(s.size for s in part[:-1]) < segments._MOST_BYTES for part in parts)
        new = draw.randrange(300)
        changed = list(partition(s._replace(time=2) if s.step == new else s for s in sources))
        assert len(set(changed) - set(parts)) == (new in steps)
        monkeypatch.setattr(segments, "_MOST_BYTES", 1 << 40)
        with_new = sorted({*sources, Source(new, 51, 3, 3)})
        assert len(set(partition(with_new)) - set(partition(sources))) <= 2


def test_any_rows_of_any_steps_come_back(tmp_path, monkeypatch):
    draw, path = random.Random(0), tmp_path / "x.parquet"
    for _ in range(40):
        monkeypatch.setattr(segments, "_GROUP_ROWS", draw.randint(1, 30))
        rows = [draw.choice([0, draw.randint(0, 20)]) for _ in range(draw.randint(1, 12))]
        part = [Source(step, 1, 1, 1) for step in range(len(rows))]
        tables = {
            source: pa.table({
                "step": pa.array([source.step] * n, pa.int64()),
                "name": pa.array([str(i % 3) if i % 4 else None for i in range(n)], pa.large_string()),
                "value": np.random.default_rng(source.step).standard_normal(n),
            })
            for source, n in zip(part, rows, strict=True)
        }  # fmt: skip
        gathered = gather(part, lambda sources, tables=tables: [tables[s] for s in sources], [])
        write_segment(path, part, gathered)
        whole = pa.concat_tables(list(tables.values()))
        assert read_segment(path, part).equals(whole)
        chosen = set(draw.sample(range(len(rows) + 1), draw.randint(1, len(rows))))
        kept = whole.filter(pc.field("step").isin(sorted(chosen)))
        assert read_segment(path, part, chosen).equals(kept)
        assert gathered.select(part, chosen, None).equals(kept)
        where = pc.field("name") == "1"
        assert read_segment(path, part, chosen, where).equals(kept.filter(where))

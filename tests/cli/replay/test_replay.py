"""Replay with other workers about, and with checkpoints that fail: everything is made once, and what is not is said."""

import shutil
from pathlib import Path
from unittest import mock

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from lmdyn.callbacks import LearningCurves, ObservationStore
from lmdyn.cli.__main__ import main
from lmdyn.cli.analyze import analyze
from tests.cli.tiny_run import FEW_WORDS, at_steps, tiny_run, trained

STEPS = (0, 1, 2, 3, 4)
BROKEN = set()


class Fragile(LearningCurves):
    """Fails at some steps."""

    def observe(self, module, step, passes=None):
        """As learning curves, or not."""
        if step.step in BROKEN:
            raise RuntimeError(f"no luck at {step.step}")
        return super().observe(module, step, passes)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay")
    callbacks = [at_steps("ScheduledCheckpoint", *STEPS), at_steps(f"{__name__}.Fragile", log_figures=False)]
    run = trained(folder, tiny_run(folder, *callbacks, size=4, data=FEW_WORDS))
    shutil.rmtree(run / "observations", ignore_errors=True)
    return run


@pytest.fixture(autouse=True)
def nothing_broken():
    BROKEN.clear()


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """What one worker makes of it."""
    out = tmp_path_factory.mktemp("whole")
    assert analyze(run, out=out) == len(STEPS)
    return out


def store(out):
    return ObservationStore(Path(out) / "observations" / "fragile")


def same(out, whole, steps=STEPS):
    """Whether observations of these steps are there, once, with the numbers of one worker."""
    assert store(out).steps() == list(steps)
    table = store(whole).read()
    pd.testing.assert_frame_equal(
        store(out).read(), table[table["step"].isin(steps)].reset_index(drop=True), check_exact=True
    )
    assert sorted(p.name for p in store(out).folder.iterdir() if p.name.startswith(".")) == []


def broken(run, tmp_path, *steps):
    folder = tmp_path / "checkpoints"
    shutil.copytree(run / "checkpoints", folder)
    for step in steps:
        path = folder / f"step={step:09d}.ckpt"
        path.write_bytes(path.read_bytes()[:100])
    return folder


@pytest.mark.slow
def test_a_checkpoint_that_fails_does_not_stop_the_others(run, whole, tmp_path, capsys):
    folder = broken(run, tmp_path, 1, 3)
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"2 of 5 checkpoints could not .*: step 1: .*cannot be read"):
        analyze(run, checkpoints=str(folder), out=out)
    assert store(out).steps() == [0, 2, 4]
    main(["analyze", str(run), "--checkpoints", str(folder), "--out", str(out), "--status"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["fragile", "5", "3", "2"]
    assert lines[2] == "missing  fragile: steps 1, 3"
    for step in (1, 3):
        shutil.copy(run / "checkpoints" / f"step={step:09d}.ckpt", folder)
    assert analyze(run, checkpoints=str(folder), out=out) == 2  # what has failed is tried again
    same(out, whole)
    audits = [pd.read_parquet(o / "weights_audit.parquet") for o in (out, whole)]
    pd.testing.assert_frame_equal(*audits, check_exact=True)


def test_strictly_the_first_failure_ends_it(run, tmp_path):
    folder = broken(run, tmp_path, 1)
    with pytest.raises(ValueError, match=r"step 1 failed: .*\(--strict\)"):
        analyze(run, checkpoints=str(folder), out=tmp_path / "out", strict=True)
    assert store(tmp_path / "out").steps() == [0]


def test_where_nothing_works_nothing_more_is_tried(run, tmp_path):
    with (
        mock.patch("lmdyn.cli.replay.replay.ReadAhead.get", side_effect=ValueError("away")) as get,
        pytest.raises(ValueError, match="The replay stops, since the 2 steps before also failed"),
    ):
        analyze(run, out=tmp_path / "out")
    assert get.call_count == 3


def test_an_observer_that_fails(run, whole, tmp_path):
    """At one step; at each from the first."""
    BROKEN.add(2)
    with pytest.raises(ValueError, match=r"step 2, fragile: RuntimeError: no luck at 2") as raised:
        analyze(run, out=tmp_path / "a")
    assert isinstance(raised.value.__cause__, RuntimeError)  # whose traceback is shown
    assert store(tmp_path / "a").steps() == [0, 1, 3, 4]
    BROKEN.clear()
    analyze(run, out=tmp_path / "a")
    same(tmp_path / "a", whole)
    BROKEN.update(STEPS)
    with pytest.raises(
        ValueError, match=r"step 2, fragile failed: RuntimeError: no luck at 2. The replay stops, since the 2"
    ):
        analyze(run, out=tmp_path / "b")


def test_a_worker_makes_its_share_and_then_the_others_from_their_ends(run, whole, tmp_path):
    out, seen = tmp_path / "out", []
    add = ObservationStore.add

    def noted(self, step, observation):
        seen.append(step)
        if step == 4:  # another worker is at its share meanwhile
            table = store(whole).read()
            add(self, 0, table[table["step"] == 0])
        return add(self, step, observation)

    with mock.patch.object(ObservationStore, "add", noted):
        assert analyze(run, out=out, shard=(1, 2)) == 4
    assert seen == [1, 3, 4, 2]
    same(out, whole)


def test_what_two_have_made_is_stored_once(run, whole, tmp_path, caplog):
    out = tmp_path / "out"
    shutil.copytree(whole / "observations", out / "observations")
    about, table = store(whole).about(), store(whole).read()
    first = table[table["step"] == 2]
    there = ObservationStore(store(out).folder, about["observer"], about["settings"])
    before = there.path(2).read_bytes()
    assert not there.add(2, first)
    assert "different numbers" not in caplog.text
    assert not there.add(2, first.assign(value=first["value"] + 1))
    assert "another worker has written" in caplog.text
    assert there.path(2).read_bytes() == before
    there.path(2).unlink()
    add = ObservationStore.add
    twice = lambda self, *given: add(self, *given) and add(self, *given)  # noqa: E731
    with caplog.at_level("INFO"), mock.patch.object(ObservationStore, "add", twice):
        assert analyze(run, out=out) == 0
    assert "new observations: 0; existing observations: 4" in caplog.text
    same(out, whole)


def test_equal_weights_are_loaded_once_and_observed_twice(run, tmp_path):
    folder = broken(run, tmp_path)
    shutil.copy(folder / "step=000000002.ckpt", folder / "step=000000003.ckpt")
    with mock.patch("lmdyn.cli.replay.replay.load_weights") as load:
        load.side_effect = lambda module, weights, path: module.load_state_dict(weights)
        assert analyze(run, checkpoints=str(folder), out=tmp_path / "out") == 5
    assert [call.args[2].name[5:14] for call in load.call_args_list] == [f"{s:09d}" for s in (0, 1, 2, 4)]
    table = store(tmp_path / "out").read().pivot_table(index="step", values="value", aggfunc="sum")["value"]
    assert table[2] == table[3] != table[4]
    audit = pd.read_parquet(tmp_path / "out" / "weights_audit.parquet")
    assert audit["flag"].tolist() == ["", "", "identical to step 3", "identical to step 2", ""]


def test_a_folder_that_cannot_be_written_is_known_at_once(run):
    with pytest.raises(ValueError, match=r"/proc/none cannot be written .*--out"):
        analyze(run, out=Path("/proc/none"))


def test_a_full_disk_is_said_and_nothing_is_lost(run, whole, tmp_path):
    out = tmp_path / "out"
    write, calls = pq.write_table, []

    def full(table, path, **kwargs):
        calls.extend([path] * (kwargs.get("compression") == "zstd"))  # an observation
        if len(calls) == 3 and calls[2] == path:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        write(table, path, **kwargs)

    said = r"000000002\.parquet cannot be written .*No space left.*same command again"
    with mock.patch.object(pq, "write_table", full), pytest.raises(ValueError, match=said):
        analyze(run, out=out)
    assert store(out).steps() == [0, 1]
    assert not list(store(out).folder.glob(".*"))
    analyze(run, out=out)
    same(out, whole)


def test_checkpoints_of_nan_are_recorded_and_the_others_observed(run, tmp_path, whole, warnings_of):
    """Also from records of earlier versions, which lack the tensors, and are made anew."""
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    for step in (1, 3):
        path = tmp_path / "checkpoints" / f"step={step:09d}.ckpt"
        content = torch.load(path, weights_only=True)
        next(iter(content["state_dict"].values())).fill_(torch.nan)
        torch.save(content, path)
    given = {"checkpoints": str(tmp_path / "checkpoints"), "out": tmp_path}
    assert analyze(run, **given) == len(STEPS)
    sound, table = [t[t["step"].isin([0, 2, 4])] for t in (store(out).read() for out in (tmp_path, whole))]
    pd.testing.assert_frame_equal(sound, table, check_exact=True)
    said = "weights audit: weights are infinite or NaN at steps 1, 3"
    assert [w for w in warnings_of if "audit" in w] == [said]
    audit = tmp_path / "weights_audit.parquet"
    flags = pd.read_parquet(audit)["flag"].tolist()
    assert flags == ["", "not finite", "", "not finite", ""]
    for path in (tmp_path / "weights_audit").glob("*.parquet"):
        pd.read_parquet(path)[["step", "stamp", "digest", "sketch"]].to_parquet(path, index=False)
    sketches = [pq.read_table(p)["sketch"] for p in (path, path.with_name("000000003.parquet"))]
    assert [sketch.combine_chunks().flatten().null_count > 0 for sketch in sketches] == [False, True]
    audit.unlink()
    assert analyze(run, **given) == 0
    assert pd.read_parquet(audit)["flag"].tolist() == flags
    assert [w for w in warnings_of if "audit" in w] == [said, said]

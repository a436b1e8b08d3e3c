"""Leases: one holder at a time, however many ask; the dead and the silent lose theirs; nothing is left over."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lmdyn.callbacks.training.atomic_files import process_is_gone, process_name, remove_unfinished, write_file
from lmdyn.cli.replay.leases import Leases


@pytest.fixture
def target(tmp_path):
    return tmp_path / "observer" / "000000100.parquet"


def files(target):
    return sorted(path.name for path in target.parent.iterdir())


def silent(target, seconds, generation=1, **about):
    """A lease of another machine, not touched for a while."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f".000000100.lease.{generation}")
    path.write_text(json.dumps({"process": "other-1-1", "host": "far", "pid": 7, "began": "noon", **about}))
    os.utime(path, (time.time() - seconds,) * 2)


def test_one_holder_at_a_time(target):
    with Leases() as mine, Leases() as others:
        lease = mine.take(target)
        assert others.take(target) is None
        assert mine.take(target) is None
        assert others.look(target).state == "running"
        assert f"process {os.getpid()} on" in others.look(target).holder
        mine.release(lease)
        assert others.look(target) is None
        assert others.take(target, there=lambda: True) is None  # made meanwhile
        assert files(target) == []
        assert others.take(target) is not None
    assert files(target) == []


def test_the_silent_lose_theirs(target):
    with Leases(expiry_s=60) as mine:
        silent(target, 50)
        assert mine.look(target).state == "running"
        assert mine.look(target).age_s == pytest.approx(50, abs=5)
        assert mine.take(target) is None
        silent(target, 70)
        state = mine.look(target)
        assert (state.state, state.holder) == ("stale", "process 7 on far, since noon")
        lease = mine.take(target)
        assert lease.generation == 2
        assert mine.look(target).state == "running"  # the newest counts
        mine.release(lease)
        assert files(target) == []


def test_two_that_take_over_at_once(target):
    silent(target, 70)
    with Leases(expiry_s=60) as mine, Leases(expiry_s=60) as others:
        lease = mine.take(target)
        assert others.take(target) is None  # it looks, and generation 2 is alive
        assert (target.parent / ".000000100.lease.2").exists()
        other = type(lease)(target, 2, ahead=False)
        assert not others._create(other)  # it has looked before


def test_a_holder_notices_that_it_was_silent_for_too_long(target):
    with Leases(expiry_s=0.6) as mine:
        lease = mine.take(target)
        silent(target, 0, generation=2)
        until = time.monotonic() + 5
        while not lease.lost and time.monotonic() < until:
            time.sleep(0.05)
        assert lease.lost
        mine.release(lease)
    assert files(target) == [".000000100.lease.1", ".000000100.lease.2"]  # which are not its any more


def test_a_lease_is_kept_alive(target):
    with Leases(expiry_s=0.6) as mine, Leases(expiry_s=0.6) as others:
        mine.take(target)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert others.take(target) is None
            time.sleep(0.1)


def test_what_was_read_ahead_may_be_taken_by_those_without_work(target):
    with Leases() as mine, Leases() as others:
        lease = mine.take(target, ahead=True)
        assert others.look(target).state == "ahead"
        assert others.take(target) is None
        taken = others.take(target, from_those_ahead=True)
        assert taken is not None
        assert not mine.begin(lease)
        assert lease.lost
        others.release(taken)
        assert files(target) == []
        lease = mine.take(target, ahead=True, there=target.exists)
        taken = others.take(target, from_those_ahead=True)
        target.touch()
        others.release(taken)
        assert not mine.begin(lease)  # it is done, and nobody holds it any more
        assert files(target) == [target.name]
        target.unlink()
        lease = mine.take(target, ahead=True)
        assert mine.begin(lease)
        assert mine.begin(lease)
        assert others.take(target, from_those_ahead=True) is None
        mine.release(lease)
        assert files(target) == []


def test_a_file_that_is_empty_or_strange_is_some_other_process(target):
    target.parent.mkdir()
    for content in (b"", b"[1]", b"\xff", b'{"process": 3}'):
        (target.parent / ".000000100.lease.1").write_bytes(content)
        with Leases() as mine:
            assert mine.take(target) is None
            assert mine.look(target).holder.startswith(("another process", "process"))


def test_a_worker_that_is_killed_as_it_takes_a_lease_leaves_none(target, monkeypatch):
    """Killed between creating and writing the file, it would leave a lease that nobody may take for minutes."""

    class KilledError(BaseException):
        pass

    def killed(path, *_, **__):
        path.touch()
        raise KilledError

    monkeypatch.setattr(Path, "write_text", killed)
    with Leases() as mine, pytest.raises(KilledError):
        mine.take(target)
    monkeypatch.undo()
    with Leases() as others:
        assert others.look(target) is None
        assert others.take(target) is not None


def test_a_folder_that_cannot_be_written(target, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with Leases() as mine:
        monkeypatch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            mine.take(target)
    assert files(target) == []


WORKER = """
    import os, sys, time
    from pathlib import Path
    from lmdyn.cli.replay.leases import Leases
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    with Leases(expiry_s=float(sys.argv[3])) as leases:
        left = list(range(40))
        while left:
            for step in list(left):
                target = folder / f"{step:09d}.parquet"
                if target.exists():
                    left.remove(step)
                    continue
                lease = leases.take(target, there=target.exists)
                if lease is None:
                    continue
                with (folder / f"{step}.made").open("a") as file:
                    file.write(f"{number} {os.getpid()}\\n")
                time.sleep(0.01)
                target.touch()
                leases.release(lease)
            time.sleep(0.01)
"""


@pytest.mark.slow
def test_workers_of_which_some_are_killed(tmp_path):
    """Each thing is made once, but for those that a killed worker was at."""
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    folder = tmp_path / "things"
    folder.mkdir()
    workers = [subprocess.Popen([sys.executable, script, folder, str(i), "60"]) for i in range(4)]
    while not list(folder.glob("*.parquet")):
        time.sleep(0.01)
    for worker in workers[:2]:
        worker.send_signal(signal.SIGKILL)
    assert [worker.wait(timeout=120) for worker in workers] == [-9, -9, 0, 0]
    assert len(list(folder.glob("*.parquet"))) == 40
    made = [path.read_text().splitlines() for path in folder.glob("*.made")]
    killed = {str(worker.pid) for worker in workers[:2]}
    assert sum(len(lines) - 1 for lines in made) <= 2  # of this machine, the dead are known at once
    for lines in made:
        assert all(line.split()[1] in killed for line in lines[:-1])
    assert not list(folder.glob(".*.tmp"))


# ---------------------------------------------------------------------------------------- files and processes


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"

    def breaks(unfinished):
        unfinished.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_file(path, breaks)
    assert list(tmp_path.iterdir()) == []
    assert write_file(path, lambda p: p.write_text("1"))
    assert not write_file(path, lambda p: p.write_text("2"), first_wins=True)
    assert path.read_text() == "1"
    assert write_file(path, lambda p: p.write_text("3"))
    assert path.read_text() == "3"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_file_systems_without_links_or_sync(tmp_path, monkeypatch):
    def unknown(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("lmdyn.callbacks.training.atomic_files.os.link", unknown)
    monkeypatch.setattr("lmdyn.callbacks.training.atomic_files.os.fsync", unknown)
    path = tmp_path / "a.txt"
    assert write_file(path, lambda p: p.write_text("1"), first_wins=True)
    assert not write_file(path, lambda p: p.write_text("2"), first_wins=True)
    assert path.read_text() == "1"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are known by /proc")
def test_who_is_gone():
    assert not process_is_gone(process_name())
    code = "from lmdyn.callbacks.training.atomic_files import process_name; print(process_name())"
    gone = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert gone.split("-")[0] == process_name().split("-")[0]
    assert process_is_gone(gone)
    machine, pid, began = process_name().split("-")
    assert process_is_gone(f"{machine}-{pid}-{int(began) + 1}")  # its number was given anew
    assert not process_is_gone(f"elsewhere-{pid}-{int(began) + 1}")
    assert not process_is_gone(f"{machine}-{pid}-0")
    assert not process_is_gone("nonsense")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are known by /proc")
def test_leftovers_of_the_dead_go(tmp_path):
    machine, pid, began = process_name().split("-")
    dead = tmp_path / f".a.{machine}-{pid}-{int(began) + 1}.0.tmp"
    living = tmp_path / f".a.{process_name()}.0.tmp"
    far = tmp_path / ".a.elsewhere-1-1.0.tmp"
    old = tmp_path / ".a.elsewhere-1-2.0.tmp"
    for path in (dead, living, far, old):
        path.touch()
    os.utime(old, (0, 0))
    remove_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living, far])

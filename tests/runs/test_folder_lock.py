"""One writer in a folder, and nothing left of one that was killed."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest

from lmdyn.claims.chains.chain import begin_chain, end_orphans
from lmdyn.runs.folder_lock import CHAIN, FolderLock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no flock")

HOLD = """
import sys, time
from pathlib import Path
from lmdyn.runs.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
sys.stdout.write("held\\n"); sys.stdout.flush()
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_writer_is_told_of_the_first(tmp_path, holder):
    lock = FolderLock(tmp_path / "run")
    with pytest.raises(
        ValueError, match=rf"run is in use by process {holder.pid} on .*: wait for this process"
    ):
        lock.acquire()
    lock.release()  # it is not ours
    assert lock.path.exists()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert lock.path.exists()  # what is left over locks nothing
    lock.acquire()
    lock.release()
    assert not lock.path.exists()
    assert not (tmp_path / "run").exists()


FORK = HOLD.replace("time.sleep(60)", "import os; time.sleep(60 if os.fork() else 30)")


def test_processes_that_outlive_the_holder_do_not_hold_it(tmp_path):
    """As the workers of a DataLoader do: they look for their parent every five seconds only."""
    command = [sys.executable, "-c", FORK, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout.readline() == "held\n"
        time.sleep(0.3)
        with pytest.raises(ValueError, match="is in use by process"):
            FolderLock(tmp_path / "run").acquire()
        process.kill()
        process.wait()
        os.killpg(process.pid, 0)  # the forked one is there
        lock = FolderLock(tmp_path / "run")
        lock.acquire()
        lock.release()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


def test_waiting_ends_with_the_holder(tmp_path, holder, caplog):
    lock = FolderLock(tmp_path / "run")
    threading.Timer(1.0, holder.kill).start()
    began = time.monotonic()
    lock.acquire(wait=True)
    assert time.monotonic() - began > 0.5
    assert f"process {holder.pid}" in caplog.text
    with pytest.raises(ValueError, match="is in use by process"):
        FolderLock(tmp_path / "run").acquire()
    lock.release()


def test_of_a_file_system_without_locks_nothing_is_locked(tmp_path):
    with mock.patch("fcntl.flock", side_effect=OSError(errno.ENOLCK, "No locks available")):
        locks = [FolderLock(tmp_path / "run") for _ in range(2)]
        for lock in locks:
            lock.acquire()
    for lock in locks:
        lock.release()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
def test_what_a_killed_chain_left_is_ended(tmp_path, monkeypatch):
    monkeypatch.setenv(CHAIN, "")  # restored afterwards
    runs, others = tmp_path / "runs", tmp_path / "others"
    sleeping = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, CHAIN: str(of)})
        for of in (runs, others)
    ]  # fmt: skip
    time.sleep(0.2)  # until each has its environment
    lock = begin_chain(runs)
    assert sleeping[0].wait() == -signal.SIGKILL
    assert sleeping[1].poll() is None  # of another profile
    assert os.environ[CHAIN] == str(runs)
    with pytest.raises(ValueError, match="runs is in use by process"):  # two chains at a time
        begin_chain(runs)
    lock.release()
    assert end_orphans(others) == [sleeping[1].pid]
    assert end_orphans(others) == []
    sleeping[1].wait()

"""A chain of runs by Snakemake: one at a time in a folder, and nothing left over from one that was killed."""

import atexit
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lmdyn.cli.studies.run_lock import FolderLock

__all__ = ["CHAIN", "begin_chain", "end_orphans"]

log = logging.getLogger(__name__)

CHAIN = "LMDYN_CHAIN"
"""Environment variable of all processes of a chain: the folder of its runs."""

_PROCESSES = Path("/proc")
_PATIENCE_S = 60.0


def begin_chain(folder: Path) -> FolderLock:
    """Take a folder of runs for this process and those that it starts; called by ``configs/runs.smk`` before any job.

    The folder is held until this process ends, however that ends, so Snakemake's own lock, which outlives a killed
    process, is not needed (``nolock: true``). What an earlier chain that was killed has left running in this folder is
    ended: runs resume from their last checkpoint, and two processes never write into one run.

    Args:
        folder: ``runs/<study>/<profile>``.

    Returns:
        The lock; it is released when the process ends, or by :meth:`FolderLock.release`.

    Raises:
        ValueError: another chain is at work in the folder.
    """
    folder = folder.absolute()
    lock = FolderLock(folder)
    lock.acquire()
    atexit.register(lock.release)
    os.environ[CHAIN] = str(folder)  # for processes that start from now on
    for pid in end_orphans(folder):
        log.warning("process %d, left over from a chain in %s that was killed, was ended", pid, folder)
    return lock


def end_orphans(folder: Path) -> list[int]:
    """End the processes of a chain in this folder, other than this one; on Linux only, elsewhere there are none.

    Returns:
        Their ids.

    Raises:
        TimeoutError: one that does not end within a minute.
    """
    if not sys.platform.startswith("linux"):
        return []  # lmdyn fit waits for the lock of its run there
    mark = f"{CHAIN}={folder}".encode()
    ended = []
    for pid in _processes():
        if pid == os.getpid():
            continue
        try:
            handle = os.pidfd_open(pid)  # so that no other process is ended that gets its number meanwhile
        except OSError:
            continue
        try:
            if mark in (_PROCESSES / str(pid) / "environ").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                ended.append(pid)
        except OSError:  # of another user, or gone
            continue
        finally:
            os.close(handle)
    until = time.monotonic() + _PATIENCE_S
    for pid in ended:
        while _runs(pid):
            if time.monotonic() > until:
                raise TimeoutError(
                    f"process {pid} of a chain in {folder} that was killed does not end: end it, then start again"
                )
            time.sleep(0.05)
    return ended


def _processes() -> Iterator[int]:
    return (int(path.name) for path in _PROCESSES.iterdir() if path.name.isdigit())


def _runs(pid: int) -> bool:
    try:
        state = (_PROCESSES / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")

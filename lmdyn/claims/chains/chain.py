"""A chain of runs by Snakemake: one chain at a time in a folder, and no processes left over from a killed one."""

import atexit
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lmdyn.runs.folder_lock import CHAIN, FolderLock

__all__ = ["begin_chain", "end_orphans"]

log = logging.getLogger(__name__)

_PROCESSES = Path("/proc")
_PATIENCE_S = 60.0


def begin_chain(folder: Path) -> FolderLock:
    """Lock a folder of runs for this process and its children; called by ``configs/runs.smk`` before any job.

    The folder is locked until this process ends for any reason. Snakemake's own lock, which outlives a killed process,
    is therefore not needed (``nolock: true``). Processes that an earlier, killed chain left running in this folder are
    terminated: runs resume from their last checkpoint, and two processes never write to one run.

    Args:
        folder: ``runs/<study>/<profile>``.

    Returns:
        The lock, which is released when the process ends, or by :meth:`FolderLock.release`.

    Raises:
        ValueError: if another chain works in the folder.
    """
    folder = folder.absolute()
    lock = FolderLock(folder)
    lock.acquire()
    atexit.register(lock.release)
    os.environ[CHAIN] = str(folder)  # for processes started later
    for pid in end_orphans(folder):
        log.warning("lmdyn terminated process %d, which a killed snakemake left running in %s", pid, folder)
    return lock


def end_orphans(folder: Path) -> list[int]:
    """Terminate other processes of a chain in this folder; works on Linux only, and does nothing elsewhere.

    Returns:
        Their process ids.

    Raises:
        TimeoutError: if a process does not end within a minute.
    """
    if not sys.platform.startswith("linux"):
        return []  # there, lmdyn fit waits for the lock of its run
    mark = f"{CHAIN}={folder}".encode()
    ended = []
    for pid in _processes():
        if pid == os.getpid():
            continue
        try:
            handle = os.pidfd_open(pid)  # so that a reused process id is not terminated
        except OSError:
            continue
        try:
            if mark in (_PROCESSES / str(pid) / "environ").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                ended.append(pid)
        except OSError:  # another user's process, or it has ended
            continue
        finally:
            os.close(handle)
    until = time.monotonic() + _PATIENCE_S
    for pid in ended:
        while _runs(pid):
            if time.monotonic() > until:
                raise TimeoutError(
                    f"process {pid} of a killed snakemake in {folder} ignores SIGKILL: wait for its end, then try again"
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

"""One writer per folder: a lock that is released when the process that holds it ends for any reason."""

import contextlib
import json
import logging
import os
import platform
import sys
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["FolderLock"]

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_SAY_S = 60.0


class FolderLock:
    """A file next to a folder that one process at a time may lock (``flock``), with a line about the holder.

    The system releases the lock when the process ends, also by SIGKILL; a leftover file locks nothing. Processes forked
    by the holder, such as the workers of a DataLoader, which outlive it by seconds, do not hold the lock. On file
    systems without locks, and on Windows, nothing is locked and no error is raised.

    Args:
        folder: the folder to lock, which need not exist. The file is ``.<name>.lock`` next to it.

    Example:
        >>> import tempfile
        >>> lock = FolderLock(Path(tempfile.mkdtemp()) / "run")
        >>> lock.acquire()
        >>> lock.path.name
        '.run.lock'
        >>> lock.release()
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.path = self.folder.with_name(f".{self.folder.name}.lock")
        self._file: int | None = None

    def acquire(self, *, wait: bool = False) -> None:
        """Lock the folder.

        Args:
            wait: whether to wait, with a log message, while another process holds the lock; otherwise raise.

        Raises:
            ValueError: if another process holds the lock; the message names it.
            UnwritableError: if the folder cannot be written to.
        """
        try:
            import fcntl  # unavailable on Windows
        except ImportError:
            return
        said = -_SAY_S
        while self._file is None:
            file = self._open()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                if not wait:
                    raise ValueError(
                        f"{self.folder} is written by {self._holder()}: wait for it, or terminate it; then start again"
                    ) from None
                if time.monotonic() - said >= _SAY_S:
                    log.warning("%s is written by %s: waiting for it", self.folder, self._holder())
                    said = time.monotonic()
                time.sleep(_LOOK_S)
                continue
            except OSError as error:  # a file system without locks
                os.close(file)
                log.debug("%s is not locked: %s", self.folder, error)
                return
            if not _same_file(file, self.path):  # its holder has removed it in the meantime
                os.close(file)
                continue
            self._file = file
        _HELD.add(self)
        about = {
            "pid": os.getpid(),
            "host": platform.node(),
            "command": " ".join(sys.argv),
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        os.ftruncate(self._file, 0)
        os.write(self._file, json.dumps(about).encode())

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            from lmdyn.callbacks.training.atomic_files import UnwritableError  # slow import

            raise UnwritableError(self.folder, error) from error

    def release(self) -> None:
        """Release the lock and remove its file; does nothing if the lock is not held."""
        if self._file is not None:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            os.close(self._file)
            self._file = None

    def bequeath(self) -> None:
        """Pass the lock to the program that this process becomes (``exec``), which holds it until it ends."""
        if self._file is not None:
            os.set_inheritable(self._file, True)

    def _holder(self) -> str:
        try:
            about = json.loads(self.path.read_text(encoding="utf-8"))
            return f"process {about['pid']} on {about['host']} ({about['command']}, since {about['began']})"
        except (OSError, ValueError, KeyError, TypeError):  # the holder has just started
            return "another process"


_HELD: "weakref.WeakSet[FolderLock]" = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Close locks in a forked process: a lock is held as long as any process has the file open."""
    for lock in _HELD:
        if lock._file is not None:
            os.close(lock._file)
            lock._file = None


if hasattr(os, "register_at_fork"):  # unavailable on Windows
    os.register_at_fork(after_in_child=_leave_to_parent)


def _same_file(file: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(file)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

"""One writer per folder: a lock that is released when the process that holds it ends for any reason."""

import errno
import json
import logging
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

log = logging.getLogger(__name__)

CHAIN = "LMDYN_CHAIN"
"""Environment variable of all processes of a chain: the folder of its runs."""

_WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}  # of file systems


class FolderLock:
    """A file next to a folder that one process at a time may lock, with a line about the holder.

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
        self._lock = FileLock(self.path, fallback_to_soft=False)

    def __reduce__(self) -> tuple[type["FolderLock"], tuple[Path]]:
        """A copy, such as that of a spawned process, holds nothing."""
        return FolderLock, (self.folder,)

    def acquire(self, *, wait: bool = False) -> None:
        """Lock the folder.

        Args:
            wait: whether to wait, with a log message, while another process holds the lock; otherwise raise.

        Raises:
            ValueError: if another process holds the lock; the message names it.
            UnwritableError: if the folder cannot be written to.
        """
        if sys.platform == "win32":
            return
        about = {
            "pid": os.getpid(),
            "host": platform.node(),
            "command": " ".join(sys.argv),
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(blocking=False)
            except Timeout:
                if not wait:
                    raise ValueError(
                        f"{self.folder} is in use by {self._holder()}: wait for this process, or terminate it"
                    ) from None
                log.warning("%s is in use by %s: lmdyn waits", self.folder, self._holder())
                self._lock.acquire(poll_interval=0.5)
            self.path.write_text(json.dumps(about), encoding="utf-8")
        except OSError as error:
            if error.errno in _WITHOUT_LOCKS:
                log.debug("%s is not locked: %s", self.folder, error)
                return
            from lmdyn.runs.atomic_files import UnwritableError  # slow import

            raise UnwritableError(self.folder, error) from error

    def release(self) -> None:
        """Release the lock and remove its file; does nothing if the lock is not held."""
        if self._lock.is_locked:
            self.path.unlink(missing_ok=True)
            self._lock.release()

    def _holder(self) -> str:
        try:
            about = json.loads(self.path.read_text(encoding="utf-8"))
            return f"process {about['pid']} on {about['host']} ({about['command']}, since {about['began']})"
        except (OSError, ValueError, KeyError, TypeError):  # the holder has just started
            return "another process"

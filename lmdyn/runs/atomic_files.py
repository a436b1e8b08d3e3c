"""Atomic writing of files, safe against killed processes and other writers; removal of leftover files."""

import contextlib
import errno
import hashlib
import itertools
import os
import platform
import re
import tempfile
import time
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import BinaryIO

_DAY_S = 24 * 3600.0
_UNKNOWN = {
    errno.EPERM,
    errno.EINVAL,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EBADF,
}
"""Error numbers of file systems without hard links or fsync."""

_counter = itertools.count()


class UnwritableError(OSError, ValueError):  # a ValueError for compatibility with earlier versions
    """A file cannot be written: the disk is full, a quota is reached, or the folder is read-only.

    Example:
        >>> try:
        ...     write_file(Path("/proc/a/b"), lambda path: path.write_text("x"))
        ... except UnwritableError as error:
        ...     print(error)
        /proc/a/b cannot be written (No such file or directory): free disk space, or choose another folder
    """

    def __init__(
        self, path: Path, error: Exception, remedy: str = "free disk space, or choose another folder"
    ) -> None:
        self.why: str = (
            getattr(error, "why", None) or getattr(error, "strerror", None) or str(error).partition("\n")[0]
        )
        super().__init__(f"{path} cannot be written ({self.why}): {remedy}")
        self.errno = getattr(error, "errno", None)


def write_file(
    path: Path, write: Callable[[Path], object], *, first_wins: bool = False, lasting: bool = True
) -> bool:
    """Write a file under another name, flush it to the disk, and then rename it; a link of this name is replaced.

    Args:
        path: final path; its folder is created.
        write: function that writes to the path that it receives.
        first_wins: whether to keep an existing file; otherwise it is replaced.
        lasting: whether to wait until it is on the disk; False for files with checksums that can be created again.

    Returns:
        False if another writer was first.

    Raises:
        UnwritableError: if the folder is read-only or full; no file is left then.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a" / "b.txt"
        >>> write_file(path, lambda p: p.write_text("x"))
        True
        >>> write_file(path, lambda p: p.write_text("y"), first_wins=True)
        False
        >>> path.read_text(), len(list(path.parent.iterdir()))
        ('x', 1)
    """
    unfinished = unfinished_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(unfinished)
        if lasting:
            _to_disk(unfinished)
        if first_wins:
            try:
                _publish(unfinished, path)
            except FileExistsError:
                return False
        else:
            unfinished.replace(path)
        if lasting:
            _to_disk(path.parent)
    except OSError as error:
        raise UnwritableError(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return True


def remove_links(folder: Path) -> None:
    """Remove links among the files of a folder, for libraries that write to files, and not by :func:`write_file`."""
    for path in folder.glob("*"):
        if path.is_symlink():
            path.unlink()


def make_writable(folder: Path, remedy: str) -> None:
    """Create a folder, and check that it is writable.

    Raises:
        UnwritableError: if it is not; the message contains the remedy.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UnwritableError(folder, error, remedy) from error


def unfinished_path(path: Path) -> Path:
    """Return a unique temporary name for a file in its folder, which identifies the process."""
    return path.with_name(f".{path.name}.{_machine()}-{os.getpid()}.{next(_counter)}.tmp")


def _publish(unfinished: Path, path: Path) -> None:
    """Give a file its name atomically by a second link, unless a file of this name exists."""
    try:
        os.link(unfinished, path)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        with path.open("xb"):  # a file system without hard links: the best approximation
            pass
        unfinished.replace(path)


def _to_disk(path: Path) -> None:
    """Flush to the disk: otherwise a power failure can leave a file name without content."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:  # for a folder, on Windows
        return
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in _UNKNOWN:  # a full disk may be reported only now
            raise
    finally:
        os.close(file)


def remove_unfinished(folder: Path) -> None:
    """Remove incomplete files of killed processes in a folder, but not those of running ones.

    For processes of this machine it is known whether they have ended; files of others are removed after a day.
    """
    for path in folder.glob(".*.tmp"):
        match = re.search(rf"\.{_machine()}-(\d+)\.\d+\.tmp$", path.name)
        with contextlib.suppress(FileNotFoundError):  # another worker was first
            if (match and _has_ended(int(match[1]))) or path.stat().st_mtime < time.time() - _DAY_S:
                path.unlink()


@cache
def _machine() -> str:
    """Return an identifier of this machine, and of its numbering of processes (one per container)."""
    numbering = Path("/proc/self/ns/pid")
    facts = [platform.node(), str(numbering.readlink()) if numbering.is_symlink() else ""]
    return hashlib.blake2b(repr(facts).encode(), digest_size=5).hexdigest()


def _has_ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # of another user
        pass
    return False


def compare_checksums(archive: Path | BinaryIO) -> None:
    """Check the checksums of an archive of torch, since torch itself ignores them.

    Raises:
        ValueError: if a part differs from what was written.
    """
    if not zipfile.is_zipfile(archive):  # from old versions of torch
        return
    with zipfile.ZipFile(archive) as file:
        written = any(part.CRC for part in file.infolist())  # or torch.serialization.set_crc32_options(False)
        if written and (part := file.testzip()) is not None:
            raise ValueError(f"{part} in the file differs from what was written")

"""Files that are there whole or not at all, whoever is killed and whoever else writes; and whose leftovers are left."""

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

__all__ = [
    "UnwritableError",
    "compare_checksums",
    "make_writable",
    "process_is_gone",
    "process_name",
    "remove_unfinished",
    "unfinished_path",
    "write_file",
]

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
"""What file systems answer that do not know hard links, or fsync."""

_counter = itertools.count()


class UnwritableError(OSError, ValueError):  # the latter, as what cannot be written was before
    """A file that cannot be written: a disk that is full, a quota, a folder that may only be read.

    Example:
        >>> try:
        ...     write_file(Path("/proc/a/b"), lambda path: path.write_text("x"))
        ... except UnwritableError as error:
        ...     print(error)
        /proc/a/b cannot be written (No such file or directory): make room for it, or choose another folder
    """

    def __init__(
        self, path: Path, error: Exception, remedy: str = "make room for it, or choose another folder"
    ) -> None:
        self.why: str = (
            getattr(error, "why", None) or getattr(error, "strerror", None) or str(error).partition("\n")[0]
        )
        super().__init__(f"{path} cannot be written ({self.why}): {remedy}")
        self.errno = getattr(error, "errno", None)


def write_file(
    path: Path, write: Callable[[Path], object], *, first_wins: bool = False, lasting: bool = True
) -> bool:
    """Write a file under another name, onto the disk, and then give it its own.

    Args:
        path: its own name; the folder is made.
        write: writes to the path that it is given.
        first_wins: leave a file that is there as it is; else it is replaced.
        lasting: wait until it is on the disk; False for what can be made again, and has a checksum.

    Returns:
        False where another was first.

    Raises:
        UnwritableError: the folder cannot be written, or is full; nothing is left then.

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


def make_writable(folder: Path, remedy: str) -> None:
    """Make a folder, and try to write there.

    Raises:
        UnwritableError: it cannot be, with the remedy.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UnwritableError(folder, error, remedy) from error


def unfinished_path(path: Path) -> Path:
    """Another name for a file, in its folder, which no process takes twice, and of which it is known who took it."""
    return path.with_name(f".{path.name}.{process_name()}.{next(_counter)}.tmp")


def _publish(unfinished: Path, path: Path) -> None:
    """Give a file its name, unless there is one of this name: in one go, by a second link."""
    try:
        os.link(unfinished, path)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        with path.open("xb"):  # a file system without hard links: as near as it comes
            pass
        unfinished.replace(path)


def _to_disk(path: Path) -> None:
    """Not only into the machine's memory: else a failure of power leaves a file's name without its content."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:  # of a folder, on Windows
        return
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in _UNKNOWN:  # a disk that is full may say so only now
            raise
    finally:
        os.close(file)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes have begun to write in a folder, and leave what others may be writing.

    Of processes of this machine it is known whether they are gone; of others, what is a day old is left over.
    """
    for path in folder.glob(".*.tmp"):
        match = re.search(r"\.(\w+-\d+-\d+)\.\d+\.tmp$", path.name)
        with contextlib.suppress(FileNotFoundError):  # another worker was first
            if (match and process_is_gone(match[1])) or path.stat().st_mtime < time.time() - _DAY_S:
                path.unlink()


# ---------------------------------------------------------------------------------------------- processes


def process_name() -> str:
    """A name of this process that no other has, on no machine: ``<machine>-<process>-<when it began>``.

    Example:
        >>> process_is_gone(process_name())
        False
    """
    return f"{_machine()}-{os.getpid()}-{_began(os.getpid()) or 0}"


def process_is_gone(name: str) -> bool:
    """Whether a process of this machine has ended; False where that cannot be known, as of other machines."""
    match = re.fullmatch(r"(\w+)-(\d+)-([1-9]\d*)", name)
    return match is not None and match[1] == _machine() and _began(int(match[2])) != int(match[3])


@cache
def _machine() -> str:
    """This machine since it was started, and within it the numbering of processes (a container has its own)."""
    facts = [platform.node()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"),
        lambda: str(Path("/proc/self/ns/pid").readlink()),
    ):
        with contextlib.suppress(OSError):
            facts.append(read())
    return hashlib.blake2b(repr(facts).encode(), digest_size=5).hexdigest()


def _began(pid: int) -> int | None:
    """When a process began, in the system's ticks since it was started; None where there is none, or no ``/proc``."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = content.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])  # one that has ended and is not yet buried


def compare_checksums(archive: Path | BinaryIO) -> None:
    """Refuse what torch has saved, where a part is not as it was written: torch would believe its numbers.

    Raises:
        ValueError: another content than was written.
    """
    if not zipfile.is_zipfile(archive):  # of old versions of torch
        return
    with zipfile.ZipFile(archive) as file:
        without = all(
            part.CRC == 0 for part in file.infolist()
        )  # torch.serialization.set_crc32_options(False)
        if not without and (part := file.testzip()) is not None:
            raise ValueError(f"{part} in it has another content than was written")

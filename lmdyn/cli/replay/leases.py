"""Leases: files next to the observations that distribute these among any number of workers and machines.

No server and no lock are required: a lease is a file that is created exclusively, which also works on NFS.
"""

import json
import logging
import os
import platform
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from lmdyn.callbacks.training.atomic_files import (
    process_is_gone,
    process_name,
    unfinished_path,
    write_file,
)

__all__ = ["EXPIRY_S", "Lease", "LeaseState", "Leases", "file_system_time"]

log = logging.getLogger(__name__)

EXPIRY_S = 300.0
"""Without a heartbeat for this many seconds, another worker may take the lease. NFS times may be a minute old."""

_SIGNS = 6  # heartbeats within that time


@dataclass
class Lease:
    """The right to make one file.

    Attributes:
        target: the file to make.
        generation: number of the lease; a higher one has taken it over.
        ahead: whether the work has not started yet: its input is read ahead.
        there: function that returns whether the file exists already.
        lost: whether another worker has taken it over.
    """

    target: Path
    generation: int
    ahead: bool
    there: Callable[[], bool] = lambda: False
    lost: bool = False

    @property
    def path(self) -> Path:
        """Path of the lease's file."""
        return _path(self.target, self.generation)


@dataclass(frozen=True)
class LeaseState:
    """The state of a lease, according to its file.

    Attributes:
        state: ``running``; ``ahead``, which an idle worker may take; ``stale``: its worker is dead, or has sent no
            heartbeat for too long.
        age_s: seconds since its last heartbeat, by the file system's clock.
        about: ``host``, ``pid``, ``began``, ``command``; empty if the file has no content (yet).
    """

    state: Literal["running", "ahead", "stale"]
    age_s: float
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def holder(self) -> str:
        """Description of the holder."""
        if not self.about:
            return "another process"
        return f"process {self.about.get('pid')} on {self.about.get('host')}, since {self.about.get('began')}"


class Leases:
    """The leases of one worker, which are kept alive while the context is open.

    ``<folder>/<name>.parquet`` is leased by ``<folder>/.<name>.lease.<generation>``. The worker that exclusively
    creates generation 1 holds it, and touches it regularly. After ``expiry_s`` without this, any worker may create the
    next generation, again exclusively, so that two workers never believe to hold the same one. Times are those of the
    file system: a file is touched in the same folder and the times compared, so that clocks of machines do not matter.
    On the holder's machine, a process that has ended is detected immediately. The work of a lease ``ahead`` has not
    started: an idle worker may take it by creating the next generation, as its holder does to start.

    A lease only avoids duplicate work, and correctness does not depend on it: if two workers make the same file, the
    first one counts (:meth:`~lmdyn.callbacks.observing.store.ObservationStore.add`).

    Args:
        expiry_s: seconds without a heartbeat until a lease may be taken over.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "000000100.parquet"
        >>> with Leases() as mine, Leases() as others:
        ...     lease = mine.take(target)
        ...     before = others.take(target), others.look(target).state
        ...     mine.release(lease)
        ...     before, others.take(target) is not None
        ((None, 'running'), True)
    """

    def __init__(self, expiry_s: float = EXPIRY_S) -> None:
        self.expiry_s = expiry_s
        self._held: list[Lease] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._about = {
            "process": process_name(), "host": platform.node(), "pid": os.getpid(), "command": " ".join(sys.argv),
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._keep_alive, name="leases", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        for lease in list(self._held):
            self.release(lease)

    def take(
        self,
        target: Path,
        *,
        there: Callable[[], bool] = lambda: False,
        ahead: bool = False,
        from_those_ahead: bool = False,
    ) -> Lease | None:
        """Take the lease of a file to be made, if no worker has it.

        Args:
            target: the file; its folder is created.
            there: function that returns whether the file exists already; called while the lease is held.
            ahead: whether work does not start yet, see :meth:`begin`.
            from_those_ahead: whether to also take it from a worker that has not started yet.

        Returns:
            The lease; None if another worker has it, or the file exists.

        Raises:
            OSError: if the folder cannot be written to.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        newest = _newest(target)
        if newest:
            state = self._state(target, newest)
            free = state is None or state.state == "stale" or (from_those_ahead and state.state == "ahead")
            if not free:
                return None
            if state is not None and state.state == "stale":
                log.info("%s: taken over from %s", target, state.holder)
        lease = Lease(target, newest + 1, ahead, there)
        if not self._create(lease):
            return None
        with self._lock:
            self._held.append(lease)
        if there():
            self.release(lease)
            return None
        return lease

    def begin(self, lease: Lease) -> bool:
        """Start the work that was leased ahead; return False if another worker has started it, or finished."""
        if lease.ahead and not lease.lost:
            with self._lock:
                begun = Lease(lease.target, lease.generation + 1, ahead=False)
                lease.lost = not self._create(begun)
                lease.generation, lease.ahead = begun.generation, False
        if lease.lost:
            self._forget(lease)
        elif lease.there():  # another worker has taken it, made it and released it
            self.release(lease)
            return False
        return not lease.lost

    def release(self, lease: Lease) -> None:
        """Release it: the work is done, or another worker may do it."""
        self._forget(lease)
        if lease.lost:
            return
        for generation in range(lease.generation, 0, -1):  # from the newest, which names the holder
            with suppress(FileNotFoundError):
                _path(lease.target, generation).unlink()

    def look(self, target: Path) -> LeaseState | None:
        """Return the state of a file's lease; None if no worker has it."""
        newest = _newest(target)
        return self._state(target, newest) if newest else None

    def tidy(self, folder: Path) -> None:
        """Remove leases left by dead workers, if their files exist."""
        for path in folder.glob(".*.lease.1"):
            target = path.with_name(f"{path.name[1:].removesuffix('.lease.1')}.parquet")
            state = self.look(target)
            if target.exists() and (state is None or state.state == "stale"):
                self.release(Lease(target, _newest(target), ahead=False))

    # ------------------------------------------------------------------------------------------------ files

    def _create(self, lease: Lease) -> bool:
        """Create the file with its content at once: a worker that is killed meanwhile leaves no lease of nobody."""
        about = json.dumps({**self._about, "ahead": lease.ahead})
        return write_file(
            lease.path, lambda path: path.write_text(about, encoding="utf-8"), first_wins=True, lasting=False
        )

    def _state(self, target: Path, generation: int) -> LeaseState | None:
        """Return the state of a lease; None if it has just been released."""
        try:
            # opened, since network file systems then ask the server, and otherwise show cached times
            with _path(target, generation).open("rb") as file:
                content, signed = file.read(), os.fstat(file.fileno()).st_mtime
            age = file_system_time(target.parent) - signed
        except FileNotFoundError:
            return None
        try:
            about = json.loads(content)
        except ValueError:  # just created, or written when the disk was full
            about = {}
        about = about if isinstance(about, dict) else {}
        if age > self.expiry_s or process_is_gone(str(about.get("process", ""))):
            return LeaseState("stale", age, about)
        return LeaseState("ahead" if about.get("ahead") else "running", age, about)

    def _forget(self, lease: Lease) -> None:
        with self._lock:
            self._held = [held for held in self._held if held is not lease]

    def _keep_alive(self) -> None:
        while not self._closed.wait(self.expiry_s / _SIGNS):
            for lease in list(self._held):
                with self._lock:  # work may start, which creates the next generation
                    try:
                        os.utime(lease.path)
                        lease.lost = _path(lease.target, lease.generation + 1).exists()
                    except FileNotFoundError:
                        lease.lost = True
                    except OSError as error:  # network failures may be temporary
                        log.warning("%s cannot be kept alive: %s", lease.path, error)


def _path(target: Path, generation: int) -> Path:
    return target.with_name(f".{target.stem}.lease.{generation}")


def _newest(target: Path) -> int:
    """Return the newest generation of a lease, 0 if there is none; tried by name, as folders may be large."""
    generation = 0
    while _path(target, generation + 1).exists():
        generation += 1
    return generation


def file_system_time(folder: Path) -> float:
    """Return the time of a folder's file system in seconds: that of a file created in it."""
    path = unfinished_path(folder / "clock")
    try:
        path.touch()
        os.utime(path)
        return path.stat().st_mtime
    finally:
        path.unlink(missing_ok=True)

"""A limit on the hub's cache: only what a replay downloaded is removed, after it was observed."""

import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lmdyn.runs.atomic_files import write_file
from lmdyn.runs.folder_lock import FolderLock
from lmdyn.runs.hub_checkpoints import HubCheckpoints

__all__ = ["Downloads", "KeepLimit", "parse_keep"]

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True)
class KeepLimit:
    """Maximum amount in the cache at a time.

    Attributes:
        checkpoints: number of checkpoints; or
        size: number of bytes.
    """

    checkpoints: int | None = None
    size: int | None = None

    def slots(self, first: Path) -> int:
        """Return the number of checkpoints, each as large as the first one, but at least 1."""
        if self.checkpoints is not None:
            return self.checkpoints
        each = sum(file.stat().st_size for file in first.iterdir() if file.is_file())
        return max(1, (self.size or 0) // max(1, each))


def parse_keep(text: str) -> KeepLimit:
    """Parse ``"3"`` checkpoints, or a size, ``"20GB"``.

    Raises:
        ValueError: if it is neither.

    Example:
        >>> parse_keep("3").checkpoints, parse_keep("1.5 GB").size
        (3, 1500000000)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(b?)", text.strip().lower())
    if match is not None and not (match[2] or match[3]) and text.strip().isdigit() and int(text) > 0:
        return KeepLimit(checkpoints=int(text))
    if match is not None and (match[2] or match[3]) and float(match[1]) > 0:
        return KeepLimit(size=int(float(match[1]) * _UNITS[match[2]]))
    raise ValueError(
        f"--keep {text!r}: expected a number of checkpoints, at least 1, or a size, such as 20GB"
    )


class Downloads(Mapping[int, Path]):
    """Checkpoints of a hub model, of which only a limited number downloaded by lmdyn is in the cache at a time.

    A download waits until fewer than ``slots`` are in the cache. The files there are recorded before it starts, so that
    what a killed worker leaves is removed by the next one with this folder. Files that were in the cache before, or
    that another revision shares, are never removed.

    Args:
        paths: the checkpoints; reading an item downloads it.
        cached: function that returns the folder of (name, revision) in the cache without downloading, or None if it is
            incomplete.
        cache: the cache of the hub.
        folder: folder in which downloads are recorded, of this worker alone.
        slots: maximum number of downloads of this worker.

    Raises:
        ValueError: if another worker uses the folder.
    """

    def __init__(
        self,
        paths: HubCheckpoints,
        cached: Callable[[str, str | None], Path | None],
        cache: Path,
        folder: Path,
        slots: int,
    ) -> None:
        self._paths, self._cached, self._cache, self._folder = paths, cached, cache, folder
        self._free = threading.Semaphore(slots)
        self._held: set[int] = set()
        self._closed = threading.Event()
        self._lock = FolderLock(folder)
        self._lock.acquire()
        for note in folder.glob("*.json"):
            self._remove(note)

    def __iter__(self) -> Iterator[int]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def stamp(self, step: int) -> str:
        """Return the stamp of a checkpoint."""
        return self._paths.stamp(step)

    def __getitem__(self, step: int) -> Path:
        """Download a checkpoint when there is space for it.

        Raises:
            ValueError: if it cannot be reached.
        """
        name, revision = self._paths.model(step)
        there = self._cached(name, revision)
        if there is not None:
            return there
        while not self._free.acquire(timeout=_LOOK_S):
            if self._closed.is_set():
                raise ValueError("the replay has ended")
        self._held.add(step)
        try:
            files = sorted(map(str, self._pointers(name)))
            note = json.dumps({"name": name, "revision": revision, "before": files})
            write_file(self._note(step), lambda path: path.write_text(note, encoding="utf-8"))
            return self._paths[step]
        except BaseException:
            self.done(step)
            raise

    def done(self, step: int) -> None:
        """Remove a checkpoint that is no longer needed, if it was downloaded here."""
        if step in self._held:
            self._held.remove(step)
            self._remove(self._note(step))
            self._free.release()

    def close(self) -> None:
        """Stop: no checkpoint is needed any more."""
        self._closed.set()
        for step in list(self._held):
            self.done(step)
        with suppress(OSError):  # not empty
            self._folder.rmdir()
        self._lock.release()
        with suppress(OSError):  # not empty: other workers use it
            self._folder.parent.rmdir()

    def _note(self, step: int) -> Path:
        return self._folder / f"{step}.json"

    def _remove(self, path: Path) -> None:
        """Remove what was downloaded after a record was written."""
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            name, revision, before = str(note["name"]), note["revision"], set(note["before"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s cannot be read (%s): the files that it lists stay in the cache", path, error)
            path.unlink(missing_ok=True)
            return
        repository = self._repository(name)
        reference = repository / "refs" / (revision or "main")
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
        folder = repository / "snapshots" / str(commit)
        others = {p.resolve() for p in self._pointers(name) if folder not in p.parents or str(p) in before}
        for pointer in _files(folder):
            if str(pointer) in before:
                continue
            content = pointer.resolve()
            pointer.unlink(missing_ok=True)
            if content not in others:
                content.unlink(missing_ok=True)
        with suppress(OSError):  # not empty, or already removed
            folder.rmdir()
            reference.unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def _repository(self, name: str) -> Path:
        return self._cache / f"models--{name.replace('/', '--')}"

    def _pointers(self, name: str) -> list[Path]:
        """Return the files of a model in the cache, of all its revisions."""
        return _files(self._repository(name) / "snapshots")


def _files(folder: Path) -> list[Path]:
    """Return the files below a folder; other workers may remove parts of it (``rglob`` would raise)."""
    return [Path(at, name) for at, _, names in os.walk(folder) for name in names]

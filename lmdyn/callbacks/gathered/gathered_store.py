"""Reading the observations of very many steps: one file a step, and a cache beside them that holds the same rows."""

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from lmdyn.callbacks.gathered.segments import (
    BrokenSegment,
    Source,
    gather,
    partition,
    read_segment,
    segment_name,
    write_segment,
)
from lmdyn.callbacks.observing.store import ObservationStore
from lmdyn.callbacks.training.atomic_files import remove_unfinished

__all__ = ["CACHE", "LEAST", "GatheredStore"]

log = logging.getLogger(__name__)

CACHE = ".cache"
"""Its name in a run's folder; what is in it can be deleted at any moment."""

LEAST = 100
"""Observations of one observer from which on something of them is kept there: fewer files are read as fast."""

_READERS = 8  # threads: a file system over a network answers late


class GatheredStore(ObservationStore):
    """The observations of one observer, to be read: what was read once is read from ``<log_dir>/.cache`` the next time.

    It is the observations that count: a file that is new, or of another size or of other times than when it was read,
    is read again, and of one that is gone no row is left. Below 100 steps, or where no cache can be written, all files
    are read. Which files there are is found out once.

    Args:
        folder: ``<log_dir>/observations/<name>``.
        cached: False to believe no cache, and to write none: of a run that somebody else has made.

    Example:
        >>> import tempfile
        >>> import pandas as pd
        >>> run = Path(tempfile.mkdtemp())
        >>> store = ObservationStore(run / "observations" / "curves", "my.Observer", {"n": 1})
        >>> for step in range(120):
        ...     store.write(step, pd.DataFrame({"step": step, "quantity": ["loss"], "site": [""], "value": [0.5]}))
        >>> GatheredStore(store.folder).read().equals(store.read()), (run / ".cache").is_dir()
        (True, True)
    """

    def __init__(self, folder: Path, *, cached: bool = True) -> None:
        super().__init__(folder)
        self._writes = True
        self._cached = cached and self.folder.parent.name == "observations"
        self._cache = self.folder.parents[1] / CACHE / "observations" / self.folder.name

    def steps(self) -> list[int]:
        """Steps that are there, in order."""
        return [source.step for source in self.sources]

    @cached_property
    def sources(self) -> list[Source]:
        """The files that are there, as they were when this was asked first."""
        found = []
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if match := re.fullmatch(r"(\d{9,})\.parquet", entry.name):
                        try:
                            about = entry.stat()
                        except FileNotFoundError:
                            # gone meanwhile; a link that leads nowhere is told when read
                            found += [Source(int(match[1]), 0, 0, 0)] if entry.is_symlink() else []
                            continue
                        times = about.st_mtime_ns, about.st_ctime_ns
                        found.append(Source(int(match[1]), about.st_size, *times))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found)

    @cached_property
    def _parts(self) -> list[tuple[Source, ...]]:
        return list(partition(self.sources))

    def _tables(self, steps: Collection[int], where: Any) -> Iterator[pa.Table]:
        if not self._cached or len(self.sources) < LEAST:
            yield from super()._tables(steps, where)
            return
        chosen = set(steps)
        for part in self._parts:
            own = [source.step for source in part if source.step in chosen]
            if not own:
                continue
            try:
                yield self._rows(part, chosen, where)
            except pa.ArrowException:  # columns of several types: who reads the files says it
                yield from super()._tables(own, where)
        self._tidy()

    def _rows(self, part: Sequence[Source], steps: Collection[int], where: Any) -> pa.Table:
        path = self._cache / segment_name(part)
        try:
            return read_segment(path, part, steps, where)
        except BrokenSegment:
            gathered = gather(part, self._read_all, self._earlier)
        if self._writes:
            try:
                write_segment(path, part, gathered)
            except OSError as error:  # a folder to read only, a disk that is full
                self._writes = False
                _say_unwritten(self._cache.parents[1], error.strerror or str(error))
        return gathered.select(part, steps, where)

    def _read_all(self, sources: Sequence[Source]) -> Iterable[pa.Table]:
        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(lambda source: self._read(source.step), sources))

    @cached_property
    def _earlier(self) -> list[Path]:
        """Segments that were made before some of their sources changed."""
        return [path for path in self._cache.glob("*.parquet") if path.name not in self._names]

    @cached_property
    def _names(self) -> set[str]:
        return {segment_name(part) for part in self._parts}

    def _tidy(self) -> None:
        """Remove segments that were made before, once nothing of them is missing."""
        with suppress(OSError):
            there = {path.name for path in self._cache.glob("*.parquet")}
            if self._writes and self._names < there:
                for name in there - self._names:
                    (self._cache / name).unlink(missing_ok=True)
                remove_unfinished(self._cache)


@cache
def _say_unwritten(folder: Path, error: str) -> None:
    log.info("%s cannot be written (%s): what it lacks is read again each time", folder, error)

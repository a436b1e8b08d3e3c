"""Reading the observations of many steps: one file per step, and a cache next to them that contains the same rows."""

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
"""Name of the cache in a run's folder; its content can be deleted at any time."""

LEAST = 100
"""Minimum number of observations of an observer for a cache: fewer files are read as fast."""

_READERS = 8  # threads: network file systems have a high latency


class GatheredStore(ObservationStore):
    """Reader of one observer's observations: after the first time, they are read from ``<log_dir>/.cache``.

    The observations take precedence: a file that is new, or whose size or times have changed since it was read,
    is read again, and rows of a deleted file are dropped. Below 100 steps, or if no cache can be written, all files
    are read. The existing files are listed once.

    Args:
        folder: ``<log_dir>/observations/<name>``.
        cached: False to neither use nor write a cache, as for a run of somebody else.

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
        """Return the existing steps, in order."""
        return [source.step for source in self.sources]

    @cached_property
    def sources(self) -> list[Source]:
        """The existing files at the first access."""
        found = []
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if match := re.fullmatch(r"(\d{9,})\.parquet", entry.name):
                        try:
                            about = entry.stat()
                        except FileNotFoundError:
                            # deleted meanwhile; a broken link is reported when read
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
            except pa.ArrowException:  # columns of several types: reading the files reports this
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
            except OSError as error:  # a read-only folder, a full disk
                self._writes = False
                _say_unwritten(self._cache.parents[1], error.strerror or str(error))
        return gathered.select(part, steps, where)

    def _read_all(self, sources: Sequence[Source]) -> Iterable[pa.Table]:
        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(lambda source: self._read(source.step), sources))

    @cached_property
    def _earlier(self) -> list[Path]:
        """Segments written before some of their sources changed."""
        return [path for path in self._cache.glob("*.parquet") if path.name not in self._names]

    @cached_property
    def _names(self) -> set[str]:
        return {segment_name(part) for part in self._parts}

    def _tidy(self) -> None:
        """Remove earlier segments once the present ones are complete."""
        with suppress(OSError):
            there = {path.name for path in self._cache.glob("*.parquet")}
            if self._writes and self._names < there:
                for name in there - self._names:
                    (self._cache / name).unlink(missing_ok=True)
                remove_unfinished(self._cache)


@cache
def _say_unwritten(folder: Path, error: str) -> None:
    log.info("%s cannot be written (%s): missing parts are read again each time", folder, error)

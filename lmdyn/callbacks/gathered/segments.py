"""Segments: the rows of many small files in one larger file, valid as long as none of these files changes."""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lmdyn.callbacks.observing.schema import from_arrow
from lmdyn.callbacks.training.atomic_files import write_file

__all__ = [
    "BrokenSegment",
    "Gathered",
    "Source",
    "gather",
    "partition",
    "read_segment",
    "segment_name",
    "write_segment",
]

_VERSION = 3
_KEY = b"lmdyn_cache"
_STEPS = 256  # of a segment, on average
_MOST_BYTES = 4 << 20  # of the files of a segment: in memory, about ten times as much
_GROUP_ROWS = 1 << 15  # rows that are read at once


class BrokenSegment(ValueError):  # noqa: N818 (not an error of the user: the segment is written again)
    """A file is not a segment, has other sources, or is damaged."""


class Source(NamedTuple):
    """State of a file of observations.

    Attributes:
        step: the step in its name.
        size: size in bytes.
        time: last change of its content, in nanoseconds by the file system's clock; programs can set it.
        status_time: last change of its name, its content or its times; programs cannot set it.
    """

    step: int
    size: int
    time: int
    status_time: int


def partition(sources: Iterable[Source]) -> Iterator[tuple[Source, ...]]:
    """Yield the sources of each segment, in order.

    The end of a segment depends on the steps themselves, so that adding or removing a source changes one segment only.

    Example:
        >>> first = list(partition(Source(step, 100, 0, 0) for step in range(5000)))
        >>> second = list(partition(Source(step, 100, 0, 0) for step in range(5000) if step != 2000))
        >>> len(set(first) ^ set(second))
        2
    """
    part: list[Source] = []
    size = 0
    for source in sources:
        part.append(source)
        size += source.size
        if size >= _MOST_BYTES or crc32(b"%d" % source.step) % _STEPS == 0:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)


def segment_name(part: Sequence[Source]) -> str:
    """Return the file name of the segment of these sources; it is different for other sources."""
    content = json.dumps([_VERSION, part])
    return f"{part[0].step:09d}-{hashlib.blake2b(content.encode(), digest_size=12).hexdigest()}.parquet"


@dataclass(frozen=True)
class Gathered:
    """The rows of a segment's sources.

    Attributes:
        table: all rows, in the order of sources.
        rows: number of rows of each source.
        alike: whether all sources have the same columns of the same types.
    """

    table: pa.Table
    rows: tuple[int, ...]
    alike: bool

    def select(self, part: Sequence[Source], steps: Collection[int] | None, where: Any) -> pa.Table:
        """Return the rows of some steps for which an expression holds."""
        found = _of_steps(self.table, [s.step for s in part], self.rows, steps)
        return found if where is None else found.filter(where)


def gather(
    part: Sequence[Source], read: Callable[[Sequence[Source]], Iterable[pa.Table]], earlier: Iterable[Path]
) -> Gathered:
    """Return the rows of sources: unchanged ones are taken from earlier segments, the others are read.

    Args:
        part: the sources.
        read: function that reads several of them.
        earlier: segments of other sources; unusable ones are skipped.
    """
    tables: dict[Source, pa.Table] = {}
    for path in earlier:
        with suppress(BrokenSegment):
            tables |= _kept(path, set(part) - tables.keys())
    missing = [source for source in part if source not in tables]
    tables |= zip(missing, map(from_arrow, read(missing)), strict=True)
    ordered = [tables[source] for source in part]
    return Gathered(
        pa.concat_tables(ordered, promote_options="default"),
        tuple(table.num_rows for table in ordered),
        len({_columns(table.schema) for table in ordered}) == 1,
    )


def write_segment(path: Path, part: Sequence[Source], gathered: Gathered) -> None:
    """Write a segment atomically.

    Raises:
        OSError: if it cannot be written.
    """
    schema = gathered.table.schema
    about = {
        "version": _VERSION, "sources": part, "rows": gathered.rows, "alike": gathered.alike,
        "schema": _checksum(schema),
    }  # fmt: skip
    schema = schema.with_metadata({**(schema.metadata or {}), _KEY: json.dumps(about).encode()})

    def write(unfinished: Path) -> None:
        names = [f.name for f in schema if pa.types.is_large_string(f.type) or pa.types.is_string(f.type)]
        floats = [f.name for f in schema if pa.types.is_float64(f.type)]
        with pq.ParquetWriter(
            unfinished, schema, compression="zstd", compression_level=1, write_page_checksum=True,
            use_dictionary=names, use_byte_stream_split=floats,
        ) as writer:  # fmt: skip
            for first, last in _groups(gathered.rows):
                writer.write_table(gathered.table.slice(first, last - first), row_group_size=last - first)

    write_file(path, write, lasting=False)


def read_segment(
    path: Path, part: Sequence[Source], steps: Collection[int] | None = None, where: Any = None
) -> pa.Table:
    """Return rows of a segment.

    Args:
        path: the file.
        part: its expected sources.
        steps: restrict to rows of the sources of these steps.
        where: restrict to rows for which this ``pyarrow.compute`` expression holds.

    Raises:
        BrokenSegment: if it cannot be used, for any reason.
    """
    about, file = _open(path)
    if about["sources"] != list(map(list, part)):
        raise BrokenSegment(f"{path} has other sources")
    of_source = [source.step for source in part]
    ends = list(accumulate(about["rows"], initial=0))
    found = []
    for i, (first, last) in enumerate(_groups(about["rows"])):
        own = slice(bisect_left(ends, first), bisect_left(ends, last))
        if steps is not None and not any(step in steps for step in of_source[own]):
            continue
        try:
            group = file.read_row_group(i)
        except (pa.ArrowException, OSError) as error:
            raise BrokenSegment(f"{path} is damaged: {error}") from error
        group = _of_steps(group, of_source[own], about["rows"][own], steps)
        # names are converted to strings only for selected rows: the conversion takes most of the time
        found.append(from_arrow(group if where is None else group.filter(where)))
    schema = from_arrow(file.schema_arrow.empty_table()).schema
    whole = pa.concat_tables(found) if found else schema.empty_table()
    return whole.replace_schema_metadata({k: v for k, v in (schema.metadata or {}).items() if k != _KEY})


# ------------------------------------------------------------------------------------------ files


def _open(path: Path) -> tuple[dict[str, Any], pq.ParquetFile]:
    """Return a segment's description of itself, and its rows, with names as numbers."""
    try:
        schema = pq.read_schema(path)
        names = [f.name for f in schema if pa.types.is_large_string(f.type) or pa.types.is_string(f.type)]
        file = pq.ParquetFile(path, read_dictionary=names, page_checksum_verification=True)
        about = json.loads((schema.metadata or {})[_KEY])
        groups = [last - first for first, last in _groups(about["rows"])]
        there = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        fine = (
            about["version"] == _VERSION
            and there == groups
            and len(about["rows"]) == len(about["sources"])
            and about["schema"] == _checksum(schema)
        )
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise BrokenSegment(f"{path} is not a segment: {error}") from error
    if not fine:
        raise BrokenSegment(f"{path} has another version, or does not match its description")
    return about, file


def _kept(path: Path, wanted: Collection[Source]) -> dict[Source, pa.Table]:
    """Return the tables of those of these sources that an earlier segment contains."""
    about, _ = _open(path)
    sources = [Source(*source) for source in about["sources"]]
    if not about["alike"] or not any(source in wanted for source in sources):
        return {}  # for sources with different columns, the columns of each are unknown
    whole = read_segment(path, sources)
    starts = accumulate(about["rows"], initial=0)
    rows = zip(sources, starts, about["rows"], strict=False)
    return {source: whole.slice(start, n) for source, start, n in rows if source in wanted}


def _groups(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last row of each group that is read at once: whole sources."""
    first = last = 0
    for n in rows:
        last += n
        if last - first >= _GROUP_ROWS:
            yield first, last
            first = last
    if last > first:
        yield first, last


def _of_steps(
    table: pa.Table, own: Sequence[int], rows: Sequence[int], steps: Collection[int] | None
) -> pa.Table:
    """Return the rows of sources of certain steps."""
    chosen = [steps is None or step in steps for step in own]
    return table if all(chosen) else table.filter(pa.array(np.repeat(chosen, rows)))


def _checksum(schema: pa.Schema) -> int:
    """Return a checksum of data without checksums in parquet: names and types of columns, and their metadata."""
    metadata = sorted((k, v) for k, v in (schema.metadata or {}).items() if k in (b"pandas", b"lmdyn"))
    return crc32(repr([schema.names, list(map(str, schema.types)), metadata]).encode())


def _columns(schema: pa.Schema) -> tuple[Any, ...]:
    return tuple(schema.names), tuple(schema.types), _of_pandas((schema.metadata or {}).get(b"pandas"))


@lru_cache(maxsize=256)
def _of_pandas(metadata: bytes | None) -> str:
    """Return the parts of a file's metadata that affect pandas' table, without the number of categories."""
    try:
        found = json.loads(metadata or b"{}")
        columns = [(c["name"], c["numpy_type"]) for c in found.get("columns", ())]
        return json.dumps([columns, found.get("index_columns")])
    except (ValueError, TypeError, KeyError, AttributeError):
        return repr(metadata)

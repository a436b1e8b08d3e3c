"""Segments: the rows of many small files in one larger one, good as long as each of these files is as it was."""

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
_MOST_BYTES = 4 << 20  # of the files of a segment: what is held in memory at once, some ten times as much
_GROUP_ROWS = 1 << 15  # what is read at once


class BrokenSegment(ValueError):  # noqa: N818 (nobody's mistake: it is made again)
    """A file that is no segment, or of other sources, or damaged."""


class Source(NamedTuple):
    """A file of observations as it was.

    Attributes:
        step: its name.
        size: in bytes.
        time: when its content was changed, in nanoseconds by the file system's clock; programs can set it.
        status_time: when anything of it was changed, its name, its content or its times; nobody can set it.
    """

    step: int
    size: int
    time: int
    status_time: int


def partition(sources: Iterable[Source]) -> Iterator[tuple[Source, ...]]:
    """Which sources a segment each has, in order.

    Where a segment ends is a matter of the steps themselves, so that a source more or less changes one segment only.

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
    """The file name of the segment of these sources; of others it is another one."""
    content = json.dumps([_VERSION, part])
    return f"{part[0].step:09d}-{hashlib.blake2b(content.encode(), digest_size=12).hexdigest()}.parquet"


@dataclass(frozen=True)
class Gathered:
    """The rows of a segment's sources.

    Attributes:
        table: all rows, in the order of sources.
        rows: how many each source has.
        alike: whether all sources had the same columns of the same types.
    """

    table: pa.Table
    rows: tuple[int, ...]
    alike: bool

    def select(self, part: Sequence[Source], steps: Collection[int] | None, where: Any) -> pa.Table:
        """The rows of some steps for which an expression holds."""
        found = _of_steps(self.table, [s.step for s in part], self.rows, steps)
        return found if where is None else found.filter(where)


def gather(
    part: Sequence[Source], read: Callable[[Sequence[Source]], Iterable[pa.Table]], earlier: Iterable[Path]
) -> Gathered:
    """The rows of sources: those that have not changed out of earlier segments, the others are read.

    Args:
        part: the sources.
        read: reads several of them.
        earlier: segments of other sources; what cannot be used of them is passed over.
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
    """Write a segment, whole or not at all.

    Raises:
        OSError: it cannot be written.
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
    """Rows of a segment.

    Args:
        path: the file.
        part: the sources that it is expected to be of.
        steps: only rows of the sources of these steps.
        where: only rows for which this ``pyarrow.compute`` expression holds.

    Raises:
        BrokenSegment: it cannot be used, for whatever reason.
    """
    about, file = _open(path)
    if about["sources"] != list(map(list, part)):
        raise BrokenSegment(f"{path} is of other sources")
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
        # names are texts only where a row is kept: to make them takes most of the time
        found.append(from_arrow(group if where is None else group.filter(where)))
    schema = from_arrow(file.schema_arrow.empty_table()).schema
    whole = pa.concat_tables(found) if found else schema.empty_table()
    return whole.replace_schema_metadata({k: v for k, v in (schema.metadata or {}).items() if k != _KEY})


# ------------------------------------------------------------------------------------------ files


def _open(path: Path) -> tuple[dict[str, Any], pq.ParquetFile]:
    """What a segment says of itself, and its rows, names as numbers."""
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
        raise BrokenSegment(f"{path} is no segment: {error}") from error
    if not fine:
        raise BrokenSegment(f"{path} is another version's, or does not hold what it says")
    return about, file


def _kept(path: Path, wanted: Collection[Source]) -> dict[Source, pa.Table]:
    """Of these sources those that an earlier segment has."""
    about, _ = _open(path)
    sources = [Source(*source) for source in about["sources"]]
    if not about["alike"] or not any(source in wanted for source in sources):
        return {}  # of sources that differ, it is not known what columns each had
    whole = read_segment(path, sources)
    starts = accumulate(about["rows"], initial=0)
    rows = zip(sources, starts, about["rows"], strict=False)
    return {source: whole.slice(start, n) for source, start, n in rows if source in wanted}


def _groups(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last row of what is read at once: whole sources."""
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
    """The rows of sources of certain steps."""
    chosen = [steps is None or step in steps for step in own]
    return table if all(chosen) else table.filter(pa.array(np.repeat(chosen, rows)))


def _checksum(schema: pa.Schema) -> int:
    """Of what parquet has no checksums of: names and types of columns, and what the metadata say of them."""
    metadata = sorted((k, v) for k, v in (schema.metadata or {}).items() if k in (b"pandas", b"lmdyn"))
    return crc32(repr([schema.names, list(map(str, schema.types)), metadata]).encode())


def _columns(schema: pa.Schema) -> tuple[Any, ...]:
    return tuple(schema.names), tuple(schema.types), _of_pandas((schema.metadata or {}).get(b"pandas"))


@lru_cache(maxsize=256)
def _of_pandas(metadata: bytes | None) -> str:
    """What of a file's metadata changes which table pandas makes of it: not how many different names a column has."""
    try:
        found = json.loads(metadata or b"{}")
        columns = [(c["name"], c["numpy_type"]) for c in found.get("columns", ())]
        return json.dumps([columns, found.get("index_columns")])
    except (ValueError, TypeError, KeyError, AttributeError):
        return repr(metadata)

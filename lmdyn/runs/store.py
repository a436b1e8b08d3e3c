"""Observations on disk: one parquet file per observation of an observer.

Each file contains the observer's name and its settings, independent of the location of source files.
"""

import json
import logging
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from pandas import DataFrame

from lmdyn.runs.atomic_files import remove_unfinished, write_file
from lmdyn.runs.schema import from_arrow, to_arrow

log = logging.getLogger(__name__)

UNDECIDED = "auto"
"""A setting that is determined when the observer reads the module; it is compared afterwards."""


_DAMAGED = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError)
"""Exceptions of pyarrow for files that differ from what was written."""


class UnreadableError(ValueError):
    """An observation exists, but is unreadable, so that it cannot be reported."""


class ObservationStore:
    """The observations of one observer: tidy tables ``<folder>/<step:09d>.parquet``.

    Columns are ``step, tokens, quantity, site, <group columns>, value``; ``pandas.read_parquet(folder)`` reads
    them all. Each file is written under a temporary name, so that a killed run leaves no incomplete file and several
    workers share a folder without locks. The settings behind the numbers are in each file's metadata.

    Args:
        folder: ``<log_dir>/observations/<name>``; created on the first write.
        observer: public name of the observer's class; empty to read a folder without checks.
        settings: settings that affect the numbers, as plain types; or a function that returns them, called when
            required.

    Example:
        >>> import tempfile
        >>> store = ObservationStore(Path(tempfile.mkdtemp()) / "curves", "my.Observer", {"n": 1})
        >>> store.write(3, DataFrame({"step": 3, "quantity": ["loss"], "site": [""], "value": [0.5]}))
        >>> store.steps(), store.read()["value"].tolist()
        ([3], [0.5])
    """

    def __init__(
        self,
        folder: Path,
        observer: str = "",
        settings: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.observer = observer
        self._settings = settings if callable(settings) else lambda: settings or {}
        self._checked = False

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that affect the numbers, in JSON types."""
        plain: dict[str, Any] = json.loads(json.dumps(dict(self._settings()), default=str))
        return plain

    def steps(self) -> list[int]:
        """Return the existing steps, in order."""
        names = (re.fullmatch(r"(\d{9,})\.parquet", p.name) for p in self.folder.glob("*.parquet"))
        return sorted(int(match[1]) for match in names if match)

    def path(self, step: int) -> Path:
        """Return the path of the file of ``step``."""
        return self.folder / f"{step:09d}.parquet"

    def has(self, step: int) -> bool:
        """Return whether the observation of ``step`` exists.

        Raises:
            ValueError: if the file cannot be read, or belongs to another observer or other settings.
        """
        if not self.path(step).exists():
            return False
        about = self._about(step)
        if self.observer:
            self._compare(about, self.path(step))
        return True

    def schema(self, step: int) -> pa.Schema:
        """Return the columns and the metadata of the file of ``step``.

        Raises:
            ValueError: if it cannot be read.
        """
        return self._open(step).schema_arrow

    def _open(self, step: int) -> pq.ParquetFile:
        try:
            if not self.path(step).is_file():  # reading a pipe would not end
                raise ValueError("the path is not a file")
            return pq.ParquetFile(self.path(step), page_checksum_verification=True)
        except _DAMAGED as error:
            raise self._unreadable(step, error) from error

    def _unreadable(self, step: int, error: Exception) -> "UnreadableError":
        return UnreadableError(
            f"{self.path(step)} cannot be read ({error}): remove the file, and run `lmdyn analyze` again"
        )

    def write(self, step: int, observation: DataFrame) -> None:
        """Write one observation; an existing one of this step is replaced.

        Raises:
            ValueError: if the folder contains observations with other settings.
        """
        self._store(step, self._table(observation), first_wins=False)

    def add(self, step: int, observation: DataFrame) -> bool:
        """Write one observation, unless another worker has written one of this step: then this one is discarded.

        Returns:
            Whether it was written.

        Raises:
            ValueError: if the folder contains observations with other settings.
        """
        table = self._table(observation)
        if self._store(step, table, first_wins=True):
            return True
        if not self._read(step).to_pandas().equals(from_arrow(table).to_pandas()):
            log.warning(
                "another worker has written %s with different numbers. lmdyn keeps that file and discards the numbers "
                "of this worker. Other machines, devices or versions cause such differences (see provenance.json)",
                self.path(step),
            )
        return False

    def _table(self, observation: DataFrame) -> pa.Table:
        table = to_arrow(observation)
        about = {"observer": self.observer, "settings": self.settings, "schema": _schema_checksum(table)}
        return table.replace_schema_metadata(
            {**(table.schema.metadata or {}), b"lmdyn": json.dumps(about).encode()}
        )

    def _store(self, step: int, table: pa.Table, *, first_wins: bool) -> bool:
        if not self._checked:  # folders with many files are slow to list
            self.check_settings()
            remove_unfinished(self.folder)
        stored = write_file(
            self.path(step),
            lambda path: pq.write_table(table, path, compression="zstd", write_page_checksum=True),
            first_wins=first_wins,
        )
        # another worker with other settings may have written to the empty folder at the same time
        self._checked = self._checked or len(self.steps()) > 1
        return stored

    def about(self) -> dict[str, Any]:
        """Return ``observer`` (its public name) and ``settings`` of the observations as written; empty if none exist.

        Raises:
            ValueError: if a file in the folder cannot be read, or was not written by lmdyn.
        """
        for step in self.steps()[:1]:
            return self._about(step)
        return {}

    def _about(self, step: int) -> dict[str, Any]:
        try:
            about = json.loads((self.schema(step).metadata or {}).get(b"lmdyn", b"null"))
        except json.JSONDecodeError:
            about = None
        match about:
            case {"observer": str(observer), "settings": dict(settings)}:
                return {"observer": observer, "settings": settings}
        raise ValueError(
            f"{self.path(step)} is not an observation of lmdyn (the file lacks observer and settings): remove the file"
        )

    def check_settings(self) -> None:
        """Raise an error before observations with different settings are mixed.

        Raises:
            ValueError: if the folder contains observations of another class or other settings; the message lists them.
        """
        if about := self.about():
            self._compare(about, self.folder)

    def _compare(self, about: Mapping[str, Any], where: Path) -> None:
        there, here = about["settings"], self.settings
        differences = [
            f"{key}: {there.get(key)!r} there, {here.get(key)!r} here"
            for key in sorted(there.keys() | here.keys())
            if here.get(key) != UNDECIDED and not _equal(there.get(key), here.get(key))
        ]
        if about["observer"] != self.observer:
            differences.insert(0, f"observer: {about['observer']} there, {self.observer} here")
        if not differences:
            return
        raise ValueError(
            f"{where} contains observations with other settings ({'; '.join(differences)}): "
            "give the observer another `name`, or remove the folder"
        )

    def read(
        self,
        until: int | None = None,
        quantities: Iterable[str] | None = None,
        where: Any = None,
        steps: Collection[int] | None = None,
    ) -> DataFrame:
        """Return all observations in one table, in the order of steps.

        Args:
            until: the last step; None for all.
            quantities: restrict to these quantities.
            where: restrict to rows for which this ``pyarrow.compute`` expression over the columns holds.
            steps: restrict to these steps.

        Raises:
            FileNotFoundError: if there are no observations.
            ValueError: if a file cannot be read.
        """
        chosen = [
            step
            for step in self.steps()
            if (until is None or step <= until) and (steps is None or step in steps)
        ]
        if not chosen:
            raise FileNotFoundError(
                f"{self.folder} contains no observations{' of these steps' * bool(self.steps())}"
            )
        if quantities is not None:
            among = pc.field("quantity").isin(sorted(quantities))
            where = among if where is None else among & where
        tables = map(self._read, chosen)
        kept = [table if where is None else table.filter(where) for table in tables]
        return cast(DataFrame, pa.concat_tables(kept, promote_options="default").to_pandas())

    def _read(self, step: int) -> pa.Table:
        """Read one observation and compare it with the checksums in its file, if there are any."""
        file = self._open(step)
        try:
            table = from_arrow(file.read())
            table.validate(full=True)
            checksum = json.loads((table.schema.metadata or {}).get(b"lmdyn", b"{}")).get("schema")
            if checksum is not None and checksum != _schema_checksum(table):
                raise ValueError("the columns differ from those that lmdyn wrote")
            if "step" in table.column_names and (other := set(table["step"].unique().to_pylist()) - {step}):
                raise ValueError(f"the file contains step {other.pop()}, and may be a copy")
        except _DAMAGED as error:
            raise self._unreadable(step, error) from error
        return table


def _schema_checksum(table: pa.Table) -> int:
    """Return a checksum of data without checksums in parquet: number of rows, column names for Arrow and pandas."""
    pandas = (table.schema.metadata or {}).get(b"pandas", b"")
    return zlib.crc32(json.dumps([table.num_rows, *table.column_names]).encode() + pandas)


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) or json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)  # NaN != NaN


# ---------------------------------------------------------------- observers and settings


_ROOMS = ("lmdyn.callbacks.", "lmdyn.models.", "lmdyn.datamodules.")


def public_name(cls: type) -> str:
    """Return the name of a class in files: for lmdyn's classes by package, for others the full path.

    Example:
        >>> from lmdyn.callbacks import Sparsity
        >>> public_name(Sparsity), public_name(dict)
        ('lmdyn.callbacks.Sparsity', 'builtins.dict')
    """
    return current_name(f"{cls.__module__}.{cls.__qualname__}")


def current_name(path: str) -> str:
    """Return the public name of the class with a path: source files of lmdyn move, its packages export each class.

    Example:
        >>> current_name("lmdyn.callbacks.sparsity.Sparsity"), current_name("my_lab.observers.Loud")
        ('lmdyn.callbacks.Sparsity', 'my_lab.observers.Loud')
    """
    for room in _ROOMS:
        if path.startswith(room):
            return room + path.rpartition(".")[2]
    return path


def plain_setting(value: Any) -> Any:
    """Convert a setting to JSON types, equal in each process; objects of other kinds to the name of their class."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, Enum):  # enums that are strings or numbers have always been written as such
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__, **plain_setting(asdict(value))}
    if isinstance(value, Mapping):
        return {str(k): plain_setting(v) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain_setting(v) for v in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [plain_setting(v) for v in value]
    if isinstance(value, (np.generic, np.ndarray, torch.Tensor)):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (type, FunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    return type(value).__name__

"""Runs kept as records: what claims and figures need from them, small enough for a repository."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lmdyn.runs.observed_run import NotMeasured, SeedPair
from lmdyn.runs.schema import from_arrow

__all__ = ["RUNS_FILE", "RecordedRun", "RecordsFolder", "digest", "is_records_folder"]

RUNS_FILE = "runs.json"
"""Its name in a records folder; the other files are ``<observer>.parquet``."""

VERSION = 1


def is_records_folder(folder: Path) -> bool:
    """Return whether a folder was written by ``lmdyn records``, or is an incomplete one."""
    return (folder / RUNS_FILE).is_file()


@dataclass(frozen=True, eq=False)
class RecordsFolder:
    """A folder written by ``lmdyn records``.

    ``runs.json`` contains what all runs share (``shared``), and the rest for each run: ``seeds``,
    ``condition``, ``registered``, ``tested``, ``observers`` and ``sessions``. Each ``<observer>.parquet`` contains the
    rows of all runs, with a column ``run``.
    """

    folder: Path
    _tables: dict[str, pd.DataFrame] = field(default_factory=dict, init=False, repr=False)
    _rows: dict[tuple[str, str, frozenset[str] | None], pd.DataFrame] = field(
        default_factory=dict, init=False
    )
    _observers: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict, init=False)

    @cached_property
    def content(self) -> dict[str, Any]:
        """Content of ``runs.json``, after a check of the other files."""
        path = self.folder / RUNS_FILE
        again = f"restore the file, or run `lmdyn records RUN… --out {self.folder} --drop` again"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: expected a folder written by `lmdyn records`")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            version, files = content["version"], dict(content["files"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} cannot be read ({type(error).__name__}: {error}): {again}") from error
        if version != VERSION:
            raise ValueError(f"{path} has version {version}, but this lmdyn reads {VERSION}: update lmdyn")
        for name, expected in files.items():
            file = self.folder / name
            if not file.is_file():
                raise FileNotFoundError(f"{self.folder} has incomplete records: {name} is missing; {again}")
            if digest(file) != expected:
                raise ValueError(f"{file} differs from the file that {RUNS_FILE} describes: {again}")
        found: dict[str, Any] = content
        return found

    @property
    def study(self) -> str | None:
        """The study for whose claims the records were made; None without a study."""
        return self.content["study"]  # type: ignore[no-any-return]

    @cached_property
    def runs(self) -> "list[RecordedRun]":
        """The runs, in the order of their names."""
        return [RecordedRun(name, self) for name in self.content["runs"]]

    def table(self, observer: str) -> pd.DataFrame:
        """Return the rows of an observer, for all runs."""
        if observer not in self._tables:
            path = self.folder / f"{observer}.parquet"
            try:
                table = from_arrow(pq.read_table(path)).to_pandas(
                    types_mapper={pa.int64(): pd.Int64Dtype()}.get
                )
            except (pa.ArrowException, OSError) as error:
                raise ValueError(f"{path} cannot be read ({error}): write the records again") from error
            # claims select from thousands of short tables, which is several times as fast in Python's strings
            texts = dict.fromkeys(table.select_dtypes("string"), object)
            self._tables[observer] = table.astype({"step": "int64", **texts})
        return self._tables[observer]

    def rows(self, observer: str, run: str, quantities: frozenset[str] | None = None) -> pd.DataFrame:
        """Return the rows of an observer for one run, or only those of some quantities; cached for many claims."""
        if (observer, run, quantities) not in self._rows:
            table = self.table(observer) if quantities is None else self.rows(observer, run)
            own = table["run"].eq(run) if quantities is None else table["quantity"].isin(list(quantities))
            columns = self.observers(run)[observer]["columns"]
            self._rows[observer, run, quantities] = table.loc[own, columns].reset_index(drop=True)
        return self._rows[observer, run, quantities]

    def about(self, run: str, part: str) -> dict[str, Any]:
        """Return a part of what is known about a run: what all runs share, and its own."""
        shared = self.content["shared"].get(part, {})
        return {**shared, **self.content["runs"][run].get(part, {})}

    def observers(self, run: str) -> dict[str, dict[str, Any]]:
        """Return the observers of a run by folder name: ``observer``, ``settings``, ``columns``, ``rows``, ``of``."""
        if run not in self._observers:
            shared = self.content["shared"]["observers"]
            self._observers[run] = {
                name: {
                    **shared[name],
                    **own,
                    "settings": shared[name].get("settings", {}) | own.get("settings", {}),
                }
                for name, own in self.content["runs"][run]["observers"].items()
            }
        return self._observers[run]


@dataclass(frozen=True)
class RecordedRun:
    """A run in a records folder, with the interface of a run's own folder.

    Attributes:
        name: name of the run.
        records: the records folder.
    """

    name: str
    records: RecordsFolder = field(repr=False)

    @property
    def seeds(self) -> SeedPair:
        """Seeds of the initialisation and of the order of the data."""
        found = self.records.content["runs"][self.name]["seeds"]
        return SeedPair(found["init"], found["order"])

    @property
    def condition(self) -> Mapping[str, Any]:
        """Flat configuration, without seeds and paths."""
        return self.records.about(self.name, "condition")

    @property
    def registered(self) -> Mapping[str, Mapping[str, str]]:
        """Fingerprints that were stated before, by study and claim."""
        shared = self.records.content["shared"].get("registered", {})
        own = self.records.content["runs"][self.name].get("registered", {})
        return {s: {**shared.get(s, {}), **own.get(s, {})} for s in dict.fromkeys((*shared, *own))}

    @property
    def tested(self) -> Mapping[str, float]:
        """Metrics of ``lmdyn test``."""
        return dict(self.records.content["runs"][self.name].get("tested", {}))

    @property
    def sessions(self) -> Sequence[Mapping[str, Any]]:
        """The commands that made it: see :func:`~lmdyn.runs.provenance.begin_session`."""
        environments = self.records.content["environments"]
        own = self.records.content["runs"][self.name].get("sessions", [])
        return [{**one, **environments[one["environment"]]} for one in own]

    def observers(self) -> Mapping[str, str]:
        """Return the public name of the class of each folder."""
        return {name: one["observer"] for name, one in self.records.observers(self.name).items()}

    def settings(self, observer: str) -> Mapping[str, Any]:
        """Return the settings of an observer, by its folder name."""
        return self.records.observers(self.name)[self._checked(observer)]["settings"]  # type: ignore[no-any-return]

    def read(self, observer: str, *, quantities: Iterable[str] | None = None) -> pd.DataFrame:
        """Return the kept rows, in the order in which they were observed; the result is cached.

        Raises:
            NotMeasured: if there is no such observer.
        """
        return self.records.rows(
            self._checked(observer), self.name, None if quantities is None else frozenset(quantities)
        )

    def _checked(self, observer: str) -> str:
        found = self.records.observers(self.name)
        if observer not in found:
            raise NotMeasured(
                f"{self.name} has no {observer} observations, only {', '.join(found) or 'none'}"
            )
        return observer


def public_class(name: str) -> type | None:
    """Return the class of lmdyn with a public name; None for any other name."""
    import lmdyn.callbacks

    room, _, last = name.rpartition(".")
    cls = vars(lmdyn.callbacks).get(last) if room == "lmdyn.callbacks" else None
    return cls if isinstance(cls, type) else None


def digest(path: Path) -> str:
    """Return a digest of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]

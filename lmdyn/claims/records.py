"""``lmdyn records``: runs as records, which contain what claims and figures need, and nothing about the machine."""

import json
import logging
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lmdyn.analysis.inspection.attributes import did_you_mean
from lmdyn.claims import STUDIES, Number, Study
from lmdyn.claims.chains.made_by import sessions_of
from lmdyn.claims.profiles import find_runs
from lmdyn.claims.recorded import RUNS_FILE, VERSION, RecordedRun, RecordsFolder, digest, is_records_folder
from lmdyn.cli.recorded_observers import UnknownObserverError, recorded_observer
from lmdyn.runs.folder_lock import FolderLock
from lmdyn.runs.observed_run import ObservedRun, RunFolder
from lmdyn.runs.provenance import write_json
from lmdyn.runs.schema import from_arrow, to_arrow

__all__ = ["keep_records", "study_reads", "without_machine", "write_records"]

log = logging.getLogger(__name__)

_COSTS = "costs.json"  # written next to the runs by earlier versions
MOST_MB = 3.0
_ENVIRONMENT = ("versions", "commit", "dirty", "device", "processor", "threads")
_SESSION = ("command", "began", "ended", "cpu_s", "peak_memory_mb", "step")
_ABSOLUTE = re.compile(r"(?<![\w.:/…])(?:~|[A-Za-z]:)?(?:[/\\][\w.+@ =,~\-]+){2,}[/\\]?")


def keep_records(
    given: Sequence[Path],
    out: Path,
    *,
    study: str | None = None,
    others: str = "refuse",
    most_mb: float = MOST_MB,
) -> None:
    """Run the command: find the runs and the study, write the records, and log what was kept.

    Args:
        given: run folders, folders of runs, records.
        out: ``docs/records/<study>/<profile>``.
        study: the study whose claims use the records; default: the study of the parent folder of ``out``.
        others: see :func:`write_records`.
        most_mb: see :func:`write_records`.

    Raises:
        ValueError: if the study is unknown; see also :func:`write_records`.
    """
    parent = out.resolve().parent.name
    study = study or (parent if parent in STUDIES else None)
    if study is not None and study not in STUDIES:
        raise ValueError(
            f"--study: unknown study {study!r}{did_you_mean(study, STUDIES) or ':'} studies are {', '.join(STUDIES)}"
        )
    if study is None:
        log.warning(
            "the parent folder of %s has no study's name: to keep all rows that claims of a study read, set --study",
            out,
        )
    runs = find_runs(given)
    if not any(run.observers() or run.tested for run in runs):
        raise ValueError(
            "the given runs have neither observations nor test.json: run `lmdyn analyze` or `lmdyn test` first"
        )
    reads = study_reads(STUDIES[study]) if study else frozenset()
    recorded = write_records(runs, out, study=study, reads=reads, others=others, most_mb=most_mb)
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    log.info("lmdyn wrote records (runs: %d): %s, %.2f MB", len(recorded), out, size)


def study_reads(study: Study) -> frozenset[str]:
    """Return ``Observer/quantity`` of everything that the claims of a study read: parts, floors and conditions."""
    numbers: list[Any] = []
    for claim in study.claims:
        numbers += [part.number for part in claim.parts]
        numbers += [claim.floor, *(condition.number for condition in claim.void_unless)]
    return frozenset(name for number in numbers if isinstance(number, Number) for name in number.reads())


def write_records(
    runs: Sequence[ObservedRun],
    out: Path,
    *,
    study: str | None = None,
    reads: Iterable[str] = (),
    others: str = "refuse",
    most_mb: float = MOST_MB,
) -> list[RecordedRun]:
    """Write ``<out>/runs.json`` and ``<out>/<observer>.parquet``; equal runs give equal bytes.

    For each observer, the rows returned by its static method ``record_rows(observations, settings)`` are kept; for
    an observer without this method, its scalars, and for quantities without scalars the rows that the study's
    claims read. Values keep 32 of 53 bits (a relative 1e-10). Settings, seeds, configuration, commands, versions,
    times and fingerprints of claims are kept as texts. Absolute paths in them are shortened to their last part; the
    names of the machine and of its user are not kept.

    Args:
        runs: run folders; runs that are already kept do not change (but for bits beyond 32).
        out: the folder; existing files are replaced as a whole.
        study: the study whose claims use them; None keeps the fingerprints of all studies.
        reads: ``Observer/quantity`` of the study's claims.
        others: what to do with runs kept in ``out`` that are not among ``runs``: ``refuse``, ``keep`` or ``drop``.
        most_mb: maximum size in MB.

    Returns:
        The runs, read back.

    Raises:
        ValueError: if the folder contains something else, the size exceeds ``most_mb``, or there are other runs.
    """
    lock = FolderLock(out)
    lock.acquire(wait=True)  # keeps what another process adds at the same time
    try:
        _replace(runs, out, study, frozenset(reads), others, most_mb)
    finally:
        lock.release()
    return RecordsFolder(out).runs


def without_machine(value: Any) -> Any:
    """Shorten the absolute paths in plain values to their last part.

    Example:
        >>> without_machine({"config": ["--data.path=/home/anna/text/train.txt", "https://a.b/c", "a/b"], "n": 1})
        {'config': ['--data.path=…/train.txt', 'https://a.b/c', 'a/b'], 'n': 1}
    """
    if isinstance(value, Mapping):
        return {str(k): without_machine(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_machine(v) for v in value]
    if isinstance(value, PurePath):
        value = str(value)
    return _ABSOLUTE.sub(_last_part, value) if isinstance(value, str) else value


def _last_part(path: "re.Match[str]") -> str:
    return "…/" + re.split(r"[/\\]", path[0].rstrip("/\\"))[-1]


def _replace(
    runs: Sequence[ObservedRun],
    out: Path,
    study: str | None,
    reads: frozenset[str],
    others: str,
    most_mb: float,
) -> None:
    """Write the files under temporary names, then replace the existing files by them."""
    given = [*runs, *_others(runs, out, others)]
    given.sort(key=lambda run: run.name)
    rows: dict[str, list[pd.DataFrame]] = {}
    about: dict[str, dict[str, Any]] = {}
    environments: list[dict[str, Any]] = []
    for run in given:
        about[run.name] = one = _about(run, study, environments)
        for name in sorted(run.observers()):
            kept, of = _kept(run, name, reads)
            one["observers"][name] = {
                "observer": run.observers()[name],
                "settings": without_machine(dict(run.settings(name))),
                "columns": [str(c) for c in kept.columns],
                "rows": len(kept),
                "of": of,
            }
            rows.setdefault(name, []).append(kept.assign(run=run.name))
    shared, own = _factored(about)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".records-", dir=out.parent) as temporary:
        files = {name: _write(tables, Path(temporary, f"{name}.parquet")) for name, tables in rows.items()}
        content = {
            "version": VERSION,
            "study": study,
            "files": {path.name: digest(path) for path in files.values()},
            "environments": environments,
            "shared": shared,
            "runs": own,
        }
        write_json(Path(temporary, RUNS_FILE), content)
        size = {path.name: path.stat().st_size / 1e6 for path in Path(temporary).iterdir()}
        if sum(size.values()) > most_mb:
            raise ValueError(
                f"{out} would take {sum(size.values()):.2f} MB, but --most allows {most_mb:g} MB (largest: "
                f"{', '.join(sorted(size, key=lambda name: -size[name])[:3])}): give fewer runs, or raise --most"
            )
        out.mkdir(exist_ok=True)
        (out / RUNS_FILE).unlink(missing_ok=True)  # written last: a folder without it is not a records folder
        for path in out.glob("*.parquet"):
            path.unlink()
        for path in (*files.values(), Path(temporary, RUNS_FILE)):
            path.replace(out / path.name)


def _others(runs: Sequence[ObservedRun], out: Path, others: str) -> list[ObservedRun]:
    """Return runs that are kept in the folder and were not given again."""
    for path in out.glob("*"):
        if path.name not in (RUNS_FILE, _COSTS) and not _of_records(path):
            raise ValueError(f"{path} is not a file of `lmdyn records`: choose another --out")
    if others == "keep" and not is_records_folder(out) and any(out.glob("*.parquet")):
        raise ValueError(
            f"{out} contains incomplete records: {RUNS_FILE} is missing, so lmdyn cannot keep their runs. Restore "
            f"{RUNS_FILE} from the repository, or remove the records with --drop"
        )
    if not is_records_folder(out) or others == "drop":
        return []
    given = {run.name for run in runs}
    there: list[ObservedRun] = [run for run in RecordsFolder(out).runs if run.name not in given]
    if there and others == "refuse":
        raise ValueError(
            f"{out} also contains {', '.join(run.name for run in there)}, which you did not give: use --keep to keep "
            "the other runs, or --drop to remove them"
        )
    for run in there:
        for name in run.observers():
            run.read(name)  # read now, because the files are replaced
    return there


def _of_records(path: Path) -> bool:
    """Return whether a file contains observations of several runs in our format, or is unreadable (maybe partial)."""
    try:
        return path.suffix == ".parquet" and "run" in pq.read_schema(path).names
    except (pa.ArrowException, OSError):
        return True


def _about(run: ObservedRun, study: str | None, environments: list[dict[str, Any]]) -> dict[str, Any]:
    registered = {name: dict(said) for name, said in run.registered.items() if said and study in (None, name)}
    return {
        "seeds": dict(run.seeds._asdict()),
        "condition": without_machine(dict(run.condition)),
        "registered": registered,
        "tested": dict(run.tested),
        "observers": {},
        "sessions": [_session(one, environments) for one in sessions_of(run)],
    }


def _session(session: Mapping[str, Any], environments: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is kept of a session; its environment is stored once, in ``environments``."""
    environment = {key: session.get(key) for key in _ENVIRONMENT}
    if environment not in environments:
        environments.append(environment)
    kept = {key: without_machine(session[key]) for key in _SESSION if key in session}
    return {**kept, "environment": environments.index(environment)}


def _kept(run: ObservedRun, name: str, reads: frozenset[str]) -> tuple[pd.DataFrame, int]:
    """Return the rows of an observer that are kept, and the number of all its rows."""
    observations = run.read(name)
    if isinstance(run, RecordedRun):
        return observations, int(run.records.observers(run.name)[name]["of"])
    assert isinstance(run, RunFolder)
    try:
        observer = recorded_observer(run.path / "observations" / name)
    except UnknownObserverError:  # nothing is known about its rows
        return observations, len(observations)
    choose = getattr(observer, "record_rows", None)
    if choose is not None:
        return choose(observations, run.settings(name)).reset_index(drop=True), len(observations)
    scalar = observer.is_scalar(observations)
    told = set(observations.loc[scalar, "quantity"])  # claims on these read the scalars, not each word
    quantities = {
        q for q in observations["quantity"].unique() if q not in told and f"{observer.__name__}/{q}" in reads
    }
    kept = scalar | observations["quantity"].isin(list(quantities))
    return observations[kept].reset_index(drop=True), len(observations)


def _factored(about: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split into what all runs share, and what remains of each run."""
    runs: dict[str, Any] = json.loads(json.dumps(about))
    studies = dict.fromkeys(study for one in runs.values() for study in one["registered"])
    shared: dict[str, Any] = {
        "condition": _take_common([one["condition"] for one in runs.values()]),
        "registered": {
            s: _take_common([one["registered"].get(s, {}) for one in runs.values()]) for s in studies
        },
        "observers": {},
    }
    for one in runs.values():
        one["registered"] = {study: own for study, own in one["registered"].items() if own}
    for name in sorted({name for one in runs.values() for name in one["observers"]}):
        having = [one["observers"][name] for one in runs.values() if name in one["observers"]]
        settings = [observer.pop("settings") for observer in having]
        common = _take_common(settings)
        shared["observers"][name] = {**_take_common(having), "settings": common}
        for observer, own in zip(having, settings, strict=True):
            observer |= {"settings": own} if own else {}
    return shared, runs


def _take_common(values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Remove what all have from each, and return it."""
    first = values[0] if values else {}
    common = {k: v for k, v in first.items() if all(k in other and _same(other[k], v) for other in values)}
    for one in values:
        for key in common:
            del one[key]
    return common


def _same(a: Any, b: Any) -> bool:
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)  # True is not 1, NaN is NaN


def _rounded(values: "pd.Series[float]") -> "pd.Series[float]":
    """Round to 32 bits: of numbers of models in float32 the others are noise, a third of the file. Counts stay."""
    values = values.astype(float)
    mantissa, exponent = np.frexp(values.where(values % 1 != 0))
    return pd.Series(np.ldexp(np.round(mantissa * 2.0**32), exponent - 32)).fillna(values)


def _write(tables: Sequence[pd.DataFrame], path: Path) -> Path:
    """Write the rows of all runs, sorted by run name, in the order in which they were observed."""
    arrow = [from_arrow(to_arrow(table.assign(value=_rounded(table["value"])))) for table in tables]
    table = pa.concat_tables(arrow, promote_options="default").replace_schema_metadata(None)
    groups = [name for name in table.column_names if name != "value"]
    pq.write_table(
        table, path, compression="zstd", compression_level=15, use_dictionary=groups, use_byte_stream_split=["value"]
    )  # fmt: skip
    path.chmod(0o644)
    return path

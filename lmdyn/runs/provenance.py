"""Provenance of a run's numbers: commands, versions, machine, and the claims that were made before."""

import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

Record = dict[str, Any]

Settings = Mapping[str, Any]

FILE = "provenance.json"
"""Name of the file in a run's folder."""

_PACKAGES = (
    "lmdyn",
    "torch",
    "lightning",
    "transformers",
    "tokenizers",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
)
_GIT_S = 5.0  # seconds per call of git


def begin_session(folder: Path, command: Sequence[str], device: str, *, of: Path | None = None) -> int | None:
    """Record in ``<folder>/provenance.json`` that a command starts to make observations, and the claims about them.

    The file contains ``sessions``, one for each command: ``command, began, versions, commit, dirty, host, device,
    processor, threads, registered`` (and, after it has ended, ``ended, cpu_s, peak_memory_mb``), and
    ``claims``: for each study of lmdyn the fingerprint of each claim, as it was when the run had no observations yet
    of any observer that the claim reads. An existing fingerprint is never replaced. Several processes may write.

    This never fails a run: if the file cannot be written, a warning is logged.

    Args:
        folder: the run's folder, which receives ``observations/``.
        command: words of the command line.
        device: device of the computation, ``cpu`` or ``cuda:0``.
        of: the run whose checkpoints are observed, if it is not ``folder``; its claims also apply here.

    Returns:
        The number of the session, for :func:`end_session`; None if nothing was written.
    """
    try:
        return _begin(folder, command, device, of if of is not None and of != folder else None)
    except Exception as error:  # file systems, git or a study's file may raise anything
        log.warning("lmdyn could not write %s (%s: %s)", folder / FILE, type(error).__name__, error)
        return None


def end_session(folder: Path, session: int | None, **about: Any) -> None:
    """Record that a session has ended, and its costs in this process; a killed session has no end.

    Args:
        folder: the run's folder.
        session: the return value of :func:`begin_session`.
        **about: additional entries, such as ``step``.
    """
    if session is None:
        return
    cost = {"ended": _now(), "cpu_s": round(time.process_time(), 1), **about}
    try:
        import resource  # unavailable on Windows

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in kilobytes; on macOS in bytes
        cost["peak_memory_mb"] = round(peak / 1024 / (1024 if sys.platform == "darwin" else 1))
        with _changing(folder) as content:
            content["sessions"][session] |= cost
    except Exception as error:
        log.warning("lmdyn could not write %s (%s: %s)", folder / FILE, type(error).__name__, error)


def read_provenance(folder: Path) -> Record:
    """Return what :func:`begin_session` has written: ``sessions`` and ``claims``; both empty if there is no file.

    Raises:
        ValueError: if the file contains something else.
    """
    content = {"sessions": [], "claims": {}, **read_record(folder / FILE)}
    match content:
        case {"sessions": list(sessions), "claims": dict(claims)}:
            if all(isinstance(part, dict) for part in (*sessions, *claims.values())):
                return content
    raise ValueError(
        f"{folder / FILE} is not a run's provenance: expected `sessions`, and `claims` by study. Remove the file; "
        "lmdyn then calls the claims of this run exploratory"
    )


def read_record(path: Path) -> Record:
    """Return the content of a JSON file about a run; empty if there is none.

    Raises:
        ValueError: if the file contains something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if not isinstance(content, dict):
            raise ValueError(f"expected an object, got {type(content).__name__}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error}): remove the file") from error
    return content


def unseen_claims(study: Any, observed: Collection[str], registered: Mapping[str, str]) -> Mapping[str, str]:
    """Return the claims of a study made before observation: none of what they read is observed, or registered earlier.

    Args:
        study: a study of ``lmdyn.claims``, the top floor.
        observed: class names of the observers whose observations the run contains (``Sparsity``).
        registered: fingerprints by claim that are already registered; these stay.

    Returns:
        Fingerprints by claim.
    """
    said = dict(registered)
    for claim in study.claims:
        if not {read.partition("/")[0] for read in claim.reads()} & set(observed):
            said.setdefault(claim.name, claim.fingerprint)
    return said


def write_json(path: Path, content: Any) -> None:
    """Write a file atomically, first under another name: a killed process leaves no partial file."""
    from lmdyn.runs.atomic_files import write_file  # slow import

    text = json.dumps(content, indent=1, ensure_ascii=False)
    write_file(path, lambda unfinished: unfinished.write_text(f"{text}\n", encoding="utf-8"))


def _begin(folder: Path, command: Sequence[str], device: str, of: Path | None) -> int:
    import torch  # slow imports

    from lmdyn.runs.atomic_files import remove_unfinished

    session = {
        "command": list(command),
        "began": _now(),
        "versions": package_versions(),
        **_commit(),
        "host": platform.node(),
        "device": device_name(device),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }
    before = {} if of is None else read_provenance(of)["claims"]
    remove_unfinished(folder)
    with _changing(folder) as content:
        claims: dict[str, dict[str, str]] = content["claims"]
        try:
            observed = {name for run in (folder, of) if run is not None for name in _observed(run)}
            for name, study in _studies().items():
                known = {**before.get(name, {}), **claims.get(name, {})}
                if said := unseen_claims(study, observed, known):
                    claims[name] = dict(said)
        except Exception as error:  # the session is recorded anyway
            log.warning("%s: lmdyn registered no claims (%s: %s)", folder, type(error).__name__, error)
        session["registered"] = {name: len(said) for name, said in claims.items()}
        content["sessions"].append(session)
        return len(content["sessions"]) - 1


@contextmanager
def _changing(folder: Path) -> Iterator[Record]:
    """Yield the content of the file, which is written at the end; other processes wait until then."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)  # lock the folder itself, so that no lock file is left
    try:
        try:
            import fcntl  # unavailable on Windows

            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process ends for any reason
        except (OSError, ImportError) as error:  # a file system without locks
            log.debug("%s is not locked: %s", folder / FILE, error)
        content = read_provenance(folder)
        yield content
        write_json(folder / FILE, content)
    finally:
        os.close(lock)


def _studies() -> Settings:
    studies: Settings = import_module("lmdyn.claims").STUDIES  # the top floor
    return studies


def _observed(run: Path) -> Iterator[str]:
    """Yield the class names of observers with observations in the run; ``test`` if it was tested."""
    from lmdyn.runs.store import ObservationStore

    for folder in sorted((run / "observations").glob("*")):
        if about := ObservationStore(folder).about():
            yield str(about["observer"]).rpartition(".")[2]
    if (run / "test.json").exists():
        yield "test"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def package_versions() -> dict[str, str]:
    """Return the versions of Python, lmdyn and the packages on which numbers depend."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git(folder: Path, *words: str) -> str:
    """Return what git answers about a folder.

    Raises:
        OSError: if there is no git.
        subprocess.SubprocessError: if it fails, as outside of a repository.
    """
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=_GIT_S,
        env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
    )
    return done.stdout.strip()


def _commit(package: Path = Path(__file__).parents[1]) -> Record:
    """Return the commit of lmdyn's checkout and whether files differ from it; None if it is not a checkout."""
    try:
        # excludes a repository in which lmdyn is only installed
        git(package, "ls-files", "--error-unmatch", "__init__.py")
        return {
            "commit": git(package, "rev-parse", "HEAD"),
            "dirty": bool(git(package, "status", "--porcelain", "--untracked-files=no", ".")),
        }
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def device_name(device: str) -> str:
    """Return a device with the name of the GPU, if it is one."""
    if not device.startswith("cuda"):
        return device
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"

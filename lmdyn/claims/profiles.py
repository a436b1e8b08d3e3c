"""Resolving the arguments of study commands (runs, folders of runs, records) and grouping what belongs together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from lmdyn.callbacks.observing.figures import short_names
from lmdyn.claims.recorded import RecordsFolder, is_records_folder
from lmdyn.cli.trust.folders import check_folder
from lmdyn.runs.observed_run import ObservedRun, RunFolder

__all__ = ["Profile", "find_profiles", "find_runs", "is_run"]

_DEEPEST = 3  # runs/<study>/<profile>/<run>


@dataclass(frozen=True)
class Profile:
    """Runs that are judged together.

    Attributes:
        name: name of the folder that contains them; empty for runs that were given individually.
        runs: folders of runs, or runs that are kept as records.
        study: for records, the study for whose claims they were made.
    """

    name: str
    runs: Sequence[ObservedRun]
    study: str | None = None


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run that was trained or replayed into."""
    return any((folder / name).exists() for name in ("config.yaml", "provenance.json", "observations"))


def find_profiles(given: Sequence[Path]) -> list[Profile]:
    """Find the runs below the given folders: each folder of runs is a profile, and so are all individually given runs.

    Args:
        given: run folders, folders of runs, folders of such folders, records folders.

    Raises:
        FileNotFoundError: if a folder does not exist, or contains no run.
    """
    single: dict[Path, None] = {}
    profiles: list[Profile] = []
    for path in given:
        if not path.is_dir():
            raise FileNotFoundError(f"{path} is not a folder: expected a run, a folder of runs, or records")
        if is_records_folder(path):
            profiles.append(_recorded(path))
        elif is_run(path):
            single[path.resolve()] = None
        elif found := [*_below(path, _DEEPEST)]:
            profiles += found
        elif any(path.glob("*.parquet")):
            raise FileNotFoundError(
                f"{path} has incomplete records: runs.json is missing. Write the records again: `lmdyn records RUN… "
                f"--out {path}`"
            )
        else:
            raise FileNotFoundError(
                f"{path} contains no run: expected config.yaml and observations/ in this folder or in a folder below, "
                "or records (runs.json)"
            )
    if single:
        profiles.insert(0, Profile("", _of_folders(list(single))))
    return profiles


def find_runs(given: Sequence[Path]) -> list[ObservedRun]:
    """Return all runs below the given folders, each once, with distinct names.

    Raises:
        FileNotFoundError: if a folder does not exist, or contains no run.
        ValueError: if two runs, one of them a record, have the same name.
    """
    runs = [run for profile in find_profiles(given) for run in profile.runs]
    folders = list(dict.fromkeys(run.path for run in runs if isinstance(run, RunFolder)))
    recorded = [run for run in runs if not isinstance(run, RunFolder)]
    whole = sorted([*_of_folders(folders), *recorded], key=lambda run: run.name)
    for one, other in pairwise(whole):
        if one.name == other.name:
            raise ValueError(f"two of the given runs or records are called {one.name!r}: give only one run")
    return whole


def _recorded(path: Path) -> Profile:
    records = RecordsFolder(path)
    return Profile(path.resolve().name, records.runs, records.study)


def _below(folder: Path, depth: int) -> Iterator[Profile]:
    """Yield the profiles in a folder that is not one itself: its own runs, then those of the folders below."""
    below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    runs = [path for path in below if is_run(path)]
    if runs:
        found = _of_folders([path.resolve() for path in runs])
        yield Profile(folder.resolve().name, found)
    for path in below:
        if path in runs:
            continue
        if is_records_folder(path):
            yield _recorded(path)
        elif depth > 1:
            yield from _below(path, depth - 1)


def _of_folders(folders: Sequence[Path]) -> list[ObservedRun]:
    for folder in folders:
        check_folder(folder)
    names = short_names([str(folder) for folder in folders])
    return [RunFolder(folder, names[str(folder)]) for folder in folders]  # many are called `version_0`

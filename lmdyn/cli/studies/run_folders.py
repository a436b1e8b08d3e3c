"""What a command about studies is given: runs, folders of runs, records; and which of them belong together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from lmdyn.callbacks.observing.figures import short_names
from lmdyn.claims.recorded import RecordsFolder, is_records_folder
from lmdyn.claims.runs import ObservedRun, RunFolder
from lmdyn.cli.studies.costs import read_costs

__all__ = ["Profile", "find_profiles", "find_runs", "is_run"]

_DEEPEST = 3  # runs/<study>/<profile>/<run>


@dataclass(frozen=True)
class Profile:
    """Runs that are judged together.

    Attributes:
        name: of the folder that holds them; empty for runs that were given one by one.
        runs: folders of runs, or runs that are kept as records.
        study: whose claims the records were made for, where they are records of some.
        costs: what the runs have cost (:func:`~lmdyn.cli.studies.costs.total_costs`); empty where it is not known.
    """

    name: str
    runs: Sequence[ObservedRun]
    study: str | None = None
    costs: Mapping[str, Any] = field(default_factory=dict)


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run that was trained or replayed into."""
    return any((folder / name).exists() for name in ("config.yaml", "provenance.json", "observations"))


def find_profiles(given: Sequence[Path]) -> list[Profile]:
    """The runs below the given folders: each folder of runs is a profile, and so are all runs that are given singly.

    Args:
        given: run folders, folders of runs, folders of such folders, records folders.

    Raises:
        FileNotFoundError: no such folder, or no run in it.
    """
    single: dict[Path, None] = {}
    profiles: list[Profile] = []
    for path in given:
        if not path.is_dir():
            raise FileNotFoundError(f"{path} is no folder: expected a run, a folder of runs, or records")
        if is_records_folder(path):
            profiles.append(_recorded(path))
        elif is_run(path):
            single[path.resolve()] = None
        elif found := [*_below(path, _DEEPEST)]:
            profiles += found
        elif any(path.glob("*.parquet")):
            raise FileNotFoundError(
                f"{path} holds half of its records: runs.json is missing; write them again, `lmdyn records RUN… --out "
                f"{path}`"
            )
        else:
            raise FileNotFoundError(
                f"there is no run in {path}: expected config.yaml and observations/ there or in the folders below it, "
                "or records (runs.json)"
            )
    if single:
        parents = {folder.parent for folder in single}
        whole = len(parents) == 1 and all(
            path in single for path in next(iter(parents)).iterdir() if is_run(path)
        )
        costs = read_costs(next(iter(parents))) if whole else {}
        profiles.insert(0, Profile("", _of_folders(list(single)), costs=costs))
    return profiles


def find_runs(given: Sequence[Path]) -> list[ObservedRun]:
    """All runs below the given folders, each once, by names that tell them apart.

    Raises:
        FileNotFoundError: no such folder, or no run in it.
        ValueError: two runs of one name, one of which is a record.
    """
    runs = [run for profile in find_profiles(given) for run in profile.runs]
    folders = list(dict.fromkeys(run.path for run in runs if isinstance(run, RunFolder)))
    recorded = [run for run in runs if not isinstance(run, RunFolder)]
    whole = sorted([*_of_folders(folders), *recorded], key=lambda run: run.name)
    for one, other in pairwise(whole):
        if one.name == other.name:
            raise ValueError(f"there are two runs called {one.name!r}: give one of them")
    return whole


def _recorded(path: Path) -> Profile:
    records = RecordsFolder(path)
    return Profile(path.resolve().name, records.runs, records.study, read_costs(path))


def _below(folder: Path, depth: int) -> Iterator[Profile]:
    """Profiles in a folder that is none itself: its own runs, then those of the folders below."""
    below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    runs = [path for path in below if is_run(path)]
    if runs:
        found = _of_folders([path.resolve() for path in runs])
        yield Profile(folder.resolve().name, found, costs=read_costs(folder))
    for path in below:
        if path in runs:
            continue
        if is_records_folder(path):
            yield _recorded(path)
        elif depth > 1:
            yield from _below(path, depth - 1)


def _of_folders(folders: Sequence[Path]) -> list[ObservedRun]:
    names = short_names([str(folder) for folder in folders])
    return [_NamedRun(folder, names[str(folder)]) for folder in folders]


class _NamedRun(RunFolder):
    """A run by as much of its path as tells it from the others: ``version_0`` is the name of many."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path)
        self._name = name

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

"""Claims of publications as objects: the number of a run, the region in which the claim is true, and its floor.

Each study is one file (``lmdyn/claims/studies/<study>.py``, with ``STUDY``), which :data:`STUDIES` imports on access;
:func:`lmdyn.claims.judge.judge` computes the verdicts. Importing this package imports neither torch nor lightning.
"""

import os
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from lmdyn.claims.claim import (
    Above,
    Below,
    Claim,
    Condition,
    Part,
    Published,
    Region,
    Study,
    Within,
    published_correlation,
    published_share,
)
from lmdyn.claims.numbers import (
    At,
    Change,
    Difference,
    Estimate,
    Largest,
    Mean,
    Number,
    Reaches,
    Smallest,
    Tested,
)
from lmdyn.claims.rows import Layer, OneOf, Rows
from lmdyn.runs.observed_run import NotMeasured, ObservedRun, RunFolder, SeedPair, by_seed

__all__ = [
    "STUDIES", "Above", "At", "Below", "Change", "Claim", "Condition", "Difference",
    "Estimate", "Largest", "Layer", "Mean", "NotMeasured", "Number", "ObservedRun", "OneOf",
    "Part", "Published", "Reaches", "Region", "Rows", "RunFolder", "SeedPair", "Smallest",
    "Study", "Tested", "Within", "by_seed", "published_correlation", "published_share", "study_of_file",
]  # fmt: skip


def study_of_file(path: Path) -> Study:
    """Return the study that a user's file defines, ``STUDY = Study(...)``.

    Raises:
        ValueError: if the file does not exist or defines no ``STUDY``.
    """
    spec = spec_from_file_location(f"lmdyn_study_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"{path}: expected a Python file that defines STUDY = lmdyn.claims.Study(…)")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    study = getattr(module, "STUDY", None)
    if not isinstance(study, Study):
        raise ValueError(f"{path} defines no study: add STUDY = lmdyn.claims.Study(…)")
    return study


def _own() -> dict[str, Study]:
    """Return the studies of the files in the environment variable ``LMDYN_STUDIES``."""
    paths = [Path(text) for text in os.environ.get("LMDYN_STUDIES", "").split(os.pathsep) if text]
    return {study.name: study for study in map(study_of_file, paths)}


class _Studies(Mapping[str, Study]):
    """Studies by name, each imported on access."""

    def __getitem__(self, name: str) -> Study:
        if name in (own := _own()):
            return own[name]
        if name not in set(self):
            raise KeyError(name)
        study = import_module(f"{__name__}.studies.{name}").STUDY
        assert isinstance(study, Study), name
        assert study.name == name, (study.name, name)
        return study

    def __iter__(self) -> Iterator[str]:
        files = (path.stem for path in (Path(__file__).parent / "studies").glob("*.py"))
        return iter(sorted({*(name for name in files if re.fullmatch(r"[a-z]+\d{4}_\w+", name)), *_own()}))

    def __len__(self) -> int:
        return sum(1 for _ in iter(self))


STUDIES: Mapping[str, Study] = _Studies()
"""The studies by name: one for each file ``studies/<author><year>_<word>.py``, and those of ``LMDYN_STUDIES``."""

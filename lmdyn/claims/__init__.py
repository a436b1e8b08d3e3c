"""What publications claim, as objects: the number of a run, the region in which the claim is true, its floor.

One file a study (``lmdyn/claims/studies/<study>.py``, with ``STUDY``); :data:`STUDIES` imports it when it is asked for,
and :func:`lmdyn.claims.judge.judge` gives the verdicts. Importing this package imports neither torch nor lightning.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
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
    Layer,
    Mean,
    Number,
    Reaches,
    Rows,
    Smallest,
    Tested,
)
from lmdyn.claims.runs import NotMeasured, ObservedRun, RunFolder, SeedPair, by_seed

__all__ = [
    "STUDIES",
    "Above",
    "At",
    "Below",
    "Change",
    "Claim",
    "Condition",
    "Difference",
    "Estimate",
    "Largest",
    "Layer",
    "Mean",
    "NotMeasured",
    "Number",
    "ObservedRun",
    "Part",
    "Published",
    "Reaches",
    "Region",
    "Rows",
    "RunFolder",
    "SeedPair",
    "Smallest",
    "Study",
    "Tested",
    "Within",
    "by_seed",
    "published_correlation",
    "published_share",
]


class _Studies(Mapping[str, Study]):
    """Studies by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> Study:
        if name not in set(self):
            raise KeyError(name)
        study = import_module(f"{__name__}.studies.{name}").STUDY
        assert isinstance(study, Study), name
        assert study.name == name, (study.name, name)
        return study

    def __iter__(self) -> Iterator[str]:
        files = (path.stem for path in (Path(__file__).parent / "studies").glob("*.py"))
        return iter(sorted(name for name in files if re.fullmatch(r"[a-z]+\d{4}_\w+", name)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"STUDIES({', '.join(self)})"


STUDIES: Mapping[str, Study] = _Studies()
"""The studies of lmdyn by name: one for each file ``studies/<author><year>_<word>.py``."""

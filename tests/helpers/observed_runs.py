"""A run that exists in memory only, with the observations that a test gives it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lmdyn.runs.observed_run import SeedPair


@dataclass
class FakeRun:
    """An ``ObservedRun``: observations by folder, as (class, settings, table)."""

    name: str = "run"
    seeds: SeedPair = field(default_factory=lambda: SeedPair(2, 2))
    condition: Mapping[str, Any] = field(default_factory=dict)
    observed: Mapping[str, tuple[str, Mapping[str, Any], pd.DataFrame]] = field(default_factory=dict)
    registered: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tested: Mapping[str, float] = field(default_factory=dict)

    def observers(self) -> Mapping[str, str]:
        return {folder: name for folder, (name, _, _) in self.observed.items()}

    def settings(self, observer: str) -> Mapping[str, Any]:
        return self.observed[observer][1]

    def read(self, observer: str, *, quantities: Iterable[str] | None = None) -> pd.DataFrame:
        table = self.observed[observer][2]
        return table if quantities is None else table[table["quantity"].isin(list(quantities))]


def rows(quantity: str, values: Mapping[int, float], site: str = "", **groups: Any) -> pd.DataFrame:
    """A tidy table of one curve."""
    table = pd.DataFrame({"step": list(values), "tokens": [10 * s for s in values]})
    table["quantity"], table["site"] = quantity, site
    for column, value in groups.items():
        table[column] = value
    return table.assign(value=[float(v) for v in values.values()])

"""Observations that a report draws: all, or as many as a figure can show."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lmdyn.callbacks.observing.figures import spread_out
from lmdyn.runs.store import ObservationStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DrawnObservations:
    """The drawn observations of one observer.

    Attributes:
        store: storage that reads them.
        existing: steps of all observations, in order; others may be written meanwhile.
        steps: drawn steps, in order.
    """

    store: ObservationStore
    existing: Sequence[int]
    steps: Sequence[int]

    @property
    def folder(self) -> Path:
        """The observer's folder."""
        return self.store.folder

    def read(self, rows: Any = None, *, most: int | None = None) -> pd.DataFrame:
        """Return the drawn observations, in the order of steps.

        Args:
            rows: restrict to rows for which this ``pyarrow.compute`` expression holds, or that which this function of
                the drawn steps returns.
            most: maximum number of steps, evenly spaced.
        """
        steps = self.steps if most is None else spread_out(self.steps, most)
        return self.store.read(where=rows(steps) if callable(rows) else rows, steps=frozenset(steps))


def drawn_observations(run: Path, most: int | None) -> list[DrawnObservations]:
    """Return the observers of a run that have observations, by name.

    Args:
        run: folder of the run.
        most: maximum number of drawn steps; None for all.
    """
    folders = sorted((run / "observations").glob("*"))
    for folder in [p for p in folders if not p.name.isprintable()]:
        log.warning("the report leaves out %r (unprintable characters): rename the folder", str(folder))
        folders.remove(folder)
    stores = {p.name: ObservationStore(p) for p in folders}
    existing = {name: steps for name, store in stores.items() if (steps := store.steps())}
    return [
        DrawnObservations(stores[name], steps, steps if most is None else spread_out(steps, most))
        for name, steps in existing.items()
    ]

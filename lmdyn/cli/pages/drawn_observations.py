"""Observations that a report draws: all, or as many as a figure can show."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lmdyn.callbacks.observing.figures import spread_out
from lmdyn.runs.store import ObservationStore

__all__ = ["DrawnObservations", "drawn_observations", "drawn_steps"]


log = logging.getLogger(__name__)


class DrawnObservations:
    """The drawn observations of one observer.

    Args:
        store: storage that reads them.
        existing: steps of all observations, in order; others may be written meanwhile.
        steps: drawn steps, in order.
    """

    def __init__(self, store: ObservationStore, existing: Sequence[int], steps: Sequence[int]) -> None:
        self.store = store
        self.existing = existing
        self.steps = steps

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
        log.warning("%r in %s is left out, as its name is not text: rename it", folder.name, folder.parent)
        folders.remove(folder)
    stores = {p.name: ObservationStore(p) for p in folders}
    existing = {name: steps for name, store in stores.items() if (steps := store.steps())}
    drawn = drawn_steps(existing, most)
    return [DrawnObservations(stores[name], steps, drawn[name]) for name, steps in existing.items()]


def drawn_steps(steps: Mapping[str, Sequence[int]], most: int | None) -> dict[str, list[int]]:
    """Return the drawn steps of each observer: the same for all, as far as they exist, so that they can be compared.

    For an observer with more than ``most`` steps, these are its first and last one, all steps of observers with fewer,
    and every n-th of all steps of observers with more. A new observation is the last one, and seldom changes the
    others.

    Example:
        >>> drawn_steps({"often": range(1000), "too": range(0, 1000, 2), "seldom": [0, 501]}, 5)
        {'often': [0, 250, 500, 501, 750, 999], 'too': [0, 250, 500, 750, 998], 'seldom': [0, 501]}
        >>> drawn_steps({"often": range(1001)}, 5)
        {'often': [0, 250, 500, 750, 1000]}
    """
    if most is None:
        return {name: list(own) for name, own in steps.items()}
    long = sorted({step for own in steps.values() if len(own) > most for step in own})
    shared = {step for own in steps.values() if len(own) <= most for step in own}
    chosen = shared.union(long[:: -(-(len(long) - 1) // max(most - 1, 1))] if long else ())
    found = {}
    for name, own in steps.items():
        few = len(own) <= most
        found[name] = list(own) if few else [s for s in own if s in chosen or s in (own[0], own[-1])]
    return found

"""What a report draws of a run's observations: all, or as many as a figure has room for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lmdyn.callbacks.gathered.gathered_store import GatheredStore
from lmdyn.callbacks.observing.figures import spread_out

__all__ = ["DrawnObservations", "drawn_observations", "drawn_steps"]


class DrawnObservations:
    """The observations of one observer that are drawn.

    Args:
        store: reads them.
        steps: those that are drawn, in order.
    """

    def __init__(self, store: GatheredStore, steps: Sequence[int]) -> None:
        self.store = store
        self.steps = steps

    @property
    def folder(self) -> Path:
        """The observer's."""
        return self.store.folder

    @property
    def left_out(self) -> int:
        """How many observations are not drawn."""
        return len(self.store.steps()) - len(self.steps)

    def read(self, rows: Any = None, *, most: int | None = None) -> pd.DataFrame:
        """What is drawn, in the order of steps.

        Args:
            rows: only those for which this ``pyarrow.compute`` expression holds.
            most: of so many steps at most, evenly spread.
        """
        steps = self.steps if most is None else spread_out(self.steps, most)
        return self.store.read(where=rows, steps=frozenset(steps))

    def ends(self) -> pd.DataFrame:
        """The first and the last observation."""
        return self.read(most=2)


def drawn_observations(run: Path, most: int | None, *, cached: bool = True) -> list[DrawnObservations]:
    """The observers of a run that have any observations, by name.

    Args:
        run: its folder.
        most: steps that are drawn; None for all.
        cached: whether the run's cache is believed, and written.
    """
    stores = [GatheredStore(p, cached=cached) for p in sorted((run / "observations").glob("*"))]
    there = {store.folder.name: store for store in stores if store.steps()}
    steps = drawn_steps({name: store.steps() for name, store in there.items()}, most)
    return [DrawnObservations(store, steps[name]) for name, store in there.items()]


def drawn_steps(steps: Mapping[str, Sequence[int]], most: int | None) -> dict[str, list[int]]:
    """Which steps of each observer are drawn: the same of all, as far as they have them, so that they can be compared.

    Of an observer with more than ``most`` these are its first and last one, what other observers have at all, and else
    every n-th of all steps that such observers have. A new observation is the last one, and seldom changes the others.

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

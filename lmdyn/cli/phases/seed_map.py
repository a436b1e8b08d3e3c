"""The training map of runs: their curves as one table, its model, and what can be held against its states."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from rich.console import Console

from lmdyn.analysis.phases.map_controls import clumping_p_value, smooth_counterpart
from lmdyn.analysis.phases.training_map import FOLDS, LEAST_SEEDS, TooFewSeedsError, TrainingMap, training_map
from lmdyn.analysis.statistics.mean_over_seeds import MeanOverSeeds, mean_over_seeds
from lmdyn.cli.phases.phases import Curves

__all__ = ["SeedMap", "TooFewSeedsError", "map_of", "map_tables", "paths_table", "print_map", "reading"]

log = logging.getLogger(__name__)

MOST_MEASURES = 30
"""Maximum number of curves of a map: about a minute."""

_FEWEST_STEPS = 8
_ROTATIONS = 39
_LEVEL = 0.05
_MOST_TOLD = 3


@dataclass(frozen=True)
class SeedMap:
    """A training map with its measures and controls.

    Attributes:
        found: the map.
        runs: names of the runs, one for each seed.
        steps: (steps,) common to all curves.
        measures: names of the curves.
        values: (seeds, steps, measures).
        smooth: the map of smooth, monotone curves with the same noise.
        p_value: of "seeds differ gradually".
        left: what was left out, in sentences.
    """

    found: TrainingMap
    runs: tuple[str, ...]
    steps: npt.NDArray[np.float64]
    measures: tuple[str, ...]
    values: npt.NDArray[np.float64]
    smooth: TrainingMap
    p_value: float
    left: tuple[str, ...]

    @property
    def entries(self) -> list[float]:
        """Geometric mean over seeds of the step of first entry into each state; NaN if none is ever in it."""
        first = self.found.first_entries()
        return [
            float(10 ** np.log10(self.steps[of[of >= 0]]).mean()) if (of >= 0).any() else float("nan")
            for of in first.T
        ]

    @property
    def against_smooth(self) -> MeanOverSeeds:
        """Held-out log-likelihood per observation minus that of the smooth counterparts, with as many states."""
        i = self.found.states - 1
        return mean_over_seeds((self.found.held_out[i] - self.smooth.held_out[i]).tolist())

    @property
    def visits(self) -> list[int]:
        """Number of seeds that are ever in each state."""
        return [int((of >= 0).sum()) for of in self.found.first_entries().T]


def map_of(curves: Curves, *, most: int = 8, rotations: int = _ROTATIONS) -> SeedMap:
    """Fit the training map of runs, and of its controls.

    Args:
        curves: curves of one run a seed, see :func:`~lmdyn.cli.phases.phases.read_curves`.
        most: largest number of states.
        rotations: see :func:`~lmdyn.analysis.phases.map_controls.clumping_p_value`.

    Raises:
        TooFewSeedsError: for runs of fewer than 20 different seeds: the map is void.
        ValueError: for too many curves, or too few common steps.
    """
    if len(curves) < LEAST_SEEDS:
        raise TooFewSeedsError(
            f"a training map requires runs of at least {LEAST_SEEDS} different seeds, got {len(curves)}"
        )
    measures, steps, values, left = _table(curves)
    found = training_map(values, most=most)
    smooth = training_map(smooth_counterpart(steps, values), most=most)
    return SeedMap(
        found,
        tuple(curves),
        steps,
        tuple(measures),
        values,
        smooth,
        clumping_p_value(values, most=most, rotations=rotations),
        tuple(left),
    )


def _table(
    curves: Curves,
) -> tuple[list[str], npt.NDArray[np.float64], npt.NDArray[np.float64], list[str]]:
    """Return measures, steps, values (seeds, steps, measures), and sentences on what is left out."""
    everywhere = [name for name in next(iter(curves.values())) if all(name in of for of in curves.values())]
    some = {name for of in curves.values() for name in of} - set(everywhere)
    said = [f"not in all runs: {', '.join(sorted(some))}"] if some else []
    tables = {
        name: pd.DataFrame({run: of[name] for run, of in curves.items()}).dropna() for name in everywhere
    }
    constant = [name for name, table in tables.items() if not np.ptp(table.to_numpy()) > 0]
    if constant:
        said.append(f"constant: {', '.join(constant)}")
        tables = {name: table for name, table in tables.items() if name not in constant}
    nearly = [name for name, table in tables.items() if _in_few(table.to_numpy(dtype=float))]
    if nearly:
        said.append(f"constant in all but a fifth of the runs or fewer: {', '.join(nearly)}")
        tables = {name: table for name, table in tables.items() if name not in nearly}
    if not tables:
        raise ValueError("a training map requires curves that all runs have and that change, got none")
    if len(tables) > MOST_MEASURES:
        raise ValueError(
            f"a training map holds at most {MOST_MEASURES} curves, got {len(tables)}: choose with --select, such as "
            f"--select '{next(iter(tables)).split('/')[0]}/*'"
        )
    steps = sorted(set.intersection(*(set(table.index) for table in tables.values())))
    if len(steps) < _FEWEST_STEPS:
        fewest = min(tables, key=lambda name: len(tables[name]))
        raise ValueError(
            f"a training map requires at least {_FEWEST_STEPS} steps at which all runs have all curves, got "
            f"{len(steps)}: {fewest} has {len(tables[fewest])}; choose curves of one schedule with --select"
        )
    longest = max(len(table) for table in tables.values())
    if len(steps) < longest:
        said.append(f"steps that not all curves have: {longest - len(steps)} of {longest}")
    values = np.stack([table.loc[steps].to_numpy(dtype=float).T for table in tables.values()], axis=2)
    return list(tables), np.array(steps, dtype=float), values, said


def _in_few(values: npt.NDArray[np.float64]) -> bool:
    """Return whether values (steps, runs) are one constant in so many runs that four folds may have no other."""
    still = values[0, np.ptp(values, axis=0) == 0]
    most = int(np.unique(still, return_counts=True)[1].max(initial=0))
    return bool(values.shape[1] - most <= -(-values.shape[1] // FOLDS))


def reading(one: SeedMap) -> list[str]:
    """Return what the map says and does not say, in sentences."""
    found, seeds = one.found, len(one.runs)
    if found.states == 1:
        return [
            "No states: of held-out seeds, none of the models with more states is significantly more likely than a "
            "single state."
        ]
    said = [
        f"{found.states} states (measures: {len(one.measures)}, seeds: {seeds}, steps: {len(one.steps)})."
    ]
    if found.at_most:
        said.append(f"{found.states} is the largest number that was tried: more might fit better.")
    return [*said, *_states_reading(one), *_paths_reading(one)]


def _states_reading(one: SeedMap) -> list[str]:
    """Return what the number of states says, beside smooth counterparts."""
    low, high = one.against_smooth.interval()
    by = f"{one.against_smooth.mean:.2f} [{low:.2f}, {high:.2f}] nats per observation"
    number = f"Smooth, monotone curves with the same noise get {one.smooth.states} states"
    said = [f"{number}: a number of states alone shows no phases."]
    if low > 0:
        return [
            *said,
            f"With {one.found.states} states, held-out seeds are more likely than their smooth counterparts, by {by}: "
            "they stay closer to few points, or are not monotone.",
        ]
    return [
        *said,
        f"With {one.found.states} states, held-out seeds are not shown to be more likely than smooth counterparts "
        f"({by}): states are pieces of a course, and their borders may be anywhere.",
    ]


def _paths_reading(one: SeedMap) -> list[str]:
    """Return what paths say, beside seeds that differ gradually."""
    found, routes, seeds = one.found, one.found.routes(), len(one.runs)
    if len(routes) == 1:
        said = [f"All {seeds} seeds enter the states in the same order."]
    else:
        told = ", ".join(f"{_order(order)} ({number} seeds)" for order, number in routes[:_MOST_TOLD])
        said = [f"Seeds enter the states in {len(routes)} orders; the most frequent ones: {told}."]
    if alternatives := found.alternatives():
        told = ", ".join(f"{a + 1} or {b + 1} ({i} and {j} seeds)" for a, b, i, j in alternatives)
        said.append(f"Alternatives, of which seeds visit one without the other: {told}.")
    p = f"p = {one.p_value:.2g}, against rotated seeds with the same mean and covariance"
    if one.p_value > _LEVEL:
        said.append(f"Nothing shows that seeds differ other than gradually ({p}), whatever paths they take.")
    else:
        said.append(
            f"Seeds do not differ gradually ({p}). They fork, for which there must be alternatives, or changes "
            "come at different steps, or both."
        )
    return said


def _order(states: Sequence[int]) -> str:
    return " ".join(str(k + 1) for k in states)


def map_tables(one: SeedMap) -> dict[str, tuple[list[str], list[list[Any]]]]:
    """Return tables of the map, head and rows by title."""
    found = one.found
    states: list[list[Any]] = [
        ["first entry (step)", *one.entries],
        ["seeds", *one.visits],
        *([name, *means] for name, means in zip(one.measures, found.means.T.tolist(), strict=True)),
    ]
    counts = found.seeds_with_transition()
    scale = one.values.std((0, 1))
    changes: list[list[Any]] = []
    for a, b in zip(*np.nonzero(counts), strict=True):
        difference = (found.means[b] - found.means[a]) / scale
        largest = np.argsort(-np.abs(difference), kind="stable")[:_MOST_TOLD]
        told = ", ".join(f"{one.measures[i]} {difference[i]:+.2f}" for i in largest)
        changes.append([f"{a + 1} → {b + 1}", int(counts[a, b]), float(found.transitions[a, b]), told])
    routes = [[_order(order), number] for order, number in found.routes()]
    held_out = [
        [number, *_mean_and_ends(found.held_out[i]), *_mean_and_ends(one.smooth.held_out[i])]
        for i, number in enumerate(found.numbers)
    ]
    ends = ["mean", "low", "high"]
    return {
        "log-likelihood of held-out seeds, per observation": (
            ["states", *ends, *(f"smooth: {name}" for name in ends)],
            held_out,
        ),
        "states": (["mean of each measure", *(f"state {k + 1}" for k in range(found.states))], states),
        "transitions": (
            ["from → to", "seeds", "probability", "largest differences (standard deviations)"],
            changes,
        ),
        "orders of first entry": (["states", "seeds"], routes),
    }


def _mean_and_ends(values: npt.NDArray[np.float64]) -> list[float]:
    found = mean_over_seeds(values.tolist())
    return [found.mean, *found.interval()]


def paths_table(one: SeedMap) -> pd.DataFrame:
    """Return the state of each run at each step: columns ``run, step, state`` (from 1)."""
    rows: Mapping[str, Any] = {
        "run": np.repeat(one.runs, len(one.steps)),
        "step": np.tile(one.steps.astype(int), len(one.runs)),
        "state": one.found.paths.ravel() + 1,
    }
    return pd.DataFrame(rows)


def print_map(one: SeedMap) -> None:
    """Print what the map says, and where its states begin."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = 140
    console.print("training map")
    for sentence in (*reading(one), *(f"Left out: {left}." for left in one.left)):
        console.print(sentence)
    if one.found.states > 1:
        for k, (entry, seeds) in enumerate(zip(one.entries, one.visits, strict=True)):
            console.print(
                f"state {k + 1}: entered near step {entry:,.0f}, in {seeds} of {len(one.runs)} seeds"
            )

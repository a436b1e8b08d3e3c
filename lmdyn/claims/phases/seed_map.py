"""The training map of runs: their curves as one table, its model, and what can be held against its states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lmdyn.analysis.phases.map_controls import clumping_p_value, smooth_counterpart
from lmdyn.analysis.phases.training_map import FOLDS, LEAST_SEEDS, TooFewSeedsError, TrainingMap, training_map
from lmdyn.analysis.statistics.mean_over_seeds import MeanOverSeeds, mean_over_seeds
from lmdyn.claims.phases.phases import Curves

__all__ = ["SeedMap", "TooFewSeedsError", "map_of", "map_tables", "map_words", "paths_table"]

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
        curves: curves of one run a seed, see :func:`~lmdyn.claims.phases.phases.read_curves`.
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
    p_value = clumping_p_value(values, most=most, rotations=rotations)
    return SeedMap(found, tuple(curves), steps, tuple(measures), values, smooth, p_value, tuple(left))


def _table(curves: Curves) -> tuple[list[str], npt.NDArray[np.float64], npt.NDArray[np.float64], list[str]]:
    """Return measures, steps, values (seeds, steps, measures), and sentences on what is left out."""
    names = dict.fromkeys(name for of in curves.values() for name in of)
    tables = {
        name: pd.DataFrame({run: of[name] for run, of in curves.items()}).dropna()
        for name in names
        if all(name in of for of in curves.values())
    }
    reasons = {name: "not in all runs" for name in sorted(names) if name not in tables}
    for name, table in tables.items():
        if not np.ptp(table.to_numpy()) > 0:
            reasons[name] = "constant"
        elif _in_few(table.to_numpy(dtype=float)):
            reasons[name] = "changes in at most a fifth of the runs"
    left = [
        f"{reason}: {', '.join(name for name, why in reasons.items() if why == reason)}"
        for reason in dict.fromkeys(reasons.values())
    ]
    tables = {name: table for name, table in tables.items() if name not in reasons}
    if not 0 < len(tables) <= MOST_MEASURES:
        raise ValueError(
            f"a training map requires 1 to {MOST_MEASURES} curves that change and are in all runs, got {len(tables)}: "
            f"choose other curves, such as --select '{next(iter(names), 'learning_curves').split('/')[0]}/*'"
        )
    steps = sorted(set.intersection(*(set(table.index) for table in tables.values())))
    if len(steps) < _FEWEST_STEPS:
        fewest = min(tables, key=lambda name: len(tables[name]))
        raise ValueError(
            f"a training map requires at least {_FEWEST_STEPS} steps at which all runs have all curves, got "
            f"{len(steps)}: choose curves of equal steps with --select; {fewest} has the fewest, {len(tables[fewest])}"
        )
    longest = max(len(table) for table in tables.values())
    if len(steps) < longest:
        left.append(f"{longest - len(steps)} of {longest} steps, which some curves lack")
    values = np.stack([table.loc[steps].to_numpy(dtype=float).T for table in tables.values()], axis=2)
    return list(tables), np.array(steps, dtype=float), values, left


def _in_few(values: npt.NDArray[np.float64]) -> bool:
    """Return whether values (steps, runs) are one constant in so many runs that four folds may have no other."""
    still = values[0, np.ptp(values, axis=0) == 0]
    most = int(np.unique(still, return_counts=True)[1].max(initial=0))
    return bool(values.shape[1] - most <= -(-values.shape[1] // FOLDS))


def map_words(one: SeedMap) -> list[str]:
    """Return what the map says and does not say, in sentences: beside smooth counterparts, and gradual differences."""
    found, routes, seeds = one.found, one.found.routes(), len(one.runs)
    left = [f"Left out: {reason}." for reason in one.left]
    if found.states == 1:
        return [
            "Several states do not explain held-out seeds better than a single state, beyond chance.",
            *left,
        ]
    low, high = one.against_smooth.interval()
    by = f"{one.against_smooth.mean:.2f} [{low:.2f}, {high:.2f}] nats per observation"
    orders = ", ".join(f"{_order(order)} ({number} seeds)" for order, number in routes[:_MOST_TOLD])
    some = ", ".join(f"{a + 1} or {b + 1} ({i} and {j} seeds)" for a, b, i, j in found.alternatives())
    how = "gradually, or not at all" if one.p_value > _LEVEL else "by more than gradual variation"
    return [
        f"{found.states} states (measures: {len(one.measures)}, seeds: {seeds}, steps: {len(one.steps)})."
        + found.at_most * " lmdyn tried no larger number: more states might fit better.",
        f"Smooth, monotone curves with the same noise get {one.smooth.states} states, so a number of states alone "
        f"shows no phases. The map predicts held-out seeds better than smooth curves by {by}"
        + ("." if low > 0 else ". This gain may be due to chance: states may be pieces of a smooth course."),
        f"Seeds enter the states in {len(routes)} orders, most frequently {orders}.",
        *([f"A seed visits only one state of each of these pairs: {some}."] if some else []),
        f"Seeds differ {how} (p = {one.p_value:.2g}, from rotated seeds with the same mean and covariance).",
        *left,
    ]


def _order(states: Sequence[int]) -> str:
    return " ".join(str(k + 1) for k in states)


def map_tables(one: SeedMap) -> dict[str, pd.DataFrame]:
    """Return tables of the map by title."""
    found = one.found
    names = [f"state {k + 1}" for k in range(found.states)]
    states = pd.DataFrame(found.means.T, index=list(one.measures), columns=names)
    states = pd.concat(
        [pd.DataFrame([one.entries, one.visits], ["first entry (step)", "seeds"], names), states]
    )
    counts = found.seeds_with_transition()
    changes = []
    for a, b in zip(*np.nonzero(counts), strict=True):
        difference = (found.means[b] - found.means[a]) / one.values.std((0, 1))
        largest = np.argsort(-np.abs(difference), kind="stable")[:_MOST_TOLD]
        told = ", ".join(f"{one.measures[i]} {difference[i]:+.2f}" for i in largest)
        changes.append([f"{a + 1} → {b + 1}", int(counts[a, b]), float(found.transitions[a, b]), told])
    held_out = pd.DataFrame({"states": found.numbers})
    for kind, of in (("", found), ("smooth: ", one.smooth)):
        means = [mean_over_seeds(seeds.tolist()) for seeds in of.held_out]
        held_out[[f"{kind}mean", f"{kind}low", f"{kind}high"]] = [[m.mean, *m.interval()] for m in means]
    return {
        "log-likelihood of held-out seeds, per observation": held_out,
        "states: mean of each measure": states.reset_index(names="measure"),
        "transitions": pd.DataFrame(
            changes,
            columns=["from → to", "seeds", "probability", "largest differences (standard deviations)"],
        ),
        "orders in which seeds first enter the states": pd.DataFrame(
            [[_order(order), number] for order, number in found.routes()], columns=["states", "seeds"]
        ),
    }


def paths_table(one: SeedMap) -> pd.DataFrame:
    """Return the state of each run at each step: columns ``run, step, state`` (from 1)."""
    rows: Mapping[str, Any] = {
        "run": np.repeat(one.runs, len(one.steps)),
        "step": np.tile(one.steps.astype(int), len(one.runs)),
        "state": one.found.paths.ravel() + 1,
    }
    return pd.DataFrame(rows)

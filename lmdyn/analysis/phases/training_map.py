"""Training maps: a hidden Markov model over the measures of many seeds' runs, whose states divide training."""

import logging
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lmdyn.analysis.statistics.mean_over_seeds import mean_over_seeds

if TYPE_CHECKING:  # these take as long to import as everything else here
    import hmmlearn.hmm

__all__ = [
    "FOLDS",
    "LEAST_SEEDS",
    "TooFewSeedsError",
    "TrainingMap",
    "seed_order",
    "standardized",
    "state_likelihood",
    "training_map",
]

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

LEAST_SEEDS = 20
"""Minimum number of seeds of a training map."""

FOLDS = 5
"""Parts of the seeds, each of which is held out once."""
_TRIAL = 10
_LONGEST = 60
"""Iterations of each restart, and of the best one after them."""
_ENOUGH = 1e-4
"""Gain of log-likelihood per observation below which the fit ends."""
_COUNTS = 1.1
"""Dirichlet prior of the rows of probabilities: a tenth of a transition each, so that none is impossible."""
_FEW = 0.1
"""Least share of seeds on each of two alternative states."""


class TooFewSeedsError(ValueError):
    """Too few seeds for a training map."""


@dataclass(frozen=True)
class TrainingMap:
    """Result of :func:`training_map`. States are in the order of their mean first entry.

    Attributes:
        numbers: numbers of states that were tried, from 1.
        held_out: log-likelihood per observation of each seed, by models of the seeds in other folds, (numbers, seeds);
            of values standardised over all seeds.
        states: number of states; 1 if no states are shown.
        means: mean of each measure in each state, in its own unit, (states, measures).
        deviations: standard deviation of each measure in each state, (states, measures).
        start: probability of each state at the first observation, (states,).
        transitions: probability of each state (columns) at the observation after each state (rows), (states, states).
        paths: most probable state of each seed at each step (Viterbi), (seeds, steps).
    """

    numbers: tuple[int, ...]
    held_out: Array
    states: int
    means: Array
    deviations: Array
    start: Array
    transitions: Array
    paths: Indices

    @property
    def at_most(self) -> bool:
        """Whether the largest number of states was chosen: more might fit better."""
        return self.states == self.numbers[-1] and self.states > 1

    def first_entries(self) -> Indices:
        """Return the index of the first step of each seed in each state, (seeds, states); −1 if it never is in it."""
        there = self.paths[:, :, None] == np.arange(self.states)
        return np.where(there.any(1), there.argmax(1), -1)

    def routes(self) -> list[tuple[tuple[int, ...], int]]:
        """Return the states in the order of first entry and the number of seeds of each order, most frequent first."""
        orders = [tuple(int(s) for s in dict.fromkeys(path.tolist())) for path in self.paths]
        return sorted(Counter(orders).items(), key=lambda pair: (-pair[1], pair[0]))

    def seeds_with_transition(self) -> Indices:
        """Return the number of seeds whose path goes at least once directly from one state (row) to another."""
        found = np.zeros((self.states, self.states), np.int64)
        for path in self.paths:
            for a, b in set(pairwise(path.tolist())):
                found[a, b] += a != b
        return found

    def alternatives(self) -> list[tuple[int, int, int, int]]:
        """Return pairs of states of which seeds visit one or the other: at least a tenth of the seeds each.

        Returns:
            The two states, and the numbers of seeds that are only in the first and only in the second.
        """
        visited = self.first_entries() >= 0
        least = max(2, int(np.ceil(_FEW * len(visited))))
        found = []
        for a, b in combinations(range(self.states), 2):
            only_a = int((visited[:, a] & ~visited[:, b]).sum())
            only_b = int((visited[:, b] & ~visited[:, a]).sum())
            if min(only_a, only_b) >= least:
                found.append((a, b, only_a, only_b))
        return found


def training_map(values: npt.ArrayLike, *, most: int = 8, restarts: int = 3, seed: int = 0) -> TrainingMap:
    """Fit a hidden Markov model with Gaussian emissions (diagonal covariance) to the curves of many seeds.

    Each seed is one sequence. Each measure is standardised: minus its mean over all training seeds and steps, divided
    by its standard deviation over them. The number of states is the smallest that no larger one beats: the mean
    log-likelihood of held-out seeds (five folds; standardised by the other seeds only) is at most insignificantly below
    the best (95 % interval of the difference, paired by seed). One state is an answer.

    **States are not phases by themselves.** A state is a region of values, and a smooth course is divided into as many
    regions as the noise permits: a straight line without any phase gets the maximum. See
    :func:`~lmdyn.analysis.phases.map_controls.smooth_counterpart` and
    :func:`~lmdyn.analysis.phases.map_controls.rotated_seeds` for what can be held against that.

    Args:
        values: (seeds, steps, measures), finite; the same steps for all seeds.
        most: largest number of states.
        restarts: number of starting points of each fit, of which the best after ten iterations is continued.
        seed: seed of the starting points; the global generators are not used. The order of the seeds does not matter.

    Raises:
        TooFewSeedsError: for fewer than 20 seeds.
        ValueError: for values that are not finite or a measure that is constant, or settings out of range.

    Reference: Hu, Chen, Saphra & Cho 2023, "Latent State Models of Training Dynamics".

    Example:
        >>> noise = 0.1 * np.random.default_rng(0).standard_normal((20, 12, 1))
        >>> found = training_map((np.arange(12) > 5)[:, None] + noise, most=3, restarts=1)
        >>> found.states, found.means.round(1).ravel().tolist(), found.routes()
        (2, [0.0, 1.0], [((0, 1), 20)])
    """
    given = np.asarray(values, np.float64)
    if given.ndim != 3 or not np.isfinite(given).all() or given.shape[1] < 2 or not given.shape[2]:
        raise ValueError(
            f"expected finite values (seeds, steps, measures) for at least 2 steps and 1 measure, got {given.shape}, "
            f"of which {(~np.isfinite(given)).sum()} are NaN or infinite"
        )
    if len(given) < LEAST_SEEDS:
        raise TooFewSeedsError(
            f"a training map requires at least {LEAST_SEEDS} seeds, got {len(given)}: add seeds, because fewer "
            "held-out seeds do not determine the map"
        )
    if most < 2 or restarts < 1:
        raise ValueError(f"expected `most` >= 2 and `restarts` >= 1, got {most} and {restarts}")
    order = seed_order(given)
    rows = given[order]
    scaled, centre, scale = standardized(rows)
    numbers = tuple(range(1, most + 1))
    held_out = np.array([_held_out(rows, scale, number, restarts, seed) for number in numbers])
    states = _fewest(held_out)
    model = _fit(scaled, states, restarts, (seed, states))
    paths = np.stack([model.predict(one) for one in scaled])
    places = _by_entry(paths, states)
    back = np.argsort(order)
    return TrainingMap(
        numbers=numbers,
        held_out=held_out[:, back],
        states=states,
        means=model.means_[places] * scale + centre,
        deviations=np.sqrt(np.array([np.diag(c) for c in model.covars_]))[places] * scale,
        start=model.startprob_[places],
        transitions=model.transmat_[np.ix_(places, places)],
        paths=np.argsort(places)[paths][back],
    )


def seed_order(values: Array) -> Indices:
    """Return the seeds (seeds, steps, measures) in an order by their values: results do not depend on the given one.

    Example:
        >>> seed_order(np.array([[[2.0]], [[1.0]], [[3.0]]])).tolist()
        [1, 0, 2]
    """
    return np.asarray(np.lexsort(values.reshape(len(values), -1).T))


def standardized(values: Array) -> tuple[Array, Array, Array]:
    """Return values minus the mean of each measure, over its standard deviation over seeds and steps, and both.

    Args:
        values: (seeds, steps, measures).

    Raises:
        ValueError: for a constant measure.
    """
    centre, scale = values.mean((0, 1)), values.std((0, 1))
    if not (scale > 1e-12 * np.abs(centre)).all():
        constant = ", ".join(map(str, np.flatnonzero(~(scale > 1e-12 * np.abs(centre)))))
        raise ValueError(f"measures at index {constant} are constant over seeds and steps: leave these out")
    return (values - centre) / scale, centre, scale


def state_likelihood(values: Array, *, most: int, restarts: int = 1, seed: int = 0) -> float:
    """Return the mean log-likelihood per observation of maps with 2 to ``most`` states, of standardised values.

    It is large if observations lie close to few points.

    Args:
        values: (seeds, steps, measures).
        most: largest number of states.
        restarts: number of starting points of each fit.
        seed: seed of the starting points.
    """
    scaled = standardized(values)[0]
    scores = [_score(_fit(scaled, k, restarts, (seed, k)), scaled).sum() for k in range(2, most + 1)]
    return float(np.mean(scores) / (len(scaled) * scaled.shape[1]))


def _fewest(held_out: Array) -> int:
    """Return the smallest number of states that is not significantly below the best one, paired by seed."""
    best = int(held_out.mean(1).argmax())
    for i in range(best):
        low, high = mean_over_seeds((held_out[best] - held_out[i]).tolist()).interval()
        if low <= 0 <= high:
            return i + 1
    return best + 1


def _held_out(values: Array, scale: Array, number: int, restarts: int, seed: int) -> Array:
    """Return the log-likelihood per observation of each seed, by models of the other folds."""
    found = np.empty(len(values))
    fold = np.arange(len(values)) % FOLDS
    for each in range(FOLDS):
        training, centre, own = standardized(values[fold != each])
        model = _fit(training, number, restarts, (seed, number, each))
        # densities of values standardised by other seeds, in the scale of all seeds
        units = np.log(own / scale).sum()
        found[fold == each] = _score(model, (values[fold == each] - centre) / own) / values.shape[1] - units
    return found


def _score(model: "hmmlearn.hmm.GaussianHMM", values: Array) -> Array:
    """Return the log-likelihood of each sequence."""
    model.implementation = "log"
    return np.array([model.score(one) for one in values])


def _fit(values: Array, number: int, restarts: int, seed: tuple[int, ...]) -> "hmmlearn.hmm.GaussianHMM":
    """Fit to standardised sequences (seeds, steps, measures); the best restart is continued."""
    rows = values.reshape(-1, values.shape[2])
    lengths = [values.shape[1]] * len(values)
    starts = np.random.SeedSequence(seed).generate_state(restarts if number > 1 else 1)
    with ExitStack() as stack:
        # fits end by our own rule: hmmlearn would warn of rounding in the last iterations
        logger = logging.getLogger("hmmlearn")
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        tried = [_begun(rows, lengths, number, int(start)) for start in starts]
        best = max(tried, key=lambda model: float(model.monitor_.history[-1]))
        best.init_params, best.n_iter = "", _LONGEST
        return _climb(best, rows, lengths)


def _begun(rows: Array, lengths: list[int], number: int, start: int) -> "hmmlearn.hmm.GaussianHMM":
    from sklearn.cluster import kmeans_plusplus

    try:
        from hmmlearn.hmm import GaussianHMM
    except ImportError as error:
        raise ImportError("training maps require hmmlearn: pip install 'lmdyn[claims]'") from error

    model = GaussianHMM(
        number,
        "diag",
        startprob_prior=_COUNTS,
        transmat_prior=_COUNTS,
        random_state=start,
        n_iter=_TRIAL,
        tol=_ENOUGH * len(rows),
        init_params="stc",
    )
    model.means_ = kmeans_plusplus(rows, number, random_state=start)[0]
    return _climb(model, rows, lengths)


def _climb(model: "hmmlearn.hmm.GaussianHMM", rows: Array, lengths: list[int]) -> "hmmlearn.hmm.GaussianHMM":
    try:
        model.implementation = "scaling"  # a third of the time
        return model.fit(rows, lengths)
    except ValueError:  # densities that underflow
        model.implementation = "log"
        return model.fit(rows, lengths)


def _by_entry(paths: Indices, states: int) -> Indices:
    """Return states in the order of the mean first step; those that no seed is ever in are the last ones."""
    there = paths[:, :, None] == np.arange(states)
    first = np.where(there.any(1), there.argmax(1), np.nan)
    mean = np.array([np.nanmean(of) if np.isfinite(of).any() else np.inf for of in first.T])
    return np.argsort(mean, kind="stable")

"""How many states does a training map give to curves without phases, and does it find chains and forks?

Question: number of states that ``training_map`` chooses, held-out log-likelihood per observation by number, both also
of the smooth, monotone counterparts of the curves, number of orders in which seeds visit states, pairs of states that
are alternatives of each other, and p-value of "seeds differ gradually", for curves whose states are known. There is no
goal: the numbers say what a map of unknown curves can mean. A second table has the share of data sets with p ≤ 0.05.

Run: ``python benchmarks/training_maps.py`` (minutes; ``--smoke`` for seconds)

Compared: 24 seeds of three measures over 32 observations (from step 1 to 10,000, evenly in log10), plus independent
Gaussian noise of standard deviation 0.05. Without phases: noise alone (one state); straight lines in log10 of the
step; those with slopes that differ between seeds (standard deviation 20 %), or are normal around 0; logistic rises
within 1.5 decades, and smooth humps, whose positions differ between seeds (standard deviation 0.3 decades). With
phases: a chain of three levels, whose changes come at different steps; a fork, in which half of the seeds take another
second level; the chain on straight lines.
"""

import argparse
from collections.abc import Callable

import numpy as np
from common import machine, quiet, table

from lmdyn.analysis import TrainingMap, clumping_p_value, smooth_counterpart, training_map

X = np.linspace(0, 4, 32)
MEASURES = np.array([1.0, -0.7, 0.4])


def chain(generator: np.random.Generator, seeds: int, fork: bool = False) -> np.ndarray:
    """Levels 0, 1, 2, whose changes differ by 0.3 decades; of half of the seeds, the second is −1 in two measures."""
    first = 1.2 + 0.3 * generator.standard_normal((seeds, 1, 1))
    second = 2.8 + 0.3 * generator.standard_normal((seeds, 1, 1))
    sign = np.where(np.arange(seeds) % 2, 1.0, -1.0)[:, None, None] if fork else np.ones((seeds, 1, 1))
    at = X[None, :, None]
    middle = np.concatenate([MEASURES[:1] * np.ones((seeds, 1, 1)), sign * MEASURES[1:]], axis=2)
    return np.where(at < first, 0.0, np.where(at < second, middle, 2 * MEASURES))


Curves = Callable[[np.random.Generator, int], np.ndarray]
CURVES: dict[str, Curves] = {
    "noise alone": lambda g, n: np.zeros((n, 32, 3)),
    "straight lines": lambda g, n: np.ones((n, 1, 1)) * X[None, :, None] / 4 * MEASURES,
    "lines of different slopes": lambda g, n: (
        (1 + 0.2 * g.standard_normal((n, 1, 3))) * X[None, :, None] / 4 * MEASURES
    ),
    "lines that spread apart": lambda g, n: g.standard_normal((n, 1, 1)) * X[None, :, None] / 4 * MEASURES,
    "logistic, other positions": lambda g, n: MEASURES / (
        1 + np.exp(-2 * np.log(9) / 1.5 * (X[None, :, None] - 2 - 0.3 * g.standard_normal((n, 1, 1))))
    ),
    "humps, other positions": lambda g, n: MEASURES * np.exp(
        -((X[None, :, None] - 2 - 0.3 * g.standard_normal((n, 1, 1))) ** 2)
    ),
    "chain of three": chain,
    "fork": lambda g, n: chain(g, n, fork=True),
    "chain on lines": lambda g, n: chain(g, n) + X[None, :, None] / 2,
}  # fmt: skip


def _mean(found: TrainingMap) -> str:
    return " ".join(f"{v:.2f}" for v in found.held_out.mean(1))


def _shown(curves: Curves, repeats: int, seeds: int) -> float:
    """Share of data sets of which seeds do not differ gradually, with at most three states and 19 rotations."""
    small = 0
    for repeat in range(repeats):
        generator = np.random.default_rng(repeat)
        values = curves(generator, seeds)
        values = values + 0.05 * generator.standard_normal(values.shape)
        small += clumping_p_value(values, most=3, rotations=19, seed=repeat) <= 0.05
    return small / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--rotations", type=int, default=39)
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument(
        "--only", nargs="+", choices=[*CURVES], default=[*CURVES], metavar="CURVES", help="by name"
    )
    parser.add_argument("--repeats", type=int, default=20, help="data sets for the share of small p-values")
    parser.add_argument("--smoke", action="store_true", help="few states, whose numbers mean nothing")
    args = parser.parse_args()
    quiet()
    most, rotations = (2, 19) if args.smoke else (args.most, args.rotations)
    print(f"{machine()}, {args.seeds} seeds, at most {most} states, {rotations} rotations")
    rows = []
    for name in args.only[: 1 if args.smoke else None]:
        generator = np.random.default_rng(0)
        values = CURVES[name](generator, args.seeds)
        values = values + 0.05 * generator.standard_normal(values.shape)
        found = training_map(values, most=most, restarts=1 if args.smoke else 3)
        smooth = training_map(smooth_counterpart(10**X, values), most=most, restarts=1 if args.smoke else 3)
        rows.append([
            name, str(found.states), _mean(found), str(smooth.states), _mean(smooth), str(len(found.routes())),
            str(len(found.alternatives())), f"{clumping_p_value(values, most=most, rotations=rotations):.3f}",
        ])  # fmt: skip
    head = [
        "curves",
        "states",
        "held-out",
        "states if smooth",
        "held-out if smooth",
        "orders",
        "alternatives",
        "p",
    ]
    print(table(head, rows))
    repeats = 1 if args.smoke else args.repeats
    shares = [[name, f"{_shown(CURVES[name], repeats, args.seeds):.0%}"] for name, *_ in rows]
    print(table(["curves", "share of p at most 0.05"], shares))


if __name__ == "__main__":
    main()

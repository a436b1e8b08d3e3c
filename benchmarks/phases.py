"""How often are change points stated of curves that are smooth, that bend, and that rise sharply?

Question: share of curves with noise of which ``change_points`` states any, and the number that it states, at a level of
5 %. Goal: at most the level for smooth curves; it says how sharp a smooth rise, and how large a noise, may be, and what
noise does that neighbouring observations share.

Run: ``python benchmarks/phases.py`` (a minute; ``--smoke`` for seconds)

Compared: curves over four decades with ten observations a decade, plus independent Gaussian noise: a power law
10^−0.3x, logistic rises over x with a rise from 10 to 90 % within 1.5, 0.9 and 0.55 decades, a bend of 1 a decade at
1.5, and two bends at 1.2 and 2.8 between which the slope is 1. Then a constant curve, the power law and the bend with
noise of standard deviation 0.02 and a correlation of 0, 0.3, 0.5 and 0.7 from one observation to the next.
"""

import argparse
from collections.abc import Callable

import numpy as np
from common import machine, quiet, table

from lmdyn.analysis import change_points

X = np.linspace(0, 4, 41)


def rise(width: float) -> np.ndarray:
    """From 10 to 90 % within ``width``."""
    return 1 / (1 + np.exp(-2 * np.log(9) / width * (X - 2)))


CURVES: dict[str, Callable[[], np.ndarray]] = {
    "power law": lambda: 10 ** (-0.3 * X),
    "logistic, 1.5 decades": lambda: rise(1.5),
    "logistic, 0.9 decades": lambda: rise(0.9),
    "logistic, 0.55 decades": lambda: rise(0.55),
    "one bend": lambda: np.maximum(0, X - 1.5),
    "two bends": lambda: np.maximum(0, X - 1.2) - np.maximum(0, X - 2.8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--curves", type=int, default=60)
    parser.add_argument("--smoke", action="store_true", help="few curves, whose numbers mean nothing")
    args = parser.parse_args()
    quiet()
    number, resamplings = (1, 19) if args.smoke else (args.curves, 99)
    fewer = slice(1) if args.smoke else slice(None)
    print(f"{machine()}, {number} curves each")
    rows = []
    for name, curve in CURVES.items():
        for noise in (0.005, 0.02, 0.05)[fewer]:
            found = [
                change_points(
                    10**X, curve() + noise * np.random.default_rng(seed).standard_normal(len(X)),
                    resamplings=resamplings, seed=seed,
                )
                for seed in range(number)
            ]  # fmt: skip
            counts = np.bincount([len(one.steps) for one in found], minlength=3)
            rows.append([name, f"{noise:g}", *(f"{count / number:.0%}" for count in counts)])
    print(table(["curve", "noise", "smooth", "one change point", "two"], rows))
    rows = []
    for name, course in {"constant": 0 * X, **{n: CURVES[n]() for n in ("power law", "one bend")}}.items():
        for correlation in (0.0, 0.3, 0.5, 0.7)[fewer]:
            found = [
                change_points(
                    10**X, course + 0.02 * shared(correlation, seed), resamplings=resamplings, seed=seed
                )
                for seed in range(number)
            ]
            estimates = [one.correlation for one in found]
            changes = sum(not one.smooth for one in found) / number
            ones = sum(len(one.steps) == 1 for one in found) / number
            estimated = f"{np.mean(estimates):.2f} ± {np.std(estimates):.2f}"
            rows.append([name, f"{correlation:g}", f"{changes:.0%}", f"{ones:.0%}", estimated])
    print(table(["curve", "correlation", "change points", "just one", "estimated, mean ± deviation"], rows))


def shared(correlation: float, seed: int) -> np.ndarray:
    """First-order autoregression of variance 1."""
    noise = np.random.default_rng(seed).standard_normal(len(X))
    for i in range(1, len(X)):
        noise[i] = correlation * noise[i - 1] + np.sqrt(1 - correlation**2) * noise[i]
    return noise


if __name__ == "__main__":
    main()

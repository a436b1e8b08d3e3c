"""How much faster is CCA by covariances than the textbook way, for one pair and for a sweep over checkpoints?

Question: wall time of ``lmdyn.analysis`` over that of the textbook implementation in numpy (centre, singular value
decomposition of each matrix, singular values of UₓᵀU_y), both in float64 with the same number of BLAS threads, in one
process, alternating. Goals at n = 8,000 samples of d = 768: at least 4 times faster for one pair of given matrices;
a sweep of 13 sites × 50 checkpoints against the last in at most 1/6 of the textbook's time, extrapolated from one pair.

Run: ``python benchmarks/similarity.py --threads 2 --reps 5`` (15 minutes on 2 cores; ``--smoke`` for seconds)

Compared, on matrices with a falling spectrum of condition number 1e3 that share half of what they hold:

- textbook:   numpy as above, the rank tolerance of 1e-6 included
- cca, svcca: ``lmdyn.analysis``, covariance path, which is taken up to condition number 1e4
- exact:      ``lmdyn.analysis.cca`` of matrices of condition number 1e6, where it goes by QR (no goal)
- stream:     ``CrossCovariance`` over float32 batches of 1,400, then ``cca()`` (no goal)
- sweep:      ``lmdyn.analysis.sweep``: the reference of a site is decomposed once; the time is of all pairs

Before any timing the values are checked to agree to 1e-9. The checkpoints of a site are 4 matrices over and over,
each of them computed anew each time.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable

import numpy as np
import torch
from common import machine, now, spread, table
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor

from lmdyn.analysis import CrossCovariance, cca, svcca, sweep

GOAL_PAIR, GOAL_SWEEP = 4.0, 6.0
POOL = 4  # different matrices of a sweep
CPU = torch.device("cpu")


def matrix(n: int, d: int, condition: float, seed: int, common: Tensor) -> Tensor:
    """(n, d): half common, half its own; a falling spectrum; a mean."""
    g = torch.Generator().manual_seed(seed)
    values = common + torch.randn(n, d, generator=g, dtype=torch.float64)
    scales = torch.logspace(0, -float(np.log10(condition)), d, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64)).Q
    return values * scales @ rotation + torch.randn(d, generator=g, dtype=torch.float64)


def textbook(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Mean canonical correlation as everyone writes it."""
    bases = []
    for v in (x, y):
        u, s, _ = np.linalg.svd(v - v.mean(0), full_matrices=False)
        bases.append(u[:, s > 1e-6 * s[0]])
    return float(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False).mean())


def stream(x: Tensor, y: Tensor) -> Tensor:
    """One pass over batches."""
    covariance = CrossCovariance()
    for a, b in zip(x.split(1400), y.split(1400), strict=True):
        covariance.update(a, b)
    return covariance.cca()


def seconds(function: Callable[[], object]) -> float:
    """Of the clock on the wall."""
    start = now(CPU)
    function()
    return now(CPU).since(start).wall


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=8000, help="samples")
    parser.add_argument("--d", type=int, default=768, help="dimensions of both sides")
    parser.add_argument("--sites", type=int, default=13)
    parser.add_argument("--checkpoints", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2, help="of BLAS, on both sides")
    parser.add_argument("--reps", type=int, default=5, help="of one pair")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.threads = 1
        args.n, args.d, args.sites, args.checkpoints, args.reps = 200, 16, 2, 3, 1

    torch.set_num_threads(args.threads)
    with threadpool_limits(args.threads):
        run(args)


def run(args: argparse.Namespace) -> None:
    pools = {t["num_threads"] for t in threadpool_info()} | {torch.get_num_threads()}
    print(
        f"n = {args.n}, d = {args.d}, float64; threads {sorted(pools)}; numpy {np.__version__}; {machine()}\n"
    )
    common = torch.randn(args.n, args.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, y = (matrix(args.n, args.d, 1e3, seed, common) for seed in (1, 2))
    weak = [matrix(args.n, args.d, 1e6 / 1.5, seed, common) for seed in (1, 2)]
    single = x.float(), y.float()
    ways: dict[str, Callable[[], object]] = {
        "textbook": lambda: textbook(x.numpy(), y.numpy()),
        "cca": lambda: cca(x, y),
        "svcca": lambda: svcca(x, y),
        "exact": lambda: cca(*weak),
        "stream": lambda: stream(*single),
    }
    assert abs(textbook(x.numpy(), y.numpy()) - float(cca(x, y))) < 1e-9  # warms both up
    assert abs(textbook(weak[0].numpy(), weak[1].numpy()) - float(cca(*weak))) < 1e-9

    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.reps):
        for name, way in ways.items():
            times[name].append(seconds(way))
    book = statistics.median(times["textbook"])
    rows = []
    for name, measured in times.items():
        goal = f"{GOAL_PAIR:.0f}" if name in ("cca", "svcca") else ""
        rows.append([name, spread(measured), f"{book / statistics.median(measured):.2f}", goal])
    print(table(["one pair", "seconds", "times faster", "goal"], rows))

    pool = [matrix(args.n, args.d, 1e3, 10 + seed, common) for seed in range(POOL)]
    checkpoints = lambda: itertools.islice(itertools.cycle(pool), args.checkpoints)  # noqa: E731
    pairs = args.sites * args.checkpoints
    rows = [["textbook, extrapolated", f"{book * pairs:.1f}", "1.00", ""]]
    for measures in (["cca"], ["svcca"], ["cca", "svcca", "pwcca", "linear_cka"]):
        taken = sum(seconds(lambda: sweep(checkpoints(), y, measures)) for _ in range(args.sites))  # noqa: B023
        goal = f"{GOAL_SWEEP:.0f}" if len(measures) == 1 else ""
        rows.append([" + ".join(measures), f"{taken:.1f}", f"{book * pairs / taken:.2f}", goal])
    title = f"sweep of {args.sites} × {args.checkpoints}"
    print("\n" + table([title, "seconds", "times faster", "goal"], rows))


if __name__ == "__main__":
    main()

"""What do the readouts of all windows cost, against one regression after the other?

Question: time of a linear readout with bias for each window [t0, t0 + ΔT), t0 = 0 … 99, ΔT = 1 … 100 (figure 3C of
Inoue et al. 2022), sums over sentences included, over that of 10,000 separate regressions on the same states. Goal:
less than 1/100, with the same NMSE to 1e-6 where the condition number is below 1e6.

Run: ``python benchmarks/handwriting.py`` (some 2 minutes on one core; ``--width 1024`` for ALBERT-large's; ``--smoke``)

States are those of a random recurrent network x ↦ tanh(W x + b) of two classes of sentences that start apart; its
gain is so low that sentences slowly come together, and late windows are ill-conditioned.
There are as many sentences as STS-B has with scores of at most 1 or at least 4 (``--train``, ``--development``).

- all windows: ``WindowSums.update`` of every time, and ``window_regressions``
- separate: states lie in memory in float64, time first, so that a window is one contiguous matrix that nothing copies;
  its normal matrix is taken by one product (of torch, or of BLAS's dsyrk, which computes a triangle: the faster one),
  centred, given the same ridge, factored by Cholesky; errors on development sentences by another product. QR
  (``torch.linalg.lstsq``, driver gels) takes longer: its time is shown for the smallest windows.

Separate regressions are timed at seeded starts for several ΔT; the time of all 10,000 is that of a line a + b · rows
fitted to them by least squares, added up over all windows. NMSE is compared with QR of the centred rows and the ridge's
own rows, which does not square the condition number (exact condition numbers by its R).
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
import torch
from common import machine, now, quiet, spread, table
from scipy.linalg.blas import dsyrk
from torch import Tensor

from lmdyn.analysis.dynamics.window_regressions import window_regressions
from lmdyn.analysis.dynamics.window_sums import WindowSums

GOAL = 0.01
RIDGE = 1e-12
WELL = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=128, help="dimensions of a state")
    parser.add_argument("--windows", type=int, default=100, help="starts, and lengths")
    parser.add_argument("--train", type=int, nargs=2, default=[1500, 1700], help="sentences of each class")
    parser.add_argument("--development", type=int, nargs=2, default=[450, 420])
    parser.add_argument("--sample", type=int, nargs="+", default=[2, 10, 28, 60, 100], help="lengths timed")
    parser.add_argument("--starts", type=int, default=3, help="starts for each of them")
    parser.add_argument("--gain", type=float, default=1.2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.width, args.windows, args.sample, args.starts = 6, 5, [2, 5], 1
        args.train, args.development = [20, 15], [8, 9]
    torch.set_num_threads(args.threads)
    quiet()
    run(args)


def letters(length: int) -> Tensor:
    """Velocities along two curves, (2, length, 2)."""
    angle = 5 * torch.arange(length + 1, dtype=torch.float64) / length
    curves = [torch.stack([angle.cos(), (2 * angle).sin()], 1), torch.stack([angle.sin(), angle], 1)]
    return torch.stack(curves).diff(dim=1)


def states(sizes: list[int], times: int, width: int, gain: float, seed: int) -> tuple[Tensor, Tensor]:
    """(times, sentences, width) float64 of float32 dynamics, and the classes."""
    network = torch.Generator().manual_seed(0)
    W = torch.randn(width, width, generator=network) * gain / math.sqrt(width)
    b, apart = torch.randn(2, width, generator=network)
    classes = torch.arange(2).repeat_interleave(torch.tensor(sizes))
    noise = torch.randn(len(classes), width, generator=torch.Generator().manual_seed(seed))
    x = noise + 0.3 * classes[:, None] * apart
    kept = torch.empty(times, *x.shape, dtype=torch.float64)
    for t in range(times):
        kept[t] = x
        x = torch.tanh(x @ W + 0.3 * b)
    return kept, classes


class Separate:
    """One regression: the weights, the two means, and the error on the development sentences."""

    def __init__(self, train: tuple[Tensor, Tensor], development: tuple[Tensor, Tensor]) -> None:
        self.train, self.development = train, development

    def rows(self, of: tuple[Tensor, Tensor], start: int, length: int) -> tuple[Tensor, Tensor]:
        y = letters(length)[of[1]].transpose(0, 1).reshape(-1, 2)
        return of[0][start : start + length].flatten(0, 1), y  # a view of the states

    def normal(self, start: int, length: int, product: Callable[[Tensor], Tensor]) -> float:
        x, y = self.rows(self.train, start, length)
        mean, output = x.mean(0), y.mean(0)
        A = product(x) - len(x) * torch.outer(mean, mean)
        A.diagonal().add_(RIDGE * A.trace() / len(A))
        right = x.T @ y - len(x) * torch.outer(mean, output)
        factor, failed = torch.linalg.cholesky_ex(A)
        weights = torch.cholesky_solve(right, factor) if int(failed) == 0 else torch.zeros_like(right)
        return self.nmse(start, length, weights, output - mean @ weights)

    def qr(self, start: int, length: int, condition: bool = False) -> tuple[float, float]:
        x, y = self.rows(self.train, start, length)
        mean, output = x.mean(0), y.mean(0)
        x = x - mean
        root = (RIDGE * x.square().sum() / x.shape[1]).sqrt()
        design = torch.cat([x, root * torch.eye(x.shape[1], dtype=x.dtype)])
        right = torch.cat([y - output, y.new_zeros(x.shape[1], 2)])
        weights = torch.linalg.lstsq(design, right, driver="gels").solution
        values = torch.linalg.svdvals(torch.linalg.qr(design, mode="r").R) if condition else torch.ones(2)
        return self.nmse(start, length, weights, output - mean @ weights), float(values[0] / values[-1])

    def nmse(self, start: int, length: int, weights: Tensor, bias: Tensor) -> float:
        x, y = self.rows(self.development, start, length)
        error = (x @ weights).add_(bias).sub_(y).square_().sum(1).view(length, -1).sum(0)
        return float((error / y.square().sum(1).view(length, -1).sum(0)).mean())


def triangle(x: Tensor) -> Tensor:
    upper = torch.from_numpy(dsyrk(1.0, x.numpy().T)).triu()  # x is read as it lies
    return upper + upper.triu(1).T


PRODUCTS: dict[str, Callable[[Tensor], Tensor]] = {"torch": lambda x: x.T @ x, "dsyrk": triangle}


def run(args: argparse.Namespace) -> None:
    device = torch.device("cpu")
    n, times = args.windows, 2 * args.windows - 1
    train = states(args.train, times, args.width, args.gain, 1)
    development = states(args.development, times, args.width, args.gain, 2)
    print(
        f"{n} × {n} windows, width {args.width}, {sum(args.train)} training and {sum(args.development)} development "
        f"sentences; {args.threads} threads; {machine()}\n"
    )
    start = now(device)
    pair = []
    for (x, classes), pooled in ((train, True), (development, False)):
        sums = WindowSums(times, args.width, 2, pooled=pooled)
        for t in range(times):
            sums.update(t, x[t], classes)
        pair.append(sums)
    middle = now(device)
    found = window_regressions(*pair, [letters(k) for k in range(1, n + 1)], n, ridge=RIDGE)
    summed, solved = middle.since(start), now(device).since(middle)

    separate = Separate(train, development)
    random = np.random.default_rng(0)
    sample = [(int(t), k) for k in args.sample for t in sorted(random.choice(n, args.starts, replace=False))]
    separate.normal(*sample[0], PRODUCTS["dsyrk"])  # warms up
    seconds: dict[str, list[list[float]]] = {name: [[], []] for name in PRODUCTS}
    for window in sample:
        for name, product in PRODUCTS.items():
            begin = now(device)
            separate.normal(*window, product)
            for clock, value in enumerate(now(device).since(begin)):
                seconds[name][clock].append(value)
    begin = now(device)
    for window in sample[: args.starts]:
        separate.qr(*window)
    qr = now(device).since(begin).cpu / args.starts
    fastest = min(seconds, key=lambda name: sum(seconds[name][1]))

    rows = []
    sentences = sum(args.train)
    design = np.array([[1.0, k * sentences] for _, k in sample])
    every = np.array([float(n * n), n * sentences * n * (n + 1) / 2])
    for clock, name in enumerate(("wall", "cpu")):
        ours = summed[clock] + solved[clock]
        line = np.linalg.lstsq(design, np.array(seconds[fastest][clock]))[0]
        theirs = float(every @ line)
        rows.append(
            [
                name,
                f"{summed[clock]:.2f}",
                f"{solved[clock]:.2f}",
                f"{theirs:.0f}",
                f"{ours / theirs:.5f}",
                f"{GOAL}",
            ]
        )
    print(table(["clock", "sums s", "windows s", f"separate s ({fastest})", "ratio", "goal"], rows), "\n")
    per_length = [
        [str(k), *(spread([s for s, (_, length) in zip(seconds[p][1], sample, strict=True) if length == k], "{:.4f}")
        for p in PRODUCTS), f"{qr:.4f}" if k == args.sample[0] else ""]
        for k in args.sample
    ]  # fmt: skip
    print(table(["ΔT", *(f"cpu s, {p}" for p in PRODUCTS), "cpu s, QR"], per_length), "\n")

    compared, differences = [], []
    for t, k in sample:
        nmse, condition = separate.qr(t, k, condition=True)
        mine, estimate = float(found.nmse[t, k - 1]), float(found.condition[t, k - 1])
        if condition < WELL:
            differences.append(abs(mine - nmse))
        ridge = float(found.ridge[t, k - 1])
        compared.append(
            [str(t), str(k), f"{condition:.1e}", f"{estimate:.1e}", f"{ridge:.0e}", f"{mine:.9f}", f"{nmse:.9f}",
             f"{abs(mine - nmse):.1e}"]
        )  # fmt: skip
    header = ["t0", "ΔT", "condition", "estimated", "ridge", "NMSE, all windows", "NMSE, QR", "difference"]
    print(table(header, compared), "\n")
    worst = f"{max(differences):.1e}" if differences else "none there"
    print(
        f"largest difference where the condition number is below {WELL:.0e} ({len(differences)} of {len(sample)}): "
        f"{worst} (goal: 1e-6); best window {found.best}, NMSE {float(found.nmse.nan_to_num(9).min()):.4f}"
    )


if __name__ == "__main__":
    main()

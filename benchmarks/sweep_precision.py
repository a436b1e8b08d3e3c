"""What does a similarity sweep cost on the device, in float64 and in float32, and what do they differ by?

Question: seconds of a sweep of many checkpoints of a site against the last (``lmdyn.analysis.sweep``: SVCCA, PWCCA and
linear CKA), and the greatest difference of the values from float64 on the CPU. Consumers' cards have little float64;
where float32 agrees to 1e-4, it serves.

Run: ``python benchmarks/sweep_precision.py`` (a minute; ``--smoke`` for seconds)

Matrices are those of benchmarks/similarity.py: a falling spectrum of condition number 1e3, half of it shared.
"""

import argparse
import itertools

import torch
from common import machine, now, quiet, table
from similarity import matrix

from lmdyn.analysis import sweep

MEASURES = ("svcca", "pwcca", "linear_cka")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=8000, help="samples")
    parser.add_argument("--d", type=int, default=768, help="dimensions of both sides")
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.n, args.d, args.checkpoints = 300, 10, 2
    quiet()
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(args.n, args.d, generator=generator, dtype=torch.float64)
    y, *pool = (matrix(args.n, args.d, 1e3, seed, common) for seed in range(5))
    truth = sweep(pool, y, MEASURES)
    rows = []
    for dtype in (torch.float64, torch.float32):
        device = torch.device(args.device)
        reference, xs = y.to(device, dtype), [x.to(device, dtype) for x in pool]
        found = sweep(xs, reference, MEASURES)  # warms up
        off = max(float((found[m].cpu().double() - truth[m]).abs().max()) for m in MEASURES)
        before = now(device)
        sweep(itertools.islice(itertools.cycle(xs), args.checkpoints), reference, MEASURES)
        seconds = now(device).since(before).wall
        name = str(dtype).removeprefix("torch.")
        rows.append([
            f"{args.checkpoints} checkpoints, {args.n} × {args.d}, {name} on {device.type}",
            f"{seconds:.2f}", f"{seconds / args.checkpoints:.3f}", f"{off:.1e}",
        ])  # fmt: skip
    print(machine())
    print(table(["sweep", "seconds", "a checkpoint", "greatest difference"], rows))


if __name__ == "__main__":
    main()

"""What does a plane of ``Landscape`` cost beyond its evaluations of the loss?

Question: CPU time of an observation with a random plane of n × n positions over that of n² forward passes of the same
probe set at the model's own weights, with their losses. Goal: at most 1.05.

Run: ``python benchmarks/landscape.py --threads 1 --reps 3`` (minutes; ``--smoke`` for seconds)

Compared: the untrained LSTM of ``configs/saphra2019_sparsity/organism`` and ALBERT of
``configs/chiang2020_embryology/organism``, with default settings except for ``--size``; plane and passes in turn, in
one process, after one of each.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import machine, now, quiet, spread, table
from observer_costs import prepared

from lmdyn.analysis.inspection.activations import observing
from lmdyn.callbacks import Landscape, Run
from lmdyn.callbacks.observing.probe import ObservedBatch, Watch, probe_pass

CONFIGS = {
    "LSTM": "configs/saphra2019_sparsity/organism/lm.yaml",
    "ALBERT": "configs/chiang2020_embryology/organism/lm.yaml",
}


class Losses:
    """Sums the losses."""

    def __init__(self) -> None:
        self.sum = 0.0

    def update(self, seen: ObservedBatch) -> None:
        self.sum += float(seen.losses.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--size", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    quiet()
    torch.set_num_threads(args.threads)
    tokens = 100 if args.smoke else 5_000
    size, reps = (3, 1) if args.smoke else (args.size, args.reps)
    print(machine())
    rows = []
    for name, config in CONFIGS.items():
        with tempfile.TemporaryDirectory() as folder:
            ratios = measured(config, Path(folder), size, reps, tokens)
        rows.append([name, f"{size} × {size}", spread(ratios)])
    print(table(["model", "plane", "plane / evaluations"], rows))


def measured(config: str, folder: Path, size: int, reps: int, tokens: int) -> list[float]:
    """The ratio of each repetition."""
    cli = prepared(config)
    data: Any = cli.datamodule
    module: Any = cli.model
    observer = Landscape(reference={}, plane="random", plane_size=size, max_tokens=tokens, log_figures=False)
    observer.attach(Run(folder, data.tokenizer, data.token_counts, data))
    observer.meet(module.eval())
    ratios = []
    for repetition in range(reps + 1):
        began = now(torch.device("cpu"))
        observer.observe(module, 0)
        plane = now(torch.device("cpu")).since(began).cpu
        began = now(torch.device("cpu"))
        with observing(module):
            for _ in range(size * size):
                probe_pass(module, observer.probe_set, [Watch(Losses())])
        if repetition:  # the first warms up
            ratios.append(plane / now(torch.device("cpu")).since(began).cpu)
    return ratios


if __name__ == "__main__":
    main()

"""What does a plane of ``Landscape`` cost beyond its evaluations of the loss, and what does matching of units cost?

Question: CPU time of an observation with a random plane of n × n positions over that of n² forward passes of the same
probe set at the model's own weights, with their losses. Goal: at most 1.05.

Run: ``python benchmarks/landscape.py --threads 1 --reps 3`` (minutes; ``--smoke`` for seconds)

Compared: the untrained LSTM of ``configs/saphra2019_sparsity/organism`` and ALBERT of
``configs/chiang2020_embryology/organism``, with default settings except for ``--size``; plane and passes in turn, in
one process, after one of each.

``--matching``: instead, CPU time and memory of finding the units of GPT-2 (small) and of one pass over all of its
groups by ``match_units``, for two sets of random weights. Memory is the peak of the process above that before matching,
when both networks are in memory in float32.
"""

import argparse
import resource
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import machine, now, quiet, spread, table
from observer_costs import prepared

from lmdyn.analysis import match_units, unit_groups
from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.parameters.at_point import parameter_values
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
    parser.add_argument("--matching", action="store_true", help="matching of units of GPT-2's shapes")
    args = parser.parse_args()
    quiet()
    torch.set_num_threads(args.threads)
    tokens = 100 if args.smoke else 5_000
    size, reps = (3, 1) if args.smoke else (args.size, args.reps)
    print(machine())
    if args.matching:
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50} if args.smoke else {}
        print(table(["part", "amount", "CPU seconds", "peak memory"], matching(sizes)))
        return
    rows = []
    for name, config in ({"LSTM": "configs/quickstart.yaml"} if args.smoke else CONFIGS).items():
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
    observer.bind(module.eval())
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


def matching(sizes: dict[str, Any]) -> list[list[str]]:
    """Cost of finding units, and of one pass of matching."""
    from transformers import GPT2Config, GPT2LMHeadModel

    cpu, rows = torch.device("cpu"), []
    module = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).eval()
    own = parameter_values(module)
    other = {name: torch.randn_like(value) for name, value in own.items()}
    began = now(cpu)
    groups = unit_groups(module)
    rows.append(["units found", f"{len(groups)} groups", f"{now(cpu).since(began).cpu:.1f}", ""])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = now(cpu)
    match_units(own, other, groups, most=1)
    seconds = now(cpu).since(began).cpu
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    number = sum(value.numel() for value in own.values()) / 1e6
    rows.append(["one pass of matching", f"{number:.1f} million weights", f"{seconds:.1f}", f"{peak:.2f} GB"])
    return rows


if __name__ == "__main__":
    main()

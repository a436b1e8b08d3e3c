"""What does ``Geometry`` add to the pass that it shares, and does its memory grow with the text?

Question: CPU time of a pass over the probe set with ``Geometry`` (sums, samples, eigenvalues, distances, table) over
that of the same pass without it. Goal: at most 1.30. And the memory that an observation takes, for ``--tokens`` and
four times as many. Goal: equal.

Run: ``python benchmarks/geometry.py --threads 1 --reps 5`` (minutes; ``--smoke`` for seconds)

Compared: the untrained models of ``configs/saphra2019_sparsity/organism`` (LSTM of 200 units, 3 sites) and
``configs/chiang2020_embryology/organism`` (ALBERT of 128 units, 13 sites), and a GPT-2 of 4 layers of 256 units, 10,000
types and rows of 128 tokens (6 sites), each with default settings on ``--tokens`` tokens; the pass with and without
Geometry, in turn, in one process. The pass without it is a forward pass ``alone``, or shared with ``LearningCurves`` or
with ``Sparsity``, which has a backward pass. ``attention`` is Geometry with ``attention_sites: auto``, which switches
the model to eager attention. Eigenvalues and distances do not depend on the tokens: with more text, less is added.

Memory is the highest RssAnon of an observation, in a process of its own, less that before; memory that was freed before
is used again and not counted. ``--part chance`` prints what the measures give for vectors of known geometry.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import observer_costs
import torch
from common import Seconds, machine, now, quiet, spread, table
from observer_costs import alone, held
from torch import nn

from lmdyn.analysis import Spectrum, VectorSums, intrinsic_dimension, power_law
from lmdyn.analysis.inspection.activations import observing
from lmdyn.callbacks import Geometry, LearningCurves, Run, Sparsity, StreamingObserver
from lmdyn.callbacks.observing.probe import probe_pass
from lmdyn.models.allocator import keep_freed_memory

CONFIGS = {
    "LSTM": "configs/saphra2019_sparsity/organism/lm.yaml",
    "ALBERT": "configs/chiang2020_embryology/organism/lm.yaml",
}
MODELS = (*CONFIGS, "GPT-2")
GPT2 = {"n_layer": 4, "n_head": 4, "n_embd": 256, "n_positions": 128, "vocab_size": 10_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--part", choices=["time", "memory", "chance"], nargs="*")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    quiet()
    torch.set_num_threads(args.threads)
    keep_freed_memory()  # as in training
    if args.smoke:
        args.tokens, args.reps = 300, 1
        GPT2.update(n_layer=1, n_embd=16, vocab_size=200)
    parts = args.part or ["time", "memory", "chance"]
    print(machine())
    models = MODELS[-1:] if args.smoke else MODELS
    with tempfile.TemporaryDirectory() as folder:
        if "time" in parts:
            rows = [row for name in models for row in overhead(name, Path(folder), args)]
            print(table(["model", "pass", "without Geometry", "with it", "ratio"], rows))
        if "memory" in parts:
            rows = []
            for name in models:
                sizes = (args.tokens, 4 * args.tokens)
                if args.smoke:  # other processes would only import all again
                    found = [memory_of(name, Path(folder), n) for n in sizes]
                else:
                    found = [alone(memory_of, args.threads, name, Path(folder), n) for n in sizes]
                rows.append([name, *(f"{one / 1e6:,.0f} MB" for one in found)])
            print(table(["model", f"{args.tokens:,} tokens", f"{4 * args.tokens:,} tokens"], rows))
    if "chance" in parts:
        chance(args.smoke)


def prepared(name: str, folder: Path, tokens: int) -> tuple[nn.Module, Any, Run]:
    """A model, the data that it is observed on, and the run."""
    if name == "GPT-2":
        return gpt2(), batches(tokens), Run(folder / name)
    cli = observer_costs.prepared(CONFIGS[name])
    data: Any = cli.datamodule
    return cli.model, None, Run(folder / name, data.tokenizer, data.token_counts, data, None, folder)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**GPT2, bos_token_id=0, eos_token_id=0))


def batches(tokens: int) -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(
        GPT2["vocab_size"], (max(1, tokens // 128), 128), generator=torch.Generator().manual_seed(1)
    )
    return [{"input_ids": rows, "labels": rows} for rows in ids.split(8)]


def attached(name: str, folder: Path, tokens: int, **settings: Any) -> tuple[Geometry, nn.Module, Run]:
    """An observer that has met its model."""
    module, probe, run = prepared(name, folder, tokens)
    observer = Geometry(max_tokens=tokens, log_figures=False, **settings)
    observer.probe = probe
    observer.attach(run)
    observer.bind(module.eval())
    return observer, module, run


def overhead(name: str, folder: Path, args: argparse.Namespace) -> list[list[str]]:
    rows = []
    for shared in ("alone", "LearningCurves", "Sparsity", "alone, attention"):
        if shared == "alone, attention" and name == "LSTM":
            continue
        settings = {"attention_sites": "auto"} if "attention" in shared else {}
        observer, module, run = attached(name, folder, args.tokens, **settings)
        others = other(shared, observer, module, run)
        for some in (others, [*others, observer]):  # warms up
            seconds(module, some, observer)
        without, observed = [], []
        for _ in range(args.reps):
            without.append(seconds(module, others, observer).cpu)
            observed.append(seconds(module, [*others, observer], observer).cpu)
        ratios = [b / a for a, b in zip(without, observed, strict=True)]
        medians = (f"{statistics.median(times):.3f} s" for times in (without, observed))
        rows.append([name, shared, *medians, f"**{spread(ratios)}**"])
        print(f"# {rows[-1]}", flush=True)
    return rows


def other(name: str, observer: Geometry, module: nn.Module, run: Run) -> list[StreamingObserver]:
    """The observer that the pass is shared with, on the same text."""
    common: dict[str, Any] = {"max_tokens": observer.max_tokens, "log_figures": False, "frequency": "probe"}
    if name == "LearningCurves":
        found: StreamingObserver = LearningCurves(layers=[], **common)
    elif name == "Sparsity":
        found = Sparsity(pos_classes=False, matched_size=None, **common)
    else:
        return []
    found.probe = observer.probe
    found.attach(run)
    found.bind(module)
    return [found]


def seconds(module: nn.Module, observers: list[StreamingObserver], probe: StreamingObserver) -> Seconds:
    """Of one pass over the observer's probe set."""
    device = torch.device("cpu")
    with observing(module):
        start = now(device)
        watches = [o.watch(module, 0) for o in observers]
        probe_pass(module, probe.probe_set, watches)
        for watch in watches:
            watch.consumer.table()
        return now(device).since(start)


def memory_of(name: str, folder: Path, tokens: int) -> float:
    """Bytes of an observation, beside those that were held."""
    observer, module, _ = attached(name, folder, tokens)
    with held() as peak:
        observer.observe(module, 0)
    return peak[0]


def chance(smoke: bool) -> None:
    """Measures of vectors of known geometry."""
    g = torch.Generator().manual_seed(0)
    rows = []
    for d in (100, 200, 768)[: 1 if smoke else 3]:
        for times in (1, 4, 16)[: 1 if smoke else 3]:
            x = torch.randn(times * d, d, generator=g)
            sums = VectorSums()
            sums.update(x)
            found, spectrum = sums.result(), Spectrum.of(x)
            line = power_law(spectrum.eigenvalues)
            ratio = found.largest / float(x[:1000].abs().median())
            rows.append([
                f"{d}", f"{times} d", f"{float(spectrum.rankme()):.1f}", f"{float(spectrum.rankme('covariance')):.1f}",
                f"{float(spectrum.participation_ratio):.1f}", f"{line.exponent if line else 0:.2f}",
                f"{found.anisotropy:.4f}", f"{found.token_kurtosis:.3f}", f"{ratio:.1f}",
            ])  # fmt: skip
    print("\nWhite noise of d dimensions:\n")
    print(table([
        "d", "vectors", "RankMe", "of the covariance", "participation ratio", "α", "mean cosine", "token kurtosis",
        "largest / median",
    ], rows))  # fmt: skip
    rows = []
    n = 200 if smoke else 1000
    for dimension in (1, 2, 5, 10, 20, 50, 100)[: 2 if smoke else 7]:
        found_at = []
        for make in (torch.rand, torch.randn):
            several = [
                intrinsic_dimension(make(n, dimension, generator=g, dtype=torch.float64)).dimensions
                for _ in range(1 if smoke else 5)
            ]
            found_at += [f"{statistics.mean(one):.1f}" for one in zip(*several, strict=True)]
        rows.append([str(dimension), *found_at])
    head = [f"{kind}, {size}" for kind in ("cube", "Gaussian") for size in ("n", "n/2", "n/4")]
    print(f"\nTwoNN of n = {n:,} vectors of known dimension, mean of five sets:\n")
    print(table(["dimension", *head], rows))


if __name__ == "__main__":
    main()

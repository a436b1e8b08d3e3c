"""What does it cost that sites are found and labels measured, in place of being spelled?

Question: what ``sites: auto`` and ``labels: auto`` add to an observation, and what they cost once, when an observer
meets a module. Goal: nothing that can be measured in an observation.

Run: ``python benchmarks/any_model.py --threads 1 --reps 7``

Compared: ``Sparsity``, ``Similarity`` and ``LearningCurves`` in one pass over ``--tokens`` tokens of a Llama of
``--layers`` layers, with sites and labels given, and with both found, observed in turn, in one process. The two look at
the same sites, and their tables must be equal bit for bit.

Counts: ``observe_together`` of the three, by the clock and in CPU time of all threads; the ratio is taken within a
repetition; median, least and greatest. Meeting the module (the first forward pass, the measurement of labels, the
search for sites) is timed apart, next to a forward pass of a batch.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import torch
from common import machine, now, quiet, spread, table
from transformers import LlamaConfig, LlamaForCausalLM

from lmdyn.callbacks import LearningCurves, Observer, Run, Similarity, Sparsity, observe_together

ROWS, TIME, VOCABULARY = 8, 128, 8000


def observers(sites: dict[str, str] | None) -> list[Observer]:
    """With everything given, or found."""
    labels = "auto" if sites is None else "next"
    inner = None if sites is None else {name: path for name, path in sites.items() if name != "logits"}
    return [
        LearningCurves(labels=labels),
        Sparsity(labels=labels, sites=sites),
        Similarity(labels=labels, sites=inner, measures=["linear_cka"]),
    ]


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.reps, arguments.tokens, arguments.layers, arguments.hidden_size = 1, 1024, 1, 16
    cpu_device = torch.device("cpu")
    torch.set_num_threads(arguments.threads)
    quiet()
    torch.manual_seed(0)
    size, types = arguments.hidden_size, 100 if arguments.smoke else VOCABULARY
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=types, hidden_size=size, intermediate_size=4 * size, num_attention_heads=4,
            num_hidden_layers=arguments.layers, max_position_embeddings=TIME,
        )
    )  # fmt: skip
    batches = []
    for _ in range(max(1, arguments.tokens // (ROWS * TIME))):
        ids = torch.randint(types, (ROWS, TIME))
        batches.append({"input_ids": ids, "labels": ids})
    given = {
        "embedding": "model.embed_tokens",
        **{f"block_{i:02d}": f"model.layers.{i}" for i in range(arguments.layers)},
        "norm": "model.norm",
        "logits": "lm_head",
    }
    with tempfile.TemporaryDirectory() as folder:
        spelled, found = observers(given), observers(None)
        for name, group in (("spelled", spelled), ("found", found)):
            for observer in group:
                observer.probe = batches  # type: ignore[assignment] # any loader
                observer.attach(Run(Path(folder) / name))
        with torch.no_grad():
            model(input_ids=batches[0]["input_ids"])
            start = now(cpu_device)
            model(input_ids=batches[0]["input_ids"])
            forward = now(cpu_device).since(start)
        meetings = []
        for group in (spelled, found):
            start = now(cpu_device)
            for observer in group:
                observer.bind(model)
            meetings.append(now(cpu_device).since(start))
        ratios, cpu = [], []
        for _ in range(arguments.reps):
            seconds = []
            tables = []
            for group in (spelled, found):
                start = now(cpu_device)
                tables.append(observe_together(group, model, 0))
                seconds.append(now(cpu_device).since(start))
            for one, other in zip(*tables, strict=True):
                assert one.equals(other)
            ratios.append(seconds[1].wall / seconds[0].wall)
            cpu.append(seconds[1].cpu / seconds[0].cpu)
    print(machine())
    print(
        table(
            ["", "median (least to greatest)"],
            [
                ["an observation, found / spelled, by the clock", spread(ratios)],
                ["an observation, found / spelled, CPU time", spread(cpu)],
                ["a forward pass of a batch, s", f"{forward.wall:.3f}"],
                ["meeting, spelled, s", f"{meetings[0].wall:.3f}"],
                ["meeting, found, s", f"{meetings[1].wall:.3f}"],
                ["an observation, s", f"{statistics.median(s.wall for s in seconds):.3f}"],
            ],
        )
    )


if __name__ == "__main__":
    main()

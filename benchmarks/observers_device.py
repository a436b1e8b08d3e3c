"""What does an observation cost on the device, against the CPU and against a training step?

Question: seconds of one observation by each observer of a masked language model, on the device and on the CPU, over the
time of a training step there. No goal: it says how often a run can afford which observer.

Run: ``python benchmarks/observers_device.py`` on a GPU (minutes; ``--smoke`` for seconds)

The model is ALBERT of base's sizes with random weights (``--layers``, ``--hidden-size``), the text the synthetic
grammar's. Observers have default settings but for what they need. The first observation warms up; the second is timed.
A training step is forward, backward and AdamW of 32 rows of 128, in bfloat16 on a GPU; median of ten.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import lightning as L
import torch
from common import machine, now, quiet, table

from lmdyn.callbacks import (
    AttentionPatterns,
    EdgeProbe,
    Itself,
    LearningCurves,
    Observer,
    Run,
    Similarity,
    Sparsity,
    TokenLearning,
    WorldKnowledge,
)
from lmdyn.datamodules import FactCorpus, GrammarCorpus, GrammarFacts, PretrainingCorpus, SpanCorpus
from lmdyn.models import MaskedLanguageModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden-size", type=int, default=768)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-cpu", action="store_true", help="the device alone")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.layers, args.hidden_size = 2, 16
    quiet()
    devices = list(dict.fromkeys([args.device] if args.no_cpu else [args.device, "cpu"]))
    with tempfile.TemporaryDirectory() as folder:
        data = corpus(args, Path(folder))
        steps = {device: training_step(args, data, torch.device(device)) for device in devices}
        rows = [["training step", *(f"{1000 * steps[d]:.1f} ms" for d in devices), *("1" for _ in devices)]]
        for name in list(observers())[: 3 if args.smoke else None]:
            taken = {d: observation(args, data, name, torch.device(d), Path(folder)) for d in devices}
            rows.append([
                name, *(f"{taken[d]:.2f} s" for d in devices), *(f"{taken[d] / steps[d]:.0f}" for d in devices)
            ])  # fmt: skip
            print(f"# {rows[-1]}", flush=True)
    print(machine())
    header = ["observation", *(f"on {d}" for d in devices), *(f"steps of {d}" for d in devices)]
    print(table(header, rows))


def corpus(args: argparse.Namespace, folder: Path) -> PretrainingCorpus:
    tokens = (3000, 600, 600) if args.smoke else (200_000, 40_000, 40_000)
    grammar = GrammarCorpus(
        *tokens, n_facts=30, n_names=60, vocabulary="wordpiece", vocab_size=300 if args.smoke else 3000,
        cache_dir=str(folder / "cache"),
    )  # fmt: skip
    data = PretrainingCorpus(corpus=grammar, sequence_length=128, batch_size=32, pairs="order")
    data.prepare_data()
    data.setup("fit")
    return data


def observers() -> dict[str, Any]:
    """Makes each observer, from the grammar that facts and spans are of."""
    return {
        "LearningCurves": lambda grammar: LearningCurves(),
        "Sparsity": lambda grammar: Sparsity(),
        "TokenLearning": lambda grammar: TokenLearning(probe=SpanCorpus(grammar), max_words=2000),
        "Similarity": lambda grammar: Similarity(reference=Itself()),
        "AttentionPatterns": lambda grammar: AttentionPatterns(),
        "WorldKnowledge": lambda grammar: WorldKnowledge(probe=FactCorpus(GrammarFacts(grammar))),
        "EdgeProbe": lambda grammar: EdgeProbe(probe=SpanCorpus(grammar)),
    }


def model(args: argparse.Namespace, data: PretrainingCorpus) -> L.LightningModule:
    torch.manual_seed(0)
    d = args.hidden_size
    module = MaskedLanguageModel(
        family="albert", vocab_size=len(data.tokenizer),
        config={
            "embedding_size": min(128, d), "hidden_size": d, "intermediate_size": 4 * d,
            "num_attention_heads": max(1, d // 64), "num_hidden_layers": args.layers,
        },
    )  # fmt: skip
    module.configure_model()
    return module


def training_step(args: argparse.Namespace, data: PretrainingCorpus, device: torch.device) -> float:
    module: Any = model(args, data).to(device).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    batch = {
        k: v.to(device) for k, v in next(iter(data.train_dataloader())).items() if isinstance(v, torch.Tensor)
    }
    times = []
    for step in range(3 if args.smoke else 13):
        before = now(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = module(
                batch["input_ids"], attention_mask=batch.get("attention_mask"), predict=batch["labels"] >= 0
            ).logits
            loss = torch.nn.functional.cross_entropy(logits.float(), batch["labels"][batch["labels"] >= 0])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= 2:
            times.append(now(device).since(before).wall)
    return statistics.median(times)


def observation(
    args: argparse.Namespace, data: PretrainingCorpus, name: str, device: torch.device, folder: Path
) -> float:
    module = model(args, data).to(device).eval()
    observer: Observer = observers()[name](data.corpus)
    run = Run(folder / name, data.tokenizer, data.token_counts, data, None, folder)
    observer.attach(run)
    observer.bind(module)
    taken = 0.0
    for _ in range(2):  # the first warms up
        before = now(device)
        observer.observe(module, 0)
        taken = now(device).since(before).wall
    return taken


if __name__ == "__main__":
    main()

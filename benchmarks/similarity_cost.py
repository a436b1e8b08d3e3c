"""What does SVCCA to a tagger cost, against diagnostic probes that are trained anew at each checkpoint?

    python benchmarks/similarity_cost.py --reps 5        (minutes; ``--smoke`` for seconds)

Question: seconds of CPU time per checkpoint (Saphra & Lopez 2019, section 5: probes are trained for each checkpoint,
SVCCA needs a tagger once). The setting is that of configs/saphra2019_svcca/organism: a language model of two layers of
100 units, and the layers ``upos`` and ``topic`` of the synthetic grammar, on the same test words. ``Similarity``
(``svcca``) compares each hidden layer with a tagger of each layer of labels; ``DiagnosticProbe`` trains a perceptron of
each, without control tasks, code lengths and bootstrap. Weights are random: neither cost depends on them.

The tagger's training is measured once, six epochs of 100,000 words as in the profile, and shared by the checkpoints.
Both ways alternate; given are median, least and greatest.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import lightning as L
import torch
from common import Seconds, machine, now, quiet, spread, table
from torch import nn

from lmdyn.analysis.probing.probes import DiagnosticClassifier
from lmdyn.callbacks import DiagnosticProbe, Observer, Run, RunState, Similarity
from lmdyn.callbacks.observing.reference import Reference
from lmdyn.datamodules import GrammarCorpus
from lmdyn.models import LSTMLanguageModel, LSTMTagger

TASKS = ("upos", "topic")
CHECKPOINTS = 18  # of a language model of the profile


class Held(Reference):
    """A module that is in memory."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def check(self, run: Run) -> None:
        """It is there."""

    def example(self, module: nn.Module) -> nn.Module:
        return self.module

    def modules(self, module: nn.Module, run: Run, step: int) -> dict[str, nn.Module]:
        return {"": self.module}

    def settings(self, run: Run) -> dict[str, str]:
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--words", type=int, default=100_000, help="of the tagger's training")
    parser.add_argument(
        "--tested", type=int, default=10_000, help="words that both look at; as many train probes"
    )
    parser.add_argument("--epochs", type=int, default=6, help="of the tagger")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    size = 100
    if args.smoke:
        args.reps, args.words, args.tested, args.epochs, size = 1, 2000, 1000, 1, 8
    torch.set_num_threads(args.threads)
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        run(args, size, Path(folder))


def run(args: argparse.Namespace, size: int, folder: Path) -> None:
    device = torch.device("cpu")
    data = GrammarCorpus(
        n_train_tokens=args.words, n_validation_tokens=args.tested, n_test_tokens=args.tested,
        layers=list(TASKS), batch_size=40, sequence_length=35,
    )  # fmt: skip
    data.prepare_data()
    data.setup("fit")
    data.setup("test")
    taggers, training = {}, []
    for task in TASKS:
        tagger = LSTMTagger(task=task, embedding_size=size, hidden_size=size)
        trainer = L.Trainer(
            max_epochs=args.epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[RunState()],
            default_root_dir=folder,
        )  # fmt: skip
        start = now(device)
        trainer.fit(tagger, data)
        training.append(now(device).since(start))
        taggers[task] = tagger.eval()
    model = LSTMLanguageModel(len(data.tokenizer), embedding_size=size, hidden_size=size, num_layers=2)
    common = {"probe": data, "split": "test", "max_tokens": args.tested, "log_figures": False}
    ways: dict[str, Observer] = {
        "svcca": Similarity(reference={t: Held(m) for t, m in taggers.items()}, measures=["svcca"], **common),
        "probes": DiagnosticProbe(
            tasks=TASKS, targets=["next"], classifier=DiagnosticClassifier(kind="mlp", epochs=5),
            train_tokens=args.tested, control=False, **common,
        ),
    }  # fmt: skip
    for name, observer in ways.items():
        observer.attach(Run(folder / name, tokenizer=data.tokenizer, datamodule=data))
        observer.bind(model)
    seconds: dict[str, list[Seconds]] = {name: [] for name in ways}
    for _ in range(args.reps):
        for name, observer in ways.items():
            start = now(device)
            observer.observe(model, 0)
            seconds[name].append(now(device).since(start))
    once = sum(one.cpu for one in training)
    cpu = {name: [one.cpu for one in found] for name, found in seconds.items()}
    gained = statistics.median(p - s for s, p in zip(cpu["svcca"], cpu["probes"], strict=True))
    shared = statistics.median(cpu["svcca"]) + once / CHECKPOINTS
    even = f"{once / gained:.0f}" if gained > 0 else "never"
    print(
        f"{args.tested} words, {len(TASKS)} layers of labels, width {size}, {args.threads} threads; {machine()}\n"
    )
    print(
        table(
            ["CPU seconds", "median (least to greatest)"],
            [
                ["SVCCA, a checkpoint, taggers there", spread(cpu["svcca"])],
                ["probes, a checkpoint", spread(cpu["probes"])],
                [
                    "probes / SVCCA",
                    spread([p / s for s, p in zip(cpu["svcca"], cpu["probes"], strict=True)], "{:.2f}"),
                ],
                ["training of the taggers, once", f"{once:.1f}"],
                [f"SVCCA, a checkpoint of {CHECKPOINTS}, a share of the training with it", f"{shared:.3f}"],
                ["checkpoints from which on SVCCA is the cheaper", even],
            ],
        )
    )


if __name__ == "__main__":
    main()

"""What does loss change allocation cost by class of token, and at which spacing is a chord like the path?

    python benchmarks/loss_change.py --threads 1        (some twenty minutes; ``--smoke`` for seconds)

Two questions. *Cost*: CPU time of the gradient of a text with its division by layer and class of token, in that of the
plain gradient; at most 3 for five classes on the language model of WikiText-2 (configs/saphra2019_sparsity/wikitext2)
is the goal. Weights and text are random, of the same sizes: the cost does not depend on them. Ways alternate; given
are median, least and greatest.

*Spacing*: a small LSTM is trained on the synthetic grammar, and each of its updates is followed (``allocation: path``).
Between checkpoints at several spacings, the shares of the path, summed over its updates, are compared with those of the
chord: in how many of the matrices, and of the cells layer × frequency band, the sign is the same, and the rank
correlation over them; means over the intervals of the training, without void ones.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import lightning as L
import pandas as pd
import torch
from common import ROWS, TIME, TYPES, machine, quiet, spread, table
from scipy.stats import spearmanr

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.landscape.class_slopes import TextOnLines, TokenClasses
from lmdyn.analysis.parameters.loss_gradient import loss_gradient
from lmdyn.callbacks import LossChangeAllocation, Run, RunState, ScheduledCheckpoint, Steps
from lmdyn.datamodules import GrammarCorpus
from lmdyn.models import LSTMLanguageModel

BASE = 5  # updates between checkpoints
SPACINGS = (5, 10, 20, 50, 100)
CLASSES = (1, 5, 18)  # of tokens; 18 is Universal POS and the rest
SETTINGS = {"max_tokens": 700, "log_figures": False, "layers": [], "bands": (10, 100)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--only", choices=["costs", "spacing"], help="one of the two questions")
    parser.add_argument("--smoke", action="store_true", help="a tiny model: does it run?")
    args = parser.parse_args()
    quiet()
    torch.set_num_threads(args.threads)
    print(machine())
    if args.smoke:
        SETTINGS["max_tokens"] = 100
    head = ["classes", "plain gradient", "by class", "goal"]
    if args.only != "spacing":
        print(table(head, costs(100 if args.smoke else TYPES, 1 if args.smoke else args.reps)), flush=True)
    if args.only == "costs":
        return
    head = ["spacing", "intervals", "void", "sign, matrices", "rank, matrices", "sign, cells", "rank, cells"]
    updates, spacings = (10, (5, 10)) if args.smoke else (args.updates, SPACINGS)
    with tempfile.TemporaryDirectory() as folder:
        print(table(head, agreement(Path(folder), updates, spacings, 10 if args.smoke else 50)))


def costs(types: int, reps: int) -> list[list[str]]:
    """CPU time in that of the plain gradient, for numbers of classes."""
    torch.manual_seed(0)
    sizes = {} if types == TYPES else {"embedding_size": 8, "hidden_size": 8}
    module = LSTMLanguageModel(vocab_size=types, **sizes)
    batches = []
    for _ in range(3):
        ids = torch.randint(types, (ROWS, TIME + 1))
        batches.append({"input_ids": ids[:, :-1], "labels": ids[:, 1:]})
    moved = {name: 0.01 * torch.randn_like(p) for name, p in module.named_parameters()}

    def call(batch):
        return module(batch["input_ids"])

    def seconds(way):
        start = time.process_time()
        way()
        return time.process_time() - start

    def gradient():
        loss_gradient(module, batches, call)

    rows = []
    with observing(module):
        seconds(gradient)
        for number in CLASSES:
            classes = {"class": TokenClasses(number, lambda batch, number=number: batch["labels"] % number)}
            text = TextOnLines(module, lambda: batches, call, classes)
            plain, above = [], []
            for _ in range(reps):
                plain.append(seconds(gradient))
                above.append(seconds(lambda text=text: text.points({}, [moved])))
            ratios = [[a / b for a, b in zip(above, plain, strict=True)]]
            goal = "3" if number == 5 else ""
            rows.append(
                [str(number), f"{statistics.median(plain):.2f} s", *(spread(r) for r in ratios), goal]
            )
    return rows


def agreement(folder: Path, updates: int, spacings: tuple[int, ...], size: int) -> list[list[str]]:
    """Signs and ranks of shares by spacing."""
    L.seed_everything(0, verbose=False)
    data = GrammarCorpus(
        n_train_tokens=2 * updates * ROWS * TIME, n_validation_tokens=4_000, n_test_tokens=100,
        batch_size=ROWS, sequence_length=TIME,
    )  # fmt: skip
    path = LossChangeAllocation(allocation="path", name="path", schedule=Steps(every=BASE), **SETTINGS)
    module = LSTMLanguageModel(embedding_size=size, hidden_size=size)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, logger=False, max_steps=updates, default_root_dir=folder, limit_val_batches=0,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[RunState(), path, ScheduledCheckpoint(Steps(every=BASE))],
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    followed = pd.read_parquet(folder / "observations" / "path")
    saved = {int(p.stem.partition("=")[2]): p for p in (folder / "checkpoints").glob("*.ckpt")}
    return [row(module, data, followed, saved, folder, spacing) for spacing in spacings]


def row(module, data, followed, saved, folder: Path, spacing: int) -> list[str]:
    """The comparison at one spacing."""
    steps = {step: path for step, path in saved.items() if step % spacing == 0}
    chord = LossChangeAllocation(name=f"chord{spacing}", probe=data, **SETTINGS)
    chord.attach(Run(folder, data.tokenizer, data.token_counts, data, steps))
    found, void = [], 0
    for step in sorted(steps)[1:]:
        module.load_state_dict(torch.load(steps[step], weights_only=True)["state_dict"])
        along = parts(chord.observe(module, step))
        inside = followed[followed["step"].between(step - spacing, step, inclusive="right")]
        summed = parts(inside)
        if any(part.isna().any() for part in (*along, *summed)):
            void += 1
            continue
        agrees = []
        for a, b in zip(along, summed, strict=True):
            b = b.reindex(a.index)
            agrees += [float((a * b > 0)[a.ne(0)].mean()), float(spearmanr(a, b).statistic)]
        found.append(agrees)
    means = [statistics.fmean(column) for column in zip(*found, strict=True)] or [float("nan")] * 4
    return [str(spacing), str(len(found)), str(void), *(f"{mean:.3f}" for mean in means)]


def parts(observations: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Shares of matrices, and of the cells layer × class, summed over steps; NaN if one of them is void."""
    shares = observations[observations["quantity"].eq("allocation")]
    matrices = shares[shares["parameter"].ne("") & shares["by"].eq("")]
    cells = shares[shares["by"].eq("rank") & shares["site"].ne("")]

    def summed(rows: pd.DataFrame, *by: str) -> pd.Series:
        return (
            rows.astype(dict.fromkeys(by, str))
            .groupby(list(by))["value"]
            .apply(lambda v: v.sum(skipna=False))
        )

    return summed(matrices, "parameter"), summed(cells, "site", "group")


if __name__ == "__main__":
    main()

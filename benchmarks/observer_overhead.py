"""What do five observers cost beside a training, and beside the ways in which people train without lmdyn?

Question: CPU seconds of 200 steps of a 4-layer GPT-2 (256 units, 2,000 types, batches of 8 × 64 tokens) by a loop
written by hand, by transformers' ``Trainer``, by bare Lightning, and by Lightning with ``LearningCurves``,
``Sparsity``, ``Similarity``, ``AttentionPatterns`` and ``WeightSpectra`` at ``per_decade=4`` (12 observations of a
probe set of 2,048 tokens), with TensorBoard. Goals, in multiples of bare Lightning's 200 steps so that they hold on any
machine: with observers and figures at most 75/43; an observation at most 2.5 passes (forward and backward) over the
probe set; the figures at most 6/43; 5,000 steps with their 17 observations at most 6 % more than bare. By
``lmdyn.watch`` in the loop by hand (``--watch``: only this): 1,000 steps at most 20 % more, 5,000 at most 6 %.

Run: ``python benchmarks/observer_overhead.py`` (``--smoke`` for seconds)

Counts: CPU time of all threads (one by default, ``--threads``), which other processes disturb less than the clock. All
begin from the same weights and read the same batches; weights at the end must be equal bit by bit under Lightning, with
and without observers, and in the loop written by hand, with and without ``lmdyn.watch``. Numbers of 1,000 and 5,000
steps are computed from the costs of a step, an observation, the figures and the first reading of the model.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest import mock

import lightning as L
import torch
from common import machine, quiet, table
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import lmdyn
from lmdyn.analysis.inspection.activations import observing
from lmdyn.callbacks import (
    AttentionPatterns,
    LearningCurves,
    Observer,
    Similarity,
    Sparsity,
    Steps,
    WeightSpectra,
)
from lmdyn.callbacks.observing import recording
from lmdyn.callbacks.observing.loggers import LiveFigures

LONG = {1_000: 20, 5_000: 6}
"""Steps of longer trainings, and the goals for them, in percent."""


class Sizes:
    """Of the model and its text."""

    types, units, layers, heads = 2_000, 256, 4, 4
    rows, time, probed, steps, observers = 8, 64, 32, 200, 5


def text(rows: int, seed: int) -> list[dict[str, Tensor]]:
    """Rows of ids by Zipf's law, with Hugging Face's labels."""
    shares = 1 / (torch.arange(Sizes.types) + 2.7)
    ids = torch.multinomial(
        shares, rows * Sizes.time, replacement=True, generator=torch.Generator().manual_seed(seed)
    ).view(rows, Sizes.time)
    return [{"input_ids": row, "labels": row} for row in ids]


def loader(rows: int, seed: int) -> DataLoader:
    return DataLoader(text(rows, seed), batch_size=Sizes.rows)


def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=Sizes.types, n_embd=Sizes.units, n_layer=Sizes.layers, n_head=Sizes.heads,
        n_positions=Sizes.time, bos_token_id=None, eos_token_id=None, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


class Module(L.LightningModule):
    """The model under Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids=input_ids)

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        return self.model(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer(self)


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=3e-4, weight_decay=0.0)


def by_hand(
    after_step: Callable[[int], None] = lambda step: None, trained: nn.Module | None = None
) -> nn.Module:
    """A loop written by hand."""
    trained = trained or model()
    optim = optimizer(trained)
    for step, batch in enumerate(loader(Sizes.steps * Sizes.rows, 1), 1):
        optim.zero_grad()
        trained(**batch).loss.backward()
        optim.step()
        after_step(step)
    return trained


def by_watch() -> nn.Module:
    """The same loop with ``lmdyn.watch``."""
    trained = model()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        lmdyn.watch(trained, five(), probe=loader(Sizes.probed, 2), folder=folder) as watcher,
    ):
        return by_hand(watcher.step, trained)


def by_trainer() -> nn.Module:
    """transformers' Trainer; its own order of rows is the given one, its gradients are not clipped."""
    trained = model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=Sizes.steps, per_device_train_batch_size=Sizes.rows, use_cpu=True, report_to="none",
            learning_rate=3e-4, lr_scheduler_type="constant", max_grad_norm=0, save_strategy="no",
            logging_strategy="no", disable_tqdm=True, train_sampling_strategy="sequential",
        )  # fmt: skip
        Trainer(trained, arguments, train_dataset=text(Sizes.steps * Sizes.rows, 1)).train()
    return trained


def by_lightning(observers: list[Observer]) -> nn.Module:
    """Lightning with a TensorBoard logger, and observers."""
    module = Module()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trainer = L.Trainer(
            accelerator="cpu", max_steps=Sizes.steps, logger=TensorBoardLogger(folder), callbacks=observers,
            limit_val_batches=0, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, loader(Sizes.steps * Sizes.rows, 1), loader(Sizes.probed, 2))
    return module.model


def five(**settings: object) -> list[Observer]:
    """The observers."""
    settings["schedule"] = Steps(per_decade=4)
    classes = (LearningCurves, Sparsity, Similarity, AttentionPatterns, WeightSpectra)
    return [cls(**settings) for cls in classes[: Sizes.observers]]


def cpu(run: Callable[[], nn.Module]) -> tuple[float, Tensor]:
    """CPU seconds, and the weights at the end."""
    start = time.process_time()
    trained = run()
    took = time.process_time() - start
    return took, torch.cat([p.detach().flatten() for p in trained.parameters()])


def timed(owner: object, name: str, seconds: list[float]) -> AbstractContextManager[object]:
    """Notes the CPU seconds of each call of a function or method."""
    function = getattr(owner, name)

    def call(*args: object, **kwargs: object) -> object:
        start = time.process_time()
        found = function(*args, **kwargs)
        seconds.append(time.process_time() - start)
        return found

    return mock.patch.object(owner, name, call)


def one_pass() -> float:
    """CPU seconds of a forward and backward pass over the probe set, to all parameters; the median of five."""
    trained = model()
    batches = list(loader(Sizes.probed, 2))
    seconds = []
    with observing(trained):
        for _ in range(5):
            start = time.process_time()
            for batch in batches:
                torch.autograd.grad(trained(**batch).loss, list(trained.parameters()))
            seconds.append(time.process_time() - start)
    return sorted(seconds)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=Sizes.steps)
    parser.add_argument("--watch", action="store_true", help="only the loop by hand and lmdyn.watch")
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes: does it run? The numbers mean nothing"
    )
    args = parser.parse_args()
    quiet()
    torch.set_num_threads(args.threads)
    Sizes.steps = args.steps
    if args.smoke:
        Sizes.types, Sizes.units, Sizes.layers = 50, 8, 1
        Sizes.probed, Sizes.steps, Sizes.observers = 8, 2, 2
    print(machine())
    one = one_pass()
    hand = [("a loop by hand", by_hand), ("five observers by lmdyn.watch", by_watch)]
    bare = [("bare Lightning", lambda: by_lightning([])), ("five observers", lambda: by_lightning(five()))]
    rows, said = [], []
    for (name, plain), (observed_name, observed) in [hand] if args.watch else [hand, bare]:
        took, weights = cpu(plain)
        observations: list[float] = []
        figures: list[float] = []
        with timed(recording, "record", observations), timed(LiveFigures, "finish", figures):
            with_observers, weights_with = cpu(observed)
        assert torch.equal(weights, weights_with), "observers changed the weights"
        rows += [(name, took), (observed_name, with_observers)]
        said.append(summary(name, took, with_observers, observations, sum(figures), one))
    if not args.watch:
        rows.append(("transformers' Trainer", cpu(by_trainer)[0]))
    base = rows[-3 if len(rows) > 2 else 0][1]
    print(f"\n{Sizes.steps} steps; {machine()}\n")
    print(
        table(
            ["", "CPU seconds", "of bare Lightning" if len(rows) > 2 else "of the loop by hand"],
            [[name, f"{took:.1f}", f"{took / base:.2f}"] for name, took in rows],
        )
    )
    print(*said, sep="\n")


def summary(
    base: str, bare: float, observed: float, observations: list[float], drawn: float, one: float
) -> str:
    """The costs of observers beside a training without them, and what they are of longer trainings."""
    each = statistics.median(observations)
    first = observed - bare - sum(observations) - drawn  # the model is read, the first time
    longer = []
    for steps, goal in LONG.items():
        n = sum(step in Steps(per_decade=4) for step in range(steps + 1))
        n += steps not in Steps(per_decade=4)  # the last step
        more = (n * each + drawn + first) / (bare / Sizes.steps * steps)
        longer.append(f"{steps:,} steps with {n} observations **{more:.1%}** more (goal {goal} %)")
    return (
        f"\nbeside {base}: {len(observations)} observations of {each:.2f} s each, **{each / one:.2f}** passes of "
        f"{one:.2f} s (goal 2.5); figures {drawn:.1f} s, **{drawn / bare:.3f}** (goal {6 / 43:.3f} at 200 steps); "
        f"reading the model {first:.1f} s; in all **{observed / bare:.2f}** (goal {75 / 43:.2f} at 200 steps). "
        + "; ".join(longer)
    )


if __name__ == "__main__":
    main()

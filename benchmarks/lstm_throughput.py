"""Does training LSTMLanguageModel cost more than a hand-written loop of the same model on the same data?

Question: the time of training, ours over a hand-written PyTorch loop. Goal: "bare" at most 1.05 of "loop".

Run: ``python benchmarks/lstm_throughput.py --reps 7``

Compared: 2 x 200 LSTM, 15,800 words, batches of 40 x 35 from lmdyn's StreamLoader over the same encoded text, SGD,
gradients clipped at 0.25, state carried and detached; alternating in one process:

- loop:    PyTorch only, no synchronisation with the device within a repetition
- bare:    L.Trainer without logger, checkpoints and progress bar
- as used: L.Trainer with TensorBoard logger, progress bar and RunState, as the command line attaches them
- tensors: the loop over batches that lie in memory, to see what the loader costs

Counts: the updates after the first two, up to the end of the last one, data loading included. A ratio is taken
within a repetition; reported are the median, least and greatest of ``--reps`` repetitions of ``--steps`` updates,
by the clock and in CPU time of all threads, which a busy machine disturbs less.
With ``--allocator system`` glibc's defaults are kept (see lmdyn/models/allocator.py).
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterable
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from common import ROWS, TIME, TYPES, Seconds, ZipfCorpus, machine, now, quiet, spread, table
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

from lmdyn.callbacks import RunState
from lmdyn.models import LSTMLanguageModel
from lmdyn.models.allocator import keep_freed_memory

DROPOUT, CLIP = 0.2, 0.25
RATE = 1.0  # the words are random: little to learn, and at 20 the loss would overflow

Batches = Iterable[dict[str, Tensor]]


class Model(nn.Module):
    """The same model as one would write it without us, for speed.

    ``nn.LSTM(num_layers=2, dropout=0.2)`` leaves the oneDNN path on CPU while training, at 600 to 1,900
    tokens a second where two single-layer modules reach 7,500: a reference too easy to beat.
    """

    def __init__(self, types: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(types, size)
        self.lower = nn.LSTM(size, size, batch_first=True)
        self.upper = nn.LSTM(size, size, batch_first=True)
        self.decoder = nn.Linear(size, types)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, input_ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        hidden, lower = self.lower(self.dropout(self.embedding(input_ids)), state and state[0])
        hidden, upper = self.upper(self.dropout(hidden), state and state[1])
        return self.decoder(self.dropout(hidden)), (lower, upper)


class Stopwatch(L.Callback):
    """Times the updates after the first two, so that warming up and setting up do not count."""

    def __init__(self, device: torch.device, last: int) -> None:
        self.device, self.last = device, last
        self.updates = 0
        self.start = self.took = Seconds(0.0, 0.0)

    def tick(self) -> None:
        self.updates += 1
        if self.updates == 2:
            self.start = now(self.device)
        elif self.updates == self.last:
            self.took = now(self.device).since(self.start)

    def on_train_batch_end(self, *_: Any) -> None:
        self.tick()


def loop(batches: Batches, types: int, size: int, device: torch.device, last: int) -> Seconds:
    model = Model(types, size).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    watch = Stopwatch(device, last)
    state = None
    for batch in batches:
        input_ids, labels = batch["input_ids"].to(device), batch["labels"].to(device)
        logits, state = model(input_ids, state)
        state = [(h.detach(), c.detach()) for h, c in state]
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        watch.tick()
    return watch.took


def fit(batches: Batches, types: int, size: int, device: torch.device, last: int, as_used: bool) -> Seconds:
    watch = Stopwatch(device, last)
    model = LSTMLanguageModel(
        types, size, size, dropout=DROPOUT, optimizer=lambda params: torch.optim.SGD(params, lr=RATE)
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator=device.type,
            devices=1,
            max_epochs=1,
            logger=TensorBoardLogger(folder) if as_used else False,
            enable_progress_bar=as_used,
            enable_checkpointing=False,
            enable_model_summary=False,
            callbacks=[RunState(), watch] if as_used else [watch],
        )
        trainer.fit(model, batches)
    return watch.took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--steps", type=int, default=42)
    parser.add_argument("--allocator", choices=("ours", "system"), default="ours")
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes: does it run? The numbers mean nothing"
    )
    args = parser.parse_args()
    quiet()
    reps, steps, types, size = (1, 4, 100, 8) if args.smoke else (args.reps, args.steps, TYPES, 200)
    device = torch.device(args.device)
    if args.allocator == "ours":
        keep_freed_memory()  # the fit would do it too late for the first loop
    else:
        import lmdyn.models.module

        lmdyn.models.module.keep_freed_memory = lambda: False

    print(machine())
    with tempfile.TemporaryDirectory() as cache:
        corpus = ZipfCorpus(steps * ROWS * TIME, ROWS * TIME, types, cache_dir=cache)
        corpus.layers = []  # a language model needs no tags
        corpus.prepare_data()
        loader = corpus.loader("train").limit(steps * ROWS * TIME)
        in_memory = [{k: v.to(device) for k, v in batch.items()} for batch in loader]
        assert len(in_memory) == len(loader) == steps
        model = (types, size, device, steps)
        ways = {
            "loop": lambda: loop(loader, *model),
            "bare": lambda: fit(loader, *model, as_used=False),
            "as used": lambda: fit(loader, *model, as_used=True),
            "tensors": lambda: loop(in_memory, *model),
        }
        took: dict[str, list[Seconds]] = {name: [] for name in ways}
        for _ in range(reps):
            for name, way in ways.items():
                took[name].append(way())
    # paired by repetition, so that a slow minute of the machine is in both
    rows = []
    for name, values in took.items():
        pairs = list(zip(values, took["loop"], strict=True))
        speed = (steps - 2) * ROWS * TIME / statistics.median(seconds.wall for seconds in values)
        ratios = [spread([a.wall / b.wall for a, b in pairs]), spread([a.cpu / b.cpu for a, b in pairs])]
        rows.append([name, f"{speed:,.0f}", *ratios])
    print(f"{args.device}, allocator: {args.allocator}, {reps} repetitions of {steps} updates; {machine()}\n")
    print(table(["way", "tokens/s", "time over loop's", "CPU time over loop's"], rows))


if __name__ == "__main__":
    main()

"""Does training LSTMLanguageModel cost more than a hand-written loop of the same model on the same data?

Three ways of the same work (2 x 200 LSTM, 15,800 words, batches of 40 x 35, SGD, gradients clipped at 0.25,
state carried and detached), alternating in one process; medians over repetitions, each of ``--steps`` updates:

- loop:    PyTorch only, no synchronisation with the device within a repetition
- bare:    L.Trainer without logger, checkpoints and progress bar
- as used: L.Trainer with TensorBoard logger and progress bar

Goal: loop / bare at most 1.05. With ``--allocator system`` glibc's defaults are kept (see
lmdyn/models/allocator.py). Run: ``python benchmarks/lstm_throughput.py --device cpu --reps 7``.
"""

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

from lmdyn.models import LSTMLanguageModel
from lmdyn.models.allocator import keep_freed_memory

VOCAB, ROWS, TIME, SIZE, DROPOUT, CLIP = 15_800, 40, 35, 200, 0.2, 0.25
RATE = 1.0  # the tokens are random: nothing to learn, and at 20 the loss would overflow


class RandomWindows:
    """Contiguous windows over random tokens, already on the device where the Trainer would put them."""

    def __init__(self, steps: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(VOCAB, (ROWS, steps * TIME + 1), generator=generator).to(device)
        self.continues = torch.ones(ROWS, dtype=torch.bool, device=device)
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for i in range(self.steps):
            yield {
                "input_ids": self.tokens[:, i * TIME : (i + 1) * TIME],
                "labels": self.tokens[:, i * TIME + 1 : (i + 1) * TIME + 1],
                "continues": self.continues if i else ~self.continues,
            }


class Model(nn.Module):
    """The same model as one would write it without us, for speed.

    ``nn.LSTM(num_layers=2, dropout=0.2)`` leaves the oneDNN path on CPU while training, at 600 to 1,900
    tokens a second where two single-layer modules reach 7,500: a reference too easy to beat.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, SIZE)
        self.lower = nn.LSTM(SIZE, SIZE, batch_first=True)
        self.upper = nn.LSTM(SIZE, SIZE, batch_first=True)
        self.decoder = nn.Linear(SIZE, VOCAB)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, input_ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        hidden, lower = self.lower(self.dropout(self.embedding(input_ids)), state and state[0])
        hidden, upper = self.upper(self.dropout(hidden), state and state[1])
        return self.decoder(self.dropout(hidden)), (lower, upper)


def loop(data: RandomWindows, device: torch.device) -> float:
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    clock = Clock(device)
    state = None
    for batch in data:
        logits, state = model(batch["input_ids"], state)
        state = [(h.detach(), c.detach()) for h, c in state]
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        clock.tick()
    return clock.tokens_per_second()


class Clock(L.Callback):
    """Times the steps after the first two, so that warming up and setting up do not count."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.steps, self.start = device, 0, 0.0

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def tick(self) -> None:
        self.steps += 1
        if self.steps == 2:
            self.wait()
            self.start = time.perf_counter()

    def tokens_per_second(self) -> float:
        self.wait()
        return (self.steps - 2) * ROWS * TIME / (time.perf_counter() - self.start)

    def on_train_batch_end(self, *_: Any) -> None:
        self.tick()
        # Stop the clock at the last batch: what follows is the end of the fit, not training.
        if self.steps == self.last:
            self.result = self.tokens_per_second()

    last = 0
    result = 0.0


def fit(data: RandomWindows, device: torch.device, as_used: bool) -> float:
    clock = Clock(device)
    clock.last = len(data)
    model = LSTMLanguageModel(
        VOCAB, SIZE, SIZE, dropout=DROPOUT, optimizer=lambda params: torch.optim.SGD(params, lr=RATE)
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
            callbacks=[clock],
        )
        trainer.fit(model, data)
    return clock.result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--steps", type=int, default=42)
    parser.add_argument("--allocator", choices=("ours", "system"), default="ours")
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")

    device = torch.device(args.device)
    if args.allocator == "ours":
        keep_freed_memory()  # the fit would do it too late for the first loop
    else:
        import lmdyn.models.recurrent

        lmdyn.models.recurrent.keep_freed_memory = lambda: False
    data = RandomWindows(args.steps, device)
    ways = {
        "loop": lambda: loop(data, device),
        "bare": lambda: fit(data, device, as_used=False),
        "as used": lambda: fit(data, device, as_used=True),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.reps):
        for name, way in ways.items():
            speeds[name].append(way())
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    # Paired by repetition, so that a slow minute of the machine is in both.
    ratios = {
        name: [a / b for a, b in zip(speeds["loop"], speeds[name], strict=True)]
        for name in ("bare", "as used")
    }
    print(
        "| device | allocator | loop tokens/s | bare tokens/s | as used tokens/s | loop/bare | loop/as used |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    cells = [args.device, args.allocator, *(f"{value:,.0f}" for value in medians.values())]
    cells += [f"{statistics.median(r):.3f} ({min(r):.3f} to {max(r):.3f})" for r in ratios.values()]
    print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

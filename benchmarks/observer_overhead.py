"""What do observers cost? ``Sparsity`` and ``LearningCurves`` once an epoch, sharing one pass over 3 % of the tokens.

Question: the time that both observers add to a training run on the published schedule (the end of each epoch), with
observations written and figures drawn for TensorBoard. Goal: at most 5 %.

Run: ``python benchmarks/observer_overhead.py --scale 0.25 --reps 5``, or ``--scale 1`` for whole epochs (an hour)

Compared: the published LSTM (2 x 200, 15,800 words) on text by Zipf's law of the size of WikiText-2 (1,390,000
tokens, of which ``--scale`` is one epoch), one epoch without and one with both observers from the same seed, in
turn, in one process. The probe set has 2.9 % of the training tokens (40,000 at scale 1).

Counts: from the start of training to its end, without validation and without checkpoints, which would make the
share smaller. A share is taken within a repetition; median, least and greatest of ``--reps``, by the clock and in
CPU time of all threads, which a busy machine disturbs less. Weights at the end must be equal bit by bit.

Parts of an observation that do not shrink with the probe set (files, figures) weigh more at a small scale, and
figures show all observations of a run; so the parts are also timed one by one for a probe set of 40,000 tokens with
``--past`` earlier observations in the folder, and set against a whole epoch at the measured speed.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lightning as L
import pandas as pd
import torch
from common import EPOCH, ROWS, TIME, TYPES, Clock, Seconds, ZipfCorpus, machine, now, quiet, spread, table
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from lmdyn.analysis.inspection.activations import observing
from lmdyn.callbacks import LearningCurves, Observer, Run, RunState, Sparsity, Steps
from lmdyn.callbacks.observing.loggers import log_figure, scalar_tags
from lmdyn.callbacks.observing.probe import Watch, probe_pass
from lmdyn.callbacks.observing.schema import tidy
from lmdyn.callbacks.observing.streaming_observer import StreamingObserver
from lmdyn.callbacks.training.observation_schedule import Progress
from lmdyn.models import LSTMLanguageModel
from lmdyn.models.allocator import keep_freed_memory

PROBE = 40_000


def observers(scale: float) -> list[StreamingObserver]:
    """As in configs/saphra2019_sparsity, at the end of each epoch; least counts shrink with the text."""
    schedule = Steps(at=(), epochs=True)
    return [
        Sparsity(
            schedule=schedule,
            class_min_count=max(1, int(100 * scale)),
            matched_size=40 if scale > 0.01 else None,
            matched_tolerance=0.2,
        ),
        LearningCurves(schedule=schedule),
    ]


def model(size: int, types: int) -> LSTMLanguageModel:
    L.seed_everything(1, verbose=False)
    return LSTMLanguageModel(types, size, size, optimizer=lambda params: torch.optim.SGD(params, lr=5.0))


def fit(
    corpus: ZipfCorpus, module: LSTMLanguageModel, attached: list[Observer], device: str
) -> tuple[Seconds, Tensor]:
    """Seconds of one epoch, and the weights at its end."""
    first, last = Clock(), Clock()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trainer = L.Trainer(
            accelerator=device,
            devices=1,
            max_epochs=1,
            limit_val_batches=0,
            logger=TensorBoardLogger(folder),
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            callbacks=[first, RunState(), *attached, last],
        )
        trainer.fit(module, datamodule=corpus)
    return last.end.since(first.start), torch.cat([p.detach().flatten().cpu() for p in module.parameters()])


class Parts:
    """Seconds of each part of each observation."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.observations: list[dict[str, Seconds]] = []

    def begin(self) -> None:
        """A new observation."""
        self.observations.append({})

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = now(self.device)
        yield
        took = now(self.device).since(start)
        parts = self.observations[-1]
        before = parts.get(name, Seconds(0.0, 0.0))
        parts[name] = Seconds(before.wall + took.wall, before.cpu + took.cpu)

    def medians(self) -> dict[str, Seconds]:
        """Median of each part over observations."""
        return {name: median([o[name] for o in self.observations]) for name in self.observations[-1]}


def observe_in_parts(
    corpus: ZipfCorpus, module: LSTMLanguageModel, scale: float, past: int, reps: int
) -> Parts:
    """Observations as ``observe_together`` and ``publish`` make them, each part timed."""
    parts = Parts(module.device)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        logger = TensorBoardLogger(folder)
        both = observers(scale)
        for observer in both:
            observer.attach(Run(Path(logger.log_dir), corpus.tokenizer, corpus.token_counts, corpus))
        tables = observe_in_part(parts, both, module, logger, 0)  # the first warms up
        for step in range(1, past):
            for observer, rows in zip(both, tables, strict=True):
                observer.store.write(step, rows.assign(step=step))
        parts.observations.clear()
        for step in range(past, past + reps):
            observe_in_part(parts, both, module, logger, step)
    return parts


def observe_in_part(
    parts: Parts,
    both: list[StreamingObserver],
    module: LSTMLanguageModel,
    logger: TensorBoardLogger,
    step: int,
) -> list[pd.DataFrame]:
    parts.begin()
    with observing(module):
        watches = [Watch(o.accumulator(module, 0), o.sites, gradients=o.gradients) for o in both]
        with parts("forward and backward pass, sums"):
            probe_pass(module, both[0].probe_set, watches)
        with parts("tables"):
            at = Progress(step, tokens=step, learning_rate=1.0)
            tables = [tidy(watch.consumer.table(), at) for watch in watches]
    for observer, rows in zip(both, tables, strict=True):
        with parts("parquet"):
            observer.store.write(step, rows)
        with parts("scalars"):
            logger.log_metrics(scalar_tags(observer.name, rows[observer.is_scalar(rows)]), step)
        with parts("figures: read observations"):
            read = observer.store.read(until=step, where=observer.figure_rows)
        with parts("figures: make"):
            figures = observer.figures(read, observer.settings)
        with parts("figures: draw and log"):
            for name, figure in figures.items():
                log_figure([logger], name, figure, step)
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--scale", type=float, default=0.25, help="size of an epoch; 1 is WikiText-2")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument(
        "--past", type=int, default=14, help="observations before the one whose parts are timed"
    )
    parser.add_argument("--parts-only", action="store_true", help="no runs: only the parts of an observation")
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes: does it run? The numbers mean nothing"
    )
    args = parser.parse_args()
    quiet()
    if args.smoke:
        args.scale, args.reps, args.past = 0.003, 1, 2
    size, types = (8, 100) if args.smoke else (200, TYPES)
    device = torch.device(args.device)
    keep_freed_memory()

    print(machine())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        corpus = ZipfCorpus(int(EPOCH * args.scale), int(PROBE * args.scale), types, cache_dir=cache)
        corpus.prepare_data()
        corpus.setup()
        tokens, probed = corpus.loader("train").num_tokens, corpus.loader("validation").num_tokens
        without = None
        if not args.parts_only:
            fit(
                ZipfCorpus(4 * ROWS * TIME, 100, types, cache), model(size, types), [], args.device
            )  # warm up
            took: dict[bool, list[Seconds]] = {False: [], True: []}
            weights = []
            for rep in range(args.reps):
                for observed in (False, True) if rep % 2 == 0 else (True, False):
                    attached = observers(args.scale) if observed else []
                    seconds, after = fit(corpus, model(size, types), attached, args.device)
                    took[observed].append(seconds)
                    weights.append(after)
            assert all(torch.equal(w, weights[0]) for w in weights), "observers left a trace in the weights"
            without = median(took[False])
            print(
                f"\n{args.device}, epoch of {tokens:,} tokens, probe set of {probed:,} ({probed / tokens:.1%}), "
                f"{args.reps} repetitions, all final weights equal; {machine()}\n"
            )
            rows = []
            for name in Seconds._fields:
                plain, observed_ = ([getattr(s, name) for s in took[k]] for k in (False, True))
                added = [b / a - 1 for a, b in zip(plain, observed_, strict=True)]
                rows.append(
                    [name, spread(plain, "{:.2f}"), spread(observed_, "{:.2f}"), spread(added, "{:.1%}")]
                )
            print(table(["seconds", "without observers", "with both", "added"], rows))

        scale = args.scale if args.smoke else 1.0
        corpus = ZipfCorpus(int(EPOCH * scale), int(PROBE * scale), types, cache_dir=cache)
        corpus.prepare_data()
        corpus.setup()
        module = model(size, types).to(device)
        parts = observe_in_parts(corpus, module, scale, args.past, args.reps)
        probed, epoch = corpus.loader("validation").num_tokens, corpus.loader("train").num_tokens
        print(
            f"\n{args.device}, one observation by both observers on {probed:,} tokens, after {args.past} others, "
            f"{args.reps} repetitions; {machine()}\n"
        )
        medians = parts.medians()
        total = Seconds(*(sum(values) for values in zip(*medians.values(), strict=True)))
        rows = [[name, *(f"{s:.2f}" for s in took)] for name, took in (*medians.items(), ("sum", total))]
        print(table(["part", "seconds", "CPU seconds"], rows))
        if without is not None:
            long = epoch / tokens  # epochs of the size that was measured in an epoch of whole size
            shares = [f"{t / (w * long):.1%} of {w * long:.0f}" for t, w in zip(total, without, strict=True)]
            print(
                f"\nSet against an epoch of {epoch:,} tokens, from the runs without observers: "
                f"{shares[0]} s; in CPU time {shares[1]} s"
            )


def median(times: Sequence[Seconds]) -> Seconds:
    return Seconds(*(statistics.median(values) for values in zip(*times, strict=True)))


if __name__ == "__main__":
    main()

"""What does one observation by each observer cost? Its seconds, in training steps, and the memory it takes.

Question: CPU time of one observation by each exported observer, with the settings of its page (``docs/observers``), of
the untrained model of a small study; the same in training steps of that model; and the memory that it adds. No goal: it
says how often a run can afford which observer.

Run: ``python benchmarks/observer_costs.py --threads 1`` (some ten minutes; ``--only EdgeProbe`` for one)

A page names the configuration that its settings are laid over (``<!-- settings: configs/… -->``). Text and probe sets
are prepared before. The first observation of an observer warms up where it took less than ``--again`` seconds; then the
second is timed. Memory is that of the first: the highest RssAnon on the way less that before. Each observer has a
process of its own. Figures and files are no part of it. A training step is forward, backward and optimizer of one
batch, by Lightning's trainer without observers, the mean of twenty after ten.
"""

import argparse
import multiprocessing
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
from common import Clock, Seconds, machine, memory, now, quiet, table

from lmdyn.callbacks import LossChangeAllocation, Observer, Run
from lmdyn.cli.fit import LmdynCLI

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = re.compile(r"<!-- settings: (\S+) -->\s*```yaml\n(.*?)```", re.DOTALL)
CPU = ["--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.enable_progress_bar=false"]
SMOKE = ("LearningCurves",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="names of observers; all by default")
    parser.add_argument("--again", type=float, default=20.0, help="repeat what took fewer seconds")
    parser.add_argument("--smoke", action="store_true", help="one observer of a small model: does it run?")
    args = parser.parse_args()
    quiet()
    only = SMOKE if args.smoke else args.only
    steps: dict[str, Seconds] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("LMDYN_CACHE", f"{folder}/cache")
        for name, base, settings in pages():
            if only and name not in only:
                continue
            if args.smoke:
                base, args.again, args.threads = "configs/quickstart.yaml", 0.0, 0
            if base not in steps:
                steps[base] = alone(training_step, args.threads, base, 3 if args.smoke else 30)
            cpu, peak = alone(observation, args.threads, name, base, settings, Path(folder), args.again)
            rows.append([
                f"`{name}`", f"`{base}`", f"{cpu:.2g}", f"{cpu / steps[base].cpu:,.0f}",
                f"{peak / 1e6:,.0f} MB",
            ])  # fmt: skip
            print(f"# {rows[-1]}", flush=True)
    print(machine())
    print(table(["observer", "model and data", "CPU seconds", "training steps", "memory"], rows))
    print(
        table(
            ["model and data", "training step"],
            [[f"`{k}`", f"{1000 * v.cpu:.0f} ms"] for k, v in steps.items()],
        )
    )


def pages() -> Iterator[tuple[str, str, str]]:
    """Each observer with the configuration and the settings of its page."""
    for path in sorted((ROOT / "docs" / "observers").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        base, settings = SETTINGS.findall(text)[0]
        yield text.partition("\n")[0].removeprefix("# "), base, settings


def alone(function: Callable[..., Any], threads: int, *args: Any) -> Any:
    """What a function returns, in a process of its own: what others freed is no memory of its; of 0 threads, here."""
    if threads == 0:
        return function(*args)
    with multiprocessing.get_context("spawn").Pool(1, begin, (threads,)) as pool:
        return pool.apply(function, args)


def begin(threads: int) -> None:
    """Of a process."""
    quiet()
    torch.set_num_threads(threads)


class Warmed(Clock):
    """Starts after some updates."""

    def __init__(self, begin: int) -> None:
        super().__init__()
        self.begin = begin

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        if trainer.global_step == self.begin:
            self.start = now(module.device)


def training_step(base: str, updates: int) -> Seconds:
    """Seconds of one."""
    cli = LmdynCLI(["--config", str(ROOT / base), *CPU], run=False)
    clock = Warmed(updates // 3)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_steps=updates, limit_val_batches=0, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
        precision=cli.trainer.precision, callbacks=[clock],
    )  # fmt: skip
    trainer.fit(cli.model, datamodule=cli.datamodule)
    took, number = clock.end.since(clock.start), updates - clock.begin
    return Seconds(took.wall / number, took.cpu / number)


def prepared(base: str, *overlays: Path) -> LmdynCLI:
    """A configuration with its data and its untrained model."""
    configurations = [argument for path in (ROOT / base, *overlays) for argument in ("--config", str(path))]
    cli = LmdynCLI([*configurations, *CPU], run=False)
    data: Any = cli.datamodule
    data.prepare_data()
    data.setup("fit")
    module: Any = cli.model
    cli.trainer.datamodule = data  # type: ignore[attr-defined]
    module.trainer = cli.trainer
    module.configure_model()
    return cli


def observation(name: str, base: str, settings: str, folder: Path, again: float) -> tuple[float, float]:
    """Seconds of CPU time, and bytes beside those that were held."""
    overlay = folder / f"{name}.yaml"
    overlay.write_text(settings, encoding="utf-8")
    cli = prepared(base, overlay)
    data: Any = cli.datamodule
    *_, observer = (c for c in cli.trainer.callbacks if isinstance(c, Observer) and type(c).__name__ == name)  # type: ignore[attr-defined]
    module: Any = cli.model
    observer.attach(Run(folder / name, data.tokenizer, data.token_counts, data, None, folder))
    observer.bind(module.eval())
    if isinstance(observer, LossChangeAllocation):  # of the line between two checkpoints
        torch.save({"state_dict": module.state_dict()}, folder / f"step={0:09d}.ckpt")
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += 0.01 * parameter.std(correction=0) * torch.randn_like(parameter)
    with held() as peak:
        took = seconds_of(observer, module)
    if took.cpu < again:
        took = seconds_of(observer, module)
    return took.cpu, peak[0]


def seconds_of(observer: Observer, module: L.LightningModule) -> Seconds:
    """Of one observation."""
    before = now(module.device)
    observer.observe(module, 1)
    return now(module.device).since(before)


@contextmanager
def held() -> Iterator[list[float]]:
    """The most that is held at once, beside what was held."""
    before, peak, done = memory("RssAnon"), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], memory("RssAnon") - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    main()

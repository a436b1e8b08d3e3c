"""Replay: observers over a folder of checkpoints."""

import argparse
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import lightning as L
import pandas as pd
import pyarrow as pa
import torch
import yaml
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import TensorBoardLogger
from rich.progress import track
from torch import Tensor
from transformers import AutoTokenizer

from lmdyn.analysis.forward import dotted
from lmdyn.callbacks.checkpoint_files import (
    find_checkpoints,
    load_weights,
    read_checkpoint,
    weights_digest,
)
from lmdyn.callbacks.observer import Observer, observe_together
from lmdyn.callbacks.publishing import publish
from lmdyn.callbacks.run import Run, callbacks_of, takes_tokenizer
from lmdyn.callbacks.schedule import Progress

__all__ = ["analyze", "analyze_command"]

log = logging.getLogger(__name__)


def analyze_command(args: Sequence[str]) -> None:
    """``lmdyn analyze RUN [--checkpoints GLOB] [--config FILE …] [--out DIR] [--shard i/n] [--device DEVICE]``."""
    parser = argparse.ArgumentParser(
        "lmdyn analyze",
        description="Replay observers over checkpoints. Observations that are there already are skipped.",
    )
    parser.add_argument("run", type=Path, help="run folder: its config.yaml says model, data and observers")
    parser.add_argument("--checkpoints", help="folder or glob of checkpoints; default: RUN/checkpoints")
    parser.add_argument(
        "--config", action="append", default=[], type=Path,
        help="yaml over the run's own, e.g. other observers under trainer.callbacks (`callbacks+:` appends)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="folder that receives observations/; default: RUN")
    parser.add_argument(
        "--shard", help="i/n: take checkpoints i, i+n, … (i from 0); default: torchrun's or SLURM's"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(list(args))
    analyze(
        options.run,
        checkpoints=options.checkpoints,
        configs=options.config,
        out=options.out,
        shard=parse_shard(options.shard),
        device=options.device,
    )
    log.info("report: python -m lmdyn.cli report %s", options.out or options.run)


def parse_shard(text: str | None) -> tuple[int, int]:
    """``"i/n"`` as (i, n); None reads torchrun's or SLURM's environment, (0, 1) without either.

    Raises:
        ValueError: anything but 0 ≤ i < n.

    Example:
        >>> parse_shard("1/4")
        (1, 4)
    """
    if text is None:
        for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
            if rank in os.environ and size in os.environ:
                return int(os.environ[rank]), int(os.environ[size])
        return 0, 1
    try:
        i, n = (int(part) for part in text.split("/"))
    except ValueError:
        i, n = -1, 0
    if not 0 <= i < n:
        raise ValueError(f"--shard is {text!r}: expected i/n with 0 <= i < n, e.g. 0/4")
    return i, n


def analyze(
    run: Path,
    *,
    checkpoints: str | None = None,
    configs: Sequence[Path] = (),
    out: Path | None = None,
    shard: tuple[int, int] = (0, 1),
    device: str = "cpu",
) -> int:
    """Replay the observers of a run's configuration over its checkpoints.

    Args:
        run: run folder with ``config.yaml``.
        checkpoints: folder or glob; ``<run>/checkpoints`` by default.
        configs: yaml files over the run's own configuration.
        out: folder that receives ``observations/``; the run's by default.
        shard: (i, n): take every n-th checkpoint from the i-th.
        device: where to observe.

    Returns:
        Number of observations made.

    Raises:
        FileNotFoundError: no configuration or no checkpoint.
        ValueError: a checkpoint that does not fit the model, with the names that do not; no observer; an observation
            that cannot be read.
    """
    paths = find_checkpoints(checkpoints or str(run / "checkpoints"))
    first = read_checkpoint(next(iter(paths.values())))
    cli = _instantiate(run, configs, first.get("hyper_parameters", {}), first.get("state_dict", {}))
    module, datamodule = cli.model, cli.datamodule
    observers = [c for c in callbacks_of(cli.trainer) if isinstance(c, Observer)]
    if not observers:
        raise ValueError("no observer is configured: add one under trainer.callbacks, e.g. with --config")
    _attach(observers, run, out or run, datamodule, paths)
    module.to(device)
    logger = TensorBoardLogger(str(out or run), name="", version="replay")
    seen: dict[str, int] = {}
    made = there = 0
    for i, (step, path) in enumerate(track(list(paths.items()), description="replay")):
        if i % shard[1] != shard[0]:
            continue
        checkpoint = read_checkpoint(path)
        twin = seen.setdefault(weights_digest(checkpoint["state_dict"]), step)
        if twin != step:
            log.warning("steps %d and %d hold identical weights (%s)", twin, step, path)
        due = [o for o in observers if not o.store.has(step)]
        there += len(observers) - len(due)
        if not due:
            continue
        load_weights(module, checkpoint["state_dict"], path)
        for observer in due:
            observer.check_module(module)
        about = checkpoint.get("lmdyn", {})
        at = Progress(step, about.get("tokens"), about.get("learning_rate"))
        for observer, table in zip(due, observe_together(due, module, at), strict=True):
            observer.store.write(step, table)
            publish(observer, table, [logger], step)
            made += 1
    logger.finalize("success")
    log.info("%d observations made, %d were there already", made, there)
    return made


def _instantiate(
    run: Path, configs: Sequence[Path], hparams: dict[str, Any], weights: dict[str, Tensor]
) -> Any:
    """Model, data and observers of the run's configuration, for one process and one device."""
    from lmdyn.cli.fit import LmdynCLI

    path = run / "config.yaml"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: expected the folder of a run that was trained by `lmdyn fit`"
        )
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config = {key: config[key] for key in ("seed_everything", "trainer", "model", "data") if key in config}
    config["trainer"] |= {
        "accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "logger": False, "plugins": None,
        "enable_checkpointing": False, "default_root_dir": str(run),
    }  # fmt: skip
    callbacks = config["trainer"].get("callbacks") or []
    if isinstance(callbacks, Mapping):  # a single one needs no list
        callbacks = [callbacks]
    config["trainer"]["callbacks"] = [c for c in callbacks if not _saves_checkpoints(c["class_path"])]
    # what was found in training, as the size of the vocabulary, is in the checkpoint
    arguments = config["model"].get("init_args", {})
    arguments |= {k: hparams[k] for k, v in arguments.items() if v is None and k in hparams}
    merged = run / f".analyze-{os.getpid()}.yaml"
    try:
        merged.write_text(yaml.safe_dump(config), encoding="utf-8")
        args = ["--config", str(merged)]
        for extra in configs:
            if not extra.exists():
                raise FileNotFoundError(f"--config {extra} is missing")
            args += ["--config", str(extra)]
        cli = LmdynCLI(args, run=False)
    finally:
        merged.unlink(missing_ok=True)
    cli.model.configure_model()
    return cli


def _saves_checkpoints(class_path: str) -> bool:
    cls = dotted(class_path)
    return isinstance(cls, type) and issubclass(cls, Checkpoint)


def _attach(
    observers: Sequence[Observer],
    run: Path,
    out: Path,
    datamodule: L.LightningDataModule,
    checkpoints: Mapping[int, Path],
) -> None:
    """What a Trainer's setup does: tokenizer and counts come from the run's folder."""
    folder = run / "tokenizer"
    tokenizer = AutoTokenizer.from_pretrained(str(folder)) if folder.is_dir() else None
    counts_path = folder / "token_counts.parquet"
    try:
        counts = pd.read_parquet(counts_path) if counts_path.exists() else None
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{counts_path} cannot be read ({error})") from error
    if any(o.probe is None for o in observers):  # they look at the run's own validation set
        if tokenizer is not None and takes_tokenizer(datamodule):
            cast(Any, datamodule).tokenizer = tokenizer
        datamodule.prepare_data()
        datamodule.setup("fit")
    names = [o.name for o in observers]
    for observer in observers:
        if names.count(observer.name) > 1:
            raise ValueError(
                f"{names.count(observer.name)} observers are called {observer.name!r}: give each a `name`"
            )
        folder = run / "checkpoints"
        observer.attach(
            Run(out, tokenizer, counts, datamodule, checkpoints, folder if folder.is_dir() else None)
        )

"""Replay: observers over checkpoints, of our runs and of Hugging Face's."""

import fnmatch
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import pyarrow as pa
import torch
import yaml
from huggingface_hub import list_repo_refs
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger
from rich.progress import track
from transformers import AutoTokenizer

from lmdyn.analysis.inspection.forward import dotted
from lmdyn.callbacks.conditions.finding import heed
from lmdyn.callbacks.observing.loggers import publish
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.protocols import HasTokenizer, offers
from lmdyn.callbacks.observing.recording import check_names, record
from lmdyn.callbacks.observing.run import Run
from lmdyn.callbacks.training.checkpoint_files import (
    find_checkpoints,
    load_weights,
    read_checkpoint,
)
from lmdyn.callbacks.training.hub_checkpoints import MODULE as PRETRAINED
from lmdyn.callbacks.training.hub_checkpoints import HubCheckpoints, is_pretrained, stamp
from lmdyn.callbacks.training.lightning_internals import callbacks_of
from lmdyn.callbacks.training.observation_schedule import Progress
from lmdyn.cli.checking.preflight import compared, foreseen_of_replay, held_together, peak_memory
from lmdyn.cli.configurations import read_yaml
from lmdyn.cli.replay_loggers import Destination, logger_settings, logging_to, make_loggers
from lmdyn.cli.studies.provenance import begin_session, end_session
from lmdyn.cli.weights_record import WeightsRecord

__all__ = ["analyze"]

log = logging.getLogger(__name__)


def analyze(
    run: Path | str,
    *,
    checkpoints: str | None = None,
    revisions: str | None = None,
    configs: Sequence[Path] = (),
    only: Sequence[str] = (),
    out: Path | None = None,
    shard: tuple[int, int] = (0, 1),
    scheduled: bool = False,
    device: str = "cpu",
    loggers: Sequence[str] = (),
    command: Sequence[str] = ("lmdyn", "analyze"),
) -> int:
    """Replay observers over checkpoints: those of a run, in a folder of transformers' Trainer, or of a hub model.

    The weights are audited on the way (``weights_audit``): identical weights at two steps and steps
    out of order are warned of and recorded in ``<out>/weights_audit.parquet``. A checkpoint is read once for this, even
    if all its observations are there, and not again as long as its files stay what they are.

    Args:
        run: run folder with ``config.yaml``; a folder of ``checkpoint-*``, or of one model that ``save_pretrained``
            wrote; the name of a hub model.
        checkpoints: folder or glob; ``<run>/checkpoints`` by default.
        revisions: of a hub model, see :class:`~lmdyn.callbacks.training.hub_checkpoints.HubCheckpoints`.
        configs: yaml files over the run's own configuration. For checkpoints of Hugging Face's they are all there is:
            observers under ``trainer.callbacks``, each with a ``probe:``, or ``data:`` whose validation set they share.
        only: names of observers, with ``*`` for any text: these of the configured ones; by default all.
        out: folder that receives ``observations/``; the run's by default.
        shard: (i, n): take every n-th checkpoint from the i-th.
        scheduled: ask each observer at the steps of its schedule only; otherwise all observers at each checkpoint.
        device: where to observe.
        loggers: classes of loggers, or ``none``; by default those of the configuration, see
            :func:`~lmdyn.cli.replay_loggers.logger_settings`. Loggers that are named here are also given the
            observations that are there already; others get the new ones only.
        command: its words, for ``<out>/provenance.json``.

    Returns:
        Number of observations made.

    Raises:
        FileNotFoundError: no configuration or no checkpoint.
        ValueError: a checkpoint that does not fit the model, with the names that do not; no such observer; an
            observation that cannot be read; a hub model that cannot be reached; an unknown logger.
    """
    folder = Path(run)
    paths = _checkpoints(str(run), checkpoints, revisions)
    own = (folder / "config.yaml").exists()
    if not own and out is None:
        raise ValueError(f"{run} is no run of ours: say by --out where its observations shall go")
    out = out or folder
    first = paths[next(iter(paths))]
    config = _run_config(folder, first) if own else _pretrained_config(first)
    to = Destination(out, folder.name, shard)
    settings = _loggers(config, configs, loggers, to)
    cli = _instantiate(config, configs, out)
    module, datamodule = cli.model, cli.datamodule
    observers = _chosen([c for c in callbacks_of(cli.trainer) if isinstance(c, Observer)], only)
    tokenizer = _run_tokenizer(folder) if own else _pretrained_tokenizer(module)
    _attach(observers, folder, out, datamodule, tokenizer, paths)
    module.to(device)
    weights = WeightsRecord(out)
    stamps = {s: paths.stamp(s) if isinstance(paths, HubCheckpoints) else stamp(paths[s]) for s in paths}
    asked = {
        step: [o for o in observers if not scheduled or _in_schedule(o, step, last=max(paths))]
        for i, step in enumerate(paths)
        if i % shard[1] == shard[0]
    }
    log_all = bool(loggers)
    publishes = any(log_all or not o.store.path(s).exists() for s in asked for o in asked[s])
    own_loggers = make_loggers(settings) if publishes else []  # one that gets nothing is not begun
    heed("this replay", foreseen_of_replay(observers, list(paths), scheduled=scheduled), torch.device("cpu"))
    pending = list(dict.fromkeys(o for s in asked for o in asked[s] if not o.store.path(s).exists()))
    made = there = 0
    missing = any(not o.store.path(s).exists() for s in asked for o in asked[s])
    session = begin_session(out, command, device, of=folder) if missing else None
    before = peak_memory(torch.device(device))
    with logging_to(own_loggers):
        for step in track(list(asked), description="replay"):
            due = [o for o in asked[step] if not o.store.has(step)]
            ahead = [o for o in pending if o not in due] if due else []
            pending = [] if due else pending
            _observe(step, paths, due, module, own_loggers, weights, stamps[step], ahead)
            there += len(asked[step]) - len(due)
            made += len(due)
            for observer in asked[step] if log_all else ():
                if observer not in due:
                    table = pd.read_parquet(observer.store.path(step))
                    publish(observer, table, own_loggers, step)
    if made:
        held = sum(c.memory for c in held_together({o: o.costs for o in observers}))
        end_session(out, session, **compared(before + held, torch.device(device)))
    else:
        end_session(out, session)
    _, sentences = weights.audit(stamps)
    for sentence in sentences:
        log.warning("weights audit: %s", sentence)
    log.info("%d observations made, %d were there already", made, there)
    return made


def _observe(
    step: int,
    paths: Mapping[int, Path],
    due: Sequence[Observer],
    module: L.LightningModule,
    loggers: Sequence[Logger],
    weights: WeightsRecord,
    stamped: Any,
    ahead: Sequence[Observer] = (),
) -> None:
    """Observe one checkpoint with the observers that are due, and note what its weights are.

    Those that come ``ahead`` of their steps meet the module too, so that none fails after others have taken an hour.
    """
    known = weights.has(step, stamped)
    if known and not due:
        return
    path = paths[step]  # of a hub model, this fetches it
    checkpoint = read_checkpoint(path)
    if not known:
        weights.add(step, stamped, checkpoint["state_dict"])
    if not due:
        return
    load_weights(module, checkpoint["state_dict"], path)
    for observer in (*due, *ahead):
        observer.meet(module)
    about = checkpoint.get("lmdyn", {})
    at = Progress(step, about.get("tokens"), about.get("learning_rate"))
    record(due, module, at, loggers)


def _chosen(observers: Sequence[Observer], only: Sequence[str]) -> list[Observer]:
    """The observers that are asked for, in their order."""
    if not observers:
        raise ValueError("no observer is configured: add one under trainer.callbacks, e.g. with --config")
    names = [observer.name for observer in observers]
    for pattern in only:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"--only: no observer {pattern!r} is configured, there are {', '.join(names)}")
    return [o for o in observers if not only or any(fnmatch.fnmatchcase(o.name, p) for p in only)]


def _in_schedule(observer: Observer, step: int, last: int) -> bool:
    return step in observer.schedule or (observer.schedule.last and step == last)


def _checkpoints(run: str, checkpoints: str | None, revisions: str | None) -> Mapping[int, Path]:
    """What to replay over, by step."""
    folder = Path(run)
    if revisions is not None:
        if folder.is_dir() or checkpoints is not None:
            raise ValueError(
                f"--revisions are those of a hub model, and {checkpoints or run} is on this machine: leave them out"
            )
        from lmdyn.models.pretrained import hub_folder

        return HubCheckpoints(run, revisions, hub_folder, _hub_refs)
    if (folder / "config.yaml").exists():
        return find_checkpoints(checkpoints or str(folder / "checkpoints"))
    if checkpoints is None and not (
        is_pretrained(folder) or any(p.is_dir() for p in folder.glob("checkpoint-*"))
    ):
        raise FileNotFoundError(
            f"{folder / 'config.yaml'} is missing, and there is no {folder}/checkpoint-*: expected the folder of a run "
            "that was trained by `lmdyn fit` or by transformers' Trainer, or a hub model with --revisions"
        )
    paths = find_checkpoints(checkpoints or run)
    if strange := [p for p in paths.values() if not is_pretrained(p)]:
        raise FileNotFoundError(
            f"{folder / 'config.yaml'} is missing, and {strange[0]} is no model of transformers' (no config.json "
            "in it): expected a run that was trained by `lmdyn fit`, or folders written by save_pretrained"
        )
    return paths


def _hub_refs(name: str) -> list[str]:
    """Branches and tags of a hub model."""
    try:
        refs = list_repo_refs(name)
    except Exception as error:  # of the hub's library, of its HTTP client
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"the revisions of {name!r} cannot be listed ({reason[0]}): check name and connection, or list them "
            "yourself, --revisions step0,step1000"
        ) from error
    return [ref.name for ref in (*refs.branches, *refs.tags)]


def _run_config(run: Path, first: Path) -> dict[str, Any]:
    """The configuration of a run of ours, with what its first checkpoint knows."""
    config = read_yaml(run / "config.yaml")
    config = {key: config[key] for key in ("seed_everything", "trainer", "model", "data") if key in config}
    callbacks = config["trainer"].get("callbacks") or []
    if isinstance(callbacks, Mapping):  # a single one needs no list
        callbacks = [callbacks]
    config["trainer"]["callbacks"] = [c for c in callbacks if not _saves_checkpoints(c["class_path"])]
    # what was found in training, as the size of the vocabulary, is in the checkpoint; numbers only, since texts could
    # name classes, which jsonargparse imports
    saved = read_checkpoint(first).get("hyper_parameters", {})
    hparams = {k: v for k, v in saved.items() if isinstance(v, (int, float))}
    arguments = config["model"].get("init_args", {})
    arguments |= {k: hparams[k] for k, v in arguments.items() if v is None and k in hparams}
    return config


def _pretrained_config(first: Path) -> dict[str, Any]:
    """What there is to say of checkpoints of Hugging Face's: the model."""
    return {
        "seed_everything": 0,
        "trainer": {"callbacks": []},
        "model": {"class_path": PRETRAINED, "init_args": {"name": str(first)}},
        "data": {"class_path": "lightning.LightningDataModule"},  # holds nothing
    }


def _loggers(
    config: Mapping[str, Any], configs: Sequence[Path], named: Sequence[str], to: Destination
) -> list[dict[str, Any]]:
    """Settings of the replay's loggers, of the run's configuration and those over it."""
    trainers = [config["trainer"]]
    for extra in configs:
        if not extra.exists():
            raise FileNotFoundError(f"--config {extra} is missing")
        content = read_yaml(extra)
        trainer = content.get("trainer") if isinstance(content, Mapping) else None
        trainers.append(trainer if isinstance(trainer, Mapping) else {})
    overlays = [trainer["logger"] for trainer in trainers[1:] if "logger" in trainer]
    return logger_settings(trainers[0].get("logger"), overlays, named, to)


def _instantiate(config: dict[str, Any], configs: Sequence[Path], out: Path) -> Any:
    """Model, data and observers of the configuration, for one process and one device."""
    from lmdyn.cli.fit import LmdynCLI

    config["trainer"] |= {
        "accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "logger": False, "plugins": None,
        "enable_checkpointing": False, "default_root_dir": str(out),
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".analyze-", dir=out) as folder:  # other workers have theirs
        merged = Path(folder, "config.yaml")
        merged.write_text(yaml.safe_dump(config), encoding="utf-8")
        args = [f"--config={path}" for path in (merged, *configs)]
        cli = LmdynCLI([*args, "--trainer.logger=false"], run=False)
    cli.model.configure_model()
    return cli


def _saves_checkpoints(class_path: str) -> bool:
    cls = dotted(class_path)
    return isinstance(cls, type) and issubclass(cls, Checkpoint)


def _run_tokenizer(run: Path) -> Any:
    """The tokenizer that is saved with a run, None where there is none."""
    folder = run / "tokenizer"
    return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False) if folder.is_dir() else None


def _pretrained_tokenizer(module: Any) -> Any:
    """The tokenizer beside the weights of a model of Hugging Face's."""
    try:
        return module.tokenizer
    except ValueError as error:
        log.warning("%s; what needs no tokenizer goes on", error)
        return None


def _attach(
    observers: Sequence[Observer],
    run: Path,
    out: Path,
    datamodule: L.LightningDataModule,
    tokenizer: Any,
    checkpoints: Mapping[int, Path],
) -> None:
    """What a Trainer's setup does: tokenizer and counts come from the run's folder, or with the model."""
    counts_path = run / "tokenizer" / "token_counts.parquet"
    try:
        counts = pd.read_parquet(counts_path) if counts_path.exists() else None
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{counts_path} cannot be read ({error})") from error
    if any(o.probe is None for o in observers):  # they look at the run's own validation set
        named = getattr(datamodule, "hparams", {}).get("tokenizer")
        own = (run / "config.yaml").exists()
        if not own and tokenizer is None and named is None and offers(datamodule, HasTokenizer):
            raise ValueError(
                f"there is no tokenizer beside the weights, and {type(datamodule).__name__} would make up its own: "
                "save the one that the model was trained with there (tokenizer.save_pretrained), or give "
                "data.init_args.tokenizer"
            )
        if tokenizer is not None and offers(datamodule, HasTokenizer):
            datamodule.tokenizer = tokenizer
        datamodule.prepare_data()
        datamodule.setup("fit")
    check_names(observers)
    folder = run / "checkpoints"
    for observer in observers:
        observer.attach(
            Run(out, tokenizer, counts, datamodule, checkpoints, folder if folder.is_dir() else None)
        )

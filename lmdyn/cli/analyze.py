"""Replay: observers over checkpoints, of our runs and of Hugging Face's."""

import fnmatch
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import pyarrow as pa
import torch
import yaml
from huggingface_hub import constants

from lmdyn.callbacks.conditions.finding import heed
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.protocols import HasTokenizer, offers
from lmdyn.callbacks.observing.recording import check_names
from lmdyn.callbacks.observing.run import Run
from lmdyn.callbacks.training.atomic_files import UnwritableError
from lmdyn.callbacks.training.hub_checkpoints import HubCheckpoints, StoredNames, is_pretrained, stamp
from lmdyn.callbacks.training.lightning_internals import callbacks_of
from lmdyn.callbacks.training.resume import read_tokenizer
from lmdyn.cli.checking.preflight import compared, foreseen_of_replay, held_together, peak_memory
from lmdyn.cli.checking.untrusted import only_known, refuse_others
from lmdyn.cli.configurations import read_yaml
from lmdyn.cli.replay.downloads import Downloads, KeepLimit
from lmdyn.cli.replay.leases import EXPIRY_S, Leases, file_system_time
from lmdyn.cli.replay.loggers import Destination, logger_settings, logging_to, make_loggers
from lmdyn.cli.replay.reading import ReadAhead
from lmdyn.cli.replay.replay import Backlog, replay
from lmdyn.cli.replay.status import replay_states, status_lines
from lmdyn.cli.replay.subject import Subject
from lmdyn.cli.replay.weights_record import WeightsRecord
from lmdyn.cli.replay.work import Work
from lmdyn.cli.studies.provenance import begin_session, end_session

__all__ = ["analyze", "replay_status"]

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
    worker: tuple[int, int] = (0, 1),
    scheduled: bool = False,
    strict: bool = False,
    device: str = "cpu",
    loggers: Sequence[str] = (),
    keep: KeepLimit | None = None,
    expiry_s: float = EXPIRY_S,
    command: Sequence[str] = ("lmdyn", "analyze"),
    untrusted: bool = False,
) -> int:
    """Replay observers over checkpoints: those of a run, in a folder of transformers' Trainer, or of a hub model.

    Any number of workers, on machines that share the folder, may be started with the same arguments, at any time:
    each takes the next checkpoint that nobody has (:class:`~lmdyn.cli.replay.leases.Leases`), helps others when none is
    left, and ends when everything is there. The next checkpoint is read while one is observed. One that fails is
    reported, the others go on, and the same command tries it again.

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
        shard: (i, n): take every n-th checkpoint from the i-th only.
        worker: (i, n): the i-th of n that were started at once, who begin at different checkpoints.
        scheduled: ask each observer at the steps of its schedule only; otherwise all observers at each checkpoint.
        strict: stop at the first failure.
        device: where to observe.
        loggers: classes of loggers, or ``none``; by default those of the configuration, see
            :func:`~lmdyn.cli.replay.loggers.logger_settings`. Loggers that are named here are also given the
            observations that are there already; others get the new ones only.
        keep: of a hub model, how much of what all workers download may be in the cache at once, beside the first
            checkpoint; None removes nothing.
        expiry_s: seconds without a sign of life after which a worker's checkpoint is another's to take.
        command: its words, for ``<out>/provenance.json``.
        untrusted: the run is somebody else's: its configuration may name classes of an exact list only
            (:func:`~lmdyn.cli.checking.untrusted.known_paths`), and what ``configs`` name.

    Returns:
        Number of observations made.

    Raises:
        FileNotFoundError: no configuration or no checkpoint.
        ValueError: no such observer; an observation that is there and cannot be read; a hub model that cannot be
            reached; an unknown logger; a folder that cannot be written; at the end, what has failed, such as a
            checkpoint that does not fit the model, with the names that do not.
    """
    subject = Subject(run, checkpoints, revisions, out)
    folder, out, paths, first = subject.folder, subject.out, subject.paths, subject.first
    allowed = subject.checked(configs) if untrusted else None
    began = _time_of(out)
    config = subject.config()
    to = Destination(out, folder.name, shard if shard[1] > 1 else worker)
    settings = _loggers(config, configs, loggers, to)
    cli = _instantiate(config, configs, out, allowed)
    module, datamodule = cli.model, cli.datamodule
    observers = _chosen(cli, only)
    tokenizer = read_tokenizer(folder / "tokenizer") if subject.own else _pretrained_tokenizer(module)
    _attach(observers, folder, out, datamodule, tokenizer, paths)
    fits = StoredNames.find(first, module.state_dict()) if is_pretrained(first) else None
    module.to(device)
    weights = WeightsRecord(out)
    stamps = {s: paths.stamp(s) if isinstance(paths, HubCheckpoints) else stamp(paths[s]) for s in paths}
    asked = _asked(paths, observers, shard, scheduled=scheduled)
    there = {step: [o for o in asked[step] if o.store.has(step)] for step in asked}
    missing = any(len(there[s]) < len(asked[s]) for s in asked)
    backlog = Backlog(there if loggers and settings else {}, worker)  # without loggers nothing is read again
    own_loggers = make_loggers(settings) if missing or backlog else []  # one that gets nothing is not begun
    heed("this replay", foreseen_of_replay(observers, list(paths), scheduled=scheduled), torch.device("cpu"))
    session = begin_session(out, command, device, of=folder) if missing else None
    before = peak_memory(torch.device(device))
    known = lambda step: weights.has(step, stamps[step])  # noqa: E731
    with Leases(expiry_s) as leases, _bounded(subject, keep, leases) as fetched, logging_to(own_loggers):
        work = Work(
            asked,
            {step: (weights.file(step), partial(known, step)) for step in asked},
            leases,
            began=began,
            first=worker[0] * len(asked) // worker[1],
            strict=strict,
            source_may_fail=isinstance(paths, HubCheckpoints),
        )
        try:
            done = fetched.done if isinstance(fetched, Downloads) else lambda step: None
            with ReadAhead(fetched, fits, known, done) as reading:
                replay(work, reading, module, own_loggers, backlog, weights, stamps)
        finally:
            work.tidy()
        backlog.publish(own_loggers)
    if work.made:
        held = sum(c.memory for c in held_together({o: o.costs for o in observers}))
        end_session(out, session, **compared(before + held, torch.device(device)))
    else:
        end_session(out, session)
    _, sentences = weights.audit(stamps)
    for sentence in sentences:
        log.warning("weights audit: %s", sentence)
    n_there = sum(map(len, there.values()))
    by_others = sum(map(len, asked.values())) - n_there - work.made - work.n_failed
    more = f", {by_others} were made by others meanwhile" if by_others > 0 else ""
    more += f" ({work.dropped} of them by us, too, and dropped)" if work.dropped else ""
    log.info("%d observations made, %d were there already%s", work.made, n_there, more)
    work.raise_failures()
    return work.made


def _time_of(out: Path) -> float:
    """The time of the file system of a folder that is going to be written."""
    folder = out / "observations" if (out / "observations").exists() else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return file_system_time(folder)
    except OSError as error:
        raise UnwritableError(out, error, "give another folder by --out") from error


def replay_status(
    run: Path | str,
    *,
    checkpoints: str | None = None,
    revisions: str | None = None,
    configs: Sequence[Path] = (),
    only: Sequence[str] = (),
    out: Path | None = None,
    shard: tuple[int, int] = (0, 1),
    scheduled: bool = False,
    expiry_s: float = EXPIRY_S,
    untrusted: bool = False,
) -> list[str]:
    """How far a replay is: lines of what is done, running, stale and failed, and why. Nothing is written.

    Args:
        run: this and the other arguments are those of :func:`analyze`.
        checkpoints: see there.
        revisions: see there.
        configs: see there.
        only: see there.
        out: see there.
        shard: see there.
        scheduled: see there.
        expiry_s: see there.
        untrusted: see there.

    Raises:
        FileNotFoundError: no configuration or no checkpoint.
        ValueError: no such observer; a hub model that cannot be reached.
    """
    subject = Subject(run, checkpoints, revisions, out)
    allowed = subject.checked(configs) if untrusted else None
    observers = _chosen(_instantiate(subject.config(), configs, subject.out, allowed), only)
    check_names(observers)
    asked = _asked(subject.paths, observers, shard, scheduled=scheduled)
    names = {step: [o.name for o in of] for step, of in asked.items()}
    return status_lines(replay_states(subject.out, names, Leases(expiry_s)))


@contextmanager
def _bounded(subject: Subject, keep: KeepLimit | None, leases: Leases) -> Iterator[Mapping[int, Path]]:
    """The checkpoints, with a bound on what is downloaded."""
    if keep is None or not isinstance(subject.paths, HubCheckpoints):
        yield subject.paths
        return
    from lmdyn.models.pretrained import cached_folder

    slots = keep.slots(subject.first)
    log.info("--keep: at most %d downloaded checkpoints are in the cache at once, and the first one", slots)
    folder = subject.out / "downloads"
    downloads = Downloads(subject.paths, cached_folder, Path(constants.HF_HUB_CACHE), folder, slots, leases)
    try:
        yield downloads
    finally:
        downloads.close()
        with suppress(OSError):  # not empty: other workers are at it
            folder.rmdir()


def _asked(
    paths: Mapping[int, Path], observers: Sequence[Observer], shard: tuple[int, int], *, scheduled: bool
) -> dict[int, list[Observer]]:
    """By step, the observers that are asked at it."""
    return {
        step: [o for o in observers if not scheduled or _in_schedule(o, step, last=max(paths))]
        for i, step in enumerate(paths)
        if i % shard[1] == shard[0]
    }


def _chosen(cli: Any, only: Sequence[str]) -> list[Observer]:
    """The observers that are asked for, in their order."""
    observers = [c for c in callbacks_of(cli.trainer) if isinstance(c, Observer)]
    if not observers:
        raise ValueError("no observer is configured: add one under trainer.callbacks, e.g. with --config")
    names = [observer.name for observer in observers]
    for pattern in only:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"--only: no observer {pattern!r} is configured, there are {', '.join(names)}")
    return [o for o in observers if not only or any(fnmatch.fnmatchcase(o.name, p) for p in only)]


def _in_schedule(observer: Observer, step: int, last: int) -> bool:
    return step in observer.schedule or (observer.schedule.last and step == last)


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


def _instantiate(
    config: dict[str, Any], configs: Sequence[Path], out: Path, allowed: frozenset[str] | None = None
) -> Any:
    """Model, data and observers of the configuration, for one process and one device; of ``allowed`` classes."""
    from lmdyn.cli.fit import LmdynCLI

    class Checked(LmdynCLI):
        def before_instantiate_classes(self) -> None:
            super().before_instantiate_classes()
            if allowed is not None:  # also of files that the configuration names
                refuse_others(self.config.as_dict(), "the configuration", allowed)

    config["trainer"] |= {
        "accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "logger": False, "plugins": None,
        "enable_checkpointing": False, "default_root_dir": str(out),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="lmdyn-analyze-") as folder:
        merged = Path(folder, "config.yaml")
        merged.write_text(yaml.safe_dump(config), encoding="utf-8")
        args = [f"--config={path}" for path in (merged, *configs)]
        with nullcontext() if allowed is None else only_known(allowed):
            cli = Checked([*args, "--trainer.logger=false"], run=False)
    cli.model.configure_model()
    return cli


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

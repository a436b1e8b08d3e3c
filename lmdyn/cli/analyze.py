"""Replay: run observers over checkpoints of lmdyn's runs and of Hugging Face models."""

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

__all__ = ["analyze", "end_tokens", "replay_status"]

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
    """Replay observers over the checkpoints of a run, of a folder of transformers' Trainer, or of a hub model.

    Any number of workers, on machines that share the folder, may be started with the same arguments at any time. Each
    takes the next free checkpoint (:class:`~lmdyn.cli.replay.leases.Leases`), helps other workers when none is left,
    and ends when all observations exist. The next checkpoint is read while the current one is observed. If a checkpoint
    fails, it is reported and the others are still observed; the same command retries it.

    The weights are audited at the same time (``weights_audit``): identical weights at two steps and steps out of order
    raise warnings and are recorded in ``<out>/weights_audit.parquet``. For this, a checkpoint is read once even if all
    its observations exist, and not again unless its files change.

    Args:
        run: run folder with ``config.yaml``; a folder of ``checkpoint-*``, or of one model written by
            ``save_pretrained``; or the name of a hub model.
        checkpoints: folder or glob; default: ``<run>/checkpoints``.
        revisions: revisions of a hub model, see :class:`~lmdyn.callbacks.training.hub_checkpoints.HubCheckpoints`.
        configs: yaml files applied on top of the run's configuration. For Hugging Face checkpoints they are the only
            configuration: observers under ``trainer.callbacks``, each with a ``probe:``, or ``data:`` whose validation
            set they share.
        only: names of the configured observers to run, with ``*`` for any text; default: all.
        out: folder that receives ``observations/``; default: the run's folder.
        shard: (i, n): observe only every n-th checkpoint from the i-th.
        worker: (i, n): this is the i-th of n workers started together, which begin at different checkpoints.
        scheduled: whether to call each observer only at the steps of its schedule; otherwise all observers are called
            at each checkpoint.
        strict: whether to stop at the first failure.
        device: device on which to observe.
        loggers: classes of loggers, or ``none``; default: those of the configuration, see
            :func:`~lmdyn.cli.replay.loggers.logger_settings`. Loggers named here also receive existing observations;
            those of the configuration receive only new ones.
        keep: for a hub model, how many downloads of all workers may be in the cache at once, in addition to the first
            checkpoint; None removes nothing.
        expiry_s: seconds without a heartbeat after which other workers may take a worker's checkpoint.
        command: words of the command line, for ``<out>/provenance.json``.
        untrusted: whether the run is not trusted: its configuration may name only classes of an exact list
            (:func:`~lmdyn.cli.checking.untrusted.known_paths`), and those named in ``configs``.

    Returns:
        Number of observations made.

    Raises:
        FileNotFoundError: if there is no configuration or no checkpoint.
        ValueError: if an observer or logger is unknown, an existing observation cannot be read, a hub model cannot be
            reached, or a folder cannot be written; at the end, if anything failed, such as a checkpoint that does not
            fit the model (the message lists the names that do not).
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
    if not subject.own:
        for sentence in end_tokens([datamodule, *(o.probe for o in observers)]):
            log.warning("%s", sentence)
    fits = StoredNames.find(first, module.state_dict()) if is_pretrained(first) else None
    module.to(device)
    weights = WeightsRecord(out)
    stamps = {s: paths.stamp(s) if isinstance(paths, HubCheckpoints) else stamp(paths[s]) for s in paths}
    asked = _asked(paths, observers, shard, scheduled=scheduled)
    there = {step: [o for o in asked[step] if o.store.has(step)] for step in asked}
    missing = any(len(there[s]) < len(asked[s]) for s in asked)
    backlog = Backlog(there if loggers and settings else {}, worker)  # without loggers, nothing is read again
    # loggers that would receive nothing are not started
    own_loggers = make_loggers(settings) if missing or backlog else []
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
    more = f", {by_others} were made by other workers" if by_others > 0 else ""
    more += f" ({work.dropped} of them also by this worker, and discarded)" if work.dropped else ""
    log.info("%d observations made, %d existed already%s", work.made, n_there, more)
    work.raise_failures()
    return work.made


def _time_of(out: Path) -> float:
    """Return the time according to the file system of a folder that will be written to."""
    folder = out / "observations" if (out / "observations").exists() else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return file_system_time(folder)
    except OSError as error:
        raise UnwritableError(out, error, "choose another folder with --out") from error


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
    """Return the progress of a replay: lines that say what is done, running, stale and failed (with reasons).

    Nothing is written.

    Args:
        run: see :func:`analyze`.
        checkpoints: see :func:`analyze`.
        revisions: see :func:`analyze`.
        configs: see :func:`analyze`.
        only: see :func:`analyze`.
        out: see :func:`analyze`.
        shard: see :func:`analyze`.
        scheduled: see :func:`analyze`.
        expiry_s: see :func:`analyze`.
        untrusted: see :func:`analyze`.

    Raises:
        FileNotFoundError: if there is no configuration or no checkpoint.
        ValueError: if an observer is unknown, or a hub model cannot be reached.
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
    """Yield the checkpoints, with a limit on the number of downloads in the cache."""
    if keep is None or not isinstance(subject.paths, HubCheckpoints):
        yield subject.paths
        return
    from lmdyn.models.pretrained import cached_folder

    slots = keep.slots(subject.first)
    log.info(
        "--keep: at most %d downloaded checkpoints are in the cache at once, in addition to the first one",
        slots,
    )
    folder = subject.out / "downloads"
    downloads = Downloads(subject.paths, cached_folder, Path(constants.HF_HUB_CACHE), folder, slots, leases)
    try:
        yield downloads
    finally:
        downloads.close()
        with suppress(OSError):  # not empty: other workers use it
            folder.rmdir()


def _asked(
    paths: Mapping[int, Path], observers: Sequence[Observer], shard: tuple[int, int], *, scheduled: bool
) -> dict[int, list[Observer]]:
    """Return the observers that are called at each step."""
    return {
        step: [o for o in observers if not scheduled or _in_schedule(o, step, last=max(paths))]
        for i, step in enumerate(paths)
        if i % shard[1] == shard[0]
    }


def _chosen(cli: Any, only: Sequence[str]) -> list[Observer]:
    """Return the selected observers in their order."""
    observers = [c for c in callbacks_of(cli.trainer) if isinstance(c, Observer)]
    if not observers:
        raise ValueError("no observer is configured: add one under trainer.callbacks, e.g. with --config")
    names = [observer.name for observer in observers]
    for pattern in only:
        if not fnmatch.filter(names, pattern):
            raise ValueError(
                f"--only: no observer {pattern!r} is configured; configured observers: {', '.join(names)}"
            )
    return [o for o in observers if not only or any(fnmatch.fnmatchcase(o.name, p) for p in only)]


def _in_schedule(observer: Observer, step: int, last: int) -> bool:
    return step in observer.schedule or (observer.schedule.last and step == last)


def _loggers(
    config: Mapping[str, Any], configs: Sequence[Path], named: Sequence[str], to: Destination
) -> list[dict[str, Any]]:
    """Return the settings of the replay's loggers, from the run's configuration and those applied on top."""
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
    """Instantiate model, data and observers of the configuration for one process; ``allowed`` limits the classes."""
    from lmdyn.cli.fit import LmdynCLI

    class Checked(LmdynCLI):
        def before_instantiate_classes(self) -> None:
            super().before_instantiate_classes()
            if allowed is not None:  # also for files that the configuration names
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
    """Return the tokenizer stored next to the weights of a Hugging Face model."""
    try:
        return module.tokenizer
    except ValueError as error:
        log.warning("%s; observers that need no tokenizer still run", error)
        return None


def _attach(
    observers: Sequence[Observer],
    run: Path,
    out: Path,
    datamodule: L.LightningDataModule,
    tokenizer: Any,
    checkpoints: Mapping[int, Path],
) -> None:
    """Set up what a Trainer would: tokenizer and counts from the run's folder or from the model's."""
    counts_path = run / "tokenizer" / "token_counts.parquet"
    try:
        counts = pd.read_parquet(counts_path) if counts_path.exists() else None
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{counts_path} cannot be read ({error})") from error
    if any(o.probe is None and o.reads_data for o in observers):  # these observe the run's own validation set
        named = getattr(datamodule, "hparams", {}).get("tokenizer")
        own = (run / "config.yaml").exists()
        if not own and tokenizer is None and named is None and offers(datamodule, HasTokenizer):
            raise ValueError(
                f"no tokenizer next to the weights, and {type(datamodule).__name__} would create its own: "
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


def end_tokens(data: Sequence[Any]) -> list[str]:
    """Return a warning for each kind of text that gives others' models end tokens, which they may not have learned."""
    causal = [one for one in data if getattr(one, "objective", None) == "causal"]
    texts = [getattr(one, "corpus", None) or one for one in causal]
    written = {type(one).__name__ for one in texts if getattr(one, "hparams", {}).get("eos") is True}
    return [
        f"{name}: the tokenizer's end token follows each sentence (`eos: true`). A model that has not learned it there "
        "has a higher loss, and other activations, for that reason alone: set `eos: false` to read the text as it is"
        for name in sorted(written)
    ]

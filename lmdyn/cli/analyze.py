"""Replay: run observers over checkpoints of lmdyn's runs and of Hugging Face models."""

import fnmatch
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import pyarrow as pa
import torch
from huggingface_hub import constants

from lmdyn.analysis.inspection.attributes import did_you_mean
from lmdyn.callbacks.observing.findings import raise_or_warn
from lmdyn.callbacks.observing.loggers import draw
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import text_digest
from lmdyn.callbacks.observing.protocols import HasTokenizer, offers
from lmdyn.callbacks.observing.recording import check_names
from lmdyn.callbacks.observing.requirements import silently
from lmdyn.callbacks.observing.run import Run, snake_case
from lmdyn.callbacks.training.lightning_internals import callbacks_of
from lmdyn.callbacks.training.resume import read_tokenizer
from lmdyn.cli.configurations import Config
from lmdyn.cli.inspecting.data import find_data
from lmdyn.cli.inspecting.inspected_model import find_subject
from lmdyn.cli.recorded_observers import exported_observers
from lmdyn.cli.replay.downloads import Downloads
from lmdyn.cli.replay.read_ahead import ReadAhead
from lmdyn.cli.replay.replay import Backlog, Replay
from lmdyn.cli.replay.replay_loggers import Destination, logger_settings, logging_to, make_loggers
from lmdyn.cli.replay.subject import Subject
from lmdyn.cli.replay.weights_record import WeightsRecord
from lmdyn.cli.replay.work import Work
from lmdyn.cli.training.preflight import foreseen_of_replay
from lmdyn.cli.trust.folders import check_folder
from lmdyn.cli.trust.untrusted import imports_restored, refuse_others
from lmdyn.datamodules.corpora.tokenization import check_growth
from lmdyn.runs.atomic_files import make_writable, remove_unfinished
from lmdyn.runs.checkpoint_files import read_checkpoint, updates_in
from lmdyn.runs.hub_checkpoints import (
    HubCheckpoints,
    StoredNames,
    is_pretrained,
    name_amounts,
    pretrained_content,
    stamp,
)
from lmdyn.runs.provenance import begin_session, end_session
from lmdyn.runs.run_identity import write_identity
from lmdyn.runs.store import ObservationStore
from lmdyn.runs.yaml_files import read_yaml

log = logging.getLogger(__name__)

_SHOWN = 20  # missing steps of an observer


@imports_restored()
def analyze(
    run: Path | str,
    *,
    checkpoints: str | None = None,
    revisions: str | None = None,
    configs: Sequence[Path] = (),
    only: Sequence[str] = (),
    observe: Sequence[str] = (),
    data: str | None = None,
    out: Path | None = None,
    shard: tuple[int, int] = (0, 1),
    scheduled: bool = False,
    strict: bool = False,
    device: str = "cpu",
    loggers: Sequence[str] = (),
    keep: int | None = None,
    command: Sequence[str] = ("lmdyn", "analyze"),
    untrusted: bool = False,
    status: bool = False,
) -> int:
    """Replay observers over the checkpoints of a run, of a folder of transformers' Trainer, or of a hub model.

    Workers on machines that share the folder each make their own share (``shard``), then what is missing of the others'
    from their ends; of an observation that two make, the first is kept. The next checkpoint is read while the current
    one is observed. If a checkpoint fails, it is reported and the others are still observed; the same command retries
    it.

    The weights are audited at the same time (``weights_audit``): identical weights at two steps and steps out of order
    raise warnings and are recorded in ``<out>/weights_audit.parquet``. For this, a checkpoint is read once even if all
    its observations exist, and not again unless its files change.

    Args:
        run: run folder with ``config.yaml``; a folder of ``checkpoint-*``, or of one model written by
            ``save_pretrained``; or the name of a hub model.
        checkpoints: folder or glob, also relative to the run; or a step, ``5``, or steps, ``5:100``; default:
            ``<run>/checkpoints``.
        revisions: revisions of a hub model, see :class:`~lmdyn.runs.hub_checkpoints.HubCheckpoints`.
        configs: yaml files applied on top of the run's configuration. For Hugging Face checkpoints they are the only
            configuration: observers under ``trainer.callbacks``, each with a ``probe:``, or ``data:`` whose validation
            set they share.
        only: names of the configured observers to run, or of their classes, with ``*`` for any text; default: all.
        observe: observers of lmdyn, by class or name, that run with default arguments instead of the configured ones.
        data: text file, yaml with ``data``, or ``package.Class`` of a datamodule, encoded for the model as ``lmdyn
            inspect`` does: observers without a ``probe:`` of their own observe it instead of the run's validation set.
        out: folder that receives ``observations/``; default: the run's folder.
        shard: (i, n): this is the i-th of n workers, whose share is every n-th checkpoint from the i-th.
        scheduled: whether to call each observer only at the steps of its schedule; otherwise all observers are called
            at each checkpoint.
        strict: whether to stop at the first failure.
        device: device on which to observe.
        loggers: classes of loggers, or ``none``; default: those of the configuration, see
            :func:`~lmdyn.cli.replay.replay_loggers.logger_settings`. Loggers named here also receive existing
            observations; those of the configuration receive only new ones.
        keep: for a hub model, how many downloads of all workers may be in the cache at once, in addition to the first
            checkpoint; None removes nothing.
        command: words of the command line, for ``<out>/provenance.json``.
        untrusted: whether the run is not trusted: its configuration may name only classes of an exact list
            (:func:`~lmdyn.cli.trust.untrusted.known_paths`), and those named in ``configs``.
        status: whether to write nothing, and only print which observations exist and which are missing.

    Returns:
        Number of observations made.

    Raises:
        FileNotFoundError: if there is no configuration or no checkpoint.
        ValueError: if an observer or logger is unknown, an existing observation cannot be read, a hub model cannot be
            reached, or a folder cannot be written; at the end, if anything failed, such as a checkpoint that does not
            fit the model (the message lists the names that do not).
    """
    check_folder(Path(run), received=untrusted)
    subject = Subject(run, checkpoints, revisions, out)
    folder, out, first = subject.folder, subject.out, subject.first
    allowed = subject.checked(configs, [*loggers, *([data] if data else [])]) if untrusted else None
    existing = out / "observations"
    if not status:
        make_writable(existing if existing.exists() else out, "choose another folder with --out")
    config = subject.config()
    settings = [] if status else _loggers(config, configs, loggers, Destination(out, folder.name, shard))
    overlays = [*subject.overlays(configs), *([_observing(observe)] if observe else [])]
    if data is not None:
        with silently(logging.WARNING):
            model = find_subject(str(folder if subject.own else first))
            overlays.append({"data": find_data(data, model).entry})
    cli = _instantiate(config, overlays, out, allowed)
    observers, asked = _asked(subject, cli, only, scheduled=scheduled)
    if status:
        check_names(observers)
        sys.stdout.write(_status(out, observers, asked))
        return 0
    module = cli.model
    datamodule = cli.datamodule
    paths = subject.paths
    try:
        tokenizer: Any = read_tokenizer(folder / "tokenizer") if subject.own else module.tokenizer
    except ValueError as error:
        if subject.own:
            raise
        log.warning("%s; observers that need no tokenizer still run", error)
        tokenizer = None
    check_growth(tokenizer)
    fits = StoredNames.find(first, module.state_dict()) if is_pretrained(first) else None
    _attach(observers, subject, datamodule, tokenizer, fits)
    if not subject.own:
        for sentence in end_tokens([datamodule, *(o.probe for o in observers)]):
            log.warning("%s", sentence)
    # the module has the first checkpoint's weights, as just compared
    held = (next(iter(paths)), pretrained_content(first, module.state_dict())) if fits else None
    module.to(device)
    weights = WeightsRecord(out)
    hub = paths if isinstance(paths, HubCheckpoints) else None
    stamps = {s: hub.stamp(s) if hub else stamp(paths[s]) for s in paths}
    amounts = {s: name_amounts(hub.model(s)[1] or hub.name if hub else paths[s].name) for s in paths}
    there = {step: [o for o in every if o.store.has(step)] for step, every in asked.items()}
    lacking = {o for step, every in asked.items() for o in every if o not in there[step]}
    backlog = Backlog(there if loggers and settings else {}, shard)  # without loggers, nothing is read again
    shows_existing = bool(backlog)
    logged = [o for o in observers if shows_existing or o in lacking]
    own_loggers = make_loggers(settings) if logged else []  # otherwise they would receive nothing
    raise_or_warn("this replay", foreseen_of_replay(observers, list(paths)), torch.device("cpu"))
    session = begin_session(out, command, device, of=folder) if lacking else None
    if lacking and not subject.own:
        seen = next((o for o in observers if o.reads_data), None)
        about = {} if seen is None else {"probe": seen.probe or datamodule}
        text = None if seen is None else text_digest(seen.probe_set, module)
        write_identity(out, module, tokenizer=tokenizer, data=about, text=text, keep=True, trained_here=False)
    known = lambda step: weights.digest(step, stamps[step]) is not None  # noqa: E731
    with logging_to(own_loggers):
        work = Work(asked, known, shard=shard, strict=strict, source_may_fail=hub is not None)
        try:
            with ReadAhead(_bounded(subject, keep, shard), fits, known, held) as reading:
                del held  # of a module on another device, a copy
                Replay(work, reading, module, own_loggers, backlog, weights, stamps, amounts, first).run()
        finally:
            for observer in observers:  # of killed workers
                remove_unfinished(observer.store.folder)
        backlog.publish(own_loggers)
        for observer in logged if work.made or shows_existing else ():
            if observer.log_figures is True and (steps := observer.store.steps()):
                draw(observer, own_loggers, steps[-1])
    end_session(out, session)
    for sentence in weights.audit(stamps):
        log.warning("weights audit: %s", sentence)
    n_there = sum(map(len, there.values()))
    log.info("new observations: %d; existing observations: %d", work.made, n_there)
    work.raise_failures()
    return work.made


def _status(out: Path, observers: Sequence[Observer], asked: Mapping[int, Sequence[Observer]]) -> str:
    """Return a table of numbers, followed by the missing observations: not made yet, or failed."""
    width = max(len(name) for name in ("observer", *(o.name for o in observers)))
    lines = [f"{'observer':<{width}}  checkpoints  done  missing"]
    missing_lines = []
    for observer in observers:
        name = observer.name
        there = set(ObservationStore(out / "observations" / name).steps())
        steps = [step for step, every in asked.items() if observer in every]
        if not steps:
            continue
        missing = [step for step in steps if step not in there]
        lines.append(f"{name:<{width}}  {len(steps):>11}  {len(steps) - len(missing):>4}  {len(missing):>7}")
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            missing_lines.append(f"missing  {name}: steps {', '.join(map(str, missing[:_SHOWN]))}{more}")
    return "".join(f"{line}\n" for line in lines + missing_lines)


def _bounded(subject: Subject, keep: int | None, shard: tuple[int, int]) -> Mapping[int, Path] | Downloads:
    """Return the checkpoints, with a limit on the number of downloads in the cache."""
    if keep is None or not isinstance(subject.paths, HubCheckpoints):
        return subject.paths
    from lmdyn.models.pretrained import cached_folder

    if keep < (least := 2 * shard[1]):  # the observed one, and the next one
        raise ValueError(f"--keep {keep}: expected {least} or more, two checkpoints for each worker")
    return Downloads(subject.paths, cached_folder, Path(constants.HF_HUB_CACHE))


def _asked(
    subject: Subject, cli: Any, only: Sequence[str], *, scheduled: bool
) -> tuple[list[Observer], dict[int, list[Observer]]]:
    """Return the selected observers in their order, and those that are called at each step."""
    if subject.own and not cli.model.automatic_optimization:
        updates_in(read_checkpoint([*subject.paths.values()][-1]))  # refuses steps of all optimizers
    observers = [c for c in callbacks_of(cli.trainer) if isinstance(c, Observer)]
    if not observers:
        raise ValueError("no observer is configured: give --observe NAME, or --config FILE with observers")
    names = [observer.name for observer in observers]
    called = {observer: (observer.name, type(observer).__name__) for observer in observers}
    for pattern in only:
        if not any(fnmatch.filter(of_one, pattern) for of_one in called.values()):
            near = did_you_mean(pattern, [name for of_one in called.values() for name in of_one]) or ";"
            raise ValueError(
                f"--only: no observer {pattern!r} is configured{near} name one of {', '.join(names)}, or use --observe"
            )
    chosen = [o for o in observers if not only or any(fnmatch.filter(called[o], p) for p in only)]
    last = max(subject.paths)
    if scheduled and (of := [o.name for o in chosen if o.schedule.amounts]):
        raise ValueError(
            f"--scheduled requires schedules in steps, not in tokens or words ({', '.join(of)}): omit --scheduled"
        )

    def due(observer: Observer, step: int) -> bool:
        return step in observer.schedule or (observer.schedule.last and step == last)

    asked = {step: [o for o in chosen if not scheduled or due(o, step)] for step in subject.paths}
    return chosen, asked


def _observing(observe: Sequence[str]) -> Config:
    """Return a configuration of observers of lmdyn with their default arguments.

    Raises:
        ValueError: for an unknown name.
    """
    classes = list(exported_observers())
    names = {snake_case(name): name for name in classes} | {name: name for name in classes}
    for name in observe:
        if name not in names:
            near = did_you_mean(name, classes) or ":"
            raise ValueError(f"--observe: unknown observer {name!r}{near} `lmdyn inspect MODEL` lists all")
    return {"trainer": {"callbacks": [{"class_path": f"lmdyn.callbacks.{names[name]}"} for name in observe]}}


def _loggers(config: Config, configs: Sequence[Path], named: Sequence[str], to: Destination) -> list[Config]:
    """Return the settings of the replay's loggers, from the run's configuration and those applied on top."""
    contents = [content for content in map(read_yaml, configs) if isinstance(content, Mapping)]
    trainers = [content.get("trainer") for content in contents]
    overlays = [t["logger"] for t in trainers if isinstance(t, Mapping) and "logger" in t]
    return logger_settings(config["trainer"].get("logger"), overlays, named, to)


def _instantiate(
    config: Config,
    overlays: Sequence[Path | Config],
    out: Path,
    allowed: frozenset[str] | None = None,
) -> Any:
    """Instantiate model, data and observers of the configuration for one process; ``allowed`` limits the classes."""
    from lmdyn.cli.fit import ONE_PROCESS, LmdynCLI, as_option

    class Checked(LmdynCLI):
        def before_instantiate_classes(self) -> None:
            super().before_instantiate_classes()
            if allowed is not None:  # also for files that the configuration names
                refuse_others(self.config.as_dict(), "the configuration", allowed)

    # the run's own are not even parsed
    none = {"logger": False}
    config["trainer"] |= {**ONE_PROCESS, **none, "enable_checkpointing": False, "default_root_dir": str(out)}
    words = [f"--config={o}" if isinstance(o, Path) else as_option(o) for o in (config, *overlays)]
    cli = Checked([*words, as_option({"trainer": none})], run=False)
    cli.model.configure_model()
    return cli


def _attach(
    observers: Sequence[Observer],
    subject: Subject,
    datamodule: L.LightningDataModule,
    tokenizer: Any,
    stored_names: StoredNames | None,
) -> None:
    """Set up what a Trainer would: tokenizer and counts from the run's folder or from the model's."""
    counts_path = subject.folder / "tokenizer" / "token_counts.parquet"
    try:
        counts = pd.read_parquet(counts_path) if counts_path.exists() else None
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{counts_path} cannot be read ({error}): restore the file") from error
    if any(o.probe is None and o.reads_data for o in observers):  # these observe the run's own validation set
        if type(datamodule) is L.LightningDataModule:  # of others' checkpoints
            raise ValueError("no data to observe: give --data FILE, or `data:` in the yaml of --config")
        named = getattr(datamodule, "hparams", {}).get("tokenizer")
        if not subject.own and tokenizer is None and named is None and offers(datamodule, HasTokenizer):
            raise ValueError(
                f"the folder of the weights has no tokenizer, and {type(datamodule).__name__} would create another "
                "one. Save the model's tokenizer into the folder (tokenizer.save_pretrained), or set "
                "data.init_args.tokenizer"
            )
        if tokenizer is not None and offers(datamodule, HasTokenizer):
            datamodule.tokenizer = tokenizer
        datamodule.prepare_data()
        datamodule.setup("fit")
    check_names(observers)
    run = Run(subject.out, tokenizer, counts, datamodule, subject.paths, subject.saved, stored_names)
    for observer in observers:
        observer.attach(run)


def end_tokens(data: Sequence[Any]) -> list[str]:
    """Return a warning for each kind of text that gives others' models end tokens, which they may not have learned."""
    causal = [one for one in data if getattr(one, "objective", None) == "causal"]
    texts = [getattr(one, "corpus", None) or one for one in causal]
    written = {type(one).__name__ for one in texts if getattr(one, "hparams", {}).get("eos") is True}
    return [
        f"{name} puts the tokenizer's end token after each document or sentence (`eos: true`). A model that has not "
        "learned end tokens has a higher loss and other activations on this text. Set `eos: false` to leave out "
        "end tokens"
        for name in sorted(written)
    ]

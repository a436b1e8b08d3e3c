"""Requirements that an observer's module and data do not meet, determined without training and without writing."""

import copy
import logging
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.batches import text_of
from lmdyn.callbacks.observing.findings import Cost, Finding, ForeseenError, What
from lmdyn.callbacks.observing.memory import most_allocated
from lmdyn.callbacks.observing.module_reading import check_kind
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ProbeSet, probe_pass
from lmdyn.callbacks.observing.protocols import UnmetNeedsError
from lmdyn.callbacks.observing.run import Run
from lmdyn.callbacks.observing.streaming_observer import StreamingObserver
from lmdyn.callbacks.training.resume import token_counts_of, tokenizer_of

__all__ = ["Finding", "Foresight", "foresee", "requirements", "silently"]


def requirements(
    observer: Observer, module: nn.Module, data: Any = None, *, run: Run | None = None
) -> list[Finding]:
    """Return the reasons for which an observer cannot observe a module; empty if it can.

    A copy of the observer reads the data and then the module as at the start of training, in a temporary run folder.
    Observers that require one pass over their probe set also process one batch of it, forward and, if they read
    gradients, backward. Nothing is trained and nothing is written: the observer, the module's modes and gradients, and
    the random generators are not changed. The observer's own ``probe`` is set up, as in attaching; the encoded text of
    lmdyn's corpora is cached. Every rank must call it.

    Args:
        observer: any observer; it need not be attached.
        module: the module, with its layers.
        data: the run's own data, set up: a datamodule, or from Python any loader of its validation set; None if
            the observer has its own ``probe``.
        run: further information about the run, such as its tokenizer and its checkpoints; its folder is not used. By
            default the tokenizer and the training counts are those of data and module.

    Returns:
        All findings, in the order in which an observer checks; data of the wrong kind hides findings about its content.

    Example:
        >>> import torch
        >>> from lmdyn.callbacks import LearningCurves
        >>> ids = torch.arange(6)[None]
        >>> batch = {"input_ids": ids, "labels": ids.roll(-1)}
        >>> net = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6))
        >>> net.forward = lambda input_ids: net[1](net[0](input_ids))
        >>> requirements(LearningCurves(layers=[], frequency="probe"), net, [batch])
        []
        >>> [f.what for f in requirements(LearningCurves(layers=["topic"], frequency="probe"), net, [batch])]
        ['data']
    """
    return [f for f in foresee(observer, module, data, run=run).findings if f.stops]


@dataclass(frozen=True)
class Foresight:
    """Information about an observer before training.

    Attributes:
        findings: reasons for which it cannot run, or for which numbers will be missing (``stops`` is False).
        costs: memory that an observation requires.
        observer: the copy that has read data and module.
    """

    findings: tuple[Finding, ...]
    costs: tuple[Cost, ...]
    observer: Observer


def foresee(observer: Observer, module: nn.Module, data: Any = None, *, run: Run | None = None) -> Foresight:
    """Return all findings of :func:`requirements`, also those that do not stop the observer, and its costs.

    The arguments are those of :func:`requirements`.
    """
    own = _copied(observer)
    findings: list[Finding] = []
    costs: list[Cost] = []
    batch: list[Cost] = []
    with tempfile.TemporaryDirectory(prefix="lmdyn-") as folder, observing(module), silently():
        what: What = "data"
        try:
            if run is None:  # any module has what is read of it
                run = Run(Path(folder), tokenizer_of(data, module), token_counts_of(data))  # type: ignore[arg-type]
            data = run.datamodule if data is None else data
            own.attach(replace(run, log_dir=Path(folder), datamodule=data))
            what = "module"
            own.bind(module)
            what = "observation"
            batch = _try(own, module)
        except ForeseenError as error:
            findings += error.findings
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            if any(f.name == "foresee" and f.filename != __file__ for f in frames):
                what = "observation"
            findings += _findings(what, error, own.name)
            if what == "data":
                findings += _module_alone(own, module)
        else:
            foreseen = list(own.foresee(module))
            findings += [f for f in foreseen if isinstance(f, Finding) and not f.stops]
            costs = [*(c for c in foreseen if isinstance(c, Cost)), *batch]
    return Foresight(tuple(findings), tuple(costs), own)


@contextmanager
def silently(least: int = logging.ERROR) -> Iterator[None]:
    """Suppress log messages of lmdyn and libraries below this level in this context: findings replace them."""
    names = ("lmdyn", "lightning.pytorch", "lightning.fabric", "transformers", "huggingface_hub")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(least)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _copied(observer: Observer) -> Observer:
    """Copy the observer; its probe, which may be large, is shared."""
    own = copy.copy(observer)
    for name, value in vars(observer).items():
        if isinstance(value, dict):  # its records
            setattr(own, name, dict(value))
    return own


def _module_alone(observer: Observer, module: nn.Module) -> list[Finding]:
    """Check the module if the data is unsuitable; errors caused by the data are not reported."""
    try:
        if observer.reads is not None:
            check_kind(module, observer.probe_set, observer.forward, observer.reads, observer.name)
        observer.check_module(module)
    except Exception as error:
        return _findings("module", error, observer.name) if isinstance(error, ValueError) else []
    return []


def _try(observer: Observer, module: nn.Module) -> list[Cost]:
    """Pass one batch to an observer of one pass, and return its memory; other observers would take too long."""
    if not observer.reads_data:
        return []
    batch = next(iter(observer.probe_set.batches()), None)
    if batch is None:
        raise ValueError("the probe set is empty: use other data, or pass a `probe` with batches")
    if isinstance(observer, StreamingObserver):
        watch = observer.watch(module, 0)
        taken = most_allocated(
            lambda: probe_pass(module, ProbeSet([batch]), [watch], forward=observer.forward)
        )
        shape = " × ".join(map(str, text_of(batch).shape))
        return [Cost(f"a batch of {shape} tokens", taken, "use data with smaller batches")]
    return []


def _findings(what: What, error: Exception, name: str) -> list[Finding]:
    """Split an error of lmdyn into its parts; for errors of other kinds, add their type."""
    if isinstance(error, UnmetNeedsError):
        return [Finding(what, text, error) for text in error.unmet]
    text = " ".join(str(error).split()).removeprefix(f"{name}: ") or type(error).__name__
    if not isinstance(error, ValueError | TypeError | RuntimeError | OSError):
        text = f"{type(error).__name__}: {text}"
    return [Finding(what, text, error)]

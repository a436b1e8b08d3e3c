"""``lmdyn inspect``: what a model is, its sites, which observers run on it, and a starting yaml."""

import inspect
import logging
import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

import lmdyn.callbacks
from lmdyn.analysis.inspection.attributes import read_attribute
from lmdyn.analysis.inspection.forward import Forward, device_of
from lmdyn.analysis.inspection.label_convention import label_convention, model_reading
from lmdyn.analysis.inspection.sites import find_sites
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ProbeSet, to_device
from lmdyn.callbacks.observing.protocols import objective_of
from lmdyn.callbacks.observing.reading import declared_labels, read_module
from lmdyn.callbacks.observing.reference import Itself
from lmdyn.callbacks.observing.requirements import requirements, silently
from lmdyn.callbacks.observing.run import Run, split_loader
from lmdyn.callbacks.training.resume import token_counts_of
from lmdyn.cli.inspection.data import Data, find_data
from lmdyn.cli.inspection.found import Asked, Inspection
from lmdyn.cli.inspection.measures import count_parameters, how_called, how_often
from lmdyn.cli.inspection.starting_yaml import next_command, refusal, starting_yaml
from lmdyn.cli.inspection.subject import Subject, find_subject
from lmdyn.cli.inspection.tables import print_page

__all__ = ["inspect_model"]

log = logging.getLogger(__name__)

_START: Mapping[str, Mapping[str, Any]] = {"Similarity": {"reference": Itself()}}
"""Required arguments of observers, with starting values."""


def inspect_model(
    name: str,
    *,
    data: str | None = None,
    arguments: Sequence[str] = (),
    forward: str | None = None,
    write: Path | None = None,
    device: str = "cpu",
) -> Inspection:
    """Inspect a model, print what it is and which observers run on it, and write a starting yaml.

    Nothing is trained, and nothing except the yaml is written; encoded text goes to lmdyn's cache.

    Args:
        name: yaml, run folder, folder or hub name of transformers, or ``package.Class``.
        data: yaml with ``data``, text file, or ``package.Class`` of a datamodule; default: a synthetic corpus.
        arguments: ``--model.ARG VALUE``, ``--data.ARG VALUE``.
        forward: dotted path of a function ``(module, batch) -> output``.
        write: path of the yaml.
        device: device on which the model is run.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the name is not that of a model, the model cannot read the data, the yaml exists already, or,
            with ``write``, neither ``fit`` nor ``analyze`` accepts the model.
    """
    if write is not None and write.exists():
        raise ValueError(f"--write {write}: the file already exists: give another name, or remove it")
    of_model = _groups(arguments, "model")
    subject = find_subject(name, of_model)
    subject.module.to(device)
    with silently(logging.WARNING):
        given = find_data(data, subject, _groups(arguments, "data"), forward)
    subject.module.to(device)  # including layers that were built from the data
    found = _inspected(subject, given, forward)
    print_page(found)
    if write is not None:
        write.write_text(starting_yaml(found, write.stem), encoding="utf-8")
        log.info("written: %s; next: %s", write, next_command(subject, str(write)))
    elif (why := refusal(found)) is not None:
        log.info("next: --write cannot write a starting yaml yet: %s", why)
    else:
        log.info("next: a starting yaml, lmdyn inspect %s … --write my.yaml", name)
    return found


def _groups(arguments: Sequence[str], key: str) -> list[str]:
    """Return the words of ``--key.ARG VALUE``."""
    words: list[str] = []
    mine = False
    for word in arguments:
        if word.startswith("--"):
            mine = word.startswith(f"--{key}.")
        if mine:
            words.append(word)
    return words


def _inspected(subject: Subject, given: Data, forward: str | None) -> Inspection:
    module = subject.module
    probe = ProbeSet(_part(given.data))
    tokenizer = subject.tokenizer
    if tokenizer is None:
        tokenizer = read_attribute(given.data, "tokenizer")
    with silently():
        read_module(
            module, probe, forward, tokenizer, whose=subject.name, labels="aligned", uses_labels=None, kind=None,
            one_pass=True,
        )  # fmt: skip
        batches = [to_device(batch, device_of(module)) for batch in islice(probe.batches(), 4)]
        sites = find_sites(module, batches[0], forward)
    batch = batches[0]
    about = {
        "model": f"{subject.says} ({subject.weights}): {count_parameters(module):,} parameters",
        "data": given.says,
        "called": how_called(module, batch, forward),
        **_damaged(module),
        **_labels(module, probe, batches, given, forward),
        "loops": how_often(module, batch, sites, forward),
    }
    with tempfile.TemporaryDirectory(prefix="lmdyn-") as folder, silently():
        run = Run(Path(folder), tokenizer, _counts(subject, given), given.data, None, Path(folder))
        own = [Asked(type(o).__name__, o, requirements(o, module, run=run), True) for o in subject.observers]
        rest = [c for c in _exported() if c.__name__ not in {a.name for a in own}]
        others = [_default(cls, forward) for cls in rest]
        asked = [*own, *(Asked(type(o).__name__, o, requirements(o, module, run=run)) for o in others)]
    return Inspection(subject, given, sites, about, asked, forward)


def _exported() -> list[type[Observer]]:
    """Return all observers of ``lmdyn.callbacks``."""
    named = [getattr(lmdyn.callbacks, name) for name in lmdyn.callbacks.__all__]
    return [c for c in named if isinstance(c, type) and issubclass(c, Observer) and not inspect.isabstract(c)]


def _default(cls: type[Observer], forward: str | None) -> Observer:
    start = _START.get(cls.__name__, {})
    try:
        return cls(forward=forward, **start)
    except ValueError:  # the observer calls the encoder itself
        return cls(**start)


def _part(data: Any) -> Any:
    """Return the loader that is inspected: that of the validation part, otherwise another one."""
    problem: ValueError | None = None
    for split in ("validation", "train", "test"):
        try:
            return split_loader(data, split, "inspect", chosen=False)
        except ValueError as error:
            problem = problem or error
    raise ValueError(f"{type(data).__name__} has no data to inspect: expected val_dataloader()") from problem


def _counts(subject: Subject, given: Data) -> Any:
    """Return the training counts that the next command has; for ``analyze``, only a run's folder has any."""
    path = (subject.folder or Path()) / "tokenizer" / "token_counts.parquet"
    if subject.kind in ("run", "pretrained"):
        return pd.read_parquet(path) if subject.kind == "run" and path.exists() else None
    try:
        return token_counts_of(given.data)
    except ValueError:  # no training part
        return None


def _damaged(module: nn.Module) -> dict[str, str]:
    """Return a line about weights that are NaN or infinite."""
    bad = {name: int((~p.detach().isfinite()).sum()) for name, p in module.named_parameters()}
    bad = {name: number for name, number in bad.items() if number}
    if not bad:
        return {}
    first = next(iter(bad))
    return {
        "weights": f"{sum(bad.values()):,} are NaN or infinite, the first in {first}: measured values will be too"
    }


def _labels(
    module: nn.Module,
    probe: ProbeSet,
    batches: Sequence[Mapping[str, Any]],
    given: Data,
    forward: Forward | None,
) -> dict[str, str]:
    """Describe what the model reads and how labels are aligned, according to measurements."""
    declared = declared_labels(probe)
    own = all("labels" in batch for batch in batches)
    labelled = batches if own else [{"labels": batch["input_ids"], **batch} for batch in batches]
    reading = model_reading(module, batches[0], forward)
    warning = ""
    try:
        with silently():
            decision = label_convention(module, labelled, forward)
    except ValueError as error:
        says = f"not decided: {' '.join(str(error).split())}"
    else:
        reading, warning = decision.reading, decision.warning
        says = decision.reason.partition("; the module reads")[0]
    reads = {
        "causal": "causal: logits do not depend on later tokens (measured)",
        "bidirectional": "bidirectional, as in masked models: logits also depend on later tokens (measured)",
        "unknown": "unknown: no token had a measurable effect on other positions",
    }[reading]
    if is_encoder_decoder(module):
        reads = f"encoder-decoder: the encoder reads all of input_ids, the decoder is {reads}"
    if declared:
        says = _declared(declared, given)
    elif not own:
        says = f"the batches have none; the tokens themselves are used: {says}"
    return {
        "reads": reads,
        "labels": says.removeprefix("labels are "),
        **({"warning": warning} if warning else {}),
    }


def _declared(declared: str, given: Data) -> str:
    says = objective_of(given.data)
    where = (
        "labels[b, t] belongs to logits[b, t]"
        if declared == "aligned"
        else "labels are shifted by the observer"
    )
    return f"{declared}, as the data declares{f' (objective: {says})' if says else ''}: {where}"

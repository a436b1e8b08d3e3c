"""``lmdyn inspect``: what a model is, its sites, which observers run on it, and a starting yaml."""

import logging
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from lmdyn.analysis.inspection.forward import Batch, Forward, device_of
from lmdyn.analysis.inspection.label_convention import label_convention, model_reading
from lmdyn.analysis.inspection.sites import find_sites
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.callbacks.observing.amounts import count_tokens
from lmdyn.callbacks.observing.module_reading import declared_labels
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import to_device
from lmdyn.callbacks.observing.protocols import objective_of
from lmdyn.callbacks.observing.reference import Itself
from lmdyn.callbacks.observing.requirements import requirements, silently
from lmdyn.callbacks.observing.run import Run
from lmdyn.callbacks.training.resume import token_counts_of
from lmdyn.cli.inspecting.data import Data, find_data
from lmdyn.cli.inspecting.inspected_model import Subject, find_subject
from lmdyn.cli.inspecting.measures import how_called, how_often
from lmdyn.cli.inspecting.printed import Asked, Inspection, print_page
from lmdyn.cli.inspecting.starting_yaml import next_command, refusal, starting_yaml
from lmdyn.cli.recorded_observers import exported_observers

log = logging.getLogger(__name__)

_MISSING = (
    "missing, so lmdyn splits the text: save a tokenizer in the model's folder (tokenizer.save_pretrained)"
)


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
        arguments: ``--model.ARG=VALUE``, ``--data.ARG=VALUE``.
        forward: dotted path of a function ``(module, batch) -> output``.
        write: path of the yaml.
        device: device on which the model is run.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the name is not that of a model, the model cannot read the data, the yaml exists already, or,
            with ``write``, neither ``fit`` nor ``analyze`` accepts the model.
    """
    if write is not None and write.exists():
        raise ValueError(f"--write {write}: the file already exists: give another name, or remove the file")
    subject = find_subject(name, arguments)
    subject.module.to(device)
    with silently(logging.WARNING):
        given = find_data(data, subject, arguments, forward)
    subject.module.to(device)  # including layers that were built from the data
    found = _inspected(subject, given, forward)
    print_page(found)
    if write is not None:
        write.write_text(starting_yaml(found, write.stem), encoding="utf-8")
        log.info("lmdyn wrote %s; next, run: %s", write, next_command(subject, str(write)))
    elif (why := refusal(found)) is not None:
        log.info("lmdyn cannot write a starting yaml yet: %s", why)
    else:
        log.info("next, write a starting yaml: lmdyn inspect %s … --write my.yaml", name)
    return found


def _inspected(subject: Subject, given: Data, forward: str | None) -> Inspection:
    module, probe = subject.module, given.probe
    batches = [to_device(batch, device_of(module)) for batch in islice(probe.batches(), 4)]
    with silently():
        sites = find_sites(module, batches[0], forward)
    size = sum(p.numel() for p in module.parameters())  # tied ones count once
    seen = f"; observers read {count_tokens(probe):,} tokens" if given.own else ""
    about = {
        "model": f"{subject.says} ({subject.weights}): {size:,} parameters",
        "data": given.says + seen,
        **({"tokenizer": _MISSING} if subject.kind == "pretrained" and subject.tokenizer is None else {}),
        "called": how_called(module, batches[0], forward),
        **_damaged(module),
        **_labels(module, batches, given, forward),
        "loops": how_often(module, batches[0], sites, forward),
    }
    own = {type(o) for o in subject.observers}
    others = [cls for cls in exported_observers().values() if cls not in own]
    observers = [*subject.observers, *(_default(cls, forward) for cls in others)]
    with tempfile.TemporaryDirectory(prefix="lmdyn-") as folder, silently():
        run = Run(Path(folder), given.tokenizer, _counts(subject, given), given.data, None, Path(folder))
        asked = [
            Asked(type(o).__name__, o, requirements(o, module, run=run), o in subject.observers)
            for o in observers
        ]
    return Inspection(subject, given, sites, about, asked, forward)


def _default(cls: type[Observer], forward: str | None) -> Observer:
    start: dict[str, Any] = {"reference": Itself()} if cls.__name__ == "Similarity" else {}  # required
    try:
        return cls(forward=forward, **start)
    except ValueError:  # the observer calls the encoder itself
        return cls(**start)


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
    wrong = {name: int((~p.detach().isfinite()).sum()) for name, p in module.named_parameters()}
    bad = {name: number for name, number in wrong.items() if number}
    number, first = sum(bad.values()), next(iter(bad), "")
    said = f"{number:,} are NaN or infinite, the first in {first}: measured values will not be finite either"
    return {"weights": said} if bad else {}


def _labels(
    module: nn.Module, batches: Sequence[Batch], given: Data, forward: Forward | None
) -> dict[str, str]:
    """Describe what the model reads and how labels are aligned, according to measurements."""
    own = all("labels" in batch for batch in batches)
    labelled = batches if own else [{"labels": batch["input_ids"], **batch} for batch in batches]
    try:
        with silently():
            decision = label_convention(module, labelled, forward)
    except ValueError as error:
        reading = model_reading(module, batches[0], forward)
        warning = ""
        says = f"not decided: {' '.join(str(error).split())}"
    else:
        reading, warning = decision.reading, decision.warning
        says = decision.reason.rpartition("; ")[0]
    reads = {
        "causal": "causal: logits do not depend on later tokens (measured)",
        "bidirectional": "bidirectional, as in masked models: logits also depend on later tokens (measured)",
        "unknown": "unknown: no token had a measurable effect on other positions",
    }[reading]
    if is_encoder_decoder(module):
        reads = f"encoder-decoder: the encoder reads all of input_ids, the decoder is {reads}"
    if declared := declared_labels(given.probe):
        objective = objective_of(given.data)
        named = f" (objective: {objective})" if objective else ""
        aligned = "labels[b, t] belongs to logits[b, t]"
        where = aligned if declared == "aligned" else "the observer shifts the labels"
        says = f"{declared}, as the data declares{named}: {where}"
    elif not own:
        says = f"the batches have no labels; lmdyn uses the tokens themselves: {says}"
    return {"reads": reads, "labels": says, **({"warning": warning} if warning else {})}

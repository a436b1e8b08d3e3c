"""``lmdyn check``: build everything, read one batch, foresee memory and disk, and report each problem in a line."""

import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from lmdyn.analysis.inspection.forward import device_of
from lmdyn.callbacks.observing.amounts import parameter_bytes
from lmdyn.callbacks.observing.findings import Cost, Finding, beyond_memory, expected
from lmdyn.callbacks.observing.memory import free_disk, free_memory, in_words
from lmdyn.callbacks.observing.module_reading import read_module
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ProbeSet
from lmdyn.callbacks.observing.recording import check_names
from lmdyn.callbacks.observing.requirements import foresee, silently
from lmdyn.callbacks.observing.run import Run, reported, split_loader
from lmdyn.cli.building import Built, NotParsedError, build, build_observers
from lmdyn.cli.parsing.errors import one_line, place_in_users_code
from lmdyn.cli.training import preflight
from lmdyn.cli.training.preflight import foreseen_of_replay, foreseen_of_training, held_together

log = logging.getLogger(__name__)

Verdict = Literal["ok", "warning", "error", "not checked"]


@dataclass(frozen=True)
class Line:
    """One line of the result.

    Attributes:
        verdict: ``ok``; ``warning``, some numbers will be missing; ``error``, it fails or the number is wrong;
            ``not checked``, on another device.
        whose: subject of the line: a configuration or command, and the part of it.
        says: what was expected and got, and the remedy.
    """

    verdict: Verdict
    whose: str
    says: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.whose}: {self.says}"


def check(args: Sequence[str], overlays: Sequence[str] = (), *, as_json: bool = False) -> bool:
    """Check a training and a replay of it, and write the lines. Nothing is trained, and no run folder is written to.

    Args:
        args: arguments of ``fit``: ``--config FILE … --model.… VALUE``.
        overlays: files that ``analyze`` will apply on top of the run's configuration.
        as_json: whether to write the lines to the standard output as a JSON list of objects.

    Returns:
        Whether there is no error.
    """
    lines, built = check_training(args)
    if overlays and built is not None:
        lines += check_replay(built, args, overlays)
    number = Counter(line.verdict for line in lines)
    errors, unknown = number["error"], number["not checked"]
    if as_json:
        sys.stdout.write(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    else:
        for line in lines:
            log.info("%s", line)
        more = f", not checked: {unknown}" if unknown else ""
        log.info("errors: %d, warnings: %d%s", errors, number["warning"], more)
    return not errors


def _line(whose: str, finding: Finding) -> Line:
    return Line("error" if finding.stops else "warning", whose, one_line(finding))


def _failed(whose: str, error: Exception) -> Line:
    """Convert an error to a line."""
    text = one_line(error) or type(error).__name__
    if not isinstance(error, (ValueError, TypeError, OSError)):
        text = f"{type(error).__name__}: {text}"
    if isinstance(error, FileNotFoundError) and not Path(str(error.filename or "/")).is_absolute():
        text += f" (paths are relative to {Path.cwd()})"
    if where := place_in_users_code(error):
        text += f" (raised at {where})"
    return Line("error", whose, text)


def _not_built(whose: str, part: str, error: Exception) -> Line:
    return _failed(f"{whose}: {'configuration' if isinstance(error, NotParsedError) else part}", error)


def check_training(args: Sequence[str]) -> tuple[list[Line], Built | None]:
    """Build what ``fit`` would build, and check that the parts fit together.

    Args:
        args: arguments of ``fit``.

    Returns:
        The lines and the built configuration; None for the latter if building failed.
    """
    try:
        built = build(args)
    except Exception as error:
        return [_not_built("fit", "model and data", error)], None
    lines = [*_of_model_and_data(built)]
    size = sum(p.numel() for p in built.module.parameters())
    length = "training of unknown length" if built.plan.updates is None else f"{built.plan.updates:,} updates"
    brief = [f"{type(built.module).__name__}, {size:,} parameters", type(built.data).__name__, length]
    weights = [saver for saver in built.savers if saver.weights_only]
    saved = built.folder / weights[0].folder if weights else None
    live = Run(built.folder, built.tokenizer, built.counts, built.data, None, saved)
    observed, costs = _of_observers(built.observers, built.module, live, "fit")
    parts = (built.callbacks, built.module, built.plan, built.folder, built.optimizers)
    findings, states = foreseen_of_training(*parts)
    lines += [*observed, *(_line("fit: run", finding) for finding in findings)]
    said, needs = _of_memory(built, [states, *costs], "fit")
    lines += said
    if not any(line.verdict == "error" for line in lines):
        said_ok = "; ".join([*brief, needs, _of_disk(built, states)])
        lines.insert(0, Line("ok", "fit", said_ok))
    return lines, built


def check_replay(built: Built, args: Sequence[str], overlays: Sequence[str]) -> list[Line]:
    """Check what ``analyze`` would observe for a run that may not exist yet.

    Args:
        built: the run as it will be trained.
        args: the arguments with which it was built.
        overlays: files applied on top of its configuration.
    """
    try:
        observers = build_observers([*args, *(f"--config={path}" for path in overlays)])
    except Exception as error:
        return [_not_built("analyze", "observers", error)]
    steps = built.steps
    if not observers:
        return [_line("analyze", expected("observers under trainer.callbacks", "none", "add one", of="run"))]
    if not steps:
        remedy = "add a ScheduledCheckpoint to the callbacks of the run"
        return [
            _line("analyze", expected("checkpoints to observe", "a run that saves none", remedy, of="run"))
        ]
    with tempfile.TemporaryDirectory(prefix="lmdyn-") as folder:
        saved = Path(folder) / "checkpoints"
        there = {step: saved / f"step={step:09d}.ckpt" for step in steps}
        if any(map(preflight.own_references, observers)):  # untrained weights stand for checkpoints
            saved.mkdir()
            first, *others = there.values()
            torch.save({"state_dict": built.module.state_dict()}, first)
            for path in others:
                path.hardlink_to(first)
        run = Run(built.folder, built.tokenizer, built.counts, built.data, there, saved)
        observed, costs = _of_observers(observers, built.module, run, "analyze")
    found = foreseen_of_replay(observers, steps)
    said, needs = _of_memory(built, costs, "analyze")
    lines = [*observed, *(_line("analyze: run", f) for f in found), *said]
    if not any(line.verdict == "error" for line in lines):
        lines.insert(0, Line("ok", "analyze", f"over {len(there)} checkpoints; {needs}"))
    return lines


# Parts -------------------------------------------------------------------------------------------------------


def _of_model_and_data(built: Built) -> Iterator[Line]:
    remedy = "give more text, or smaller batches"
    if built.plan.updates == 0 or built.plan.of_epoch == 0:
        yield _line("fit: data", expected("batches to train on", "none", remedy))
    try:
        loader = split_loader(built.data, "validation", "this run", chosen=False)
        with silently():
            batch = next(iter(ProbeSet(loader).batches()), None)
    except Exception as error:
        if built.observers:
            yield _failed("fit: validation data", error)
        return
    if batch is None:
        yield _line("fit: validation data", expected("batches", "none", remedy))
        return
    asked: dict[str, Any] = {"labels": "aligned", "uses_labels": False, "kind": None, "one_pass": True}
    try:
        with silently():
            read_module(built.module, ProbeSet(loader), None, built.tokenizer, whose="the model", **asked)
    except Exception as error:
        text = one_line(error)
        if "an embedding of" in text or "token types" in text:  # other failures may not concern training
            yield Line("error", "fit: model and data", text)


def _of_observers(
    observers: Sequence[Observer], module: Any, run: Run, whose: str
) -> tuple[list[Line], list[Cost]]:
    """Return lines about each observer, and the memory that they hold at the same time."""
    lines: list[Line] = []
    costs: dict[Observer, Sequence[Cost]] = {}
    try:
        check_names(observers)
    except ValueError as error:
        lines.append(_failed(f"{whose}: observers", error))
    for observer in observers:
        found = foresee(observer, module, run=run)
        costs[found.observer] = found.costs
        own = f"{whose}: {observer.name}"
        lines += [_line(own, finding) for finding in found.findings]
        if not found.findings:
            largest = max(found.costs, key=lambda c: c.memory, default=None)
            lines.append(Line("ok", own, "runs" if largest is None else f"runs; {largest}"))
        lines += [Line("ok", own, said) for said in reported(observer.name) if "left out" in said]
    return lines, held_together(costs)


def _of_memory(built: Built, held: Sequence[Cost], whose: str) -> tuple[list[Line], str]:
    """Return lines about memory that does not suffice or was not measured, and how much is needed of what is free."""
    device = device_of(built.module)
    elsewhere = built.accelerator != "cpu" and (built.accelerator != "auto" or torch.cuda.is_available())
    here = [c for c in held if c.host or not elsewhere]
    lines = [_line(f"{whose}: memory", finding) for finding in beyond_memory(here, device)]
    if elsewhere:
        why = f"of the configured accelerator ({built.accelerator})"
        lines.append(Line("not checked", f"{whose}: memory", why))
    there = free_memory(device)
    free = "" if there is None else f" of {in_words(there)} free here"
    needed = in_words(sum(c.memory for c in held))
    return lines, f"memory about {needed} in addition to the model and a batch{free}"


def _of_disk(built: Built, states: Cost) -> str:
    size = parameter_bytes(built.module)
    if built.plan.updates is None:  # e.g. the training ends by a time budget
        return f"each checkpoint takes about {in_words(size)}; the number of checkpoints is unknown"
    needed = preflight.disk_of_checkpoints(built.callbacks, size, states.memory, built.plan)
    return f"checkpoints about {in_words(needed)} of {in_words(free_disk(built.folder))} free"

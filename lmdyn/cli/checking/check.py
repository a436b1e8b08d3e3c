"""``lmdyn check``: known problems before training, one line for each thing that would fail later."""

import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.callbacks import Timer

from lmdyn.analysis.inspection.forward import device_of
from lmdyn.callbacks.conditions.amounts import parameter_bytes
from lmdyn.callbacks.conditions.finding import Cost, Finding, beyond_memory, expected
from lmdyn.callbacks.conditions.machine import free_disk, free_memory, in_time, in_words
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ProbeSet
from lmdyn.callbacks.observing.reading import read_module
from lmdyn.callbacks.observing.recording import check_names
from lmdyn.callbacks.observing.requirements import foresee, silently
from lmdyn.callbacks.observing.run import Run, announced, split_loader
from lmdyn.callbacks.training.checkpoint import ScheduledCheckpoint
from lmdyn.callbacks.training.time_budget import TimeBudget
from lmdyn.cli.checking.built import Built, NotMadeError, NotParsedError, build, build_observers
from lmdyn.cli.checking.preflight import (
    disk_of_checkpoints,
    foreseen_of_replay,
    foreseen_of_training,
    held_together,
    own_references,
    training_bytes,
)
from lmdyn.cli.checking.training_pass import TrainingPass, duration, training_pass
from lmdyn.cli.mistakes import causes, place_in_users_code

__all__ = ["Line", "Verdict", "check", "check_replay", "check_training", "failed", "tell"]

log = logging.getLogger(__name__)

Verdict = Literal["ok", "warning", "error", "not checked"]


@dataclass(frozen=True)
class Line:
    """One line of the result.

    Attributes:
        verdict: ``ok``; ``warning``, some numbers will be missing; ``error``, it fails or the number is wrong;
            ``not checked``, for lack of a connection.
        whose: subject of the line: a configuration or command, and the part of it.
        says: what was expected and got, and the remedy.
    """

    verdict: Verdict
    whose: str
    says: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.whose}: {self.says}"


def check(
    args: Sequence[str], overlays: Sequence[str] = (), *, scheduled: bool = False, as_json: bool = False
) -> bool:
    """Check a training and a replay of it, and write the lines. Nothing is trained, and no run folder is written to.

    Args:
        args: arguments of ``fit``: ``--config FILE … --model.… VALUE``.
        overlays: files that ``analyze`` will apply on top of the run's configuration.
        scheduled: as in ``analyze``.
        as_json: whether to write the lines to the standard output as a JSON list of objects.

    Returns:
        Whether something was checked without an error.
    """
    lines, built = check_training(args, "fit")
    if overlays and built is not None:
        lines += check_replay(built, args, overlays, "analyze", scheduled=scheduled)
    return tell(lines, as_json=as_json)


def tell(lines: Iterable[Line], *, as_json: bool = False) -> bool:
    """Write the lines as they arrive, and return whether something was checked without an error.

    If all lines are *not checked*, an additional line says so: otherwise a script that reads only the exit status
    would take an unreachable hub for a correct configuration.
    """
    told: list[Line] = []
    for line in lines:
        told.append(line)
        if not as_json:
            log.info("%s", line)
    nothing = bool(told) and all(line.verdict == "not checked" for line in told)
    if nothing:
        downloads = any(line.says.startswith(_DOWNLOAD) for line in told)
        why = "the hub cannot be reached" if downloads else "see the lines above"
        last = Line("not checked", "check", f"nothing was checked: {why}")
        told.append(last)
        if not as_json:
            log.info("%s", last)
    errors, warnings, unknown = (
        sum(line.verdict == v for line in told[: len(told) - nothing])
        for v in ("error", "warning", "not checked")
    )
    if as_json:
        sys.stdout.write(json.dumps([asdict(line) for line in told], indent=1) + "\n")
    else:
        log.info("%d errors, %d warnings%s", errors, warnings, f", {unknown} not checked" if unknown else "")
    return not errors and not nothing


_DOWNLOAD = "a download: "
_UNREACHABLE = {"ConnectError", "ConnectTimeout", "LocalEntryNotFoundError", "OfflineModeIsEnabled"}
_UNREACHABLE_SIGNS = (
    "cannot be reached",
    "cannot be listed",
    "couldn't connect",
    "Couldn't reach",
    "offline mode",
    "Name or service not known",
)


def _line(whose: str, finding: Finding) -> Line:
    return Line("error" if finding.stops else "warning", whose, " ".join(str(finding).split()))


def failed(whose: str, error: Exception) -> Line:
    """Convert an error to a line; an error for lack of a connection only means that something was not checked."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, (ValueError, TypeError, OSError)):
        text = f"{type(error).__name__}: {text}"
    if isinstance(error, FileNotFoundError) and not Path(str(error.filename or "/")).is_absolute():
        text += f" (paths are relative to {Path.cwd()})"
    if where := place_in_users_code(error):
        text += f" (raised at {where})"
    if isinstance(error, NotMadeError):
        return Line("not checked", whose, text)
    kinds = {type(cause).__name__ for cause in (*causes(error), error.__context__)}
    if kinds & _UNREACHABLE or any(sign in text for sign in _UNREACHABLE_SIGNS):
        return Line("not checked", whose, f"{_DOWNLOAD}{text}")
    return Line("error", whose, text)


def check_training(
    args: Sequence[str], whose: str, tokenizers: Mapping[str, Any] | None = None
) -> tuple[list[Line], Built | None]:
    """Build what ``fit`` would build, and check that the parts fit together.

    Args:
        args: arguments of ``fit``.
        whose: the command, for the lines.
        tokenizers: see :func:`~lmdyn.cli.checking.built.build`.

    Returns:
        The lines and the built configuration; None for the latter if building failed.
    """
    try:
        built = build(args, tokenizers)
    except NotParsedError as error:
        return [Line("error", f"{whose}: configuration", " ".join(str(error).split()))], None
    except Exception as error:
        return [failed(f"{whose}: model and data", error)], None
    lines = [*_of_model_and_data(built, whose)]
    size = sum(p.numel() for p in built.module.parameters())
    length = "training of unknown length" if built.plan.updates is None else f"{built.plan.updates:,} updates"
    brief = [f"{type(built.module).__name__}, {size:,} parameters", type(built.data).__name__, length]
    savers = [c for c in built.callbacks if isinstance(c, ScheduledCheckpoint) and c.weights_only]
    saved = built.folder / savers[0].folder if savers else None
    live = Run(built.folder, built.tokenizer, built.counts, built.data, None, saved)
    observed, costs = _of_observers(built, live, whose)
    lines += observed
    foreseen = foreseen_of_training(built.callbacks, built.module, built.plan, built.folder, built.optimizers)
    lines += [_line(f"{whose}: run", f) for f in foreseen if isinstance(f, Finding)]
    training = [c for c in foreseen if isinstance(c, Cost)]
    batch = training_pass(built.module, built.data)
    of_batch, observed_at_once = [] if batch is None else [batch.cost], held_together(costs)
    together = max(of_batch, observed_at_once, key=lambda held: sum(c.memory for c in held))
    if batch is None:
        lines.append(
            Line(
                "not checked",
                f"{whose}: memory and hours",
                "of a training batch: there is no batch, or the model has no logits",
            )
        )
    said, needs = _of_resources(built, [*training, *together], whose, disk=True)
    lines += said
    needs.insert(0, _of_time(built, batch))
    if not any(line.verdict == "error" for line in lines):
        lines.insert(0, Line("ok", whose, "; ".join([*brief, *needs])))
    return lines, built


def check_replay(
    built: Built,
    args: Sequence[str],
    overlays: Sequence[str],
    whose: str,
    *,
    scheduled: bool = False,
    ready: Callable[[Observer], list[Line]] = lambda observer: [],
) -> list[Line]:
    """Check what ``analyze`` would observe for a run that may not exist yet.

    Args:
        built: the run as it will be trained.
        args: the arguments with which it was built.
        overlays: files applied on top of its configuration.
        whose: the command, for the lines.
        scheduled: as in ``analyze``.
        ready: function that gives an observer the outputs of other commands, and returns lines about missing ones.
    """
    try:
        callbacks = build_observers([*args, *(f"--config={path}" for path in overlays)])
    except NotParsedError as error:
        return [Line("error", f"{whose}: configuration", " ".join(str(error).split()))]
    except Exception as error:
        return [failed(f"{whose}: observers", error)]
    replayed = built.with_observers(callbacks)
    if not replayed.observers:
        return [_line(whose, expected("observers under trainer.callbacks", "none", "add one", of="run"))]
    with tempfile.TemporaryDirectory(prefix="lmdyn-") as folder:
        there = _future_checkpoints(built, replayed.observers, Path(folder))
        if not there:
            return [
                _line(
                    whose,
                    expected(
                        "checkpoints to observe",
                        "a run that saves none",
                        "add a ScheduledCheckpoint to its callbacks",
                        of="run",
                    ),
                )
            ]
        where = next(iter(there.values())).parent
        run = Run(built.folder, built.tokenizer, built.counts, built.data, there, where)
        lines = [line for observer in replayed.observers for line in ready(observer)]
        observed, costs = _of_observers(replayed, run, whose)
        lines += observed
    found = foreseen_of_replay(replayed.observers, list(there), scheduled=scheduled)
    lines += [_line(f"{whose}: run", f) for f in found]
    said, needs = _of_resources(built, held_together(costs), whose, disk=False)
    lines += said
    if not any(line.verdict == "error" for line in lines):
        lines.insert(0, Line("ok", whose, f"over {len(there)} checkpoints; {'; '.join(needs)}"))
    return lines


def _future_checkpoints(built: Built, observers: Sequence[Observer], folder: Path) -> dict[int, Path]:
    """Return the checkpoints that a run will have; if observers compare with some, untrained weights replace them."""
    steps = built.steps or ([0] if any(isinstance(c, ScheduledCheckpoint) for c in built.callbacks) else [])
    there = {step: folder / "checkpoints" / f"step={step:09d}.ckpt" for step in steps}
    if any(own_references(o) for o in observers):
        for number, path in enumerate(there.values()):
            path.parent.mkdir(exist_ok=True)
            if number == 0:
                torch.save({"state_dict": built.module.state_dict()}, path)
            else:
                path.hardlink_to(next(iter(there.values())))
    return there


# Parts -------------------------------------------------------------------------------------------------------


def _of_model_and_data(built: Built, whose: str) -> Iterator[Line]:
    if built.plan.updates == 0 or built.plan.of_epoch == 0:
        yield _line(
            f"{whose}: data", expected("batches to train on", "none", "give more text, or smaller batches")
        )
    try:
        loader = split_loader(built.data, "validation", "this run", chosen=False)
        with silently():
            batch = next(iter(ProbeSet(loader).batches()), None)
    except Exception as error:
        if built.observers:
            yield failed(f"{whose}: validation data", error)
        return
    if batch is None:
        yield _line(
            f"{whose}: validation data", expected("batches", "none", "give more text, or smaller batches")
        )
        return
    yield from _padding(built, batch, whose)
    try:
        with silently():
            read_module(
                built.module, ProbeSet(loader), None, built.tokenizer, whose="the model", labels="aligned",
                uses_labels=False, kind=None, one_pass=True,
            )  # fmt: skip
    except Exception as error:
        text = " ".join(str(error).split())
        if "an embedding of" in text or "token types" in text:  # other failures may not concern training
            yield Line("error", f"{whose}: model and data", text)


def _padding(built: Built, batch: Mapping[str, Any], whose: str) -> Iterator[Line]:
    """Yield a line if padding is to be predicted."""
    pad = getattr(built.tokenizer, "pad_token_id", None)
    labels, ids = batch.get("labels"), batch.get("input_ids")
    others = {getattr(built.tokenizer, f"{name}_token_id", None) for name in ("eos", "bos", "unk")}
    if (
        pad is None
        or pad in others
        or not isinstance(labels, torch.Tensor)
        or not isinstance(ids, torch.Tensor)
    ):
        return
    padded = int(((labels == pad) & (ids == pad)).sum()) if labels.shape == ids.shape else 0
    if padded:
        yield _line(
            f"{whose}: data",
            expected(
                "labels of -100 on padding",
                f"{padded} labels of a batch equal to the padding token",
                "let the collator set them to -100",
                stops=False,
            ),
        )


def _of_observers(built: Built, run: Run, whose: str) -> tuple[list[Line], dict[Observer, Sequence[Cost]]]:
    lines: list[Line] = []
    costs: dict[Observer, Sequence[Cost]] = {}
    try:
        check_names(built.observers)
    except ValueError as error:
        lines.append(failed(f"{whose}: observers", error))
    for observer in built.observers:
        found = foresee(observer, built.module, run=run)
        if found.costs:
            costs[found.observer] = found.costs
        own = f"{whose}: {observer.name}"
        for finding in found.findings:
            line = _line(own, finding)
            if finding.error is not None and failed(own, finding.error).verdict == "not checked":
                line = failed(own, finding.error)
            lines.append(line)
        if not found.findings:
            largest = max(found.costs, key=lambda c: c.memory, default=None)
            lines.append(Line("ok", own, "runs" if largest is None else f"runs; {largest}"))
        lines += [Line("ok", own, said) for said in announced(observer.name) if "left out" in said]
    return lines, costs


def _elsewhere(built: Built) -> bool:
    """Return whether it is to run on an accelerator, which was not measured: everything is built on the CPU."""
    accelerator = built.asked.get("accelerator") or "auto"
    return accelerator != "cpu" and (accelerator != "auto" or torch.cuda.is_available())


def _of_time(built: Built, batch: TrainingPass | None) -> str:
    """Describe the time of all passes, and callbacks that end a training by the clock."""
    accumulated = int(getattr(built.trainer, "accumulate_grad_batches", 1))
    batches = built.plan.batches(accumulated)
    said = (
        "hours unknown"
        if batch is None
        else duration(batch, batches, accumulated, elsewhere=_elsewhere(built))
    )
    ends = [3600 * c.hours for c in built.callbacks if isinstance(c, TimeBudget)]
    ends += [t for c in built.callbacks if isinstance(c, Timer) and (t := c.time_remaining()) is not None]
    return f"{said}; ends after {in_time(min(ends))} at the latest" if ends else said


def _of_resources(
    built: Built, held: Sequence[Cost], whose: str, *, disk: bool
) -> tuple[list[Line], list[str]]:
    """Return lines about memory and disk: what does not fit, and how much is needed of what is free here."""
    device = device_of(built.module)
    elsewhere = _elsewhere(built)
    here = [c for c in held if c.host or not elsewhere]
    lines = [_line(f"{whose}: memory", finding) for finding in beyond_memory(here, device)]
    there = free_memory(device)
    free = "" if there is None else f" of {in_words(there)} free here"
    needs = [f"memory about {in_words(sum(c.memory for c in held))} in addition to the model{free}"]
    if elsewhere:
        lines.append(
            Line(
                "not checked",
                f"{whose}: memory",
                f"of the configured accelerator ({built.asked.get('accelerator') or 'auto'})",
            )
        )
    savers = [c for c in built.callbacks if isinstance(c, ScheduledCheckpoint)]
    if disk and built.plan.updates is None and savers:  # e.g. the training ends by a time budget
        size = parameter_bytes(built.module)
        needs.append(f"each checkpoint about {in_words(size)}, their number is unknown")
    elif disk and built.plan.updates is not None:
        states = training_bytes(built.module, built.optimizers)
        size = disk_of_checkpoints(savers, parameter_bytes(built.module), states, built.plan)
        free_there = free_disk(built.folder)
        free = "" if free_there is None else f" of {in_words(free_there)} free"
        needs.append(f"checkpoints about {in_words(size)}{free}")
    return lines, needs

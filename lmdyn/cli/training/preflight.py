"""Checks of a whole run before its first batch: schedules that never apply, memory, disk, checkpoints."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
from torch import nn

from lmdyn.analysis.inspection.forward import device_of
from lmdyn.callbacks.observing.amounts import parameter_bytes
from lmdyn.callbacks.observing.findings import Cost, Finding, beyond_memory, expected, raise_or_warn
from lmdyn.callbacks.observing.memory import free_disk, in_words
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.reference import Earlier, OwnFinal, Previous, Reference
from lmdyn.callbacks.observing.streaming_observer import StreamingObserver
from lmdyn.callbacks.training.checkpoint import ScheduledCheckpoint
from lmdyn.callbacks.training.lightning_internals import callbacks_of
from lmdyn.callbacks.training.run_folder import run_folder
from lmdyn.callbacks.training.updates import updates
from lmdyn.runs.schedule import Steps


@dataclass(frozen=True)
class Plan:
    """Planned length of a training.

    Attributes:
        updates: optimizer updates in total; None if unknown.
        of_epoch: updates per epoch; None if unknown.
        begin: updates that were done before, in a resumed run or the origin of a fork.
    """

    updates: int | None
    of_epoch: int | None
    begin: int = 0

    @classmethod
    def of(cls, trainer: L.Trainer, batches: float | None, begin: int = 0) -> "Plan":
        """Return the plan of a trainer, given the number of batches per epoch (inf and None: unknown)."""
        accumulated = int(getattr(trainer, "accumulate_grad_batches", 1))
        known = batches is not None and batches != float("inf")
        of_epoch = max(1, -(-int(batches or 0) // accumulated)) if known else None
        ends = []
        if trainer.max_steps is not None and trainer.max_steps >= 0:  # steps of all optimizers
            per_step = updates(trainer) / trainer.global_step if trainer.global_step else 1
            ends.append(math.ceil(trainer.max_steps * per_step))
        if trainer.max_epochs is not None and trainer.max_epochs >= 0 and of_epoch is not None:
            ends.append(trainer.max_epochs * of_epoch)
        return cls(min(ends) if ends else None, of_epoch, begin)


def due(schedule: Steps, plan: Plan) -> list[int]:
    """Return the steps of a schedule within a training of known length.

    Example:
        >>> due(Steps(every=4, at=(0, 5), epochs=True), Plan(10, 3))
        [0, 3, 4, 5, 6, 8, 9, 10]
    """
    assert plan.updates is not None
    steps = {0} & {*schedule.at}
    at = schedule.following(0)
    while at <= plan.updates:
        steps.add(int(at))
        at = schedule.following(int(at))
    if schedule.epochs and plan.of_epoch is not None:
        steps |= set(range(plan.of_epoch, plan.updates + 1, plan.of_epoch))
    if schedule.last:
        steps.add(plan.updates)
    return sorted(steps)


def _unreached(whose: str, schedule: Steps, plan: Plan) -> Iterator[Finding]:
    """Yield a finding if a schedule, or one of its steps, never applies."""
    if plan.updates is None:
        return
    none = not due(schedule, plan) and not schedule.amounts
    beyond = [f"at {step}" for step in schedule.at if step > plan.updates]
    if schedule.every is not None and schedule.every > plan.updates:
        beyond.append(f"every {schedule.every}")
    if none or beyond:
        wanted = f"steps up to {plan.updates:,}, the end of training, in the schedule of {whose}"
        there = f"none of {schedule}" if none else f"{'; '.join(beyond)}, which never applies"
        yield expected(wanted, there, "name earlier steps, or train longer", of="run", stops=none)


def own_references(observer: Observer) -> list[Reference]:
    """Return the references of an observer to the run's own checkpoints."""
    values = vars(observer).values()
    found = [v for value in values for v in (value.values() if isinstance(value, Mapping) else (value,))]
    # its arguments have the same objects
    return list({id(one): one for one in found if isinstance(one, (OwnFinal, Previous, Earlier))}.values())


def _missing_steps(observer: Observer, there: Sequence[int]) -> Iterator[Finding]:
    """Yield a finding if an observer compares with steps of which there will be no checkpoint."""
    for reference in own_references(observer):
        at = set(reference.at or ()) if isinstance(reference, Earlier) else set()
        if missing := sorted(at - set(there)):
            more = " …" if len(missing) > 8 else ""
            yield expected(
                f"checkpoints of the steps that Earlier of {observer.name} compares with",
                f"none of {', '.join(map(str, missing[:8]))}{more}",
                "add these steps to the schedule of the ScheduledCheckpoint, or name other steps with `at`",
                of="run",
                stops=not at & set(there),
            )


def foreseen_of_training(
    callbacks: Sequence[Any], module: nn.Module, plan: Plan, folder: Path, optimizers: Sequence[Any] | None
) -> tuple[list[Finding], Cost]:
    """Return findings about schedules, checkpoints and disk of a training, and the training's own memory.

    Args:
        callbacks: all callbacks of the trainer.
        module: the model with its layers.
        plan: length of the training.
        folder: the run's folder.
        optimizers: the configured optimizers; None if unknown: Adam is assumed.
    """
    found: list[Finding] = []
    for callback in callbacks:
        if isinstance(schedule := getattr(callback, "schedule", None), Steps):
            name = callback.name if isinstance(callback, Observer) else type(callback).__name__
            found += _unreached(name, schedule, plan)
    states = training_bytes(module, optimizers)
    cost = Cost("gradients and the optimizer's state", states, "train a smaller model, or on another device")
    if plan.updates is None:
        return found, cost
    if weights := [c for c in callbacks if isinstance(c, ScheduledCheckpoint) and c.weights_only]:
        there = due(weights[0].schedule, plan)
        kept = there if weights[0].keep is None else there[-weights[0].keep :]
        for observer in (c for c in callbacks if isinstance(c, Observer)):
            found += _missing_steps(observer, kept)
    weights_size, free = parameter_bytes(module), free_disk(folder)
    needed = disk_of_checkpoints(callbacks, weights_size, states, plan)
    if needed > free:
        disk = f"about {in_words(needed)} of disk for checkpoints"
        remedy = "save fewer checkpoints (`schedule`), keep fewer (`keep`), or set `save_dir` to another disk"
        found.append(expected(disk, f"{in_words(free)} free at {folder}", remedy, of="cost"))
    return found, cost


def training_bytes(module: nn.Module, optimizers: Sequence[Any] | None) -> int:
    """Return the bytes of gradients and of the optimizers' states, after one update of each."""
    trained = [p for p in module.parameters() if p.requires_grad]
    gradients = sum(p.numel() * p.element_size() for p in trained)
    if not optimizers:
        return 3 * gradients
    states = 0
    for optimizer in optimizers:
        held = sum(p.numel() * p.element_size() for g in optimizer.param_groups for p in g["params"])
        states += held * _numbers_of_state(optimizer)
    return gradients + states


def _numbers_of_state(optimizer: Any) -> int:
    """Return how many numbers an optimizer keeps per parameter: momenta and second moments, as in torch's classes."""
    settings = getattr(getattr(optimizer, "optimizer", optimizer), "defaults", {})  # of Lightning's wrapper
    if "betas" in settings:
        return 2 + bool(settings.get("amsgrad"))
    return int(bool(settings.get("momentum")))


def disk_of_checkpoints(callbacks: Sequence[Any], weights: int, states: int, plan: Plan) -> int:
    """Return the bytes of the scheduled checkpoints that a training writes, until the newest is written.

    Args:
        callbacks: callbacks of the trainer.
        weights: bytes of the module.
        states: bytes of gradients and optimizer, see :func:`training_bytes`; gradients are not saved.
        plan: length of the training.
    """
    needed = 0
    for saver in (c for c in callbacks if isinstance(c, ScheduledCheckpoint)):
        # at the beginning of a resumed run, only weights are written
        first = plan.begin + (plan.begin > 0 and not saver.weights_only)
        number = sum(step >= first for step in due(saver.schedule, plan))
        kept = number if saver.keep is None else min(number, saver.keep + 1)
        needed += kept * (weights if saver.weights_only else max(weights, states))
    return needed


def foreseen_of_replay(observers: Sequence[Observer], steps: Sequence[int]) -> list[Finding]:
    """Return findings about observers and the steps of a replay's checkpoints."""
    return [finding for observer in observers for finding in _missing_steps(observer, steps)]


def held_together(costs: Mapping[Observer, Sequence[Cost]]) -> list[Cost]:
    """Return what observations hold at the same time: that of the costliest pass, since passes are sequential."""
    by_pass: dict[Any, list[Cost]] = {}
    for observer, held in costs.items():
        key = observer.pass_key if isinstance(observer, StreamingObserver) else id(observer)
        by_pass.setdefault(key, []).extend(held)
    return max(by_pass.values(), key=lambda held: sum(c.memory for c in held), default=[])


class Preflight(L.Callback):
    """In ``fit``: checks schedules, memory and disk after everything is built, before anything is observed or trained.

    It must be first among the callbacks, so that it runs before the observations of step 0.
    """

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop if something would fail.

        Raises:
            ForeseenError: if a schedule has no step, checkpoints are not made, or memory or disk do not suffice.
        """
        callbacks = callbacks_of(trainer)
        device = device_of(pl_module)
        for observer in (c for c in callbacks if isinstance(c, Observer)):
            observer.ensure_bound(pl_module)
        plan = Plan.of(trainer, trainer.fit_loop.max_batches, updates(trainer))
        folder = run_folder(trainer)
        findings, states = foreseen_of_training(callbacks, pl_module, plan, folder, trainer.optimizers)
        held = [states, *held_together({o: o.costs for o in callbacks if isinstance(o, Observer)})]
        raise_or_warn("this run", [*findings, *beyond_memory(held, device)], device)

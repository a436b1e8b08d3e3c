"""Private parts of Lightning and torch on which lmdyn relies: one function for each, with the reason.

These libraries do not guarantee any of this: an upgrade that breaks lmdyn breaks it here. Tested with Lightning 2.6 and
the versions of ``constraints.txt``.
"""

import csv
import inspect
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from traceback import walk_stack
from typing import Any, cast
from weakref import WeakKeyDictionary

import lightning as L
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from lmdyn.analysis.inspection.forward import is_sharded

__all__ = [
    "SHARDING",
    "State",
    "accumulates_gradients",
    "callbacks_of",
    "checkpoint_contents",
    "continue_csv",
    "continue_events",
    "continues_from",
    "datamodule_of",
    "epoch_or_validation_follows",
    "hidden_from",
    "hide_events",
    "hide_lines",
    "logged_name",
    "process_rank",
    "recount_batches",
    "restore_loaders",
    "resumed_checkpoint",
    "set_logged_step",
    "settle_loops",
    "shards_weights",
    "shown_points",
    "start_wandb_run",
    "trainer_attributes",
    "tree_leaves",
    "tree_map_only",
    "validation_source",
    "write_out",
]

log = logging.getLogger(__name__)

# ``tree_leaves`` and ``tree_map_only`` visit the tensors of nested tuples, lists and dicts: torch has no public ones.


State = dict[str, Any]


def callbacks_of(trainer: L.Trainer) -> list[L.Callback]:
    """Return the trainer's callbacks, an attribute that Lightning sets without declaring it."""
    return cast(list[L.Callback], trainer.callbacks)  # type: ignore[attr-defined]


def datamodule_of(trainer: L.Trainer) -> Any:
    """Return the datamodule of the current fit, or None; an attribute that Lightning sets without declaring it."""
    return getattr(trainer, "datamodule", None)


def validation_source(trainer: L.Trainer, module: L.LightningModule) -> Any:
    """Return the source of the validation data without a datamodule: loaders passed to ``Trainer.fit``, or the module.

    ``Trainer.fit(val_dataloaders=…)`` stores the loaders in its validation loop; until that has run, no public API
    returns them. None if there is no validation data.
    """
    source = trainer.fit_loop.epoch_loop.val_loop._data_source.instance
    return None if source is module and not is_overridden("val_dataloader", module) else source


def accumulates_gradients(trainer: L.Trainer) -> bool:
    """Return whether the current batch only accumulates gradients: Lightning's own count, aware of epoch ends."""
    return bool(trainer.fit_loop.epoch_loop._should_accumulate())


def epoch_or_validation_follows(trainer: L.Trainer) -> bool:
    """Return, in ``on_train_batch_end``, whether the current batch ends the epoch or precedes validation.

    ``val_check_interval``, ``check_val_every_n_epoch`` and ``limit_val_batches`` determine it, in a private method.
    """
    if trainer.is_last_batch:
        return True
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    return bool(loop.epoch_loop._should_check_val_fx(loop._data_fetcher))


def checkpoint_contents(trainer: L.Trainer, *, weights_only: bool) -> State:
    """Return what ``Trainer.save_checkpoint`` would write, which allows no entry next to the weights."""
    return dict(trainer._checkpoint_connector.dump_checkpoint(weights_only=weights_only))


def restore_loaders(trainer: L.Trainer, states: Sequence[State]) -> None:
    """Load the states of the training loaders; Lightning does this only within an epoch, not at its start."""
    loader = trainer.fit_loop._combined_loader
    assert loader is not None
    loader._load_state_dicts(list(states))


def resumed_checkpoint(trainer: L.Trainer) -> Any:
    """Return the path of the checkpoint from which the current fit resumes, or None.

    ``trainer.ckpt_path`` is set after ``setup``; until then, only a variable of ``Trainer._run`` has it.
    """
    for frame, _ in walk_stack(inspect.currentframe()):
        if frame.f_code.co_name == "_run" and frame.f_locals.get("self") is trainer:
            return frame.f_locals["ckpt_path"]
    return trainer.ckpt_path


def set_logged_step(trainer: L.Trainer, step: int) -> None:
    """Set the step of Lightning's own logging, which counts each batch of manual optimization as an update.

    Resuming can also leave it wrong: Lightning counts the batch in which a checkpoint is saved twice, or not at all.
    """
    trainer.fit_loop.epoch_loop._batches_that_stepped = step


def settle_loops(trainer: L.Trainer, loops: State) -> None:
    """Convert Lightning's counters in a checkpoint to a form from which it resumes exactly.

    If ``max_steps`` is set, Lightning 2.6 resumes the end of an epoch by ending it a second time: the epoch is counted
    twice and, without validation, a batch of the next epoch is trained on as one of the previous. Therefore a finished
    epoch is saved as the start of the next one; and one that ``max_steps`` ended early, which Lightning counts as
    processed, as an epoch in progress.

    Args:
        trainer: the trainer.
        loops: the entry ``loops.fit_loop`` of the checkpoint; modified in place.
    """
    epoch_loop = trainer.fit_loop.epoch_loop
    epoch = loops["epoch_progress"]
    batches = loops["epoch_loop.batch_progress"]
    within = epoch["current"]["processed"] < epoch["current"]["started"]
    if within or batches["current"]["ready"] == 0:
        return
    if epoch_loop._num_ready_batches_reached():
        for counts in (epoch["total"], epoch["current"]):
            counts["completed"] = counts["processed"]
        optimizer = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
        scheduler = loops["epoch_loop.scheduler_progress"]
        for part in (batches, scheduler, optimizer["step"], optimizer["zero_grad"]):
            part["current"] = dict.fromkeys(part["current"], 0)
        batches["is_last_batch"] = False
        validation = loops["epoch_loop.val_loop.batch_progress"]
        validation["total"] = dict.fromkeys(validation["total"], 0)
    else:
        for counts in (epoch["total"], epoch["current"]):
            counts["processed"] = counts["completed"] = counts["started"] - 1


def recount_batches(loops: State, before: int, now: int) -> None:
    """Convert the batch counts in a checkpoint's loops for another number of batches per update.

    Args:
        loops: the entry ``loops.fit_loop`` of the checkpoint, saved at the end of an update; modified in place.
        before: batches per update in the saved run.
        now: batches per update in this run.
    """
    if before == now:
        return
    for counts in (loops["epoch_loop.batch_progress"][scope] for scope in ("total", "current")):
        ready = counts["ready"]
        for name, value in counts.items():  # the current batch may be processed but not completed
            counts[name] = ready * now // before - (ready - value)


def trainer_attributes(module: Any) -> State:
    """Return a LightningModule's references to its trainer, which a copy of the module must omit."""
    return {name: value for name, value in vars(module).items() if name in ("_trainer", "_fabric")}


def hide_events(logger: Any) -> None:
    """Let TensorBoard hide what a run wrote that starts again, unless this is configured otherwise.

    ``purge_step`` is an argument of SummaryWriter, which the logger creates later from its stored arguments.
    """
    if isinstance(logger, TensorBoardLogger) and logger._kwargs.get("purge_step") is None:
        logger._kwargs["purge_step"] = 0  # jsonargparse sets SummaryWriter's own default, None


def continue_events(logger: Any, step: int) -> None:
    """Let TensorBoard show each point of a resumed run once, unless ``purge_step`` is configured.

    Later points than those of ``step`` are hidden. At this step there are points from before the checkpoint, such as
    observations, which are not written again, and points from after it, such as what a module logs in its next training
    step, which are; hyperparameters are written again at step 0. Therefore what is there already is not written again.
    """
    if not isinstance(logger, TensorBoardLogger) or process_rank() != 0:
        return
    if logger._kwargs.get("purge_step") is not None:
        return
    from tensorboard.compat.proto.event_pb2 import Event

    # None after a training that this logger has seen to its end
    writer = logger.experiment._get_file_writer()
    there = shown_points(Path(logger.log_dir), {0, step})
    write = writer.add_event

    def write_once(event: Any, step: Any = None, walltime: float | None = None) -> None:
        values = event.summary.value
        new = [v for v in values if (v.tag, int(step or 0)) not in there]
        if len(new) < len(values):
            del values[:]
            values.extend(new)
            if not new:
                return
        write(event, step, walltime)

    write(Event(session_log={"status": "START"}), step + 1)
    hide_lines(logger, step)
    writer.add_event = write_once


def hidden_from(logger: Any) -> Sequence[int] | None:
    """Return the first step of which TensorBoard hides what earlier processes wrote, new at each continuation."""
    purge = getattr(logger, "_kwargs", {}).get("purge_step")
    if logger not in _HIDDEN and purge is not None:
        _HIDDEN[logger] = [purge]
    return _HIDDEN.get(logger)


def continues_from(logger: Any) -> int | None:
    """Return the step from which a TensorBoard logger continues, whose points are written once; else None."""
    hidden = _HIDDEN.get(logger) if isinstance(logger, TensorBoardLogger) else None
    return hidden[0] - 1 if hidden and logger._kwargs.get("purge_step") is None else None


def hide_lines(logger: Any, step: int) -> None:
    """Let TensorBoard hide the points of lines after a step; a user's writer hides its own."""
    _HIDDEN[logger] = [step + 1]


_HIDDEN: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()
"""By continued logger, the first hidden step."""


def shown_points(folder: Path, steps: set[int]) -> set[tuple[str, int]]:
    """Return tag and step of the points at these steps that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.compat.proto.event_pb2 import SessionLog

    found: set[tuple[str, int]] = set()
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            if event.session_log.status == SessionLog.START:
                found = {point for point in found if point[1] < event.step}
            elif event.step in steps:
                found |= {(value.tag, event.step) for value in event.summary.value}
    return found


def continue_csv(logger: Any, step: int) -> None:
    """Keep the rows of a CSV logger up to ``step`` in a resumed run, and what is there already once.

    The logger deletes the file of the resumed run when it creates its writer, to which the rows are added again.
    """
    if not isinstance(logger, CSVLogger) or process_rank() != 0:
        return
    path = Path(logger.log_dir, "metrics.csv")
    if not path.is_file():
        return
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if int(row["step"]) <= step]
    kept = [{k: v for k, v in row.items() if v} for row in rows]
    there = {(name, step) for row in kept if int(row["step"]) == step for name in row}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Experiment logs directory")
        writer = logger.experiment
    write = writer.log_metrics

    def write_once(metrics_dict: dict[str, float], step: int | None = None) -> None:
        if new := {k: v for k, v in metrics_dict.items() if (k, step) not in there}:
            write(new, step)

    writer.metrics[:0] = kept
    writer.log_metrics = write_once
    logger.save()


def write_out(loggers: Sequence[Any]) -> None:
    """Write what TensorBoard and CSV loggers hold in memory, so that a killed process leaves it."""
    for logger in loggers:
        try:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.flush()
            elif isinstance(logger, CSVLogger):
                logger.save()
        except Exception as error:  # the training goes on without its curves
            log.warning("%s could not write its curves (%s). The run continues", type(logger).__name__, error)


def process_rank(rank: int | None = None) -> int:
    """Return the rank of Lightning's loggers, which are active on 0 only; ``rank``, if given, replaces it."""
    former = int(rank_zero_only.rank)  # type: ignore[attr-defined] # an attribute of a function
    if rank is not None:
        rank_zero_only.rank = rank  # type: ignore[attr-defined]
    return former


def logged_name(logger: Any, name: str) -> str:
    """Return the name of a metric in a logger, with the logger's prefix."""
    prefix = getattr(logger, "_prefix", "")
    return f"{prefix}{logger.LOGGER_JOIN_CHAR}{name}" if prefix else name


def start_wandb_run(logger: WandbLogger) -> None:
    """Start the run of a logger, even if the process has an active one, such as that of training in a notebook.

    Otherwise the logger would join that run, since it looks up the process's run before its own arguments.
    """
    import wandb

    if wandb.run is not None and logger._experiment is None:
        mode = "offline" if logger._offline else None
        logger._experiment = wandb.init(**{**logger._wandb_init, "mode": mode, "reinit": "create_new"})
    _ = logger.experiment


def shards_weights(trainer: L.Trainer, module: nn.Module) -> bool:
    """Return whether the weights are sharded, or will be: some strategies shard them after this hook."""
    return is_sharded(module) or isinstance(trainer.strategy, SHARDING)


SHARDING = (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)
"""Strategies that shard the weights of the module over ranks."""

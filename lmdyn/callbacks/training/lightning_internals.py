"""Private parts of Lightning and torch that lmdyn relies on: one function for each, with the reason for it.

Nothing here is promised by these libraries: an upgrade that breaks lmdyn breaks it here. Tested with Lightning 2.6 and
the versions of ``constraints.txt``.
"""

import csv
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

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
    "accumulates_gradients",
    "callbacks_of",
    "checkpoint_contents",
    "datamodule_of",
    "epoch_or_validation_follows",
    "logged_name",
    "process_rank",
    "purge_after",
    "recount_batches",
    "restore_batches_that_stepped",
    "restore_loaders",
    "settle_loops",
    "shards_weights",
    "start_wandb_run",
    "trainer_attributes",
    "tree_leaves",
    "tree_map_only",
    "validation_source",
]

# ``tree_leaves`` and ``tree_map_only`` visit the tensors of nested tuples, lists and dicts: torch has no public ones.


def callbacks_of(trainer: L.Trainer) -> list[L.Callback]:
    """The trainer's callbacks: an attribute that Lightning sets without declaring it."""
    return cast(list[L.Callback], trainer.callbacks)  # type: ignore[attr-defined]


def datamodule_of(trainer: L.Trainer) -> Any:
    """The datamodule of the fit at hand, None without one: an attribute that Lightning sets without declaring it."""
    return getattr(trainer, "datamodule", None)


def validation_source(trainer: L.Trainer, module: L.LightningModule) -> Any:
    """What has the validation data where there is no datamodule: loaders given to ``Trainer.fit``, or the module.

    ``Trainer.fit(val_dataloaders=…)`` keeps the loaders in its validation loop; until that has run, nothing public
    returns them. None where there is no validation data.
    """
    source = trainer.fit_loop.epoch_loop.val_loop._data_source.instance
    return None if source is module and not is_overridden("val_dataloader", module) else source


def accumulates_gradients(trainer: L.Trainer) -> bool:
    """Whether the batch at hand only accumulates gradients: Lightning's own count, which knows the ends of epochs."""
    return bool(trainer.fit_loop.epoch_loop._should_accumulate())


def epoch_or_validation_follows(trainer: L.Trainer) -> bool:
    """In ``on_train_batch_end``: whether the batch at hand ends the epoch or is followed by validation.

    ``val_check_interval``, ``check_val_every_n_epoch`` and ``limit_val_batches`` decide it, in a private method.
    """
    if trainer.is_last_batch:
        return True
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    return bool(loop.epoch_loop._should_check_val_fx(loop._data_fetcher))


def checkpoint_contents(trainer: L.Trainer, *, weights_only: bool) -> dict[str, Any]:
    """What ``Trainer.save_checkpoint`` would write, which has no room for an entry next to the weights."""
    return dict(trainer._checkpoint_connector.dump_checkpoint(weights_only=weights_only))


def restore_loaders(trainer: L.Trainer, states: Sequence[dict[str, Any]]) -> None:
    """Load the states of the training loaders, which Lightning does within an epoch only, not at its start."""
    loader = trainer.fit_loop._combined_loader
    assert loader is not None
    loader._load_state_dicts(list(states))


def restore_batches_that_stepped(trainer: L.Trainer, number: int) -> None:
    """Set the step of Lightning's own logging, which is wrong after some resumptions; see :func:`settle_loops`."""
    trainer.fit_loop.epoch_loop._batches_that_stepped = number


def settle_loops(trainer: L.Trainer, loops: dict[str, Any]) -> int:
    """Bring Lightning's counters, as they are in a checkpoint, into a form from which it goes on exactly.

    Where ``max_steps`` is set, Lightning 2.6 resumes the end of an epoch by ending it a second time: an epoch is
    counted twice and, without validation, a batch of the next epoch is trained on as one of the old. So an epoch
    that ended is saved as the start of the next one; and one that ``max_steps`` cut short, which Lightning counts as
    processed, as an epoch that goes on.

    Args:
        trainer: the trainer.
        loops: the entry ``loops.fit_loop`` of the checkpoint; changed in place.

    Returns:
        Lightning's step for its own logging when the next batch starts; it is wrong after some resumptions.
    """
    epoch_loop = trainer.fit_loop.epoch_loop
    stepped = int(epoch_loop._batches_that_stepped)
    epoch, batches = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    if batches["current"]["ready"] == 0:
        return stepped
    if epoch["current"]["processed"] < epoch["current"]["started"]:
        return stepped + (
            not accumulates_gradients(trainer)
        )  # within an epoch: this batch is yet to be counted
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
    return stepped


def recount_batches(loops: dict[str, Any], before: int, now: int) -> None:
    """Count the batches in a checkpoint's loops as batches of updates of another number of batches.

    Args:
        loops: the entry ``loops.fit_loop`` of the checkpoint, saved at the end of an update; changed in place.
        before: batches of an update of the saved run.
        now: of this one.
    """
    if before == now:
        return
    for counts in (loops["epoch_loop.batch_progress"][scope] for scope in ("total", "current")):
        ready = counts["ready"]
        for name, value in counts.items():  # the batch at work may be processed and not completed
            counts[name] = ready * now // before - (ready - value)


def trainer_attributes(module: Any) -> dict[str, Any]:
    """A LightningModule's references to its trainer: a copy of the module must leave them out, not copy the run."""
    return {name: value for name, value in vars(module).items() if name in ("_trainer", "_fabric")}


def purge_after(logger: Any, step: int) -> None:
    """Let the loggers of a resumed run keep what was logged until ``step`` and hide what was logged after it.

    TensorBoard, unless it is configured otherwise: ``purge_step`` is an argument of SummaryWriter, which the logger
    makes later from the arguments that it keeps. CSV: the logger deletes the file of the run that it resumes when it
    makes its writer, which therefore gets the rows back.
    """
    if isinstance(logger, TensorBoardLogger) and logger._kwargs.get("purge_step") is None:
        logger._kwargs["purge_step"] = step + 1  # jsonargparse fills in SummaryWriter's own default, None
    if isinstance(logger, CSVLogger) and process_rank() == 0:
        path = Path(logger.log_dir, "metrics.csv")
        if not path.is_file():
            return
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if int(row["step"]) <= step]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Experiment logs directory")
            writer = logger.experiment
        writer.metrics[:0] = [{k: v for k, v in row.items() if v} for row in rows]
        logger.save()


def process_rank(rank: int | None = None) -> int:
    """The rank that Lightning's loggers go by: all but 0 do nothing. ``rank`` sets it; the former one is returned."""
    former = int(rank_zero_only.rank)  # type: ignore[attr-defined] # an attribute of a function
    if rank is not None:
        rank_zero_only.rank = rank  # type: ignore[attr-defined]
    return former


def logged_name(logger: Any, name: str) -> str:
    """What a logger calls a metric: with the prefix that it is configured with."""
    prefix = getattr(logger, "_prefix", "")
    return f"{prefix}{logger.LOGGER_JOIN_CHAR}{name}" if prefix else name


def start_wandb_run(logger: WandbLogger) -> None:
    """Start the run of a logger, also where the process has one in progress, as a notebook has that of its training.

    The logger would join that run, since it asks for the process's run before its own arguments.
    """
    import wandb

    if wandb.run is not None and logger._experiment is None:
        mode = "offline" if logger._offline else None
        logger._experiment = wandb.init(**{**logger._wandb_init, "mode": mode, "reinit": "create_new"})
    _ = logger.experiment


def shards_weights(trainer: L.Trainer, module: nn.Module) -> bool:
    """Whether the weights are in parts, or will be: some strategies cut them after this hook."""
    return is_sharded(module) or isinstance(trainer.strategy, SHARDING)


SHARDING = (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)
"""Strategies whose ranks share the weights of the module."""

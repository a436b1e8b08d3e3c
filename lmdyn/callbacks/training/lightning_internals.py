"""Private parts of Lightning and torch on which lmdyn relies: one function for each, with the reason.

These libraries do not guarantee any of this: an upgrade that breaks lmdyn breaks it here. Tested with Lightning 2.6 and
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


def checkpoint_contents(trainer: L.Trainer, *, weights_only: bool) -> dict[str, Any]:
    """Return what ``Trainer.save_checkpoint`` would write, which allows no entry next to the weights."""
    return dict(trainer._checkpoint_connector.dump_checkpoint(weights_only=weights_only))


def restore_loaders(trainer: L.Trainer, states: Sequence[dict[str, Any]]) -> None:
    """Load the states of the training loaders; Lightning does this only within an epoch, not at its start."""
    loader = trainer.fit_loop._combined_loader
    assert loader is not None
    loader._load_state_dicts(list(states))


def restore_batches_that_stepped(trainer: L.Trainer, number: int) -> None:
    """Set the step of Lightning's own logging, which resuming can leave wrong; see :func:`settle_loops`."""
    trainer.fit_loop.epoch_loop._batches_that_stepped = number


def settle_loops(trainer: L.Trainer, loops: dict[str, Any]) -> int:
    """Convert Lightning's counters in a checkpoint to a form from which it resumes exactly.

    If ``max_steps`` is set, Lightning 2.6 resumes the end of an epoch by ending it a second time: the epoch is counted
    twice and, without validation, a batch of the next epoch is trained on as one of the previous. Therefore a finished
    epoch is saved as the start of the next one; and one that ``max_steps`` ended early, which Lightning counts as
    processed, as an epoch in progress.

    Args:
        trainer: the trainer.
        loops: the entry ``loops.fit_loop`` of the checkpoint; modified in place.

    Returns:
        Lightning's step for its own logging at the next batch; it is wrong after resuming in some cases.
    """
    epoch_loop = trainer.fit_loop.epoch_loop
    stepped = int(epoch_loop._batches_that_stepped)
    epoch, batches = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    if batches["current"]["ready"] == 0:
        return stepped
    if epoch["current"]["processed"] < epoch["current"]["started"]:
        return stepped + (
            not accumulates_gradients(trainer)
        )  # within an epoch: this batch is not counted yet
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


def trainer_attributes(module: Any) -> dict[str, Any]:
    """Return a LightningModule's references to its trainer, which a copy of the module must omit."""
    return {name: value for name, value in vars(module).items() if name in ("_trainer", "_fabric")}


def purge_after(logger: Any, step: int) -> None:
    """Let the loggers of a resumed run keep entries up to ``step`` and hide later ones.

    TensorBoard, unless it is configured otherwise: ``purge_step`` is an argument of SummaryWriter, which the logger
    creates later from its stored arguments. CSV: the logger deletes the file of the resumed run when it
    creates its writer, to which the rows are therefore added again.
    """
    if isinstance(logger, TensorBoardLogger) and logger._kwargs.get("purge_step") is None:
        logger._kwargs["purge_step"] = step + 1  # jsonargparse sets SummaryWriter's own default, None
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

"""The folder of a run: one of its own, also for loggers that have none."""

import logging
import pickle
import shutil
import tempfile
import weakref
from itertools import count
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn

from lmdyn.callbacks.training.lightning_internals import resumed_checkpoint
from lmdyn.runs.sharded_checkpoints import about_sharded, is_sharded_checkpoint

log = logging.getLogger(__name__)

_CLAIMED = "_lmdyn_run_folder"  # an attribute, so that it goes with a trainer that is sent to other processes


def run_folder(trainer: L.Trainer) -> Path:
    """Return the folder of the trainer's run. A broadcast: every rank must call it.

    - TensorBoard and CSV: the logger's own folder.
    - A run that is resumed: the folder that its checkpoint names.
    - Other loggers: ``<save_dir>/<name>/<version or id>``, as Lightning's ModelCheckpoint.
    - Without logger: ``default_root_dir``; if it holds a run, ``version_<n>`` in it.
    - ``fast_dev_run``: a temporary folder.

    Raises:
        ValueError: if the folder holds the observations of another run.
    """
    if trainer.state.fn != TrainerFn.FITTING:  # an evaluation is no run
        return Path(trainer.log_dir or trainer.default_root_dir)
    found: Path | ValueError | None = None
    if trainer.is_global_zero:
        try:
            found = vars(trainer).get(_CLAIMED) or claim_folder(trainer, resumed_checkpoint(trainer))
        except ValueError as error:  # raised on all ranks
            found = error
    found = trainer.strategy.broadcast(found)
    if isinstance(found, ValueError):
        raise found
    assert found is not None
    return found


def claim_folder(trainer: L.Trainer, checkpoint: Any = None, *, restarts: bool = False) -> Path:
    """Choose the folder of the run to be trained, see :func:`run_folder`; rank 0 decides.

    Args:
        trainer: the trainer.
        checkpoint: path of the checkpoint to resume from.
        restarts: whether the run was stopped before its first full checkpoint, and starts again in its folder.

    Raises:
        ValueError: if the folder holds the observations of another run.
    """
    path = None if checkpoint is None else Path(checkpoint).absolute()
    logger = trainer.logger
    if trainer.fast_dev_run:  # type: ignore[attr-defined] # Lightning sets it undeclared
        folder = Path(tempfile.mkdtemp(prefix="lmdyn-fast-dev-run-"))
        weakref.finalize(trainer, shutil.rmtree, folder, ignore_errors=True)
    elif isinstance(logger, TensorBoardLogger | CSVLogger):
        folder = Path(logger.log_dir)
    elif path is not None:
        folder = _folder_of(path)
        log.info("the run continues in %s, the folder of the checkpoint", folder)
    else:
        folder = _new_folder(trainer, logger)
    if not restarts and holds_observations(folder) and not _same_run(folder, path):
        raise ValueError(
            f"{folder} contains the observations of another run: choose another folder (the logger's version, name or "
            "id), resume the other run from a checkpoint in resume/, or remove the folder"
        )
    if trainer.is_global_zero:
        setattr(trainer, _CLAIMED, folder)
    return folder


def has_own_folder(trainer: L.Trainer) -> bool:
    """Return whether the logger determines the folder, also of a resumed run."""
    return isinstance(trainer.logger, TensorBoardLogger | CSVLogger)


def recorded_folder(trainer: L.Trainer) -> dict[str, str]:
    """Return the entry of a checkpoint that names the run's folder, if the logger does not determine it.

    Checkpoints of loggers that do are equal byte for byte in any folder. A broadcast: every rank must call it.
    """
    folder = run_folder(trainer)
    return {} if has_own_folder(trainer) else {"folder": str(folder.absolute())}


def runs_of_logger(trainer: L.Trainer) -> list[Path]:
    """Return the existing runs of a logger without a folder of its own; before 0.1 they were in its ``save_dir``."""
    base = _base(trainer, trainer.logger)
    saved = Path(getattr(trainer.logger, "save_dir", None) or base)
    return [
        folder
        for folder in dict.fromkeys([saved, base, *sorted(base.glob("*/"))])
        if holds_run(folder) or (folder / "provenance.json").is_file()
    ]


def holds_run(folder: Path) -> bool:
    """Return whether a folder has observations, or checkpoints of lmdyn."""
    return holds_observations(folder) or any(folder.glob("*/step=*.ckpt"))


def holds_observations(folder: Path) -> bool:
    """Return whether a folder has observations."""
    return any(folder.glob("observations/*/*.parquet"))


def _base(trainer: L.Trainer, logger: Any) -> Path:
    """Return the folder in which a logger's runs have theirs."""
    if logger is None:
        return Path(trainer.default_root_dir)
    return Path(logger.save_dir or trainer.default_root_dir, *([str(logger.name)] if logger.name else []))


def _new_folder(trainer: L.Trainer, logger: Any) -> Path:
    base = _base(trainer, logger)
    if logger is not None and logger.version is None and trainer.is_global_zero:
        _ = logger.experiment  # a run of Weights & Biases has its id from here on
    version = None if logger is None else logger.version
    if isinstance(version, int):
        return base / f"version_{version}"
    if version:
        return base / str(version)
    if not holds_run(base):
        return base
    folder = next(f for f in (base / f"version_{n}" for n in count()) if not f.exists())
    if trainer.is_global_zero:
        folder.mkdir()
    return folder


def _same_run(folder: Path, checkpoint: Path | None) -> bool:
    """Return whether a checkpoint belongs to the run in a folder; of a copy elsewhere, it may not be known."""
    if checkpoint is None:
        return False
    around = checkpoint.parent.parent
    recorded = _recorded_folder(checkpoint)
    if recorded is None:
        return folder.resolve() == around.resolve() or not holds_observations(around)
    if folder.resolve() in (around.resolve(), recorded.resolve()):
        return True
    # the checkpoints of a run that was moved record its former folder
    return any(_recorded_folder(own) == recorded for own in folder.glob("*/step=*.ckpt"))


def _folder_of(checkpoint: Path) -> Path:
    """Return the folder of a checkpoint's run: the one that contains it, since runs may be moved, or the recorded."""
    around = checkpoint.parent.parent
    if checkpoint.name.startswith("step="):  # of ScheduledCheckpoint, which writes into the run's folder
        return around
    recorded = _recorded_folder(checkpoint)
    return around if recorded is None or not recorded.is_dir() else recorded


def _recorded_folder(checkpoint: Path) -> Path | None:
    try:
        if is_sharded_checkpoint(checkpoint):
            content = about_sharded(checkpoint)
        else:
            content = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError):  # raised where it is restored
        return None
    recorded = (content.get("lmdyn") or {}).get("folder")
    return None if recorded is None else Path(recorded)

"""A configuration built as ``fit`` builds it, but on the CPU and without training: model, data, observers."""

import contextlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
from jsonargparse import Namespace
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.requirements import silently
from lmdyn.callbacks.training.checkpoint import ScheduledCheckpoint
from lmdyn.callbacks.training.lightning_internals import callbacks_of
from lmdyn.callbacks.training.resume import token_counts_of, tokenizer_of
from lmdyn.callbacks.training.run_folder import run_folder
from lmdyn.cli.fit import ONE_PROCESS, LmdynCLI
from lmdyn.cli.training.optimizers import configured_optimizers
from lmdyn.cli.training.preflight import Plan, due


class NotParsedError(ValueError):
    """A configuration that the parser refuses, with the parser's message."""


@dataclass
class Built:
    """The objects of a configuration.

    Attributes:
        trainer: a trainer on the CPU, whatever is configured.
        module: the model with its layers.
        data: the datamodule after setup.
        accelerator: the configured one.
        tokenizer: the run's tokenizer; None without one.
        counts: training counts of its tokens; None without them.
        plan: length of the training.
        optimizers: the configured optimizers; None if they cannot be made before a training.
    """

    trainer: L.Trainer
    module: Any
    data: Any
    accelerator: str
    tokenizer: Any
    counts: Any
    plan: Plan
    optimizers: list[Any] | None

    @property
    def callbacks(self) -> list[Any]:
        """All callbacks of the trainer."""
        return list(callbacks_of(self.trainer))

    @property
    def observers(self) -> list[Observer]:
        """The observers among the callbacks."""
        return [c for c in self.callbacks if isinstance(c, Observer)]

    @property
    def savers(self) -> list[ScheduledCheckpoint]:
        """The callbacks that save checkpoints."""
        return [c for c in self.callbacks if isinstance(c, ScheduledCheckpoint)]

    @property
    def folder(self) -> Path:
        """The run's folder, which may not exist."""
        return run_folder(self.trainer)

    @property
    def steps(self) -> list[int]:
        """Steps of the weights that it saves; only 0 if the length of training is unknown."""
        weights = [saver for saver in self.savers if saver.weights_only]
        if not weights or self.plan.updates is None:
            return [0] if self.savers else []
        return due(weights[0].schedule, self.plan)


class _CLI(LmdynCLI):
    """LightningCLI with a trainer on the CPU."""

    def __init__(self, args: Sequence[str], *, observers_only: bool = False) -> None:
        self._observers_only = observers_only
        self.accelerator = "auto"
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), silently():
                super().__init__(args, run=False)
        except SystemExit as end:
            text = re.sub(r"\n\(LMDYN_TRACEBACK.*", "", said.getvalue().strip(), flags=re.DOTALL)
            raise NotParsedError(text.removeprefix("error: ") or f"exit status {end.code}") from None

    def instantiate_classes(self) -> None:
        """Instantiate the configured classes, except devices; loggers write nothing here."""
        trainer = self.config["trainer"]
        self.accelerator = str(trainer.get("accelerator") or "auto")
        for key, value in ONE_PROCESS.items():
            trainer[key] = value
        if self._observers_only:
            for key, name in (("model", "LightningModule"), ("data", "LightningDataModule")):
                self.config[key] = Namespace(class_path=f"lightning.{name}", init_args=Namespace())
        super().instantiate_classes()


def build(args: Sequence[str]) -> Built:
    """Build model, data and callbacks from the arguments of ``fit``; encoded text goes to lmdyn's cache.

    Args:
        args: ``--config FILE … --model.… VALUE``.

    Raises:
        NotParsedError: if the parser refuses the arguments.
        Exception: whatever the model or the data raise.
    """
    cli = _CLI(args)
    trainer, module, data = cli.trainer, cli.model, cli.datamodule
    if not isinstance(trainer.logger, (TensorBoardLogger, CSVLogger, type(None))):
        trainer.loggers = []  # their folder may be on a server
    trainer.datamodule = data  # type: ignore[attr-defined] # set by its loops
    with silently():
        data.trainer = trainer
        data.prepare_data()
        data.setup("fit")
        module.trainer = trainer
        module.configure_model()
    return Built(
        trainer,
        module,
        data,
        cli.accelerator,
        tokenizer_of(data, module),
        token_counts_of(data),
        Plan.of(trainer, _batches(data, trainer)),
        configured_optimizers(module),
    )


def build_observers(args: Sequence[str]) -> list[Observer]:
    """Build only the observers of a configuration, without model and data."""
    callbacks = callbacks_of(_CLI(args, observers_only=True).trainer)
    return [c for c in callbacks if isinstance(c, Observer)]


def _batches(data: Any, trainer: Any) -> float | None:
    """Return the training batches of an epoch; None if unknown."""
    limit = trainer.limit_train_batches
    try:
        batches = float(len(data.train_dataloader()))
    except (TypeError, NotImplementedError):  # a stream; data without the hook
        return float(limit) if isinstance(limit, int) else None
    return min(batches, float(limit)) if isinstance(limit, int) else float(int(batches * limit))

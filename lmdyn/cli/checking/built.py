"""A configuration built as ``fit`` builds it, but on the CPU and without training: model, data, observers."""

import contextlib
import copy
import io
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse import Namespace
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from transformers import AutoTokenizer

from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.protocols import HasTokenizer, offers
from lmdyn.callbacks.observing.requirements import silently
from lmdyn.callbacks.training.checkpoint import ScheduledCheckpoint
from lmdyn.callbacks.training.lightning_internals import callbacks_of
from lmdyn.callbacks.training.resume import token_counts_of, tokenizer_of
from lmdyn.cli.checking.preflight import Plan, due
from lmdyn.cli.fit import LmdynCLI, run_folder

__all__ = ["Built", "NotMadeError", "NotParsedError", "build", "build_observers", "prepared_tokenizer"]

_DEVICES: Mapping[str, Any] = {
    "accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "plugins": None, "precision": None,
}  # fmt: skip


class NotParsedError(ValueError):
    """A configuration that the parser refuses, with the parser's message."""


class NotMadeError(ValueError):
    """An output of an earlier command of a chain that could not be made here, for lack of a connection."""


@dataclass
class Built:
    """The objects of a configuration.

    Attributes:
        trainer: a trainer on the CPU, whatever is configured.
        module: the model with its layers.
        data: the datamodule after setup.
        asked: accelerator, devices and strategy as configured.
        tokenizer: the run's tokenizer; None without one.
        counts: training counts of its tokens; None without them.
        plan: length of the training.
        optimizers: the configured optimizers; None if they cannot be made before a training.
    """

    trainer: L.Trainer
    module: Any
    data: Any
    asked: dict[str, Any]
    tokenizer: Any = None
    counts: Any = None
    plan: Plan = field(default_factory=lambda: Plan(None, None))
    optimizers: list[Any] | None = None

    @property
    def callbacks(self) -> list[Any]:
        """All callbacks of the trainer."""
        return list(callbacks_of(self.trainer))

    @property
    def observers(self) -> list[Observer]:
        """The observers among the callbacks."""
        return [c for c in self.callbacks if isinstance(c, Observer)]

    @property
    def folder(self) -> Path:
        """The run's folder, which may not exist."""
        return run_folder(self.trainer)

    @property
    def steps(self) -> list[int]:
        """Steps of the weights that it saves; empty if the length of training is unknown."""
        savers = [c for c in self.callbacks if isinstance(c, ScheduledCheckpoint) and c.weights_only]
        if not savers or self.plan.updates is None:
            return []
        return due(savers[0].schedule, self.plan)

    def with_observers(self, callbacks: Sequence[Any]) -> "Built":
        """Return the same model and data with other callbacks."""
        trainer = copy.copy(self.trainer)
        trainer.callbacks = list(callbacks)  # type: ignore[attr-defined] # Lightning sets it undeclared
        return replace(self, trainer=trainer)


class _CLI(LmdynCLI):
    """LightningCLI with a trainer on the CPU."""

    def __init__(self, args: Sequence[str], *, callbacks_only: bool = False) -> None:
        self._callbacks_only = callbacks_only
        self.asked: dict[str, Any] = {}
        super().__init__(args, run=False)

    def instantiate_classes(self) -> None:
        """Instantiate the configured classes, except devices; loggers write nothing here."""
        trainer = self.config["trainer"]
        self.asked = {key: trainer.get(key) for key in ("accelerator", "devices", "num_nodes", "strategy")}
        for key, value in _DEVICES.items():
            trainer[key] = value
        if self._callbacks_only:
            for key, name in (("model", "LightningModule"), ("data", "LightningDataModule")):
                self.config[key] = Namespace(class_path=f"lightning.{name}", init_args=Namespace())
        super().instantiate_classes()


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Within the context, raise the message that the parser would write before it exits."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), silently():
            yield
    except SystemExit as end:
        text = re.sub(r"\n\(LMDYN_TRACEBACK.*", "", said.getvalue().strip(), flags=re.DOTALL)
        raise NotParsedError(text.removeprefix("error: ") or f"exit status {end.code}") from None


def build(args: Sequence[str], tokenizers: Mapping[str, Any] | None = None) -> Built:
    """Build model, data and callbacks from the arguments of ``fit``; encoded text goes to lmdyn's cache.

    Args:
        args: ``--config FILE … --model.… VALUE``.
        tokenizers: tokenizers by the absolute path of folders that do not exist yet; None for one that failed.

    Raises:
        NotParsedError: if the parser refuses the arguments.
        NotMadeError: if a tokenizer could not be made.
        Exception: whatever the model or the data raise.
    """
    with _one_line():
        cli = _CLI(args)
    trainer, module, data = cli.trainer, cli.model, cli.datamodule
    if not isinstance(trainer.logger, (TensorBoardLogger, CSVLogger, type(None))):
        trainer.loggers = []  # their folder may be on a server
    trainer.datamodule = data  # type: ignore[attr-defined] # set by its loops
    with silently():
        path = _path_of_tokenizer(data)
        made = (tokenizers or {}).get(path)
        if path in (tokenizers or {}) and made is None:
            raise NotMadeError(f"its tokenizer, {path}, could not be made here")
        if made is not None and offers(data, HasTokenizer):
            data.tokenizer = made
        data.trainer = trainer
        data.prepare_data()
        data.setup("fit")
        module.trainer = trainer
        module.configure_model()
    built = Built(trainer, module, data, cli.asked, tokenizer_of(data, module), token_counts_of(data))
    built.plan = _plan(built)
    built.optimizers = _optimizers(module)
    return built


def build_observers(args: Sequence[str]) -> list[Any]:
    """Build only the callbacks of a configuration, without model and data."""
    with _one_line():
        return list(callbacks_of(_CLI(args, callbacks_only=True).trainer))


def _path_of_tokenizer(data: Any) -> str:
    """Return the absolute path of its tokenizer; for a datamodule of corpora, that of the inner one."""
    inner = getattr(data, "corpus", None)
    named = getattr(data, "hparams", {}).get("tokenizer") or getattr(inner, "hparams", {}).get("tokenizer")
    return str(Path(str(named)).absolute())


def _plan(built: Built) -> Plan:
    batches: float | None
    try:
        loader = built.data.train_dataloader()
        batches = float(len(loader))
    except (TypeError, NotImplementedError):  # a stream; data without the hook
        batches = None
    limit = getattr(built.trainer, "limit_train_batches", None)
    if isinstance(limit, int) and not isinstance(limit, bool):
        batches = float(limit) if batches is None else min(batches, float(limit))
    elif isinstance(limit, float) and batches is not None:
        batches = float(int(batches * limit))
    return Plan.of(built.trainer, batches)


def _optimizers(module: Any) -> list[Any] | None:
    """Return the module's optimizers; None if it needs a running trainer to configure them."""
    try:
        with silently(), torch.random.fork_rng(devices=[]):
            made = module.configure_optimizers()
    except Exception:
        return None
    if isinstance(made, Mapping):
        made = made.get("optimizer")
    if isinstance(made, tuple) and made and isinstance(made[0], (list, tuple)):
        made = made[0]
    listed = list(made) if isinstance(made, (list, tuple)) else [made]
    listed = [o.get("optimizer") if isinstance(o, Mapping) else o for o in listed]
    return [o for o in listed if isinstance(o, torch.optim.Optimizer)] or None


def prepared_tokenizer(args: Sequence[str]) -> Any:
    """Return the tokenizer that ``lmdyn prepare`` would save, as it would be read back."""
    with _one_line():
        data = _CLI(args).datamodule
    with silently():
        data.prepare_data()
        data.setup("fit")
        tokenizer = tokenizer_of(data, None)  # type: ignore[arg-type] # tokenizer_of accepts any datamodule
        if tokenizer is None:
            raise ValueError(f"{type(data).__name__} has no tokenizer: omit --tokenizer")
        with tempfile.TemporaryDirectory(prefix="lmdyn-") as folder:
            tokenizer.save_pretrained(folder)
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)

"""Loggers for observations outside Lightning: TensorBoard by default, or an object that the user has."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger

from lmdyn.callbacks.training.lightning_internals import continue_events, hide_events, hide_lines


def loggers_of(logger: Any, folder: Path, step: int | None) -> list[Any]:
    """Return loggers for what the argument ``logger`` of :func:`lmdyn.watch` names.

    Args:
        logger: ``tensorboard``, an object with ``add_scalar`` or ``log``, a logger of Lightning, or None.
        folder: the run's folder, for TensorBoard.
        step: step from which the run continues; None if it begins.

    Raises:
        ValueError: for any other object.
    """
    if logger is None:
        return []
    if logger == "tensorboard":
        known = any(folder.glob("events.out.tfevents.*"))
        logger = TensorBoardLogger(save_dir=folder, name="", version="")
        if known and step is None:
            hide_events(logger)
    if isinstance(logger, Logger):
        if step is not None:
            continue_events(logger, step)
        return [logger]
    if hasattr(logger, "add_scalar"):
        writer = _Writer(logger)
        if step is not None:
            hide_lines(writer, step)
        return [writer]
    if callable(getattr(logger, "log", None)):
        return [_Tracked(logger)]
    raise ValueError(
        f"logger is {logger!r}: expected 'tensorboard', an object with `add_scalar` (SummaryWriter) or `log` (a run of "
        "Weights & Biases or trackio), a logger of Lightning, or None"
    )


class _Writer:
    """A SummaryWriter of the user, which stays open."""

    def __init__(self, writer: Any) -> None:
        self.experiment = writer

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        for tag, value in metrics.items():
            self.experiment.add_scalar(tag, value, step)
        if hasattr(self.experiment, "flush"):
            self.experiment.flush()

    def finalize(self, status: str) -> None:
        """Leave the writer to the user."""


class _Tracked:
    """A run of Weights & Biases or trackio; its own steps are the user's, so ours are a value, ``lmdyn/step``."""

    def __init__(self, run: Any) -> None:
        self._run = run
        if hasattr(run, "define_metric"):
            run.define_metric("lmdyn/step")
            run.define_metric("lmdyn/*", step_metric="lmdyn/step")

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log({"lmdyn/step": step, **{f"lmdyn/{tag}": value for tag, value in metrics.items()}})

    def log_image(self, key: str, images: Sequence[Any], step: int) -> None:
        image = import_module(type(self._run).__module__.partition(".")[0]).Image
        (picture,) = images  # trackio drops a list of them
        self._run.log({"lmdyn/step": step, f"lmdyn/{key}": image(picture)})

    def finalize(self, status: str) -> None:
        """Leave the run to the user."""

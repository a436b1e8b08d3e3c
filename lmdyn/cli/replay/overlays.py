"""A yaml on top of a replayed run's configuration: its observers are taken, even if it is the yaml of a training."""

import inspect
import logging
from collections.abc import Mapping
from pathlib import Path

import lightning as L

from lmdyn.cli.configurations import OF_FIT, Config, callback_entries
from lmdyn.cli.recorded_observers import observers_among
from lmdyn.runs.yaml_files import read_yaml

log = logging.getLogger(__name__)


def overlay(path: Path, *, own_data: bool) -> Config | None:
    """Return the settings of a yaml that apply to a replay, and log in one line what is left out; None if they all do.

    Of the trainer, these are the observers. A model that names its class, and the data next to it, are those of a
    training: the run's own are used.

    Args:
        path: file given by ``--config``.
        own_data: whether the run has data; others' checkpoints have none.

    Raises:
        FileNotFoundError: if it does not exist.
    """
    content = read_yaml(path)
    if not isinstance(content, Mapping):
        return None  # the parser says what is wrong
    kept = {key: value for key, value in content.items() if key not in OF_FIT}
    left_out = [key for key in OF_FIT if content.get(key) is not None]
    model = content.get("model")
    if isinstance(model, str) or (isinstance(model, Mapping) and "class_path" in model):
        of_training = ("model", "data") if own_data else ("model",)
        left_out += [key for key in of_training if kept.pop(key, None) is not None]
    trainer = content.get("trainer")
    if isinstance(trainer, Mapping):
        settings = inspect.signature(L.Trainer).parameters.keys() - {"callbacks"}
        kept["trainer"] = {key: value for key, value in trainer.items() if key not in settings}
        left_out += [f"trainer.{key}" for key in trainer if key in settings - {"logger"}]
        for key in {"callbacks", "callbacks+"} & trainer.keys():
            kept["trainer"][key], others = observers_among(callback_entries(content, key))
            left_out += others
    if kept == content:
        return None
    if left_out:
        log.info("lmdyn uses the observers of %s, and ignores %s", path, ", ".join(left_out))
    return kept

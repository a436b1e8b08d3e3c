"""Saved configurations: their callbacks, and values found in training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmdyn.runs.yaml_files import read_yaml

OF_FIT = ("ckpt_path", "weights_only")
"""Arguments of ``fit`` itself in a run's ``config.yaml``; other commands have no use for them."""


Config = dict[str, Any]


def callback_entries(config: Any, *keys: str) -> list[Any]:
    """Return the callbacks under ``trainer``, each a class path or a mapping; other content has none.

    Args:
        config: content of a yaml.
        *keys: keys under which they are; default: ``callbacks``.

    Example:
        >>> callback_entries({"trainer": {"callbacks": "Sparsity"}}), callback_entries({"trainer": [3]})
        (['Sparsity'], [])
    """
    trainer = config.get("trainer") if isinstance(config, Mapping) else None
    given = [trainer.get(key) for key in keys or ("callbacks",)] if isinstance(trainer, Mapping) else []
    return [item for one in given if one for item in (one if isinstance(one, list) else [one])]


def class_path(entry: Any) -> str:
    """Return the class of an entry of a configuration."""
    return str(entry.get("class_path") if isinstance(entry, Mapping) else entry)


def run_configuration(run: Path) -> Config:
    """Return what a run's ``config.yaml`` says of trainer, model, data and seed.

    Raises:
        ValueError: if it is not the configuration of a run.
    """
    config = read_yaml(run / "config.yaml")
    if isinstance(config, dict) and all(isinstance(config.get(k), dict) for k in ("trainer", "model")):
        return {key: config[key] for key in ("seed_everything", "trainer", "model", "data") if key in config}
    raise ValueError(
        f"{run / 'config.yaml'} is not the configuration of a run: expected `trainer` and `model`, with settings"
    )


def complete_model(config: Config, checkpoint: Config) -> None:
    """Set null arguments of a run's model to the values found in training, such as the vocabulary size.

    Only numbers are taken from the checkpoint: a text could name a class, which jsonargparse would import.
    """
    saved = checkpoint.get("hyper_parameters", {})
    arguments = config["model"].get("init_args") or {}
    found = {name: saved.get(name) for name, value in arguments.items() if value is None}
    arguments |= {name: value for name, value in found.items() if isinstance(value, (int, float))}

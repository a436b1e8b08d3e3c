"""Saved configurations: their callbacks, values found in training, and what distinguishes the models of runs."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lmdyn.runs.observed_run import flat_configuration
from lmdyn.runs.yaml_files import read_yaml

__all__ = [
    "OF_FIT",
    "callback_entries",
    "class_path",
    "complete_model",
    "model_configurations",
    "run_configuration",
]

OF_FIT = ("ckpt_path", "weights_only")
"""Arguments of ``fit`` itself in a run's ``config.yaml``; other commands have no use for them."""

_CLASS = "class"  # a keyword of Python, so no argument can have this name


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


def run_configuration(run: Path) -> dict[str, Any]:
    """Return the content of a run's ``config.yaml``.

    Raises:
        ValueError: if it is not the configuration of a run.
    """
    config = read_yaml(run / "config.yaml")
    if isinstance(config, dict) and all(isinstance(config.get(k), dict) for k in ("trainer", "model")):
        return config
    raise ValueError(
        f"{run / 'config.yaml'} is not the configuration of a run: expected trainer and model, with settings"
    )


def complete_model(config: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> None:
    """Set null arguments of a run's model to the values found in training, such as the vocabulary size.

    Only numbers are taken from the checkpoint: a text could name a class, which jsonargparse would import.
    """
    saved = checkpoint.get("hyper_parameters", {})
    arguments = config["model"].get("init_args") or {}
    found = {name: saved.get(name) for name, value in arguments.items() if value is None}
    arguments |= {name: value for name, value in found.items() if isinstance(value, (int, float))}


def model_configurations(runs: Mapping[str, Path]) -> pd.DataFrame:
    """Return the class of each run's model, and those of its arguments that differ between runs.

    Nested arguments have dotted names, and classes are given by their last name: ``optimizer`` is ``AdamW`` and
    ``optimizer.lr`` is its rate. An argument that objects of another class do not have does not count as a difference.

    Args:
        runs: run folder of each name; only its ``config.yaml`` is read, with ``model.class_path`` and
            ``model.init_args``.

    Returns:
        One row for each run, in this order: columns ``run``, ``class`` and the arguments. The row of a run without a
        configuration is None throughout.
    """
    flat = {run: dict(_flat(_model(folder / "config.yaml"))) for run, folder in runs.items()}
    known = [values for values in flat.values() if values]
    names = dict.fromkeys(name for values in known for name in values if name != _CLASS)
    columns = [_CLASS, *(name for name in names if _differs(name, known))]
    rows = [[run, *(values.get(name) for name in columns)] for run, values in flat.items()]
    return pd.DataFrame(rows, columns=["run", *columns], dtype=object)


def _model(config: Path) -> Any:
    if not config.is_file():
        return {}
    content = read_yaml(config)
    return content.get("model") or {} if isinstance(content, Mapping) else {}


def _flat(model: Any) -> Iterator[tuple[str, Any]]:
    for name, value in flat_configuration(model, "model"):
        # null as written in the file, like lists
        yield name.removeprefix("model.") if name != "model" else _CLASS, "null" if value is None else value


def _differs(name: str, known: list[dict[str, Any]]) -> bool:
    """Return whether two runs have different values, or one lacks an argument that a run of the same class has."""
    values = {json.dumps(run[name]) for run in known if name in run}
    having, lacking = ({_owner(name, run) for run in known if (name in run) == has} for has in (True, False))
    return len(values) > 1 or bool(having & lacking)


def _owner(name: str, run: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name and value of the class to which the argument ``name`` belongs."""
    while "." in name:
        name = name.rpartition(".")[0]
        if name in run:
            return name, run[name]
    return _CLASS, run.get(_CLASS)

"""What tells the models of several runs apart, from their saved configurations."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lmdyn.claims.runs import flat_configuration
from lmdyn.claims.yaml_files import read_yaml

__all__ = ["model_configurations", "read_yaml"]

_CLASS = "class"  # a name that no argument of Python's can have


def model_configurations(runs: Mapping[str, Path]) -> pd.DataFrame:
    """The class of each run's model, and those of its arguments that are not the same in all runs.

    Nested arguments are named with dots, classes among them by their last name: ``optimizer`` is ``AdamW`` and
    ``optimizer.lr`` its rate. What an object of another class does not have is no difference of its own.

    Args:
        runs: names to run folders; what is asked of one is its ``config.yaml``, with ``model.class_path`` and
            ``model.init_args``.

    Returns:
        One row for each run, in this order: columns ``run``, ``class`` and the arguments. A run without a
        configuration has None throughout.
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
        # null as in the file, like lists
        yield name.removeprefix("model.") if name != "model" else _CLASS, "null" if value is None else value


def _differs(name: str, known: list[dict[str, Any]]) -> bool:
    """Whether two runs have different values, or one lacks what another run of the same class has."""
    values = {json.dumps(run[name]) for run in known if name in run}
    having, lacking = ({_owner(name, run) for run in known if (name in run) == has} for has in (True, False))
    return len(values) > 1 or bool(having & lacking)


def _owner(name: str, run: Mapping[str, Any]) -> tuple[str, Any]:
    """The class whose argument ``name`` is."""
    while "." in name:
        name = name.rpartition(".")[0]
        if name in run:
            return name, run[name]
    return _CLASS, run.get(_CLASS)

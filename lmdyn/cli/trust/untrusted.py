"""``--untrusted``: for a run made by somebody else, only classes of an exact list are imported."""

import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jsonargparse import _common as settings_of_jsonargparse
from jsonargparse import set_parsing_settings

import lmdyn.callbacks
import lmdyn.datamodules
import lmdyn.models
from lmdyn.analysis.inspection.forward import limit_imports
from lmdyn.runs.yaml_files import read_yaml

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_OTHERS = (
    "lightning.LightningDataModule",
    "lightning.pytorch.core.datamodule.LightningDataModule",  # jsonargparse compares also where a class is defined
    "lightning.pytorch.loggers.CSVLogger",
    "lightning.pytorch.loggers.csv_logs.CSVLogger",
    "lightning.pytorch.loggers.TensorBoardLogger",
    "lightning.pytorch.loggers.tensorboard.TensorBoardLogger",
)
_NOT = ("SpacyTagger",)  # imports the package of a model named in its arguments


def known_paths() -> frozenset[str]:
    """Return what a run may name: exported classes of lmdyn, torch's optimizers and schedules, two loggers.

    Example:
        >>> {"lmdyn.callbacks.Sparsity", "torch.optim.AdamW"} <= known_paths()
        True
        >>> "os.system" in known_paths()
        False
    """
    bases = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    found = set(_OTHERS)
    for package in (lmdyn.callbacks, lmdyn.datamodules, lmdyn.models, torch.optim, torch.optim.lr_scheduler):
        exported = package.__all__ if package.__name__.startswith("lmdyn.") else vars(package)
        for name in set(exported) - {*_NOT}:
            cls = getattr(package, name)
            if isinstance(cls, type) and (exported is package.__all__ or issubclass(cls, bases)):
                found |= {f"{package.__name__}.{name}", f"{cls.__module__}.{cls.__qualname__}"}
    return frozenset(found)


def named_paths(configs: Sequence[Path]) -> frozenset[str]:
    """Return all paths named in the user's own files, which are allowed."""
    return frozenset(
        text for path in configs for _, text in _texts(read_yaml(path)) if _DOTTED.fullmatch(text)
    )


def refuse_others(config: Any, where: Path | str, allowed: frozenset[str]) -> None:
    """Refuse a configuration that names anything else that can be imported: classes, or functions as arguments.

    Args:
        config: plain values.
        where: the file, for the message.
        allowed: dotted paths.

    Raises:
        ValueError: if it does; the message says what and where.

    Example:
        >>> refuse_others({"model": {"class_path": "os.system"}}, "config.yaml", known_paths())
        Traceback (most recent call last):
        ...
        ValueError: config.yaml names os.system (model.class_path), which --untrusted does not import. If ...
    """
    short = {path.rpartition(".")[2] for path in allowed}
    for key, text in _texts(config):
        if key.rpartition(".")[2] == "class_path" and "." not in text:
            fine = text in short
        else:
            fine = text in allowed or not _DOTTED.fullmatch(text) or not _importable(text.partition(".")[0])
        if not fine:
            raise ValueError(
                f"{where} names {text} ({key}), which --untrusted does not import. If you trust {text}, name it "
                f"in a file of your own, --config FILE; otherwise remove it from {where}"
            )


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None  # for a top-level name, this imports nothing
    except (ImportError, ValueError):
        return True


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string in plain values, with its place."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from _texts(one, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for i, one in enumerate(value):
            yield from _texts(one, f"{key}.{i}")


def import_only(allowed: frozenset[str]) -> None:
    """Let neither lmdyn nor jsonargparse import another path that a value names, from now on."""
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=sorted(allowed))
    limit_imports(allowed)


@contextmanager
def imports_restored() -> Iterator[None]:
    """At the end of the context, or of the decorated function, imports are limited as at its beginning."""
    settings = settings_of_jsonargparse.parsing_settings
    before = {name: settings[name] for name in ("import_path_verdicts", "import_paths_enforced")}
    limit = limit_imports(None)
    try:
        yield
    finally:
        settings.update(before)
        limit_imports(limit)

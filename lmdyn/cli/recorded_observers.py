"""Observer classes by name: those of lmdyn, of a configuration, and of recorded observations."""

import logging
import sys
from collections.abc import Sequence
from inspect import isabstract
from pathlib import Path
from typing import Any

import lightning as L
from jsonargparse._typehints import resolve_class_path_by_name

import lmdyn.callbacks
from lmdyn.analysis.inspection.forward import dotted
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.cli.configurations import callback_entries, class_path
from lmdyn.runs.store import ObservationStore, public_name
from lmdyn.runs.yaml_files import read_yaml

log = logging.getLogger(__name__)


class UnknownObserverError(ValueError):
    """Observations of a class that neither lmdyn nor the configuration names."""


def recorded_observer(folder: Path, *, untrusted: bool = False) -> type[Observer]:
    """Return the observer whose observations a folder contains; a class name in a file is never imported by itself.

    Args:
        folder: ``RUN/observations/NAME``.
        untrusted: whether to ignore the run's configuration.

    Returns:
        A public class of lmdyn, a class that is already imported, or one of the callbacks in ``RUN/config.yaml``.

    Raises:
        UnknownObserverError: if it is none of these; the message says how to name the class.
    """
    name = str(ObservationStore(folder).about()["observer"])
    module, _, cls = name.rpartition(".")
    if module == "lmdyn.callbacks":
        found = vars(lmdyn.callbacks).get(cls)
    else:
        found = vars(sys.modules[module]).get(cls) if module in sys.modules else None
    config = folder.parents[1] / "config.yaml"
    for path in _callbacks(config) if found is None and not untrusted else ():
        # same class name and package: a package may export the class under a shorter path
        if path.rpartition(".")[2] == cls and path.partition(".")[0] == name.partition(".")[0]:
            try:
                named = dotted(path)
            except (Exception, SystemExit) as error:  # importing a module may raise anything
                log.warning("%s: %s cannot be imported (%s: %s)", config, path, type(error).__name__, error)
                continue
            if isinstance(named, type) and public_name(named) == name:
                found = named
    if not (isinstance(found, type) and issubclass(found, Observer)):
        raise UnknownObserverError(
            f"the observer {name} is not an observer of lmdyn, and was not imported from {config}. To draw figures of "
            f"{name}, name the class in a file of your own: `lmdyn report RUN --config FILE`"
        )
    return found


def import_configured(config: Path) -> None:
    """Import the observers that a configuration names, so that their observations can be drawn.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if a class cannot be imported.
    """
    if not config.is_file():
        raise FileNotFoundError(f"--config {config} does not exist: check the path")
    for path in _callbacks(config):
        dotted(path)


def _callbacks(config: Path) -> list[str]:
    """Return the classes that a configuration names as callbacks, except short names, which are classes of lmdyn."""
    content = read_yaml(config) if config.is_file() else None
    return [
        path
        for entry in callback_entries(content, "callbacks", "callbacks+")
        if "." in (path := class_path(entry))
    ]


def observers_among(callbacks: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Return the observers among callbacks, and the class names of the others, which a replay never calls.

    Args:
        callbacks: classes, or classes with arguments.
    """
    others = {name for one in callbacks if _is_other(name := class_path(one))}
    kept = [one for one in callbacks if class_path(one) not in others]
    return kept, [name.rpartition(".")[2] for one in callbacks if (name := class_path(one)) in others]


def _is_other(name: str) -> bool:
    """Return whether this is a callback, but no observer; of unknown names the parser says what is wrong."""
    module, _, short = resolve_class_path_by_name(L.Callback, name).rpartition(".")
    try:  # a short name is that of an imported class, also where an untrusted run may import nothing else
        if "." in name:
            cls: Any = dotted(name)
        else:
            cls = vars(sys.modules[module])[short] if module else None
    except ValueError:
        return False
    return isinstance(cls, type) and issubclass(cls, L.Callback) and not issubclass(cls, Observer)


def exported_observers() -> dict[str, type[Observer]]:
    """Return all observers of ``lmdyn.callbacks`` by name."""
    classes = {name: getattr(lmdyn.callbacks, name) for name in lmdyn.callbacks.__all__}
    kinds = {name: cls for name, cls in classes.items() if isinstance(cls, type)}
    return {name: cls for name, cls in kinds.items() if issubclass(cls, Observer) and not isabstract(cls)}

"""The class behind recorded observations: one of lmdyn's, or one that the run's configuration names."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

import lmdyn.callbacks
from lmdyn.analysis.inspection.forward import dotted
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.store import ObservationStore, public_name
from lmdyn.cli.configurations import read_yaml

__all__ = ["UnknownObserverError", "import_configured", "recorded_observer"]


log = logging.getLogger(__name__)


class UnknownObserverError(ValueError):
    """Observations of a class that neither lmdyn nor the user knows."""


def recorded_observer(folder: Path, *, untrusted: bool = False, name: str | None = None) -> type[Observer]:
    """The observer whose observations a folder holds; a name in a file imports nothing by itself.

    Args:
        folder: ``RUN/observations/NAME``.
        untrusted: the run's configuration is not to be followed.
        name: the observer's, as its files say it, where that is known already.

    Returns:
        The class: a public one of lmdyn's, one that is imported already, or one among the callbacks in
        ``RUN/config.yaml``.

    Raises:
        UnknownObserverError: it is none of these; the message says how to name it.
    """
    name = name or str(ObservationStore(folder).about()["observer"])
    module, _, cls = name.rpartition(".")
    if module == "lmdyn.callbacks":
        found = vars(lmdyn.callbacks).get(cls)
    else:
        found = vars(sys.modules[module]).get(cls) if module in sys.modules else None
    config = folder.parents[1] / "config.yaml"
    for path in _callbacks(config) if found is None and not untrusted else ():
        # the same class of the same package: a package may export it under a shorter path
        if path.rpartition(".")[2] == cls and path.partition(".")[0] == name.partition(".")[0]:
            try:
                named = dotted(path)
            except (Exception, SystemExit) as error:  # whatever the module does when it is imported
                log.warning("%s: %s cannot be imported (%s: %s)", config, path, type(error).__name__, error)
                continue
            if isinstance(named, type) and public_name(named) == name:
                found = named
    if not (isinstance(found, type) and issubclass(found, Observer)):
        raise UnknownObserverError(
            f"observed by {name}, which is none of lmdyn's observers and is not named in {config}: to draw its "
            "figures, name it in a file of your own, `lmdyn report RUN --config FILE`"
        )
    return found


def import_configured(config: Path) -> None:
    """Import the observers that a configuration names, so that their observations can be drawn.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a class that cannot be imported.
    """
    if not config.is_file():
        raise FileNotFoundError(f"--config {config} is missing")
    for path in _callbacks(config):
        dotted(path)


def _callbacks(config: Path) -> list[str]:
    """The classes that a configuration names as callbacks; short names, which are lmdyn's own classes, are left out."""
    content = read_yaml(config) if config.is_file() else None
    trainer = content.get("trainer") if isinstance(content, Mapping) else None
    given = [trainer.get(key) for key in ("callbacks", "callbacks+")] if isinstance(trainer, Mapping) else []
    listed = [item for found in given for item in (found if isinstance(found, list) else [found])]
    paths = [str(item.get("class_path")) if isinstance(item, Mapping) else str(item) for item in listed]
    return [path for path in paths if "." in path]

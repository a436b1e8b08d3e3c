"""Which observer made an observation on disk, with which settings: neither is tied to a source file."""

from collections.abc import Mapping
from typing import Any

__all__ = ["canonical_settings", "current_name", "public_name"]

_ROOMS = ("lmdyn.callbacks.", "lmdyn.models.", "lmdyn.datamodules.")


def public_name(cls: type) -> str:
    """The name under which files know a class: lmdyn's by its package, any other by its own path.

    Example:
        >>> from lmdyn.callbacks import Sparsity
        >>> public_name(Sparsity), public_name(dict)
        ('lmdyn.callbacks.Sparsity', 'builtins.dict')
    """
    return current_name(f"{cls.__module__}.{cls.__qualname__}")


def current_name(path: str) -> str:
    """Today's public name of a class that a file names: files of version 0.1 hold the paths of source files.

    Source files of lmdyn move, and its packages export each public class: of a path below them, the package and the
    class are the name.

    Example:
        >>> current_name("lmdyn.callbacks.sparsity.Sparsity"), current_name("my_lab.observers.Loud")
        ('lmdyn.callbacks.Sparsity', 'my_lab.observers.Loud')
    """
    for room in _ROOMS:
        if path.startswith(room):
            return room + path.rpartition(".")[2]
    return path


def canonical_settings(cls: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a file holds, as an observer of this class would write them today.

    ``legacy_settings`` of the class and of its bases are the values that the absence of an argument in a file stands
    for: an argument that is added to an existing observer declares there what observations were made with before; one
    that is added to a dataclass among the arguments, under a name with a dot (``classifier.kind``).
    ``renamed_settings`` lead from former names of arguments to today's.

    Args:
        cls: the observer's class.
        settings: plain values by name.

    Example:
        >>> class Curves:
        ...     legacy_settings = {"smoothing": 0}
        ...     renamed_settings = {"smooth": "smoothing"}
        >>> canonical_settings(Curves, {"bands": [10]}), canonical_settings(Curves, {"smooth": 2})
        ({'bands': [10], 'smoothing': 0}, {'smoothing': 2})
    """
    legacy: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        legacy |= vars(base).get("legacy_settings", {})
        renamed |= vars(base).get("renamed_settings", {})
    found = {_last_name(name, renamed): value for name, value in settings.items()}
    for name, value in legacy.items():
        argument, _, attribute = name.partition(".")
        if not attribute:
            found.setdefault(argument, value)
        elif isinstance(found.get(argument), Mapping):
            found[argument] = {attribute: value, **found[argument]}
    return found


def _last_name(name: str, renamed: Mapping[str, str]) -> str:
    """Today's name of an argument that was renamed any number of times."""
    for _ in renamed:
        name = renamed.get(name, name)
    return name

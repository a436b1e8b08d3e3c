"""Modules in the working directory, such as ``my_model.py``: found after the installed ones, or not at all."""

import logging
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["find_modules"]

log = logging.getLogger(__name__)


def find_modules(args: Sequence[str]) -> None:
    """Append the working directory to ``sys.path``, and report modules in it that others hide; not if --untrusted.

    Args:
        args: words of the command line.

    Raises:
        ValueError: if, with --untrusted, Python itself has put the working directory before the installed modules:
            every import would prefer a file in it.
    """
    here = Path.cwd()
    installed = str(Path(os.__file__).parent)
    before = sys.path[: sys.path.index(installed)] if installed in sys.path else sys.path
    first = any(Path(entry).resolve() == here.resolve() for entry in before)
    if any(len(word) > 2 and "--untrusted".startswith(word) for word in args):  # however a parser reads it
        if first:
            raise ValueError(
                "with --untrusted, the working directory must not come first on Python's path, since modules in it "
                f"would be imported: run `lmdyn {args[0]} …`, or `python -P -m lmdyn.cli {args[0]} …`, without this "
                "folder in PYTHONPATH"
            )
        return
    if first:
        return
    for name in sorted(_named(args)):
        own = Path(name, "__init__.py").is_file() or Path(f"{name}.py").is_file()
        if own and (other := _elsewhere(name, here)) is not None:
            log.warning(
                "%s in this folder is hidden by %s, which is imported for it: rename it, or run `python -m lmdyn.cli`",
                name,
                other,
            )
    if str(here) not in sys.path:
        sys.path.append(str(here))


def _elsewhere(name: str, here: Path) -> str | None:
    """Return where a module of this name is that is imported instead of the one in a folder; None if none is."""
    if name in sys.builtin_module_names:
        return "built in"
    found = PathFinder.find_spec(
        name, [entry for entry in sys.path if Path(entry).resolve() != here.resolve()]
    )
    return None if found is None else found.origin


def _named(args: Sequence[str]) -> set[str]:
    """Return the first parts of dotted paths among the words of a command line, and in the yaml files they name."""
    texts = [word.partition("=")[2] or word for word in args]
    paths = [path for text in texts for path in (Path(text), Path(text, "config.yaml"))]
    files = [path for path in paths if path.suffix in (".yaml", ".yml") and path.is_file()]
    texts += [path.read_text(encoding="utf-8", errors="replace") for path in files]
    return {name for text in texts for name in re.findall(r"(?<![\w.])([^\W\d]\w*)\.\w", text)}

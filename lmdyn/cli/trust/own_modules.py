"""Modules in the working directory, such as ``my_model.py``: found after the installed ones, or not at all."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def find_modules(args: Sequence[str]) -> None:
    """Append the working directory to ``sys.path``, unless --untrusted is given.

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
                "with --untrusted, the working directory must not come first on Python's path, since Python would "
                f"import modules from there. Run `lmdyn {args[0]} …`, or `python -P -m lmdyn.cli {args[0]} …`, without "
                "this folder in PYTHONPATH"
            )
        return
    if not first and str(here) not in sys.path:
        sys.path.append(str(here))

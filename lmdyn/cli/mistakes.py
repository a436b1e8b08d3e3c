"""Whose mistake an error is: one of configuration is told in a line, one in a user's code keeps its traceback."""

import os
import site
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

__all__ = ["causes", "of_users_code"]

_LMDYN = str(Path(__file__).resolve().parents[1])
_CALLERS = ("lightning", "pytorch_lightning", "jsonargparse")


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error, what it was raised from, and so on; jsonargparse and lmdyn wrap errors to say where they belong."""
    seen: list[BaseException] = []
    pending: BaseException | None = error
    while pending is not None and pending not in seen:
        seen.append(pending)
        yield pending
        pending = pending.__cause__


def of_users_code(error: BaseException) -> BaseException | None:
    """The error, or that of its :func:`causes`, that a user's code raised, or a library that this code called.

    What counts is the innermost frame that is a user's, lmdyn's, or of a library that calls both (Lightning,
    jsonargparse). So an error of lmdyn's is about its arguments, also where a user's class has passed them on. Users'
    code is what lies in no folder of installed packages.

    Example:
        >>> of_users_code(ValueError("raised nowhere")) is None
        True
    """
    return next((e for e in causes(error) if _is_of_users_code(e)), None)


def _is_of_users_code(error: BaseException) -> bool:
    libraries = _libraries()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith("<"):  # no file, as what a decorator generates
            continue
        path = os.path.realpath(frame.filename)
        if path.startswith(_LMDYN + os.sep):
            return False
        folder = next((f for f in libraries if path.startswith(f + os.sep)), None)
        if folder is None:
            return True
        if Path(path).relative_to(folder).parts[0] in _CALLERS:
            return False
    return False


def _libraries() -> list[str]:
    """Folders of installed packages, the innermost first."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return sorted({os.path.realpath(f) for f in folders}, key=len, reverse=True)

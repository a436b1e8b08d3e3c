"""What could not be observed, and why: a small file next to the observation's, for workers and for users."""

import json
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lmdyn.callbacks.training.atomic_files import write_file

__all__ = ["Failure", "clear_failure", "note_failure", "read_failure"]


@dataclass(frozen=True)
class Failure:
    """A failed attempt.

    Attributes:
        error: message of the error.
        when: time, in UTC.
        host: name of the machine.
        noted: seconds, by the file system's clock.
    """

    error: str
    when: str
    host: str
    noted: float


def note_failure(target: Path, error: BaseException) -> None:
    """Record next to ``target`` why it could not be made."""
    content = {
        "error": message_of(error), "when": datetime.now(UTC).isoformat(timespec="seconds"), "host": platform.node(),
        "command": " ".join(sys.argv),
    }  # fmt: skip
    write_file(_path(target), lambda path: path.write_text(json.dumps(content), encoding="utf-8"))


def read_failure(target: Path) -> Failure | None:
    """Return why the last attempt to make a file failed; None if it did not fail."""
    try:
        text, about = _path(target).read_text(encoding="utf-8"), _path(target).stat()
    except OSError:
        return None
    try:
        content = json.loads(text)
        return Failure(str(content["error"]), str(content["when"]), str(content["host"]), about.st_mtime)
    except (ValueError, KeyError, TypeError):
        return Failure("its file cannot be read", "", "", about.st_mtime)


def clear_failure(target: Path) -> None:
    """Remove the record of a failure, after the file was made."""
    with suppress(FileNotFoundError):
        _path(target).unlink()


def message_of(error: BaseException) -> str:
    """Return an error's message, with its class unless it is a mistake that lmdyn found."""
    text = str(error) or "no message"
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _path(target: Path) -> Path:
    return target.with_name(f".{target.stem}.failed")

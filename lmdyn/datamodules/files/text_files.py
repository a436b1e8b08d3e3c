"""Reading text: paths, lines and json, with errors that name file and line."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

__all__ = [
    "expand_paths",
    "file_digest",
    "parse_json",
    "read_json",
    "read_json_lines",
    "read_lines",
    "shown",
]


def expand_paths(paths: str | Iterable[str]) -> list[Path]:
    """Paths with ``$VAR`` and ``~`` expanded.

    Raises:
        FileNotFoundError: a path that is no file, or names an environment variable that is not set.
    """
    expanded = []
    for text in [paths] if isinstance(paths, str | Path) else paths:
        path = Path(os.path.expandvars(text)).expanduser()
        if not path.is_file():
            hint = "its environment variable is not set" if "$" in str(path) else "give the path of a file"
            raise FileNotFoundError(f"no file {str(text)!r} (looked for {path}): {hint}")
        expanded.append(path)
    return expanded


def file_digest(path: Path) -> str:
    """Hash (blake2b) of a file's content; its name plays no part."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def shown(text: str, most: int = 100) -> str:
    """A text in quotes for a message, of a long one its beginning.

    Example:
        >>> shown("one"), shown("x" * 200, most=3)
        ("'one'", "'xxx'… (200 characters)")
    """
    return repr(text) if len(text) <= most else f"{text[:most]!r}… ({len(text)} characters)"


# ------------------------------------------------------------------------------------------ lines


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a UTF-8 file with their numbers from 1, without line ends.

    A line ends with LF or CRLF; in a file without LF, but perhaps at its end, with CR. Elsewhere a CR is white space.
    Other characters that Unicode counts as line ends are part of a line.

    Raises:
        ValueError: a line that is not UTF-8 or holds a NUL character, with file and line number.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(_raw_lines(file), start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start} of the line): "
                    "convert the file, for example with iconv -t UTF-8"
                ) from error
            if "\0" in line:
                raise ValueError(
                    f"{path}:{number}: not text (a NUL character): the file is damaged, or UTF-16, which "
                    "iconv -f UTF-16 -t UTF-8 converts"
                )
            yield number, line.rstrip("\r\n")


def _raw_lines(file: BinaryIO) -> Iterator[bytes]:
    first, second = file.readline(), file.readline()
    if second:
        yield from (first, second)
        yield from file
    else:  # all of the file, which may have been written with CR alone
        yield from first.splitlines()  # of bytes: at CR, LF and CRLF only


# ------------------------------------------------------------------------------------------ json


def parse_json(text: str, path: Path, line: int = 1) -> Any:
    """The value of a json text.

    Args:
        text: of a file, or of a line of it.
        path: the file, for messages.
        line: number of the text's first line.

    Raises:
        ValueError: no json, a name twice in an object (of which any reading is a guess), nesting without end, half of a
            surrogate pair, with file and line.

    Example:
        >>> parse_json('{"a": [1, null]}', Path("x.json"))
        {'a': [1, None]}
        >>> parse_json('{"a": 1, "a": 2}', Path("x.json"), 7)
        Traceback (most recent call last):
        ValueError: x.json:7: the name 'a' is there twice in an object: which is meant?
    """
    try:
        value = json.loads(text, object_pairs_hook=_named_once)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f"{path}:{line + error.lineno - 1}"
        raise ValueError(f"{where}: expected json, got {error.msg} at column {error.colno}") from error
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{path}:{line}: not text: {error.object[error.start]!r} is half of a character"
        ) from error
    except (RecursionError, ValueError) as error:  # a name twice; a number of thousands of digits
        said = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{path}:{line}: {said}") from error
    return value


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"the name {shown(twice)} is there twice in an object: which is meant?")
    return value


def read_json(path: Path) -> Any:
    """The value of a UTF-8 json file.

    Raises:
        ValueError: as of :func:`read_lines` and :func:`parse_json`.
    """
    return parse_json("\n".join(line for _, line in read_lines(path)), path)


def read_json_lines(path: Path, keys: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Objects of a file that have these keys, with text in them, and the numbers of their lines.

    Raises:
        ValueError: a line that is no such object, with file and line number; a file without any.
    """
    number = 0
    for number, line in read_lines(path):
        if not line.strip():
            continue
        entry = parse_json(line, path, number)
        if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) for k in keys):
            raise ValueError(
                f"{path}:{number}: expected an object with {list(keys)} as text, got {shown(line)}"
            )
        yield number, entry

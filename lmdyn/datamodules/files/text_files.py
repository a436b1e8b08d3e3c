"""Reading text: paths, lines and json, with errors that name file and line."""

import codecs
import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO


def expand_paths(paths: str | Iterable[str], inside: str | None = None) -> list[Path]:
    """Return paths with ``$VAR`` and ``~`` expanded.

    Args:
        paths: a path or several.
        inside: if given, a path may also be a pattern, or a folder, which stands for its files of this pattern at any
            depth, in the order of their paths.

    Raises:
        FileNotFoundError: if a path is not a file, or contains an environment variable that is not set.
    """
    expanded = []
    for text in [paths] if isinstance(paths, str | Path) else paths:
        path = Path(os.path.expandvars(text)).expanduser()
        found = [path]
        if inside is not None and not path.is_file():
            pattern = f"{glob.escape(str(path))}/**/{inside}" if path.is_dir() else str(path)
            found = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207
        found = [file for file in found if file.is_file()]
        if not found:
            hint = "set the environment variable" if "$" in str(path) else "give the path of a file"
            raise FileNotFoundError(f"no file {str(text)!r} (looked for {path}): {hint}")
        expanded += found
    return expanded


def file_digest(path: Path) -> str:
    """Return a hash (blake2b) of a file's content, independent of its name."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def shown(text: str, most: int = 100) -> str:
    """Quote a text for a message; long texts are shortened to their beginning.

    Example:
        >>> shown("one"), shown("x" * 200, most=3)
        ("'one'", "'xxx'… (200 characters)")
    """
    return repr(text) if len(text) <= most else f"{text[:most]!r}… ({len(text)} characters)"


# ------------------------------------------------------------------------------------------ lines


def read_lines(path: Path, keepends: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file with their numbers from 1, without line ends unless ``keepends`` is set.

    A byte order mark is not part of the text.

    A line ends with LF or CRLF; in a file without LF, except perhaps at its end, with CR. Elsewhere a CR is white
    space. Other characters that Unicode counts as line ends are part of a line.

    Raises:
        ValueError: if a line is not UTF-8 or contains a NUL character; the message has file and line number.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(_raw_lines(file), start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                utf_16 = number == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
                raise ValueError(
                    f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start} of the line): "
                    f"convert the file, for example with iconv -f {'UTF-16' if utf_16 else 'LATIN1'} -t UTF-8"
                ) from error
            if "\0" in line:
                raise ValueError(
                    f"{path}:{number}: not text (a NUL character): the file is damaged, or is UTF-16: convert UTF-16 "
                    "with iconv -f UTF-16 -t UTF-8"
                )
            yield number, line if keepends else line.rstrip("\r\n")


def _raw_lines(file: BinaryIO) -> Iterator[bytes]:
    first, second = file.readline(), file.readline()
    if second:
        yield from (first, second)
        yield from file
    else:  # the whole file, which may use CR only
        yield from first.splitlines(keepends=True)  # for bytes: only at CR, LF and CRLF


# ------------------------------------------------------------------------------------------ json


def parse_json(text: str, path: Path, line: int = 1) -> Any:
    """Return the value of a JSON text.

    Args:
        text: text of a file, or of a line of it.
        path: the file, for messages.
        line: number of the text's first line.

    Raises:
        ValueError: if it is not JSON, or is nested too deeply; the message has file and line.

    Example:
        >>> parse_json('{"a": [1, null]}', Path("x.json"))
        {'a': [1, None]}
    """
    try:
        found = json.loads(text)
        if "\\u" in text:  # half of a surrogate pair is no character
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except json.JSONDecodeError as error:
        where = f"{path}:{line + error.lineno - 1}"
        raise ValueError(f"{where}: expected JSON (error at column {error.colno}: {error.msg})") from error
    except (RecursionError, ValueError) as error:  # also a number with thousands of digits
        raise ValueError(f"{path}:{line}: lmdyn cannot read the JSON ({error}): correct it") from error


def read_json(path: Path) -> Any:
    """Return the value of a UTF-8 JSON file.

    Raises:
        ValueError: as in :func:`read_lines` and :func:`parse_json`.
    """
    return parse_json("\n".join(line for _, line in read_lines(path)), path)


def read_json_lines(path: Path, keys: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the objects of a file, which must have these keys with text values, and the numbers of their lines.

    Raises:
        ValueError: if a line is not such an object (with file and line number).
    """
    for number, line in read_lines(path):
        if not line.strip():
            continue
        entry = parse_json(line, path, number)
        if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) for k in keys):
            what = f"{' and '.join(keys)} as text" if keys else "the columns of a row"
            raise ValueError(f"{path}:{number}: expected an object with {what}, got {shown(line)}")
        yield number, entry

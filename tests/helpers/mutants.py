"""Damaged files: mutants of a small valid one, each a function of (name, number), and what a reader makes of them.

A reader that is given one of them reads what an independent, naive reading of the same bytes finds, or refuses it in a
:class:`ValueError` of its own that names the place. Whatever else happens (an error of a library's, a wrong reading, a
hang) is a finding.
"""

import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["KEEPING", "Findings", "Reader", "campaign", "mutants", "naive_lines", "number_of_mutants"]

NUMBER = 100
SECONDS = 10.0
"""What a mutant may take; the valid files take milliseconds, and the first of a format its imports."""

Random = random.Random


@dataclass(frozen=True)
class Reader:
    """A reader of files, and what is right.

    Attributes:
        file: name of the file that is damaged.
        valid: its content.
        read: reads that file of a folder; plain values that compare.
        naive: an independent reading of the bytes, lenient: what the reader accepts is equal to it. An error of its
            own means that there is nothing right to read.
        place: pattern of the place that a refusal names.
        kinds: of damage.
        keeping: those of :data:`KEEPING` that leave the content as it is.
        others: further files of the folder.
    """

    file: str
    valid: bytes
    read: Callable[[Path], Any]
    naive: Callable[[bytes], Any]
    kinds: Sequence[str]
    place: str = r"{file}:\d+: "
    keeping: frozenset[str] = frozenset()
    others: Mapping[str, bytes] = field(default_factory=dict)


@dataclass
class Findings:
    """What became of the mutants of a reader."""

    accepted: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


def number_of_mutants() -> int:
    """``LMDYN_MUTANTS``, or what CI takes."""
    return int(os.environ.get("LMDYN_MUTANTS", NUMBER))


# ---------------------------------------------------------------------------------------- damage to bytes


def _at(random: Random, content: bytes, most: int = 1) -> tuple[int, int]:
    start = random.randrange(len(content))
    return start, min(len(content), start + random.randint(1, most))


def flip_bit(random: Random, content: bytes) -> bytes:
    at, _ = _at(random, content)
    return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]


def delete_bytes(random: Random, content: bytes) -> bytes:
    start, end = _at(random, content, 5)
    return content[:start] + content[end:]


def double_bytes(random: Random, content: bytes) -> bytes:
    start, end = _at(random, content, 40)
    return content[:end] + content[start:]


def _insert(*choices: bytes) -> Callable[[Random, bytes], bytes]:
    def insert(random: Random, content: bytes) -> bytes:
        at = random.randrange(len(content) + 1)
        return content[:at] + random.choice(choices) + content[at:]

    return insert


def truncate(random: Random, content: bytes) -> bytes:
    return content[: random.randrange(1, len(content))]


def zero_block(random: Random, content: bytes) -> bytes:
    """A block that was never written, as after a crash."""
    start, end = _at(random, content, 64)
    return content[:start] + bytes(end - start) + content[end:]


def _ends(end: bytes) -> Callable[[Random, bytes], bytes]:
    return lambda _, content: content.replace(b"\r\n", b"\n").replace(b"\n", end)


# ---------------------------------------------------------------------------------------- damage to lines


def _of_lines(change: Callable[[Random, list[bytes]], None]) -> Callable[[Random, bytes], bytes]:
    def damage(random: Random, content: bytes) -> bytes:
        lines = content.split(b"\n")
        change(random, lines)
        return b"\n".join(lines)

    return damage


def _some(random: Random, lines: list[bytes]) -> int:
    """A line that is not empty."""
    return random.choice([i for i, line in enumerate(lines) if line] or [0])


def delete_line(random: Random, lines: list[bytes]) -> None:
    del lines[_some(random, lines)]


def double_line(random: Random, lines: list[bytes]) -> None:
    at = _some(random, lines)
    lines.insert(at, lines[at])


def swap_lines(random: Random, lines: list[bytes]) -> None:
    a, b = _some(random, lines), _some(random, lines)
    lines[a], lines[b] = lines[b], lines[a]


def cut_line(random: Random, lines: list[bytes]) -> None:
    at = _some(random, lines)
    lines[at] = lines[at][: random.randrange(len(lines[at]) or 1)]


def join_lines(random: Random, lines: list[bytes]) -> None:
    at = _some(random, lines)
    lines[at : at + 2] = [b"".join(lines[at : at + 2])]


def empty_line(random: Random, lines: list[bytes]) -> None:
    lines.insert(random.randrange(len(lines)), random.choice([b"", b" ", b"\t"]))


def comment_line(random: Random, lines: list[bytes]) -> None:
    at = _some(random, lines)
    lines[at] = b"#" + lines[at][random.randrange(2) :]


def long_line(random: Random, lines: list[bytes]) -> None:
    at = _some(random, lines)
    lines[at] = lines[at] * (200_000 // max(1, len(lines[at])))


def crlf_line(random: Random, lines: list[bytes]) -> None:
    at = random.randrange(max(1, len(lines) - 1))
    lines[at] += b"\r"


def cr_line(random: Random, lines: list[bytes]) -> None:
    at = random.randrange(max(1, len(lines) - 1))
    lines[at : at + 2] = [b"\r".join(lines[at : at + 2])]


# ---------------------------------------------------------------------------------------- damage to cells

_CELLS = (
    "", "_", "-", "*", "#", "0", "-1", "1", "2", "7", "99", "1.5", "nan", "inf", "1e999", "9" * 5000, "٣", "1_0", "(",
    ")", "((*", "*)", "(NP*)", "(3", "3)", "(3)|(4", "|", "x y", "x  y", "\u2028", "\u00a0", "\ufeff", "é" * 3, "2-1",
    "3-4", "1.1", "true",
)  # fmt: skip


def _of_cells(change: Callable[[Random, list[bytes]], None]) -> Callable[[Random, bytes], bytes]:
    """Cells are between tabs, where there are any in the line, else words."""

    def damage(random: Random, content: bytes) -> bytes:
        lines = content.split(b"\n")
        at = _some(random, lines)
        separator = b"\t" if b"\t" in lines[at] else b" "
        cells = lines[at].split(separator)
        change(random, cells)
        lines[at] = separator.join(cells)
        return b"\n".join(lines)

    return damage


def delete_cell(random: Random, cells: list[bytes]) -> None:
    del cells[random.randrange(len(cells))]


def double_cell(random: Random, cells: list[bytes]) -> None:
    at = random.randrange(len(cells))
    cells.insert(at, cells[at])


def swap_cells(random: Random, cells: list[bytes]) -> None:
    a, b = random.randrange(len(cells)), random.randrange(len(cells))
    cells[a], cells[b] = cells[b], cells[a]


def other_cell(random: Random, cells: list[bytes]) -> None:
    cells[random.randrange(len(cells))] = random.choice(_CELLS).encode()


def deep_cell(random: Random, cells: list[bytes]) -> None:
    cells[random.randrange(len(cells))] = b"(X" * 20_000 + b"*" + b")" * random.choice([0, 20_000])


# ---------------------------------------------------------------------------------------- damage to json


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -3, 2, 7, 10**6, 10**30, 0.5, 2.0, float("nan"), float("inf"), "", " ", "0", "x",
    "a b", "\ud800", "\x00", "a\u2028b", [], {}, [1], ["x"], [[]], {"text": "x"}, "false",
)  # fmt: skip


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        _places(inner, found)
    return found


def _of_json(change: Callable[[Random, Any, Any], None]) -> Callable[[Random, bytes], bytes]:
    """One value of a json file, or of a line of a jsonl one."""

    def damage(random: Random, content: bytes) -> bytes:
        try:
            whole, lines, at = json.loads(content), [content], 0
        except ValueError:
            lines = content.split(b"\n")
            at = _some(random, lines)
            whole = json.loads(lines[at])
        holder, key = random.choice(_places(whole, []))
        change(random, holder, key)
        lines[at] = json.dumps(whole, ensure_ascii=True).encode()
        return b"\n".join(lines)

    return damage


def other_value(random: Random, holder: Any, key: Any) -> None:
    holder[key] = random.choice(_VALUES)


def delete_value(random: Random, holder: Any, key: Any) -> None:
    del holder[key]


def other_key(random: Random, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder[random.choice(["", "x", f"{key}s", key.upper()])] = holder.pop(key)


def double_value(random: Random, holder: Any, key: Any) -> None:
    if isinstance(holder, list):
        holder.insert(key, holder[key])
    else:
        holder[f"{key}2"] = holder[key]


def double_key(random: Random, content: bytes) -> bytes:
    """A name twice in an object, which no dict can hold."""
    found = list(re.finditer(rb'("\w+"): ("[^"\\]*"|\d+|true|false|null)', content))
    if not found:
        return content
    one = random.choice(found)
    return (
        content[: one.end()]
        + b", "
        + one[1]
        + b": "
        + random.choice([one[2], b'"x"', b"7"])
        + content[one.end() :]
    )


def deep_json(random: Random, content: bytes) -> bytes:
    found = list(re.finditer(rb'"[^"\\]*"|\d+', content))
    one = random.choice(found)
    n = 100_000
    return content[: one.start()] + b"[" * n + b"]" * random.choice([0, n]) + content[one.end() :]


def huge_number(random: Random, content: bytes) -> bytes:
    found = list(re.finditer(rb"(?<![\w.])\d+", content))
    if not found:
        return content + b" 1"
    one = random.choice(found)
    return (
        content[: one.start()]
        + random.choice([b"9" * 5000, b"1e999", b"-9", b"4294967297"])
        + content[one.end() :]
    )


# ---------------------------------------------------------------------------------------- all of it

_KINDS: Mapping[str, Callable[[Random, bytes], bytes]] = {
    "flip a bit": flip_bit, "delete bytes": delete_bytes, "double bytes": double_bytes, "truncate": truncate,
    "zero a block": zero_block, "empty": lambda *_: b"", "only white space": lambda *_: b" \n\n\t\n",
    "NUL": _insert(b"\0", b"\0\0\0\0"),
    "not UTF-8": _insert(b"\xff", b"\xc3", b"\xe2\x80", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80"),
    "UTF-16": lambda _, c: c.decode("utf-8", "replace").encode("utf-16"),
    "UTF-16 without mark": lambda _, c: c.decode("utf-8", "replace").encode("utf-16-le"),
    "byte order mark": lambda _, c: b"\xef\xbb\xbf" + c,
    "byte order mark inside": _insert(b"\xef\xbb\xbf"),
    "unicode line": _insert(*(c.encode() for c in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e")),
    "unicode space": _insert(*(c.encode() for c in "\u00a0\u3000\u200b\x1f \t")),
    "unicode letter": _insert(*(c.encode() for c in "\u0301é𝟛٣\u202e\ud7ff\U0010ffff\x1b\x7f")),
    "CRLF": _ends(b"\r\n"), "CR": _ends(b"\r"),
    "CR but the last": lambda r, c: _ends(b"\r")(r, c.rstrip(b"\n")) + b"\n",
    "no end": lambda _, c: c.rstrip(b"\n"), "a CRLF": _of_lines(crlf_line), "a CR": _of_lines(cr_line),
    "insert a CR": _insert(b"\r"),
    "delete a line": _of_lines(delete_line), "double a line": _of_lines(double_line),
    "swap lines": _of_lines(swap_lines), "cut a line": _of_lines(cut_line),
    "join lines": _of_lines(join_lines), "insert a line": _of_lines(empty_line),
    "comment out": _of_lines(comment_line), "long line": _of_lines(long_line),
    "delete a cell": _of_cells(delete_cell), "double a cell": _of_cells(double_cell),
    "swap cells": _of_cells(swap_cells), "another cell": _of_cells(other_cell), "deep cell": _of_cells(deep_cell),
    "another value": _of_json(other_value), "delete a value": _of_json(delete_value),
    "another key": _of_json(other_key), "double a value": _of_json(double_value),
    "double a key": double_key, "deep json": deep_json,
    "huge number": huge_number,
}  # fmt: skip

BYTES = ("flip a bit", "delete bytes", "double bytes", "truncate", "zero a block", "empty")
TEXT = (
    *BYTES, "only white space", "NUL", "not UTF-8", "UTF-16", "UTF-16 without mark", "byte order mark",
    "byte order mark inside", "unicode line", "unicode space", "unicode letter", "CRLF", "CR", "CR but the last",
    "no end", "a CRLF", "a CR", "insert a CR", "delete a line", "double a line", "swap lines", "cut a line",
    "join lines", "insert a line", "long line",
)  # fmt: skip
CELLS = (
    *TEXT, "comment out", "delete a cell", "double a cell", "swap cells", "another cell", "another cell", "deep cell",
)  # fmt: skip
JSON = (
    *TEXT, "another value", "another value", "another value", "delete a value", "another key", "double a value",
    "double a key", "deep json", "huge number",
)  # fmt: skip
KEEPING = frozenset({"byte order mark", "CRLF", "CR", "CR but the last", "no end", "a CRLF"})
"""Damage that leaves the lines of a text as they are."""


def mutants(name: str, content: bytes, kinds: Sequence[str], number: int) -> Iterator[tuple[str, bytes]]:
    """Kind and content of each mutant; the i-th is a function of (name, i), the kinds take turns."""
    for i in range(number):
        kind = kinds[i % len(kinds)]
        yield kind, _KINDS[kind](Random(f"{name} {i}"), content)


def naive_lines(content: bytes) -> list[str]:
    """Lines of a text, as the ends are: LF and CRLF, in a text without LF before its end CR; ValueError where none."""
    text = content.decode("utf-8-sig")
    if "\0" in text:
        raise ValueError("no text")
    if "\n" not in text[:-1]:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]


class Hang(BaseException):
    """A mutant takes too long."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def campaign(name: str, reader: Reader, folder: Path, number: int) -> Findings:
    """Give a reader so many mutants, each in a folder of its own."""
    found = Findings()
    place = re.compile(reader.place.format(file=re.escape(reader.file)))
    right = reader.naive(reader.valid)
    assert _read(reader, folder / "valid", reader.valid) == right, f"{name}: the valid file is read wrongly"
    for i, (kind, content) in enumerate(mutants(name, reader.valid, reader.kinds, number)):
        what = f"{name} {i} ({kind})"
        found.kinds[kind] += 1
        try:
            with _at_most(SECONDS):
                value = _read(reader, folder / str(i), content)
        except Hang:
            found.wrong.append(f"{what}: takes more than {SECONDS} s")
        except Exception as error:
            said = f"{type(error).__name__}: {str(error)[:400]}"
            if type(error) is not ValueError:
                found.wrong.append(f"{what}: an error that is not the reader's own: {said}")
            elif not place.search(str(error)):
                found.wrong.append(f"{what}: a refusal without its place: {said}")
            elif len(str(error)) > 3000 or "\n" in str(error):
                found.wrong.append(f"{what}: a refusal that is no line: {said}")
            elif kind in reader.keeping:
                found.wrong.append(f"{what}: refused, though it says the same: {said}")
            else:
                found.refused += 1
        else:
            try:
                expected = right if kind in reader.keeping else reader.naive(content)
            except Exception as error:
                found.wrong.append(f"{what}: accepted, though there is nothing to read: {error!r}")
            else:
                if value != expected:
                    found.wrong.append(f"{what}: read as {_differing(value, expected)}")
                else:
                    found.accepted += 1
    return found


def _read(reader: Reader, folder: Path, content: bytes) -> Any:
    folder.mkdir(parents=True)
    for file, other in {**reader.others, reader.file: content}.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(other)
    try:
        return reader.read(folder)
    finally:
        shutil.rmtree(folder)


def _differing(value: Any, expected: Any) -> str:
    if isinstance(value, list) and isinstance(expected, list):
        if len(value) != len(expected):
            return f"{len(value)} entries, not {len(expected)}"
        value, expected = next((a, b) for a, b in zip(value, expected, strict=True) if a != b)
    return f"{str(value)[:300]}, not {str(expected)[:300]}"

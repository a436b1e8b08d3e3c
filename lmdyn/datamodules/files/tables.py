"""Reading tables: JSON lines, or columns separated by commas or tabs, with errors that name file and line."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmdyn.datamodules.files.text_files import read_json_lines, read_lines

TableRow = tuple[int, dict[str, Any]]
"""Number of its line, and its columns."""


def table_rows(path: Path) -> Iterator[TableRow]:
    """Yield the rows of JSON lines (``*.jsonl``), or of a table with a header: ``*.csv``, or separated by tabs.

    Raises:
        ValueError: with file and line, for what is no such table.
    """
    if path.suffix in (".jsonl", ".json"):
        yield from read_json_lines(path)
        return
    lines = (text for _, text in read_lines(path, keepends=True))
    comma = path.suffix == ".csv"
    table = csv.DictReader(
        lines,
        delimiter="," if comma else "\t",
        quoting=csv.QUOTE_MINIMAL if comma else csv.QUOTE_NONE,
        strict=True,
    )
    try:
        names = table.fieldnames or []
        if again := [name for name in names if names.count(name) > 1]:
            raise ValueError(
                f"{path}:1: expected columns of different names, got {again[0]!r} twice: rename one column"
            )
        for row in table:
            if None in row:
                raise ValueError(
                    f"{path}:{table.line_num}: expected {len(names)} columns (header), got {len([*names, *row[None]])}"
                )
            yield table.line_num, row
    except csv.Error as error:
        raise ValueError(
            f"{path}:{table.line_num + 1}: expected a table ({error}): close all quotes"
        ) from error

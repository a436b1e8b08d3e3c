"""Files of multiple choice: completions of a text, one of which is right, by templates over the columns of a row."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lmdyn.datamodules.files.made_at_setup import TableData
from lmdyn.datamodules.files.tables import table_rows
from lmdyn.datamodules.files.text_files import expand_paths, shown


class ChoiceFiles(TableData):
    """Multiple-choice items of files: the ``probe`` of the observer ``Choices``.

    A file is JSON lines (``*.jsonl``), or a table with a header (``*.csv``, or separated by tabs). Templates name its
    columns in braces: EWoK has the prefix ``{Context1}`` and the options ``" {Target1}"`` and ``" {Target2}"``. With
    one template of an option, items are scored only.

    Args:
        files: paths, patterns of paths, and folders, which stand for their ``*.jsonl`` at any depth.
        options: a template for each option, or the name of a column with the list of options.
        prefixes: a template for what precedes all options, or one for each option. It is read, but not scored.
        right: number of the right option, from 0, or the name of a column that has it.
        group: template of the name of the item's group, by which accuracies are given; by default the file's name.
        without: items are left out of which an option contains this word; None for none.

    Attributes:
        choices: after ``setup``, a row for each option: ``item`` (name of the item), ``option`` (its number),
            ``text`` (prefix and option), ``begin`` (character at which the option begins), ``right``, ``group``,
            ``file``, ``line``.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: in ``setup``, with file and line, for a column that is missing, unequal numbers of prefixes and
            options, fewer than two options, an empty one, or a right option that is none of them.
    """

    def __init__(
        self,
        files: str | Sequence[str],
        options: str | Sequence[str],
        prefixes: str | Sequence[str] = "",
        right: int | str = 0,
        group: str | None = None,
        without: str | None = None,
    ) -> None:
        super().__init__()
        self.files = [files] if isinstance(files, str) else list(files)
        self.options, self.prefixes = options, prefixes
        self.right, self.group, self.without = right, group, without

    def make(self) -> pd.DataFrame:
        """Read the files."""
        paths = expand_paths(self.files, "*.jsonl")
        table = pd.DataFrame([row for path in paths for row in self._read(path)])
        if table.empty:
            raise ValueError(f"lmdyn found no items in {', '.join(self.files)}: check files and `without`")
        counts = table["option"].eq(0).groupby(table["group"]).cumsum() - 1
        table["item"] = table["group"] + "_" + counts.astype(str)
        return table

    choices = TableData.ready

    def _read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the options of a file."""
        for line, row in table_rows(path):
            where = f"{path}:{line}"
            try:
                options = self._options(row)
                prefixes = [self.prefixes] if isinstance(self.prefixes, str) else self.prefixes
                before = [_filled(prefix, row) for prefix in prefixes]
                if len(before) == 1:
                    before *= len(options)
                if len(before) != len(options):
                    raise ValueError(f"{len(options)} options, but {len(before)} prefixes")
                right = int(row[self.right]) if isinstance(self.right, str) else self.right
                group = path.stem if self.group is None else _filled(self.group, {"file": path.stem, **row})
            except (KeyError, TypeError, ValueError) as error:
                why = f"no column {error}" if isinstance(error, KeyError) else str(error)
                raise ValueError(
                    f"{where}: {why} (columns: {shown(', '.join(row))}): correct options, prefixes, right or group"
                ) from error
            least = 2 if isinstance(self.options, str) else min(2, len(self.options))
            if len(options) < least or not all(o.strip() for o in options) or not 0 <= right < len(options):
                raise ValueError(
                    f"{where}: the options are {shown(' | '.join(options))}, and the right option has number {right} "
                    f"(from 0): expected {least} or more options, no empty option, and the number of an option"
                )
            if self.without is None or not any(self.without in option.split() for option in options):
                for i, (prefix, option) in enumerate(zip(before, options, strict=True)):
                    yield {
                        "option": i,
                        "text": prefix + option,
                        "begin": len(prefix),
                        "right": i == right,
                        "group": group,
                        "file": str(path),
                        "line": line,
                    }

    def _options(self, row: Mapping[str, Any]) -> list[str]:
        """Return the options of a row."""
        if not isinstance(self.options, str):
            return [_filled(option, row) for option in self.options]
        listed = row[self.options]
        if not isinstance(listed, list):
            raise TypeError(f"expected a list in column {self.options}, got {shown(str(listed))}")
        return [_text(option) for option in listed]


def _filled(template: str, row: Mapping[str, Any]) -> str:
    """Return a template with the columns of a row in place of their names in braces."""
    return re.sub(r"\{([^{}]*)\}", lambda name: _text(row[name[1]]), template)


def _text(cell: Any) -> str:
    """Return a cell as text."""
    if not isinstance(cell, str | int | float):
        raise TypeError(f"expected text or a number, got {shown(repr(cell))}")
    return str(cell)

"""Files of words in columns, line by line: the blocks from which readers of CoNLL formats make sentences."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmdyn.datamodules.corpora.sentence import MISSING, Sentence
from lmdyn.datamodules.files.text_files import read_lines, shown

_COMMENT = re.compile("#")


@dataclass
class Block:
    """Consecutive comments, and the rows of a sentence after them.

    Attributes:
        path: the file.
        comments: number and text of each comment's line.
        lines: number of each row's line.
        rows: the cells of each row, without white space around them.
    """

    path: Path
    comments: list[tuple[int, str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    def error(self, row: int, what: object) -> ValueError:
        """Return an error about a row, with file and line."""
        return ValueError(f"{self.path}:{self.lines[row]}: {what}")

    def column(self, number: int) -> tuple[str | None, ...] | None:
        """Return the labels in a column, None where one is missing; None if all are."""
        labels = tuple(None if row[number] in MISSING else row[number] for row in self.rows)
        return labels if any(labels) else None

    def sentence(self, word: int, lowercase: bool, **layers: Any) -> Sentence:
        """Return the sentence; white space within a word becomes ``_``.

        Args:
            word: column of the words.
            lowercase: whether to lowercase the words.
            **layers: its layers.

        Raises:
            ValueError: if the sentence is malformed; the message has file and line.
        """
        words = ("_".join(row[word].split()) for row in self.rows)
        try:
            return Sentence(tuple(w.lower() if lowercase else w for w in words), **layers)
        except ValueError as error:
            raise self.error(0, error) from error


def read_blocks(
    path: Path, columns: int, *, more: bool = False, tabs: bool = True, comment: re.Pattern[str] = _COMMENT
) -> Iterator[Block]:
    """Yield the blocks of a file; an empty line, or a comment, ends a sentence.

    Args:
        path: the file.
        columns: number of columns of each row.
        more: whether rows may have more columns, equally many in a sentence.
        tabs: whether tabs separate the columns; otherwise rows with too few tabs are separated by white space.
        comment: beginning of a comment.

    Raises:
        ValueError: if a row has another number of columns; the message has file and line.
    """
    block = Block(path)
    for number, line in read_lines(path):
        blank, commented = not line.strip(), comment.match(line)
        if (block.rows and (blank or commented)) or (block.comments and blank):
            yield block
            block = Block(path)
        if commented:
            block.comments.append((number, line))
        elif not blank:
            cells = line.split("\t")
            if not tabs and len(cells) < columns:
                cells = line.split()
            expected = len(block.rows[0]) if block.rows else max(columns, len(cells)) if more else columns
            if len(cells) != expected:
                raise ValueError(
                    f"{path}:{number}: expected {expected} columns separated by {'tabs' if tabs else 'white space'}, "
                    f"got {len(cells)}: {shown(line)}"
                )
            block.lines.append(number)
            block.rows.append([cell.strip() for cell in cells])
    if block.rows or block.comments:
        yield block

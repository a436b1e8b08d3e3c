"""Files of reading times: of words after their context, as in the BabyLM protocol, or of the words of texts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lmdyn.datamodules.files.checks import each_once
from lmdyn.datamodules.files.made_at_setup import TableData
from lmdyn.datamodules.files.tables import table_rows
from lmdyn.datamodules.files.text_files import expand_paths, shown

_NAMES: Mapping[str, tuple[str, ...]] = {
    "word": ("word", "Word", "token"),
    "context": ("context",),
    "text": ("text", "text_id", "story", "item", "article", "passage", "sentence_id", "sent_id", "sentence"),
    "position": ("position", "zone", "word_number", "word_index"),
    "subject": ("subject", "participant", "WorkerId", "subj", "reader"),
    "frequency": ("frequency", "log_frequency", "Subtlex_log10", "log_freq"),
    "length": ("length", "word_length"),
    "before": ("context_length",),
}
"""Names under which columns are found."""

_TIMES = ("time", "times", "rt", "reading_time", "self_paced_reading_time", "meanItemRT")
_MISSING = ("", "na", "nan", "none", "null", ".")


class ReadingFiles(TableData):
    """Reading times of words: the ``probe`` of the observer ``Reading``.

    A file is a table with a header (``*.csv``, or separated by tabs), or JSON lines (``*.jsonl``), in one of two
    layouts:

    - each row is a word and the text before it (``context``). In the BabyLM protocol's file, this column is ``item``,
      which is empty before the first word of a sentence;
    - each row is a word of a text: the words of all rows with the same ``text``, in the order of their ``position``,
      are the text. Rows of several readers repeat the words; without ``position``, each reader has the words of a
      text in the order of the rows.

    Times are columns of numbers; where a cell is empty or ``NA``, there is none.

    Args:
        files: paths and patterns of paths.
        columns: names of columns in the files: ``word``, ``context``, ``text``, ``position``, ``subject``,
            ``frequency`` (log frequency of the word), ``length`` (by default, its number of characters), ``before``
            (number of words before it, by default counted). Others are found by usual names; a named ``text`` goes
            before a ``context`` that is found.
        times: names of the columns of times; by default those whose names begin with ``RT``, and usual names.

    Attributes:
        reading_times: after ``setup``, the rows: ``text`` (as a model reads it), ``index`` (of the word in the text,
            from 0), ``word``, ``item`` (its name), ``subject``, ``frequency``, ``length``, ``before``, ``file``,
            ``line``, and the times; numbers are NaN where there is none.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: for unknown ``columns``; in ``setup``, with file and line, for a missing column, a cell that is no
            number, a word that is empty or has white space, a word without ``text``, or two words at one position.
    """

    def __init__(
        self,
        files: str | Sequence[str],
        columns: Mapping[str, str] | None = None,
        times: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.files = [files] if isinstance(files, str) else list(files)
        self.columns = dict(columns or {})
        each_once(_NAMES, columns=self.columns)
        self.times = list(times or [])

    def make(self) -> pd.DataFrame:
        """Read the files."""
        tables: list[pd.DataFrame] = []
        for path in expand_paths(self.files, "*.csv"):
            tables.append(self._read(path, sum(map(len, tables))))
        rows = pd.concat(tables, ignore_index=True)
        again = rows.groupby("item")["text"].transform("nunique").gt(1)
        file = pd.Series(pd.factorize(rows["file"])[0].astype(str))
        rows["item"] = rows["item"].where(~again, file + "/" + rows["item"])
        return rows

    reading_times = TableData.ready

    def _read(self, path: Path, before: int) -> pd.DataFrame:
        """Return the rows of a file; ``before`` is the number of those of other files."""
        rows = list(table_rows(path))
        table = pd.DataFrame([row for _, row in rows])
        lines = pd.Series([line for line, _ in rows], dtype="int64")
        names = {name: self._column(table, name, path) for name in _NAMES}
        if "context" not in self.columns:
            if "text" in self.columns:
                names["context"] = None
            elif "prev_item" in table:
                names |= {"context": "item", "text": None}
        self.times = self.times or [
            str(name) for name in table if str(name).startswith("RT") or name in _TIMES
        ]
        missing = [name for name in self.times if name not in table]
        if names["word"] is None or missing or not self.times:
            what = (
                "a column of words"
                if names["word"] is None
                else f"columns of times {', '.join(missing or _TIMES)}"
            )
            raise ValueError(
                f"{path}: expected {what}, got columns {shown(', '.join(map(str, table)))} of {len(table)} rows: "
                "name the columns with `columns: {word: …}` and `times`"
            )
        words = _strings(table[names["word"]])
        _refuse(words.str.count(r"\S+") != 1, path, lines, "one word", words)
        found = pd.DataFrame({"word": words, "file": str(path), "line": lines})
        subject = names["subject"]
        found["subject"] = "" if subject is None else _strings(table[subject])
        for name in (*self.times, "frequency", "length", "before"):
            column = names.get(name, name)
            found[name] = float("nan") if column is None else _numbers(table[column], path, lines)
        if names["context"] is not None:
            context = _strings(table[names["context"]])
            found["text"] = (context + " " + words).str.strip()
            found["index"] = context.str.count(r"\S+")
            found["item"] = [str(before + number) for number in range(len(found))]
        else:
            self._join(found, table, names, path)
        found["length"] = found["length"].fillna(words.str.len())
        found["before"] = found["before"].fillna(found["index"])
        return found

    def _column(self, table: pd.DataFrame, name: str, path: Path) -> str | None:
        """Return the name of a column in a table, the given or a usual one; None if there is none."""
        if (given := self.columns.get(name)) is not None and given not in table:
            raise ValueError(
                f"{path}: `columns` has {given!r} as {name}, but the file has only {shown(', '.join(map(str, table)))}"
            )
        return given or next((usual for usual in _NAMES[name] if usual in table), None)

    def _join(
        self, found: pd.DataFrame, table: pd.DataFrame, names: Mapping[str, str | None], path: Path
    ) -> None:
        """Join the words of each text."""
        text = pd.Series(path.stem, found.index) if names["text"] is None else _strings(table[names["text"]])
        _refuse(text.eq(""), path, found["line"], "the text of the word", text)
        if names["position"] is None:
            position: pd.Series[float] = text.groupby([text, found["subject"]]).cumcount().astype(float)
        else:
            position = _numbers(table[names["position"]], path, found["line"])
            _refuse(
                position.isna(), path, found["line"], "the position of the word", table[names["position"]]
            )
        keys = pd.DataFrame({"text": text, "position": position, "word": found["word"]})
        first = keys.groupby(["text", "position"])["word"].transform("first")
        _refuse(first != keys["word"], path, found["line"], "one word at a position of a text", keys["word"])
        words = keys.drop_duplicates(["text", "position"]).sort_values(["text", "position"])
        texts = words.groupby("text")["word"].agg(" ".join)
        words["index"] = words.groupby("text").cumcount()
        # one object for all rows of a text: a column of strings would hold a copy for each row
        whole = pd.Series(texts.tolist(), dtype=object)
        found["text"] = whole.iloc[texts.index.get_indexer(pd.Index(text))].set_axis(found.index)
        found["index"] = keys.merge(words, how="left", on=["text", "position"])["index"].to_numpy()
        found["item"] = text + "/" + position.map("{:.15g}".format)


def _strings(cells: "pd.Series[Any]") -> "pd.Series[str]":
    """Return a column as strings, empty where there is none."""
    return cells.astype(object).fillna("").astype(str).str.strip()


def _numbers(cells: "pd.Series[str]", path: Path, lines: "pd.Series[int]") -> "pd.Series[float]":
    """Return a column as numbers, NaN where a cell is empty."""
    numbers = pd.to_numeric(cells, errors="coerce").astype(float)
    there = ~_strings(cells).str.lower().isin(_MISSING)
    _refuse(numbers.isna() & there, path, lines, f"a number as {cells.name}, or an empty cell", cells)
    return numbers


def _refuse(
    wrong: "pd.Series[bool]", path: Path, lines: "pd.Series[int]", what: str, cells: "pd.Series[str]"
) -> None:
    """Raise an error with file and line of the first row that is wrong."""
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        raise ValueError(f"{path}:{lines.iloc[at]}: expected {what}, got {shown(str(cells.iloc[at]))}")

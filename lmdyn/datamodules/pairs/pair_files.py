"""Files of minimal pairs, in the layouts of BLiMP, of agreement data, and of tables of two sentences."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lmdyn.datamodules.files.checks import each_once
from lmdyn.datamodules.files.made_at_setup import TableData
from lmdyn.datamodules.files.tables import TableRow, table_rows
from lmdyn.datamodules.files.text_files import expand_paths, shown

_NAMES: Mapping[str, tuple[str, ...]] = {
    "good": ("sentence_good", "good", "grammatical", "acceptable", "right", "correct"),
    "bad": ("sentence_bad", "bad", "ungrammatical", "unacceptable", "wrong", "incorrect"),
    "paradigm": ("UID", "paradigm", "condition", "construction", "case", "pattern"),
    "field": ("field",),
    "term": ("linguistics_term", "term", "phenomenon"),
    "attractors": ("n_attr", "attractors", "n_attractors", "n_diff_intervening"),
    "pair": ("pairID", "pair_id", "pair"),
}
"""Names under which columns are found."""

_PAIR = ("pattern", "constr_id", "sent_id")
_GULORDAVA = {*_PAIR, "form", "class", "len_prefix", "sent"}
_OTHER_FORM = ("other_form", "wrong_form", "verb_other")
_PICKLED = (".pickle", ".pkl", ".p")


class PairFiles(TableData):
    """Minimal pairs of files: the ``probe`` of the observer ``MinimalPairs``.

    Layouts are found by their columns:

    - two sentences and the name of their condition, as JSON lines (``*.jsonl``), or with a header as ``*.csv``, or
      separated by tabs. BLiMP's ``sentence_good``, ``sentence_bad``, ``UID``, ``field``, ``linguistics_term`` and
      ``pairID`` are found, as other usual names are;
    - ``generated.tab`` of Gulordava et al. 2018: the two rows of a sentence, ``correct`` and ``wrong``, have the forms
      of its word ``len_prefix``;
    - the table of Linzen et al. 2016 (``sentence``, ``verb_index`` from 1), if another column has the other form of the
      verb: its name is ``other_form``, ``wrong_form`` or ``verb_other``.

    Pickled templates of LM_syneval are refused: reading a pickled file runs the code that is in it.

    Args:
        files: paths, patterns of paths, and folders, which stand for their ``*.jsonl`` at any depth.
        columns: names of columns in the files: ``good``, ``bad``, ``paradigm`` (the condition), ``field``, ``term``,
            ``attractors`` (their number), ``pair`` (the name of the pair). Others are found by usual names.

    Attributes:
        pairs: after ``setup``, a row for each pair: these columns as text, empty where there is none, ``file``, and
            ``line``. Pairs without a name have their number in the file, from 0.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: for unknown ``columns``; in ``setup``, with file and line, for a layout without sentences or
            conditions, a pair without one of its sentences, a name that occurs twice in a paradigm, or bad JSON.

    Reference: Warstadt et al. 2020, "BLiMP"; Gulordava et al. 2018; Linzen et al. 2016; Marvin & Linzen 2018.
    """

    def __init__(self, files: str | Sequence[str], columns: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.files = [files] if isinstance(files, str) else list(files)
        self.columns = dict(columns or {})
        each_once(_NAMES, columns=self.columns)

    def make(self) -> pd.DataFrame:
        """Read the files."""
        rows = [row for path in expand_paths(self.files, "*.jsonl") for row in self._read(path)]
        pairs = pd.DataFrame(rows, columns=[*_NAMES, "file", "line"])
        if pairs.empty:
            raise ValueError(f"expected pairs of sentences in {', '.join(self.files)}, got none")
        if len(again := pairs[pairs.duplicated(["paradigm", "pair"])]):
            one = again.iloc[0]
            raise ValueError(
                f"{one['file']}:{one['line']}: expected each pair of a paradigm once, got {one['pair']!r} of "
                f"{one['paradigm']!r} twice: give the pairs different names in the column of `columns: {{pair: …}}`"
            )
        return pairs

    pairs = TableData.ready

    def _read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the pairs of a file."""
        if path.suffix in _PICKLED:
            raise ValueError(
                f"{path} is a pickled file, which could run code if lmdyn read the file. Write the pairs as a table "
                "with columns good, bad and condition (.tsv or .jsonl)"
            )
        for number, (line, row) in enumerate(self._converted(path, list(table_rows(path)))):
            where = f"{path}:{line}"
            found = {name: self._value(row, name, where) for name in _NAMES}
            if missing := [name for name in ("good", "bad", "paradigm") if not found[name]]:
                raise ValueError(
                    f"{where}: the pair has no {' and no '.join(missing)} in the columns {shown(', '.join(row))}. "
                    f"Fill in the missing cell, or name the column with `columns: {{{missing[0]}: …}}` (usual "
                    f"names: {', '.join(_NAMES[missing[0]])})"
                )
            yield {**found, "pair": found["pair"] or str(number), "file": str(path), "line": line}

    def _value(self, row: Mapping[str, Any], name: str, where: str) -> str:
        """Return a column of a row by the given name or a usual one; empty if it is missing."""
        names = (self.columns[name],) if name in self.columns else _NAMES[name]
        value = next((row[n] for n in names if row.get(n) is not None and row[n] == row[n]), "")
        if not isinstance(value, str if name in ("good", "bad") else (str, int, float)):
            raise ValueError(f"{where}: expected text as {name!r} of the pair, got {shown(repr(value))}")
        return str(value).strip()

    def _converted(self, path: Path, rows: Sequence[TableRow]) -> Iterable[TableRow]:
        """Convert files of agreement to two sentences in a row."""
        names = set(rows[0][1]) if rows else set()
        if names >= _GULORDAVA:
            return _of_forms(path, _complete(path, rows, _GULORDAVA))
        if "verb_index" in names and not self.columns:
            other = next((name for name in _OTHER_FORM if name in names), " or ".join(_OTHER_FORM))
            return _of_verbs(path, _complete(path, rows, {"sentence", "verb_index", other}), other)
        return rows


def _complete(path: Path, rows: Sequence[TableRow], needed: set[str]) -> Sequence[TableRow]:
    for line, row in rows:
        if missing := [n for n in sorted(needed) if (cell := row.get(n)) in (None, "") or cell != cell]:
            raise ValueError(
                f"{path}:{line}: the row has no {' and no '.join(missing)}: fill in the cell, or add the column"
            )
    return rows


def _replaced(sentence: str, index: int, form: str, where: str) -> str:
    words = sentence.split()
    if not 0 <= index < len(words):
        raise ValueError(f"{where}: the sentence has no word {index + 1}: correct len_prefix or verb_index")
    return " ".join([*words[:index], form, *words[index + 1 :]])


def _number(row: Mapping[str, Any], name: str, where: str) -> int:
    number = float(pd.to_numeric(str(row.get(name)), errors="coerce"))
    if not number.is_integer():
        raise ValueError(f"{where}: expected a whole number as {name}, got {row.get(name)!r}")
    return int(number)


def _of_forms(path: Path, rows: Sequence[TableRow]) -> Iterator[TableRow]:
    """Yield the pairs of rows with the right and the wrong form of a sentence."""
    waiting: dict[str, tuple[int, dict[str, Any]]] = {}
    for line, row in rows:
        where = f"{path}:{line}"
        name = " ".join(str(row[key]) for key in _PAIR)
        sentence = str(row["sent"]).removesuffix("<eos>").strip()
        kind = {"correct": "good", "wrong": "bad"}.get(str(row["class"]))
        _, known = waiting.setdefault(name, (line, {**row, "pair": name}))
        if kind is None or kind in known:
            raise ValueError(
                f"{where}: expected classes correct and wrong for {name!r}, got {row['class']!r}{' twice' * bool(kind)}"
            )
        known[kind] = _replaced(sentence, _number(row, "len_prefix", where), str(row["form"]), where)
        if "good" in known and "bad" in known:
            yield waiting.pop(name)
    for line, row in waiting.values():
        raise ValueError(f"{path}:{line}: expected classes correct and wrong for {row['pair']!r}, got one")


def _of_verbs(path: Path, rows: Sequence[TableRow], other: str) -> Iterator[TableRow]:
    """Yield the pairs of a sentence and the other form of its verb."""
    for line, row in rows:
        where = f"{path}:{line}"
        good = " ".join(str(row["sentence"]).split())
        bad = _replaced(good, _number(row, "verb_index", where) - 1, str(row[other]), where)
        yield line, {"paradigm": path.stem, **row, "good": good, "bad": bad}

"""CoNLL-U: Universal Dependencies treebanks."""

import re
from collections.abc import Iterator
from pathlib import Path

from conllu import parse_incr
from conllu.exceptions import ParseException

from lmdyn.datamodules.corpora.corpus import FileCorpus
from lmdyn.datamodules.corpora.sentence import Document, Sentence
from lmdyn.datamodules.files.text_files import read_lines, shown

__all__ = ["ConlluCorpus", "read_conllu"]

_COLUMNS = 10
_NUMBER = "[1-9][0-9]{0,8}"  # enough for any sentence, and below Python's limit for integers
_WORD_ID = re.compile(_NUMBER)
_OTHER_ID = re.compile(rf"({_NUMBER})-({_NUMBER})|(0|{_NUMBER})\.{_NUMBER}")  # multiword range, empty node
_HEAD = re.compile(rf"0|{_NUMBER}|_")
_FIELDS = "ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC"
_GLOBAL_COLUMNS = "# global.columns = "


class _CheckedLines:
    """Lines of a file, checked and counted for ``conllu.parse_incr``, which is lenient and does not report lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.word_lines: list[int] = []
        """Line number of each word of the last sentence."""
        self.first = 1
        """The first line of the sentence."""
        self._others: list[tuple[int, str, int]] = []
        """Line, number and last word of each range and empty node."""

    def read(self) -> str:  # parse_incr only checks that this method exists
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        inside = False
        for number, line in read_lines(self.path):
            if not line.strip():
                inside = False
                self._check_others()
            elif not inside:
                inside = True
                self.word_lines, self.first = [], number
            if line.startswith("#"):
                self._check_comment(number, line)
            elif line.strip():
                line = self._check(number, line)
            yield line + "\n"
        self._check_others()

    def _check_comment(self, number: int, line: str) -> None:
        if line.count("\t") == _COLUMNS - 1:
            raise ValueError(
                f"{self.path}:{number}: a comment with the {_COLUMNS} columns of a word: start a word's line with its "
                f"number: {shown(line)}"
            )
        if (
            line.startswith(_GLOBAL_COLUMNS)
            and line.removeprefix(_GLOBAL_COLUMNS).upper().split() != _FIELDS.split()
        ):
            raise ValueError(
                f"{self.path}:{number}: expected the columns of CoNLL-U, {_FIELDS}, got {shown(line)}"
            )

    def _check_others(self) -> None:
        """Refuse a range or an empty node past the end of its sentence."""
        for number, name, last in self._others:
            if last > len(self.word_lines):
                raise ValueError(
                    f"{self.path}:{number}: {name} is past the end of its sentence, which has {len(self.word_lines)} "
                    "words"
                )
        self._others = []

    def _check(self, number: int, line: str) -> str:
        where = f"{self.path}:{number}"
        columns = line.split("\t")
        if len(columns) != _COLUMNS:
            raise ValueError(
                f"{where}: expected {_COLUMNS} columns separated by tabs, got {len(columns)}: {shown(line)}"
            )
        if _WORD_ID.fullmatch(columns[0]):
            self.word_lines.append(number)
            if int(columns[0]) != len(self.word_lines):
                raise ValueError(
                    f"{where}: words must be numbered from 1: expected {len(self.word_lines)}, got {columns[0]}"
                )
        else:
            other = _OTHER_ID.fullmatch(columns[0])
            if not other or (other[1] and int(other[2]) < int(other[1])):
                raise ValueError(
                    f"{where}: {shown(columns[0])} is not a word number, range (3-4) or empty node (5.1)"
                )
            self._others.append((number, columns[0], int(other[2] or other[3])))
        if not _HEAD.fullmatch(columns[6]):
            raise ValueError(
                f"{where}: the head (column 7) must be a word's number, 0 or _, got {shown(columns[6])}"
            )
        if not columns[1].strip():
            raise ValueError(f"{where}: the word (column 2) is empty")
        # the parser would strip empty columns at the end, and treat two spaces as a separator
        return re.sub(" {2,}", " ", "\t".join(column if column.strip() else "_" for column in columns))


def _layer(values: list[str | None]) -> tuple[str | None, ...] | None:
    labels = tuple(None if v in ("_", "") else v for v in values)
    return None if all(v is None for v in labels) else labels


def _check_tree(path: Path, lines: list[int], heads: list[int]) -> None:
    """Refuse heads (numbers of words from 1, 0 for the root) that do not form a tree.

    Raises:
        ValueError: if there are two roots or a cycle; the message has file and line.
    """
    roots = [line for line, head in zip(lines, heads, strict=True) if head == 0]
    if len(roots) > 1:
        raise ValueError(
            f"{path}:{roots[1]}: a second root: the first is in line {roots[0]}, but a tree has only one"
        )
    reaches_root = [True] + [False] * len(heads)
    for word in range(1, len(heads) + 1):
        way: list[int] = []
        while not reaches_root[word]:
            reaches_root[word] = True
            way.append(word)
            word = heads[word - 1]
            if word in way:
                raise ValueError(f"{path}:{lines[word - 1]}: the heads of this word form a cycle")


def read_conllu(path: Path, lowercase: bool = False) -> Iterator[Document]:
    """Stream the documents of a CoNLL-U file.

    Multiword ranges (``3-4``) and empty nodes (``5.1``) are skipped, so that words and heads are those of the basic
    tree; heads are indices from 0, with -1 for the root. White space within a form becomes ``_``. ``_`` in a tag column
    means no label. A ``# newdoc`` comment starts a document; sentences before the first one, and those of files
    without any, are separate documents, named by their ``sent_id``.

    Args:
        path: the file.
        lowercase: whether to lowercase the words.

    Raises:
        ValueError: if a line is malformed, or heads do not form a tree; the message has file and line number.
    """
    lines = _CheckedLines(path)
    parsed = parse_incr(lines)  # type: ignore[arg-type] # any iterable of lines with a read attribute
    name: str | None = None
    pending: list[Sentence] = []
    number = 0
    while True:
        try:
            tokens = next(parsed, None)
        except ParseException as error:
            raise ValueError(f"{path}:{lines.first}: the sentence cannot be read: {error}") from error
        if tokens is None:
            break
        number += 1
        words = [t for t in tokens if isinstance(t["id"], int)]
        if "newdoc id" in tokens.metadata or "newdoc" in tokens.metadata:
            if pending and name is not None:
                yield Document(name, tuple(pending))
            name = tokens.metadata.get("newdoc id") or f"{path.stem}-{number}"
            pending = []
        if not words:
            continue
        forms = ("_".join(t["form"].split()) for t in words)
        heads = [t["head"] for t in words]
        for head, line in zip(heads, lines.word_lines, strict=True):
            if head is not None and head > len(words):
                raise ValueError(
                    f"{path}:{line}: head {head} is out of range: the sentence has {len(words)} words"
                )
        if None in heads and any(head is not None for head in heads):
            line = lines.word_lines[heads.index(None)]
            raise ValueError(f"{path}:{line}: this word has no head, but others in its sentence do")
        if None not in heads:
            _check_tree(path, lines.word_lines, heads)
        sentence = Sentence(
            words=tuple(form.lower() if lowercase else form for form in forms),
            upos=_layer([t["upos"] for t in words]),
            xpos=_layer([t["xpos"] for t in words]),
            heads=None if None in heads else tuple(head - 1 for head in heads),
            deprels=_layer([t["deprel"] for t in words]),
        )
        if name is None:
            yield Document(tokens.metadata.get("sent_id") or f"{path.stem}-{number}", (sentence,))
        else:
            pending.append(sentence)
    if pending and name is not None:
        yield Document(name, tuple(pending))


class ConlluCorpus(FileCorpus):
    """Treebanks in CoNLL-U, with ``upos``, ``xpos``, ``heads`` and ``deprels``; see :func:`read_conllu`.

    Arguments and errors are those of :class:`~lmdyn.datamodules.corpora.corpus.FileCorpus`.
    """

    def read(self, path: Path) -> Iterator[Document]:
        """Stream the documents of a file."""
        return read_conllu(path, self.lowercase)

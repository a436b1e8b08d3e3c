"""CoNLL-2012 and related formats: treebanks with phrases, semantic roles and coreference in columns of brackets."""

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from lmdyn.datamodules.corpora.corpus import FileCorpus
from lmdyn.datamodules.corpora.sentence import Constituent, Document, Mention, Role, Sentence
from lmdyn.datamodules.files.text_files import expand_paths, file_digest, read_lines, shown

__all__ = ["ConllCorpus", "ConllLayout", "read_conll"]

ConllLayout = Literal["conll2012", "ewt_propbank", "gum"]


@dataclass(frozen=True)
class _Layout:
    """The columns of a layout."""

    fixed: int
    """Number of columns before those of the predicates."""
    number: int
    word: int
    tag: int
    parse: int
    frame: int
    """The frameset of a predicate, ``-`` for other words."""
    tabs: bool
    coreference: bool
    """Whether the last column is coreference, and ``#begin document`` and ``#end document`` delimit documents."""
    predicates: bool = True

    @property
    def least(self) -> int:
        """Number of columns of a line, except those of the predicates."""
        return self.fixed + self.coreference


_LAYOUTS = {
    "conll2012": _Layout(11, 2, 3, 4, 5, 7, tabs=False, coreference=True),
    "ewt_propbank": _Layout(8, 2, 3, 4, 5, 7, tabs=True, coreference=False),
    "gum": _Layout(11, 2, 3, 4, 5, 7, tabs=True, coreference=True, predicates=False),
}

_BEGIN = re.compile(r"#begin document \(?(.*?)\)?(?:; part (\d+))?\s*")
_BRACKETS = re.compile(r"\(([^()*\s]*)|(\*)|(\))|(.)")
_MENTION = re.compile(r"(\()?([0-9]+)(\))?")
_ROOTS = ("", "TOP", "ROOT", "NOPARSE")
_ESCAPED = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


def read_conll(path: Path, layout: ConllLayout = "conll2012", lowercase: bool = False) -> Iterator[Document]:
    r"""Stream the documents of a CoNLL-2012 file, or of a related format.

    Layers of :class:`~lmdyn.datamodules.Sentence`:

    - ``xpos``: the part of speech, unchanged.
    - ``constituents``: all nodes of the parse above the tags, each separately: if nodes cover the same words
      (unary chains such as S over VP) there is one constituent for each, from the top down. The root (``TOP``,
      ``ROOT``, ``NOPARSE``, or no label) is excluded. Function tags are cut: ``NP-SBJ`` and ``NP=2`` become ``NP``.
      None if no word of a sentence has a bracket.
    - ``roles``: the arguments of each predicate column, with continuations (``C-ARG1``, ``C-V``) and relative
      pronouns (``R-ARG0``) as labelled, without the predicate's own ``V``, which marks its position. If the k-th
      column has no ``V``, it belongs to the k-th word with a frameset, if their numbers are equal.
    - ``mentions``: an entity for each chain of a document and part, numbered from 0 in the order of first mention.

    Layouts:

    - ``conll2012``: columns separated by white space, or by tabs, between which a cell may be empty: document, part,
      word number, word, tag, parse, lemma, frameset, sense, speaker, named entity, a column for each predicate,
      coreference. A document is a part, named ``<document>/<part>``. Brackets as words are unescaped (``-LRB-`` is
      ``(``); ``/.`` and similar words are not.
    - ``gum``: the same with tabs and without predicates.
    - ``ewt_propbank``: tabs: document, sentence id, word number, word, tag, parse, lemma, frameset, a column for
      each predicate. A document ends when its name changes; there is no coreference.

    Args:
        path: the file.
        layout: ``conll2012``, ``ewt_propbank`` or ``gum``.
        lowercase: whether to lowercase the words.

    Raises:
        ValueError: if columns are malformed, brackets do not balance within their sentence, or words are outside a
            document (with file and line number); if the layout is unknown.

    Example:
        >>> import tempfile
        >>> rows = ["d s-1 0 She PRP (TOP(S(NP*) - - (ARG0*)", "d s-1 1 runs VBZ (VP*))) run run.02 (V*)"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "x.gold_conll"
        ...     _ = path.write_text("\n".join(rows).replace(" ", "\t"))
        ...     (document,) = read_conll(path, "ewt_propbank")
        >>> document.sentences[0].roles
        (Role(predicate=1, start=0, end=1, label='ARG0'),)
        >>> [(c.start, c.end, c.label) for c in document.sentences[0].constituents]
        [(0, 2, 'S'), (0, 1, 'NP'), (1, 2, 'VP')]
    """
    if layout not in _LAYOUTS:
        raise ValueError(f"layout must be one of {list(get_args(ConllLayout))}, got {layout!r}")
    form = _LAYOUTS[layout]
    blocks = _marked(path, form) if form.coreference else _unmarked(path, form)
    name: str | None = None
    sentences: list[Sentence] = []
    entities: dict[str, int] = {}
    for of, block in blocks:
        if (
            block is None or of != name
        ):  # None begins a document, even if its name is that of the previous one
            if sentences and name is not None:
                yield Document(name, tuple(sentences))
            name, sentences, entities = of, [], {}
        if block is not None:
            sentences.append(_sentence(block, form, entities, layout == "conll2012", lowercase))
    if sentences and name is not None:
        yield Document(name, tuple(sentences))


# ------------------------------------------------------------------------------------------ lines to sentences


@dataclass
class _Block:
    """The rows of one sentence, and the number of the first line."""

    path: Path
    first: int
    rows: list[list[str]] = field(default_factory=list)

    def where(self, row: int) -> str:
        return f"{self.path}:{self.first + row}"

    def add(self, number: int, line: str, form: _Layout) -> None:
        least = form.least
        columns, separator = _cells(line, form)
        where = f"{self.path}:{number}"
        if len(columns) < least or (not form.predicates and len(columns) > least):
            more = " or more" if form.predicates else ""
            raise ValueError(
                f"{where}: expected {least}{more} columns separated by {separator}, got {len(columns)}: {shown(line)}"
            )
        if self.rows and len(columns) != len(self.rows[0]):
            raise ValueError(
                f"{where}: expected {len(self.rows[0])} columns as in the sentence's first line "
                f"({self.first}), got {len(columns)}: {shown(line)}"
            )
        if columns[form.number] != str(len(self.rows)):
            raise ValueError(
                f"{where}: words must be numbered from 0 within their sentence: expected {len(self.rows)}, got "
                f"{shown(columns[form.number])}; an empty line ends a sentence"
            )
        if not columns[form.word].strip():
            raise ValueError(f"{where}: the word (column {form.word + 1}) is empty")
        self.rows.append(columns)


def _cells(line: str, form: _Layout) -> tuple[list[str], str]:
    """Return the columns of a line, and the name of their separator."""
    columns, separator = line.split("\t"), "tabs"
    if not form.tabs and len(columns) < form.least:
        columns, separator = line.split(), "white space"
    # between tabs a cell may be empty where others have a hyphen
    return [cell.strip() or ("" if i == form.word else "-") for i, cell in enumerate(columns)], separator


def _check_comment(path: Path, number: int, line: str, form: _Layout, block: _Block | None) -> None:
    """Refuse a comment that would be a word's line without its first character."""
    columns, _ = _cells(line, form)
    if len(columns) >= form.least and columns[form.number] == str(len(block.rows) if block else 0):
        raise ValueError(f"{path}:{number}: a comment with the columns of a word: {shown(line)}")


def _marked(path: Path, form: _Layout) -> Iterator[tuple[str, _Block | None]]:
    """Yield sentences of a file with ``#begin document``, with the names of their documents."""
    name: str | None = None
    begun, last = 0, 0
    block: _Block | None = None
    for number, line in read_lines(path):
        last = number
        marker = line.split(maxsplit=1)[0] if line.startswith("#") else ""
        if marker and name is not None:
            _check_comment(path, number, line, form, block)
        if block is not None and (marker or not line.strip()):
            assert name is not None
            yield name, block
            block = None
        if marker == "#begin":
            found = _BEGIN.fullmatch(line)
            if name is not None or not found:
                why = (
                    f"the document of line {begun} has no #end document"
                    if name is not None
                    else "cannot be read"
                )
                raise ValueError(f"{path}:{number}: {shown(line)}: {why}")
            name, begun = "/".join(part for part in found.groups() if part), number
            yield name, None
        elif marker == "#end":
            if name is None:
                raise ValueError(f"{path}:{number}: {shown(line)} without #begin document")
            name = None
        elif line.strip() and not marker:
            if name is None:
                raise ValueError(
                    f"{path}:{number}: a word outside #begin document and #end document: {shown(line)}"
                )
            block = block or _Block(path, number)
            block.add(number, line, form)
    if name is not None:
        raise ValueError(
            f"{path}:{last}: the file ends without #end document for the document of line {begun}"
        )


def _unmarked(path: Path, form: _Layout) -> Iterator[tuple[str, _Block | None]]:
    """Yield sentences of a file whose first column is the document's name."""
    block: _Block | None = None
    for number, line in read_lines(path):
        if line.strip() and not line.startswith("#"):
            block = block or _Block(path, number)
            block.add(number, line, form)
            continue
        if line.startswith("#"):
            _check_comment(path, number, line, form, block)
        if block is not None:
            yield block.rows[0][0], block
            block = None
    if block is not None:
        yield block.rows[0][0], block


def _sentence(
    block: _Block, form: _Layout, entities: dict[str, int], unescape: bool, lowercase: bool
) -> Sentence:
    words = ["_".join(row[form.word].split()) for row in block.rows]
    if unescape:
        words = [_ESCAPED.get(word, word) for word in words]
    tags = tuple(None if row[form.tag] in ("-", "_", "") else row[form.tag] for row in block.rows)
    return Sentence(
        words=tuple(word.lower() if lowercase else word for word in words),
        xpos=tags if any(tags) else None,
        constituents=_constituents(block, form.parse),
        roles=_roles(block, form) if form.predicates else None,
        mentions=_mentions(block, entities) if form.coreference else None,
    )


def _constituents(block: _Block, column: int) -> tuple[Constituent, ...] | None:
    spans = _spans(block, column, "the parse")
    if not spans:
        return None
    named = ((start, end, re.split(r"(?<=.)[-=]", label)[0]) for start, end, label in spans)
    return tuple(Constituent(start, end, label) for start, end, label in named if label not in _ROOTS)


def _roles(block: _Block, form: _Layout) -> tuple[Role, ...]:
    columns = range(form.fixed, len(block.rows[0]) - form.coreference)
    framed = [i for i, row in enumerate(block.rows) if row[form.frame] not in ("-", "_", "")]
    roles = []
    for column in columns:
        spans = _spans(block, column, f"column {column + 1} of roles")
        predicates = [start for start, _, label in spans if label == "V"]
        if not predicates and len(framed) == len(columns):
            predicates = [framed[column - form.fixed]]
        if len(predicates) != 1:
            raise ValueError(
                f"{block.where(0)}: column {column + 1} must have the roles of one predicate, marked (V*): got "
                f"{len(predicates)} in this sentence, with {len(columns)} such columns for {len(framed)} framesets"
            )
        roles += [Role(predicates[0], start, end, label) for start, end, label in spans if label != "V"]
    return tuple(roles)


def _spans(block: _Block, column: int, what: str) -> list[tuple[int, int, str]]:
    """Return (start, end, label) of a column of brackets such as ``(S(NP*``, in the order in which they open."""
    spans: list[tuple[int, int, str]] = []
    opened: list[int] = []
    for i, row in enumerate(block.rows):
        bits = row[column]
        if bits in ("*", "-"):
            continue
        leaves = 0
        for label, leaf, close, other in _BRACKETS.findall(bits):
            if leaf:
                leaves += 1
            elif close:
                if not opened or not leaves:
                    raise ValueError(
                        f"{block.where(i)}: {what} is unbalanced: a ')' here has no opening bracket: {shown(bits)}"
                    )
                start = opened.pop()
                spans[start] = (spans[start][0], i + 1, spans[start][2])
            elif other or leaves:
                raise ValueError(
                    f"{block.where(i)}: {what} cannot be read: expected brackets around one *, got {shown(bits)}"
                )
            else:
                opened.append(len(spans))
                spans.append((i, -1, label))
        if leaves != 1:
            raise ValueError(
                f"{block.where(i)}: {what} cannot be read: expected brackets around one *, got {shown(bits)}"
            )
    if opened:
        start, _, label = spans[opened[-1]]
        raise ValueError(
            f"{block.where(start)}: {what} is unbalanced: the '({label[:100]}' of this line is not closed in its "
            "sentence"
        )
    return spans


def _mentions(block: _Block, entities: dict[str, int]) -> tuple[Mention, ...]:
    found: list[Mention] = []
    opened: dict[str, list[int]] = {}
    for i, row in enumerate(block.rows):
        bits = row[-1]
        if bits in ("-", "_", "*"):
            continue
        for bit in bits.split("|"):
            parts = _MENTION.fullmatch(bit)
            if not parts or not (parts[1] or parts[3]):
                raise ValueError(
                    f"{block.where(i)}: the coreference (last column) cannot be read: expected (3, 3) or (3), "
                    f"several joined by |, got {shown(bits)}"
                )
            chain = parts[2]
            if parts[1]:
                opened.setdefault(chain, []).append(i)
            if parts[3]:
                if not opened.get(chain):
                    raise ValueError(
                        f"{block.where(i)}: the coreference is unbalanced: '{chain})' has no opening bracket"
                    )
                entity = entities.setdefault(chain, len(entities))
                found.append(Mention(opened[chain].pop(), i + 1, entity))
    for chain, starts in opened.items():
        if starts:
            raise ValueError(
                f"{block.where(starts[-1])}: the coreference is unbalanced: the '({chain}' of this line is not closed "
                "in its sentence"
            )
    return tuple(sorted(found, key=lambda m: (m.start, -m.end, m.entity)))


# ------------------------------------------------------------------------------------------ the corpus


class ConllCorpus(FileCorpus):
    """Treebanks in CoNLL-2012 columns, with ``xpos``, ``constituents``, ``roles`` and ``mentions``.

    See :func:`read_conll` for the format. OntoNotes 5.0 is a tree of folders: a path may be a folder, whose
    ``*gold_conll`` files are read at any depth, or a pattern such as ``train/**/bn/**/*.v4_gold_conll``; files are
    read in the order of their paths.

    Args:
        train: path of the training file or folder, a pattern, or a list of them; ``$VAR`` and ``~`` are expanded.
        validation: the same for validation.
        test: the same for test.
        layout: ``conll2012``, ``ewt_propbank`` or ``gum``.
        **kwargs: see :class:`~lmdyn.datamodules.corpora.corpus.FileCorpus`.

    Raises:
        FileNotFoundError: in ``prepare_data``, if a file does not exist, or a folder or pattern has no file.
        ValueError: in ``prepare_data``, if a line is malformed (with file and line number); at construction, if the
            layout is unknown.

    Reference: Pradhan et al. 2012 (CoNLL-2012); Weischedel et al. 2013 (OntoNotes 5.0); Zeldes 2017 (GUM).

    Example:
        >>> folder = "$LMDYN_DATA/ewt_propbank"
        >>> corpus = ConllCorpus(train=f"{folder}/en_ewt-train.gold_conll", layout="ewt_propbank")
        >>> corpus.splits
        ('train',)
    """

    def __init__(
        self,
        train: str | list[str] | None = None,
        validation: str | list[str] | None = None,
        test: str | list[str] | None = None,
        *,
        layout: ConllLayout = "conll2012",
        **kwargs: Any,
    ) -> None:
        super().__init__(train, validation, test, **kwargs)
        if layout not in _LAYOUTS:
            raise ValueError(f"layout must be one of {list(get_args(ConllLayout))}, got {layout!r}")
        self.layout: ConllLayout = layout

    def files(self, split: str) -> list[Path]:
        """Return the files of a split, with those of folders and patterns in order."""
        if split not in self.paths:
            raise ValueError(f"the corpus has no split {split!r}: it has {list(self.splits)}")
        given = self.paths[split]
        found: list[Path] = []
        for text in [given] if isinstance(given, str | Path) else given:
            path = os.path.expandvars(Path(text).expanduser())
            pattern = f"{glob.escape(path)}/**/*gold_conll" if Path(path).is_dir() else path
            if pattern == path and not glob.has_magic(path):
                found += expand_paths(text)
                continue
            inside = [Path(p) for p in sorted(glob.glob(pattern, recursive=True)) if Path(p).is_file()]  # noqa: PTH207
            if not inside:
                raise FileNotFoundError(
                    f"{text!r} has no file (looked for {pattern}): give a folder with *gold_conll files, a "
                    "pattern or a file"
                )
            found += inside
        return found

    def read(self, path: Path) -> Iterator[Document]:
        """Stream the documents of a file."""
        return read_conll(path, self.layout, self.lowercase)

    def documents(self, split: str) -> Iterator[Document]:
        """Stream the documents of a split."""
        for path in self.files(split):
            yield from self.read(path)

    def content_key(self) -> dict[str, Any]:
        """Return hashes of the files, and the settings of the reader."""
        files = {split: [file_digest(path) for path in self.files(split)] for split in self.splits}
        return {"files": files, "lowercase": self.lowercase, "layout": self.layout}

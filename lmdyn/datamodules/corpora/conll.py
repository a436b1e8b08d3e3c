"""CoNLL-2012 and related formats: treebanks with phrases, semantic roles and coreference in columns of brackets."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from lmdyn.datamodules.corpora.columns import Block, read_blocks
from lmdyn.datamodules.corpora.corpus import FileCorpus
from lmdyn.datamodules.corpora.sentence import Constituent, Document, Mention, Role, Sentence, grouped
from lmdyn.datamodules.files.text_files import shown

ConllLayout = Literal["conll2012", "ewt_propbank", "gum"]


@dataclass(frozen=True)
class _Layout:
    """The columns of a layout."""

    fixed: int
    """Number of columns before those of the predicates."""
    tabs: bool
    coreference: bool
    """Whether the last column is coreference, and ``#begin document`` and ``#end document`` delimit documents."""
    predicates: bool = True


_LAYOUTS = {
    "conll2012": _Layout(11, tabs=False, coreference=True),
    "ewt_propbank": _Layout(8, tabs=True, coreference=False),
    "gum": _Layout(11, tabs=True, coreference=True, predicates=False),
}
_NUMBER, _WORD, _TAG, _PARSE, _FRAME = 2, 3, 4, 5, 7  # columns of all layouts
_BEGIN = re.compile(r"#begin document \(?(.*?)\)?(?:; part (\d+))?\s*")
_BRACKETS = re.compile(r"((?:\([^()*\s]*)*)\*(\)*)")
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

    ``-``, ``_`` and an empty cell between tabs are missing values in each column except that of the word. A predicate
    column in which all values are missing has no roles.

    Layouts:

    - ``conll2012``: columns separated by white space, or by tabs: document, part,
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
    return grouped(_sentences(path, layout, lowercase))


def _sentences(path: Path, layout: ConllLayout, lowercase: bool) -> Iterator[tuple[int, str, Sentence]]:
    form = _LAYOUTS[layout]
    document, begun = 0, False
    name: str | None = None
    entities: dict[str, int] = {}
    blocks = read_blocks(path, form.fixed + form.coreference, more=form.predicates, tabs=form.tabs)
    for block in blocks:
        starts = [] if form.coreference else [row[0] for row in block.rows[:1] if row[0] != name]
        for number, line in block.comments if form.coreference else ():
            marker = line.split(maxsplit=1)[0]
            if marker in ("#begin", "#end") and begun != (marker == "#end"):
                raise ValueError(f"{path}:{number}: expected {'#end' if begun else '#begin'} before {marker}")
            if marker == "#begin":
                found = _BEGIN.fullmatch(line)
                if not found:
                    raise ValueError(f"{path}:{number}: expected #begin document (NAME), got {shown(line)}")
                starts.append("/".join(part for part in found.groups() if part))
            begun = begun != (marker in ("#begin", "#end"))
        for new in starts:
            document, name, entities = document + 1, new, {}
        if block.rows:
            if form.coreference and not begun:
                raise block.error(0, "expected #begin document (NAME) before this word, got none")
            yield document, name or "", _sentence(block, form, entities, layout == "conll2012", lowercase)
    if begun:
        raise ValueError(f"{path} ends without #end document: use the complete file")


# ------------------------------------------------------------------------------------------ lines to sentences


def _sentence(
    block: Block, form: _Layout, entities: dict[str, int], unescape: bool, lowercase: bool
) -> Sentence:
    for i, row in enumerate(block.rows):
        if row[_NUMBER] != str(i):
            raise block.error(i, f"expected word number {i} (the first is 0), got {shown(row[_NUMBER])}")
        if unescape:
            row[_WORD] = _ESCAPED.get(row[_WORD], row[_WORD])
    return block.sentence(
        _WORD,
        lowercase,
        xpos=block.column(_TAG),
        constituents=_constituents(block, _PARSE),
        roles=_roles(block, form) if form.predicates else None,
        mentions=_mentions(block, entities) if form.coreference else None,
    )


def _constituents(block: Block, column: int) -> tuple[Constituent, ...] | None:
    spans = _spans(block, column)
    if not spans:
        return None
    named = ((start, end, re.split(r"(?<=.)[-=]", label)[0]) for start, end, label in spans)
    return tuple(Constituent(start, end, label) for start, end, label in named if label not in _ROOTS)


def _roles(block: Block, form: _Layout) -> tuple[Role, ...]:
    columns = range(form.fixed, len(block.rows[0]) - form.coreference)
    framed = [i for i, frame in enumerate(block.column(_FRAME) or ()) if frame]
    roles = []
    for column in columns:
        if block.column(column) is None:  # LitBank's files have one such column
            continue
        spans = _spans(block, column)
        predicates = [start for start, _, label in spans if label == "V"]
        if not predicates and len(framed) == len(columns):
            predicates = [framed[column - form.fixed]]
        if len(predicates) != 1:
            raise block.error(
                0,
                f"column {column + 1}: expected (V*), the predicate, once in the sentence, got {len(predicates)}",
            )
        roles += [Role(predicates[0], start, end, label) for start, end, label in spans if label != "V"]
    return tuple(roles)


def _spans(block: Block, column: int) -> list[tuple[int, int, str]]:
    """Return (start, end, label) of a column of brackets such as ``(S(NP*``, in the order in which they open."""
    spans: list[tuple[int, int, str]] = []
    opened: list[int] = []
    for i, bits in enumerate(block.column(column) or ()):
        if bits in ("*", None):
            continue
        parts = _BRACKETS.fullmatch(bits)
        if not parts:
            raise block.error(i, f"column {column + 1}: expected brackets around one *, got {shown(bits)}")
        for label in parts[1].split("(")[1:]:
            opened.append(len(spans))
            spans.append((i, -1, label))
        for _ in parts[2]:
            if not opened:
                raise block.error(i, f"column {column + 1} is unbalanced: expected '(' before this ')'")
            at = opened.pop()
            spans[at] = (spans[at][0], i + 1, spans[at][2])
    if opened:
        start, _, label = spans[opened[-1]]
        raise block.error(start, f"column {column + 1} is unbalanced: expected ')' after '({label[:100]}'")
    return spans


def _mentions(block: Block, entities: dict[str, int]) -> tuple[Mention, ...]:
    found: list[Mention] = []
    opened: dict[str, list[int]] = {}
    for i, bits in enumerate(block.column(len(block.rows[0]) - 1) or ()):
        for bit in () if bits in ("*", None) else bits.split("|"):
            parts = _MENTION.fullmatch(bit)
            if not parts or not (parts[1] or parts[3]):
                raise block.error(i, f"coreference: expected (3, 3) or (3), joined by |, got {shown(bit)}")
            chain = parts[2]
            if parts[1]:
                opened.setdefault(chain, []).append(i)
            if parts[3]:
                if not opened.get(chain):
                    raise block.error(i, f"coreference: expected '({chain}' before '{chain})', got none")
                entity = entities.setdefault(chain, len(entities))
                found.append(Mention(opened[chain].pop(), i + 1, entity))
    for chain, starts in opened.items():
        if starts:
            raise block.error(starts[-1], f"coreference: expected '{chain})' after '({chain}', got none")
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

    files_of_a_folder: ClassVar[str] = "*gold_conll"

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
        self.layout: ConllLayout = layout

    def read(self, path: Path) -> Iterator[Document]:
        """Stream the documents of a file."""
        return read_conll(path, self.layout, self.lowercase)

    def content_key(self) -> dict[str, Any]:
        """Return hashes of the files, and the settings of the reader."""
        return super().content_key() | {"layout": self.layout}

"""CoNLL-U: Universal Dependencies treebanks."""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from lmdyn.datamodules.corpora.columns import Block, read_blocks
from lmdyn.datamodules.corpora.corpus import FileCorpus
from lmdyn.datamodules.corpora.sentence import Document, Sentence, grouped
from lmdyn.datamodules.files.text_files import read_lines, shown

_FIELDS = "ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC"
_ID = 0
_FORM = 1
_UPOS = 3
_XPOS = 4
_HEAD = 6
_DEPREL = 7
_MISC = 9
_ID_FORMAT = re.compile(r"[0-9]{1,9}(-[0-9]{1,9}|\.[0-9]{1,9})?")  # word, multiword range or empty node
_SPACE = re.compile(r"SpaceAfter=No|SpacesAfter=")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)")
_ESCAPED = {"s": " ", "n": "\n", "t": "\t", "r": "\r"}


def read_conllu(path: Path, lowercase: bool = False) -> Iterator[Document]:
    """Stream the documents of a CoNLL-U file.

    Multiword ranges (``3-4``) and empty nodes (``5.1``) are skipped, so that words and heads are those of the basic
    tree; heads are indices from 0, with -1 for the root. White space within a form becomes ``_``. ``_``, ``-`` and
    an empty cell mean that a value is missing, except for the word. A ``# newdoc`` comment starts a document; sentences
    before the first one, and those of files without any, are separate documents, named by their ``sent_id``.

    If the file has ``SpaceAfter=No`` or ``SpacesAfter``, sentences have their text as it was written, with a space
    between two sentences, and an empty line before a paragraph.

    Args:
        path: the file.
        lowercase: whether to lowercase the words.

    Raises:
        ValueError: if a line is malformed, or heads do not form a tree; the message has file and line.
    """
    return grouped(_sentences(path, lowercase))


def _sentences(path: Path, lowercase: bool) -> Iterator[tuple[int, str, Sentence]]:
    spaced = any(_SPACE.search(line) for _, line in read_lines(path))
    begun, name, first, after = 0, "", True, ""
    for number, block in enumerate(read_blocks(path, len(_FIELDS.split())), start=1):
        said = _metadata(block)
        if "newdoc id" in said or "newdoc" in said:
            begun = number
            name = said.get("newdoc id") or f"{path.stem}-{number}"
            first = True
        if first:
            after = ""
        elif "newpar id" in said or "newpar" in said:
            after = "\n\n"
        words = _words(block)
        if not words.rows:
            continue
        text, places = None, None
        if spaced:
            text, places, after = _written(block.rows, after, lowercase)
        sentence = words.sentence(
            _FORM,
            lowercase,
            upos=words.column(_UPOS),
            xpos=words.column(_XPOS),
            heads=_heads(words),
            deprels=words.column(_DEPREL),
            text=text,
            places=places,
        )
        first = not begun
        yield begun or number, name or said.get("sent_id") or f"{path.stem}-{number}", sentence


def _metadata(block: Block) -> dict[str, str]:
    """Return the values in comments such as ``# sent_id = 3``."""
    said = {}
    for line, comment in block.comments:
        key, _, value = (part.strip() for part in comment.lstrip("#").partition("="))
        said[key] = value
        if key == "global.columns" and value.upper().split() != _FIELDS.split():
            raise ValueError(f"{block.path}:{line}: expected the columns {_FIELDS}, got {shown(value)}")
    return said


def _words(block: Block) -> Block:
    """Return the rows that are words, checked to be numbered from 1."""
    words = Block(block.path)
    for i, row in enumerate(block.rows):
        if not _ID_FORMAT.fullmatch(row[_ID]):
            raise block.error(i, f"{shown(row[_ID])} is not a word number, range (3-4) or empty node (5.1)")
        if row[_ID].isdecimal():
            words.lines.append(block.lines[i])
            words.rows.append(row)
            if int(row[_ID]) != len(words.rows):
                raise block.error(i, f"expected word number {len(words.rows)}, got {row[_ID]}")
    for i, row in enumerate(block.rows):
        start, _, end = row[_ID].partition(".")[0].partition("-")
        if not int(start) <= int(end or start) <= len(words.rows):
            raise block.error(i, f"expected ascending word numbers up to {len(words.rows)}, got {row[_ID]}")
    return words


def _heads(words: Block) -> tuple[int, ...] | None:
    """Return the index of each word's head, -1 for the root, of a tree; None if no word has a head."""
    given = words.column(_HEAD)
    if given is None:
        return None
    heads = []
    for i, head in enumerate(given):
        if head is None or not head.isdecimal() or int(head) > len(given):
            raise words.error(i, f"the head must be from 0 to {len(given)}, got {shown(head or '_')}")
        heads.append(int(head) - 1)
        if head == "0" and heads.count(-1) > 1:
            raise words.error(i, "the word is a second root: expected one word with head 0")
    for i in range(len(heads)):
        word = i
        for _ in heads:
            word = heads[word] if word >= 0 else -1
        if word >= 0:
            raise words.error(i, "the heads above this word form a cycle: expected a path to the root")
    return tuple(heads)


def _spaces_after(misc: str) -> str:
    r"""Return the white space after a token: ``SpaceAfter=No``, UDPipe's ``SpacesAfter=\s\n``, or a space."""
    said = dict(part.partition("=")[::2] for part in misc.split("|"))
    if written := said.get("SpacesAfter"):
        spaces = _ESCAPE.sub(
            lambda e: chr(int(e[1][1:], 16)) if len(e[1]) > 1 else _ESCAPED.get(e[1], e[1]), written
        )
        if not spaces.strip():
            return spaces
    return "" if said.get("SpaceAfter") == "No" else " "


def _written(
    rows: Sequence[Sequence[str]], before: str, lowercase: bool
) -> tuple[str, tuple[tuple[int, int], ...], str]:
    """Return the text of a sentence after some white space, the place of each word in it, and the white space after it.

    Words of a multiword token divide its form if it is theirs (``do`` and ``n't`` of ``don't``). Otherwise (``de`` and
    ``le`` of ``du``) the first one has all of it.
    """
    text, after = "", before
    places: list[tuple[int, int]] = []
    last = 0  # the last word that was read, perhaps of a multiword token
    for row in rows:
        first, _, end = row[_ID].partition("-")
        if "." in first or int(first) <= last:
            continue
        form = row[_FORM].lower() if lowercase else row[_FORM]
        begin = len(text + after)
        text += after + form
        after = _spaces_after(row[_MISC])
        last = int(end or first)
        parts = [r[_FORM] for r in rows if r[_ID].isdecimal() and int(first) <= int(r[_ID]) <= last]
        ends = list(accumulate(map(len, parts), initial=begin))
        if "".join(parts).lower() != form.lower():
            ends[1:] = [len(text)] * len(parts)
        places += pairwise(ends)
    return text, tuple(places), after


class ConlluCorpus(FileCorpus):
    """Treebanks in CoNLL-U, with ``upos``, ``xpos``, ``heads`` and ``deprels``; see :func:`read_conllu`.

    A tokenizer that lmdyn did not train reads the text as it was written, if the file has ``SpaceAfter=No``; otherwise
    the text that the words form if single spaces join them. If some words of a multiword token have no place of their
    own in its form (French ``du``), its pieces have the labels of the first word.

    Arguments and errors are those of :class:`~lmdyn.datamodules.corpora.corpus.FileCorpus`.
    """

    def read(self, path: Path) -> Iterator[Document]:
        """Stream the documents of a file."""
        return read_conllu(path, self.lowercase)

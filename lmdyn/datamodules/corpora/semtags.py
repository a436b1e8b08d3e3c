"""Universal semantic tags: their coarse classes, and the corpus Parallel Meaning Bank."""

import re
from collections.abc import Iterator
from pathlib import Path

from lmdyn.datamodules.corpora.corpus import FileCorpus
from lmdyn.datamodules.corpora.sentence import Document, Sentence
from lmdyn.datamodules.files.text_files import read_lines, shown

__all__ = ["SEMTAG_COARSE", "UNKNOWN_SEMTAG", "SemtagCorpus", "read_pmb"]

SEMTAG_COARSE: dict[str, str] = {
    fine: coarse
    for coarse, tags in {
        "ANA": "PRO DEF HAS REF EMP",  # anaphoric
        "ACT": "GRE ITJ HES QUE",  # speech act
        "ATT": "QUC QUV COL IST SST PRI DEG INT REL SCO",  # attribute
        "COM": "EQU APX MOR LES TOP BOT ORD",  # comparative
        "UNE": "CON ROL GRP",  # unnamed entity
        "DXS": "DXP DXT DXD",  # deixis
        "DEM": "PRX DST",  # demonstrative
        "LOG": "ALT XCL NIL DIS IMP AND",  # logical
        "MOD": "NOT NEC POS",  # modality
        "DSC": "SUB COO APP BUT",  # discourse
        "NAM": "PER GPE GPO GEO ORG ART HAP UOM CTC URL LIT NTH",  # named entity
        "EVE": "EXS ENS EPS EXG EXT EFS",  # event
        "TNS": "NOW PST FUT PRG PFT",  # tense and aspect
        "TIM": "DAT DOM YOC DOW MOY DEC CLO",  # temporal entity
    }.items()
    for fine in tags.split()
}
"""Coarse class of each fine semantic tag: 14 classes of 77 tags.

The inventory is that of Bjerva et al. 2016 and Abzianidze & Bos 2017 (universal semantic tags of the Parallel
Meaning Bank). Demonstratives keep the class DEM of 2016 with PRX and DST; the rest follows the later version, with
EFS (future simple event) of the bank's release 4.
"""

UNKNOWN_SEMTAG = "UNK"
"""Coarse class of a tag that is not in :data:`SEMTAG_COARSE`."""

_COLUMNS = 7
_COMMENT = re.compile(r"#+( |$)")  # not followed by a tab, as "#" can be a token
_NEWDOC = re.compile(r"# newdoc\b(?: id =)?(.*)")


def read_pmb(path: Path, lowercase: bool = False) -> Iterator[Document]:
    r"""Stream the documents of a CoNLL export of the Parallel Meaning Bank.

    The format has seven columns separated by tabs; the first is the word and the fourth its semantic tag. A tag unknown
    to :data:`SEMTAG_COARSE` has the coarse class ``UNK``. An empty line ends a sentence and ``# newdoc`` starts a
    document; most documents are one sentence. Sentences before the first ``# newdoc`` are separate documents.
    The bank joins the parts of a multiword token with ``~`` (``New~York``), which stays one word. White space within
    a word becomes ``_``.

    Args:
        path: the file.
        lowercase: whether to lowercase the words.

    Yields:
        Documents named by their id, with the layers ``semtag`` and ``semtag_coarse``.

    Raises:
        ValueError: if a line has another number of columns, or no word or tag; the message has file and line number.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "en.conll"
        ...     rows = ["# newdoc id = p02/d0010", "She\tShe\tfemale\tPRO\tnp\tO\t[]", "is\tis\tbe\tNOW\t\t\t"]
        ...     _ = path.write_text("\n".join(rows))
        ...     (document,) = read_pmb(path)
        >>> document.name, document.sentences[0].words, document.sentences[0].semtag_coarse
        ('p02/d0010', ('She', 'is'), ('ANA', 'TNS'))
    """
    name: str | None = None
    sentences: list[Sentence] = []
    for number, block in enumerate(_blocks(path, lowercase), start=1):
        if isinstance(block, str):
            if sentences and name is not None:
                yield Document(name, tuple(sentences))
            name = block or f"{path.stem}-{number}"
            sentences = []
        elif name is None:
            yield Document(f"{path.stem}-{number}", (block,))
        else:
            sentences.append(block)
    if sentences and name is not None:
        yield Document(name, tuple(sentences))


def _blocks(path: Path, lowercase: bool) -> Iterator[str | Sentence]:
    """Yield the sentences of a file and, where a document starts, its id, which may be empty."""
    words: list[str] = []
    tags: list[str] = []
    for number, line in read_lines(path):
        newdoc = _NEWDOC.match(line)
        if words and (newdoc or not line.strip()):
            yield _sentence(words, tags)
            words, tags = [], []
        if newdoc:
            yield newdoc[1].strip()
        elif line.strip() and not _COMMENT.match(line):
            columns = line.split("\t")
            if len(columns) != _COLUMNS:
                raise ValueError(
                    f"{path}:{number}: expected {_COLUMNS} columns separated by tabs, got {len(columns)}: "
                    f"{shown(line)}; comments start with '# '"
                )
            word, tag = "_".join(columns[0].split()), columns[3].strip()
            for column, value, what in ((1, word, "word"), (4, tag, "semantic tag")):
                if not value:
                    raise ValueError(f"{path}:{number}: the {what} (column {column}) is empty: {shown(line)}")
            words.append(word.lower() if lowercase else word)
            tags.append(tag)
    if words:
        yield _sentence(words, tags)


def _sentence(words: list[str], tags: list[str]) -> Sentence:
    coarse = tuple(SEMTAG_COARSE.get(tag, UNKNOWN_SEMTAG) for tag in tags)
    return Sentence(tuple(words), semtag=tuple(tags), semtag_coarse=coarse)


class SemtagCorpus(FileCorpus):
    """The Parallel Meaning Bank in CoNLL, with ``semtag`` and ``semtag_coarse``; see :func:`read_pmb`.

    Arguments and errors are those of :class:`~lmdyn.datamodules.corpora.corpus.FileCorpus`.

    Example:
        >>> corpus = SemtagCorpus(train="$LMDYN_DATA/semtags_pmb_en/train.conll", layers=["semtag"])
        >>> corpus.splits
        ('train',)
    """

    def read(self, path: Path) -> Iterator[Document]:
        """Stream the documents of a file."""
        return read_pmb(path, self.lowercase)

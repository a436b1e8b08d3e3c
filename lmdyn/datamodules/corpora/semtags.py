"""Universal semantic tags: their coarse classes, and the corpus Parallel Meaning Bank."""

import re
from collections.abc import Iterator
from pathlib import Path

from lmdyn.datamodules.corpora.columns import read_blocks
from lmdyn.datamodules.corpora.corpus import FileCorpus
from lmdyn.datamodules.corpora.sentence import Document, Sentence, grouped

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

_COMMENT = re.compile(r"#+( |$)")  # not followed by a tab, as "#" can be a token
_NEWDOC = re.compile(r"# newdoc\b(?: id =)?(.*)")


def read_pmb(path: Path, lowercase: bool = False) -> Iterator[Document]:
    r"""Stream the documents of a CoNLL export of the Parallel Meaning Bank.

    The format has seven columns separated by tabs; the first is the word and the fourth its semantic tag, missing if it
    is ``-``, ``_`` or empty. A tag unknown to :data:`SEMTAG_COARSE` has the coarse class ``UNK``. An empty line ends a
    sentence and ``# newdoc`` starts a document; most documents are one sentence. Sentences before the first
    ``# newdoc`` are separate documents. The bank joins the parts of a multiword token with ``~`` (``New~York``), which
    stays one word. White space within a word becomes ``_``.

    Args:
        path: the file.
        lowercase: whether to lowercase the words.

    Yields:
        Documents named by their id, with the layers ``semtag`` and ``semtag_coarse``.

    Raises:
        ValueError: if a line has another number of columns, or no word; the message has file and line number.

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
    return grouped(_sentences(path, lowercase))


def _sentences(path: Path, lowercase: bool) -> Iterator[tuple[int, str, Sentence]]:
    begun, name = 0, ""
    for number, block in enumerate(read_blocks(path, 7, comment=_COMMENT), start=1):
        for _, comment in block.comments:
            if newdoc := _NEWDOC.match(comment):
                begun = number
                name = newdoc[1].strip() or f"{path.stem}-{number}"
        if block.rows:
            tags = block.column(3)
            coarse = tags and tuple(tag and SEMTAG_COARSE.get(tag, UNKNOWN_SEMTAG) for tag in tags)
            sentence = block.sentence(0, lowercase, semtag=tags, semtag_coarse=coarse)
            yield begun or number, name or f"{path.stem}-{number}", sentence


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

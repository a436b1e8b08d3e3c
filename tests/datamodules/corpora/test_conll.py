"""The CoNLL-2012 reader on files in the real layouts, written here."""

import os
from pathlib import Path

import pytest

from lmdyn.datamodules.corpora.conll import ConllCorpus, read_conll
from lmdyn.datamodules.corpora.sentence import Constituent, Mention, Role

ONTONOTES = """\
#begin document (bc/cctv/00/cctv_0000); part 000
bc/cctv/00/cctv_0000   0    0       Mary    NNP   (TOP(S(NP*)        -      -   -   Speaker#1  (PERSON)   (ARG0*)         *    (12)
bc/cctv/00/cctv_0000   0    1       said    VBD         (VP*       say     01   1   Speaker#1         *        (V*)        *       -
bc/cctv/00/cctv_0000   0    2        she    PRP  (SBAR(S(NP*)        -      -   -   Speaker#1         *    (ARG1*    (ARG0*)    (12)
bc/cctv/00/cctv_0000   0    3       left    VBD         (VP*     leave     01   1   Speaker#1         *         *       (V*)       -
bc/cctv/00/cctv_0000   0    4        her   PRP$         (NP*         -      -   -   Speaker#1         *         *    (ARG1*   (7|(12)
bc/cctv/00/cctv_0000   0    5      house     NN      *)))))))        -      -   -   Speaker#1         *         *)        *)      7)

bc/cctv/00/cctv_0000   0    0    -LRB-  -LRB-   (TOP(FRAG*       -    -   -   Speaker#1   *       -
bc/cctv/00/cctv_0000   0    1       It    PRP   (NP-SBJ*)))    -    -   -   Speaker#1   *     (7)

#end document
#begin document (bc/cctv/00/cctv_0000); part 001
bc/cctv/00/cctv_0000   1    0       Yes     UH   (TOP(INTJ*))   -    -   -   Speaker#1   *     (7)

#end document
"""  # noqa: E501

GUM = """\
#begin document (GUM_bio_x); part 000
GUM_bio_x\t0\t0\tKim\tNNP\t(ROOT(S(NP-SBJ*)\tKim\t-\t-\t-\t*\t(3)
GUM_bio_x\t0\t1\tslept\tVBD\t(VP*)))\tsleep\t-\t-\t-\t*\t-

#end document
"""

EWT = """\
doc1\tdoc1-0001\t0\tDogs\tNNS\t(TOP(S(NP*)\t-\t-\t(ARG0*)\t(ARG1*)
doc1\tdoc1-0001\t1\tlook\tVBP\t(VP*\tlook\tlook.05\t(V*)\t*
doc1\tdoc1-0001\t2\tup\tRP\t(PRT*)\t-\t-\t(C-V*)\t*
doc1\tdoc1-0001\t3\tasleep\tJJ\t(ADJP*))))\tasleep\tasleep.01\t*\t*

doc2\tdoc2-0001\t0\tNo\tUH\t(TOP(INTJ*))\t-\t-
"""


def write(tmp_path: Path, text: str, name: str = "x.v4_gold_conll") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_ontonotes(tmp_path):
    first, second = read_conll(write(tmp_path, ONTONOTES))
    assert first.name == "bc/cctv/00/cctv_0000/000"
    assert second.name == "bc/cctv/00/cctv_0000/001"
    sentence, fragment = first
    assert sentence.words == ("Mary", "said", "she", "left", "her", "house")
    assert sentence.xpos == ("NNP", "VBD", "PRP", "VBD", "PRP$", "NN")
    above = [(0, 6, "S"), (0, 1, "NP"), (1, 6, "VP"), (2, 6, "SBAR")]
    below = [
        (2, 6, "S"),
        (2, 3, "NP"),
        (3, 6, "VP"),
        (4, 6, "NP"),
    ]  # a node over the same words is one of its own
    assert sentence.constituents == tuple(Constituent(*span) for span in above + below)
    assert sentence.roles == (
        Role(1, 0, 1, "ARG0"), Role(1, 2, 6, "ARG1"), Role(3, 2, 3, "ARG0"), Role(3, 4, 6, "ARG1"),
    )  # fmt: skip
    mary, house = 0, 1  # chains 12 and 7, in the order of their first mentions' ends
    assert sentence.mentions == (
        Mention(0, 1, mary), Mention(2, 3, mary), Mention(4, 6, house), Mention(4, 5, mary),
    )  # fmt: skip
    assert fragment.words == ("(", "It")
    assert fragment.constituents == (Constituent(0, 2, "FRAG"), Constituent(1, 2, "NP"))  # NP-SBJ
    assert fragment.roles == ()
    assert fragment.mentions == (Mention(1, 2, house),)  # the same within a part
    assert second.sentences[0].mentions == (Mention(0, 1, 0),)  # and another one in the next


def test_gum_and_ewt_propbank(tmp_path):
    (gum,) = read_conll(write(tmp_path, GUM), "gum")
    assert gum.name == "GUM_bio_x/000"
    (sentence,) = gum
    assert sentence.constituents == (Constituent(0, 2, "S"), Constituent(0, 1, "NP"), Constituent(1, 2, "VP"))
    assert (sentence.roles, sentence.mentions) == (None, (Mention(0, 1, 0),))
    one, two = read_conll(write(tmp_path, EWT), "ewt_propbank", lowercase=True)
    assert (one.name, two.name) == ("doc1", "doc2")
    (sentence,) = one
    assert sentence.words == ("dogs", "look", "up", "asleep")
    # the second column has no V: it is that of the second word with a frameset
    assert sentence.roles == (Role(1, 0, 1, "ARG0"), Role(1, 2, 3, "C-V"), Role(3, 0, 1, "ARG1"))
    assert sentence.mentions is None
    assert two.sentences[0].roles == ()


MARY = "(TOP(S(NP*)        -      -   -   Speaker#1  (PERSON)   (ARG0*)         *    (12)"


@pytest.mark.parametrize(
    ("layout", "old", "new", "line", "message"),
    [
        ("conll2012", "(ARG0*)         *    (12)", "(ARG0*)    (12)", 3, "expected 13 columns"),
        ("conll2012", MARY, "(TOP(S(NP*)  -", 2, "expected 12 columns separated by white space, got 7"),
        ("conll2012", "0    3       left", "0    4       left", 5, "expected word number 3 .*, got '4'"),
        ("conll2012", "*)))))))", "*))))))", 2, r"unbalanced: expected '\)' after '\(TOP'"),
        ("conll2012", "*)))))))", "*))))))))", 7, r"unbalanced: expected '\(' before this '\)'"),
        ("conll2012", "(VP*       say", "(VP       say", 3, r"expected brackets around one \*.*got '\(VP'"),
        ("conll2012", "(VP*       say", "(VP*(X*)       say", 3, "expected brackets"),
        ("conll2012", "*)        *)      7)", "*         *)      7)", 4, r"unbalanced: expected '\)' after '\(ARG1'"),
        ("conll2012", "(V*)        *       -", "*)        *       -", 3, "column 12 is unbalanced"),
        ("conll2012", "        (V*)        *       -", "   (V*)   (V*)    -", 2, r"column 13: expected \(V\*\)"),
        ("conll2012", "*)      7)", "*)      -", 6, r"coreference: expected '7\)'"),
        ("conll2012", "*)      7)", "*)      8)", 7, r"expected '\(8' before '8\)'"),
        ("conll2012", "(7|(12)", "(7|12", 6, "coreference: expected"),
        ("conll2012", "#begin document (bc/cctv/00/cctv_0000); part 000\n", "", 1, "expected #begin document"),
        ("conll2012", "#end document\n#begin", "#begin", 12, "expected #end before #begin"),
        ("conll2012", "#begin document (bc/cctv/00/cctv_0000); part 001", "#end document", 13, "expected #"),
        ("gum", "\t*\t(3)", "\t*\t*\t(3)", 2, "expected 12 columns separated by tabs, got 13"),
        ("ewt_propbank", "\tlook.05\t", "\t-\t", 1, r"column 10: expected \(V\*\), .*, got 0"),
        ("ewt_propbank", "\tDogs\t", "\t \t", 1, "word 0 is ''"),
    ],
)  # fmt: skip
def test_malformed_files_are_one_clear_error(tmp_path, layout, old, new, line, message):
    text = {"conll2012": ONTONOTES, "gum": GUM, "ewt_propbank": EWT}[layout]
    assert old in text
    path = write(tmp_path, text.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as raised:
        list(read_conll(path, layout))
    assert str(raised.value).startswith(f"{path}:{line}: ")


def test_folders_patterns_and_lists(tmp_path):
    root = tmp_path / "train [1]"  # a name with a pattern's characters
    for name in ("bc/b.v4_gold_conll", "bc/a.v4_gold_conll", "nw/c.v4_gold_conll", "nw/c.v4_auto_conll"):
        write(root, ONTONOTES.replace("cctv_0000)", f"{Path(name).stem})"), name)
    one = write(tmp_path, ONTONOTES, "dev_gold_conll")
    corpus = ConllCorpus(train=str(root), validation=[str(one), f"{tmp_path}/train*/nw/*"], test=str(one))
    assert [p.name for p in corpus.files("train")] == [f"{name}.v4_gold_conll" for name in "abc"]
    assert len(corpus.files("validation")) == 3
    assert len(list(corpus.documents("train"))) == 6
    assert corpus.content_key() != ConllCorpus(train=str(one), layout="gum").content_key()
    with pytest.raises(FileNotFoundError, match="no file"):
        list(ConllCorpus(train=f"{tmp_path}/no/*_conll").documents("train"))
    with pytest.raises(FileNotFoundError, match="no file"):
        list(ConllCorpus(train=f"{tmp_path}/no_conll").documents("train"))


@pytest.mark.realdata
@pytest.mark.skipif("LMDYN_DATA" not in os.environ, reason="LMDYN_DATA is not set")
def test_real_files_have_what_their_readme_counts():
    data = Path(os.environ["LMDYN_DATA"])
    ewt = list(read_conll(data / "ewt_propbank/en_ewt-dev.gold_conll", "ewt_propbank"))
    assert sum(len(d.sentences) for d in ewt) == 1940
    gum = list(read_conll(data / "gum/gum_dev.v4_gold_conll", "gum"))
    assert len(gum) == 30
    assert sum(len(s.mentions) for d in gum for s in d) == 3818
    assert sum(len({m.entity for s in d for m in s.mentions}) for d in gum) == 857


@pytest.mark.parametrize("missing", ["-", "_", ""])
def test_spellings_of_a_missing_value(missing, tmp_path):
    """In every column except that of the word, where they are words."""
    row = ["d", "0", "{i}", "{word}", *[missing] * 8, "{chain}"]  # LitBank's: a predicate's column of nothing
    words, chains = ("-", "_", "Vevey"), ("(0", missing, "0)")
    rows = [
        "\t".join(row).format(i=i, word=w, chain=c)
        for i, (w, c) in enumerate(zip(words, chains, strict=True))
    ]
    text = "\n".join(["#begin document (d); part 0", *rows, "", "#end document", ""])
    ((sentence,),) = read_conll(write(tmp_path, text))
    assert (sentence.words, sentence.xpos, sentence.constituents) == (words, None, None)
    assert (sentence.roles, sentence.mentions) == ((), (Mention(0, 3, 0),))
    # some values missing, and the control: a value that is not one of these is read, or refused
    some = EWT.replace("\t*\t*", f"\t{missing}\t*").replace("\t-\t", f"\t{missing}\t").replace("NNS", missing)
    ((first, _),) = (list(read_conll(write(tmp_path, some), "ewt_propbank")),)
    ((expected, _),) = (list(read_conll(write(tmp_path, EWT), "ewt_propbank")),)
    assert first.sentences[0].roles == expected.sentences[0].roles
    assert first.sentences[0].xpos == (None, "VBP", "RP", "JJ")
    with pytest.raises(ValueError, match=r"expected brackets around one \*.*got '~'"):
        list(
            read_conll(write(tmp_path, text.replace(f"Vevey\t{missing}\t{missing}", f"Vevey\t{missing}\t~")))
        )

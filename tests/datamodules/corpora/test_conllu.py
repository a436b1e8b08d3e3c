import os
from pathlib import Path

import pytest

from lmdyn.datamodules import ConlluCorpus
from lmdyn.datamodules.corpora.conllu import read_conllu

SAMPLE = """\
# sent_id = before
# text = Hi
1\tHi\thi\tINTJ\tUH\t_\t0\troot\t_\t_

# newdoc id = letter
# sent_id = s1
# text = I can't go.
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t4:nsubj|5.1:nsubj\t_
2-3\tcan't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
2\tca\tcan\tAUX\tMD\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t_\t_
4\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\tA=b  c
4.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t0:root\t_
5\t20  000\t20 000\t_\tCD\t_\t4\tobj\t_\t_

# sent_id = s2
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_

# newdoc
1\t_\t_\tSYM\tSYM\t_\t2\tdep\t_\t_
2\tend\tend\tNOUN\tNN\t_\t0\troot\t_\t_
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "en.conllu"
    path.write_text(text, encoding="utf-8")
    return path


def test_reader(tmp_path):
    documents = list(read_conllu(write(tmp_path, SAMPLE)))
    assert [(d.name, len(d.sentences)) for d in documents] == [("before", 1), ("letter", 2), ("en-4", 1)]
    sentence = documents[1].sentences[0]
    assert sentence.words == ("I", "ca", "n't", "Go", "20_000")
    assert sentence.upos == ("PRON", "AUX", "PART", "VERB", None)
    assert sentence.xpos == ("PRP", "MD", None, "VB", "CD")
    assert sentence.heads == (3, 3, 3, -1, 3)
    assert sentence.deprels == ("nsubj", "aux", "advmod", "root", "obj")
    assert documents[2].sentences[0].words == ("_", "end")
    assert next(read_conllu(write(tmp_path, SAMPLE), lowercase=True)).sentences[0].words == ("hi",)


ROW = "1\tHi\thi\tINTJ\tUH\t_\t0\troot\t_\t_\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROW + "2\tx\tx\n", r"en\.conllu:2: expected 10 columns separated by tabs, got 3"),
        ("\n\n" + ROW + "2 x x x x x 0 x x x\n", r"en\.conllu:4: expected 10 columns .* got 1"),
        ("# c\n" + ROW.replace("\t0\t", "\tx\t"), r"en\.conllu:2: the head must be from 0 to 1, got 'x'"),
        ("# c\n" + ROW + "\n" + ROW.replace("\t0\t", "\t2\t"), r"en\.conllu:4: the head .* 0 to 1, got '2'"),
        (ROW + ROW.replace("1", "3", 1), r"en\.conllu:2: expected word number 2, got 3"),
        (ROW + ROW.replace("1", "1-2", 1), r"en\.conllu:2: expected ascending word numbers up to 1, got 1-2"),
        (ROW.replace("1", "one", 1), r"en\.conllu:1: 'one' is not a word number"),
        (ROW.replace("\tHi\t", "\t\t"), r"en\.conllu:1: word 0 is ''"),
        (ROW + ROW.replace("1", "2", 1), r"en\.conllu:2: the word is a second root"),
        (ROW + "2\tx\tx\tX\tX\t_\t3\tdep\t_\t_\n3\tx\tx\tX\tX\t_\t2\tdep\t_\t_\n", r"en\.conllu:2: .*cycle"),
        (ROW.replace("\t0\t", "\t1\t"), r"en\.conllu:1: .*cycle"),
        ("# global.columns = ID FORM\n" + ROW, r"en\.conllu:1: expected the columns ID FORM LEMMA"),
    ],
)
def test_malformed(tmp_path, text, message):
    corpus = ConlluCorpus(str(write(tmp_path, text)), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=message):
        corpus.prepare_data()


@pytest.mark.slow
@pytest.mark.realdata
def test_english_web_treebank(tmp_path):
    root = os.environ.get("LMDYN_DATA")
    if root is None:
        pytest.skip("LMDYN_DATA is not set")
    expected = {"train": (12_544, 204_577), "dev": (2_001, 25_147), "test": (2_077, 25_094)}
    for split, counts in expected.items():
        documents = list(read_conllu(Path(root) / "ud_ewt" / f"en_ewt-ud-{split}.conllu"))
        sentences = [s for d in documents for s in d]
        assert (len(sentences), sum(len(s.words) for s in sentences)) == counts
        assert all(s.heads is not None and s.heads.count(-1) == 1 for s in sentences)


@pytest.mark.parametrize("missing", ["-", "_", ""])
def test_spellings_of_a_missing_value(missing, tmp_path):
    """In every column except that of the word, where they are words."""
    rows = [[str(i), word, *[missing] * 8] for i, word in enumerate(("-", "_"), start=1)]
    path = tmp_path / "t.conllu"
    path.write_text("\n".join("\t".join(row) for row in rows) + "\n\n", encoding="utf-8")
    ((sentence,),) = read_conllu(path)
    assert sentence.words == ("-", "_")
    assert sentence.layers == ()
    rows[0][3], rows[1][4] = "PUNCT", "--"  # the control
    path.write_text("\n".join("\t".join(row) for row in rows) + "\n\n", encoding="utf-8")
    ((sentence,),) = read_conllu(path)
    assert (sentence.upos, sentence.xpos) == (("PUNCT", None), (None, "--"))

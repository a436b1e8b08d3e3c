"""Files of minimal pairs, in the layouts in which they are published."""

import json
import re

import pytest

from lmdyn.datamodules import PairFiles


def blimp(uid, number, good="The cats sleep.", bad="The cats sleeps.", **more):
    row = {"sentence_good": good, "sentence_bad": bad, "field": "morphology", "linguistics_term": "agreement",
           "UID": uid, "simple_LM_method": True, "pairID": str(number)}  # fmt: skip
    return json.dumps({**row, **more})


def read(path, **arguments):
    data = PairFiles(str(path), **arguments)
    data.setup("fit")
    return data.pairs


def test_blimp_is_read_from_a_folder(tmp_path):
    for uid in ("anaphor", "agreement"):
        (tmp_path / f"{uid}.jsonl").write_text("\n".join(blimp(uid, i) for i in range(3)), encoding="utf-8")
    pairs = read(tmp_path)
    assert pairs["paradigm"].tolist() == ["agreement"] * 3 + ["anaphor"] * 3
    first = pairs.iloc[0].to_dict()
    assert first == {
        "good": "The cats sleep.", "bad": "The cats sleeps.", "paradigm": "agreement", "field": "morphology",
        "term": "agreement", "attractors": "", "pair": "0", "file": str(tmp_path / "agreement.jsonl"), "line": 1,
    }  # fmt: skip


HEADER = "pattern constr_id sent_id correct_number form class type prefix n_attr punct freq len_context len_prefix sent"


def forms(*rows):
    lines = [HEADER.split(), *rows]
    return "\n".join("\t".join(map(str, line)) for line in lines) + "\n"


def form(kind, written, sent="the ideas near the lamp sleep furiously <eos>", number=3):
    return ["NOUN_VERB", "c1", number, "plur", written, kind, "original", "the ideas near the lamp", 1, "full", 9, 4,
            5, sent]  # fmt: skip


def test_two_forms_of_a_sentence(tmp_path):
    """The layout of colourless green sentences: any order of the two rows, ``<eos>`` is no word."""
    path = tmp_path / "generated.tab"
    other = [form("wrong", "sleeps", number=4), form("correct", "sleep", number=4)]
    path.write_text(forms(form("correct", "sleep"), *other, form("wrong", "sleeps")), encoding="utf-8")
    pairs = read(path)
    assert pairs["good"].tolist() == ["the ideas near the lamp sleep furiously"] * 2
    assert pairs["bad"].tolist() == ["the ideas near the lamp sleeps furiously"] * 2
    assert pairs["attractors"].tolist() == ["1", "1"]
    assert pairs["paradigm"].tolist() == ["NOUN_VERB", "NOUN_VERB"]
    assert set(pairs["pair"]) == {"NOUN_VERB c1 3", "NOUN_VERB c1 4"}


def test_a_sentence_and_the_other_form_of_its_verb(tmp_path):
    path = tmp_path / "agr.tsv"
    path.write_text(
        "sentence\tverb_index\tverb_pos\tn_diff_intervening\tother_form\nthe keys to it are here\t5\tVBP\t0\tis\n",
        encoding="utf-8",
    )
    pairs = read(path)
    assert pairs[["good", "bad", "paradigm", "attractors"]].iloc[0].tolist() == [
        "the keys to it are here", "the keys to it is here", "agr", "0",
    ]  # fmt: skip
    path.write_text("sentence\tverb_index\nthe keys are here\t3\n", encoding="utf-8")
    with pytest.raises(
        ValueError,
        match=r"agr.tsv:2: the row has no other_form or wrong_form or verb_other: .*or add the column",
    ):
        read(path)


def test_tables_of_two_sentences(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text('condition,good,bad\nsimple,"a, b",a b\nsimple,c d,c\n', encoding="utf-8")
    pairs = read(path)
    assert pairs["good"].tolist() == ["a, b", "c d"]
    assert pairs[["pair", "line"]].to_numpy().tolist() == [["0", 2], ["1", 3]]
    path = tmp_path / "pairs.tsv"
    path.write_text('kind\tyes\tno\nx\tsay "a\tsay a\n', encoding="utf-8")
    pairs = read(path, columns={"good": "yes", "bad": "no", "paradigm": "kind"})
    assert pairs["good"].tolist() == ['say "a']
    assert read(tmp_path / "*.tsv", columns={"good": "yes", "bad": "no", "paradigm": "kind"}).equals(pairs)


def test_equal_sentences_are_kept(tmp_path):
    """They count half, which the observer reports."""
    (tmp_path / "x.jsonl").write_text(blimp("u", 0, bad="The cats sleep."), encoding="utf-8")
    assert len(read(tmp_path)) == 1


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.jsonl", blimp("u", 0) + "\n" + blimp("u", 1, sentence_bad=None), "x.jsonl:2: the pair has no bad in"),
        ("x.jsonl", blimp("u", 0, sentence_good="  "), "x.jsonl:1: the pair has no good in the columns"),
        ("x.jsonl", blimp("u", 0) + "\n" + blimp("", 1), "x.jsonl:2: the pair has no paradigm in the columns"),
        ("x.jsonl", blimp("u", 0) + "\n" + blimp("u", 0), "x.jsonl:2: expected each pair of a paradigm once"),
        ("x.jsonl", blimp("u", 0) + "\n{bad", "x.jsonl:2: expected JSON"),
        ("x.jsonl", "[1]", "x.jsonl:1: expected an object with the columns of a row"),
        ("x.jsonl", blimp("u", 0, sentence_good=["the", "cat"]), "x.jsonl:1: expected text as 'good' of the pair"),
        ("x.jsonl", blimp("u", 0, field=float("nan"), sentence_bad=float("nan")), "x.jsonl:1: the pair has no bad"),
        ("x.jsonl", blimp("u", 0, sentence_bad="a \ud800"), "x.jsonl:1: lmdyn cannot read the JSON"),
        ("x.tsv", "good\tgood\tbad\tUID\na\tb\tc\td\n", "x.tsv:1: expected columns of different names, got 'good'"),
        ("x.csv", 'good,bad,UID\na,b,c\na,b,"c\nd,e,f\n', "x.csv:3: expected a table (unexpected end of data)"),
        ("x.jsonl", "\n", "expected pairs of sentences in"),
        ("x.tsv", "good\tbad\na\tb\n", "x.tsv:2: the pair has no paradigm in the columns"),
        ("x.tsv", "good\tbad\tUID\na\tb\tc\td\n", "x.tsv:2: expected 3 columns"),
        ("x.tab", forms(form("correct", "sleep")), "x.tab:2: expected classes correct and wrong for 'NOUN"),
        ("x.tab", forms(form("correct", "sleep"), form("correct", "sleep")), "x.tab:3: expected classes correct and"),
        ("x.tab", forms(form("right", "sleep")), "x.tab:2: expected classes correct and wrong for 'NOUN"),
        ("x.tab", forms(form("wrong", "sleep", sent="the ideas")), "x.tab:2: the sentence has no word 6"),
        ("x.jsonl", '{"sentence": "it is", "verb_index": 2, "other_form": "are"}\n{"sentence": "it is"}',
            "x.jsonl:2: the row has no other_form and no verb_index"),
        ("x.tsv", "sentence\tverb_index\tother_form\nit is\t2\t\n", "x.tsv:2: the row has no other_form"),
        ("x.tab", forms(form("correct", "sleep", sent="")), "x.tab:2: the row has no sent: fill in"),
        ("x.jsonl", '{"sentence": "a b", "verb_index": Infinity, "other_form": "c"}', "x.jsonl:1: expected a whole"),
        ("x.jsonl", '{"sentence": "a b", "verb_index": 1.5, "other_form": "c"}', "x.jsonl:1: expected a whole number"),
        ("x.jsonl", '{"sentence": "a b", "verb_index": true, "other_form": "c"}', "x.jsonl:1: expected a whole number"),
        ("x.jsonl", '{"sentence": NaN, "verb_index": 2, "other_form": "are"}', "x.jsonl:1: the row has no sentence"),
        ("x.pickle", "", "is a pickled file, which could run code"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, text, says):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(says)):
        read(tmp_path / name)


def test_what_cannot_be_read(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(blimp("u", 0).encode() + b"\n\xff\n")
    with pytest.raises(ValueError, match=r"x.jsonl:2: not UTF-8"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError, match="no file"):
        read(tmp_path / "other.jsonl")
    with pytest.raises(ValueError, match=r"columns must be some of"):
        PairFiles("x.jsonl", columns={"sentence": "x"})

"""Reading times of files: layouts, joined texts, numbers, and errors with file and line."""

import re

import numpy as np
import pandas as pd
import pytest

from lmdyn.datamodules import ReadingFiles

PROTOCOL = """item,word,RTfirstfix,self_paced_reading_time,Subtlex_log10,length,context_length,prev_item,prev_word
,The,,350,6.1,3,0,,
The,cat's,210,NA,4.0,5,1,,The
The cat's,"so, big",
"""


def read(path, **how):
    data = ReadingFiles(str(path), **how)
    data.setup("fit")
    return data


def written(folder, text, name="x.csv"):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_the_protocols_layout(tmp_path):
    data = read(written(tmp_path, PROTOCOL.rpartition("The cat's")[0]))
    rows = data.reading_times
    assert data.times == ["RTfirstfix", "self_paced_reading_time"]
    assert rows["text"].tolist() == ["The", "The cat's"]
    assert rows["index"].tolist() == rows["before"].tolist() == [0, 1]
    assert rows["item"].tolist() == ["0", "1"]
    assert rows["line"].tolist() == [2, 3]
    np.testing.assert_array_equal(rows["RTfirstfix"], [np.nan, 210])
    np.testing.assert_array_equal(rows["self_paced_reading_time"], [350, np.nan])
    assert rows[["frequency", "length"]].to_numpy().tolist() == [[6.1, 3], [4.0, 5]]
    assert set(rows["subject"]) == {""}


def test_words_of_texts_by_several_readers(tmp_path):
    text = "WorkerId\titem\tzone\tword\tRT\nx\t1\t2\tcat\t30\nx\t1\t1\tthe\t20\ny\t1\t1\tthe\t21\ny\t2\t7\tA\t5\n"
    data = read(written(tmp_path, text, "x.tsv"))
    rows = data.reading_times
    assert data.times == ["RT"]
    assert rows["text"].tolist() == ["the cat", "the cat", "the cat", "A"]
    assert rows["index"].tolist() == [1, 0, 0, 0]
    assert rows["item"].tolist() == ["1/2", "1/1", "1/1", "2/7"]
    assert rows["subject"].tolist() == ["x", "x", "y", "y"]
    assert rows["length"].tolist() == [3, 3, 3, 1]
    assert rows["frequency"].isna().all()


def test_rows_in_order_are_a_text_and_columns_can_be_named(tmp_path):
    path = written(tmp_path, '{"w": "Ça", "ms": 1}\n{"w": "va", "ms": null}\n', "x.jsonl")
    rows = read(path, columns={"word": "w"}, times=["ms"]).reading_times
    assert rows["text"].tolist() == ["Ça va"] * 2
    assert rows["index"].tolist() == [0, 1]
    assert rows["item"].tolist() == ["x/0", "x/1"]
    path = written(tmp_path, "index,reader,word,rt\n0,x,a,1\n1,x,b,2\n2,y,a,3\n3,y,b,4\n", "of two.csv")
    assert read(path).reading_times["text"].tolist() == ["a b"] * 4
    path.unlink()
    both = written(tmp_path, "word,time\na,1\n", "y.csv")
    assert len(read(tmp_path / "y.csv").reading_times) == 1
    pd.testing.assert_frame_equal(read(both).reading_times, read(tmp_path / "*.csv").reading_times)


def test_words_of_several_files_have_names_of_their_own(tmp_path):
    for name, words in {"a": "ab", "b": "ac"}.items():
        rows = [
            f"{word},1,{10**6 + i},{context},9\n"
            for i, (word, context) in enumerate(zip(words, "-a", strict=True))
        ]
        written(tmp_path, "".join(["word,t,n,context,rt\n", *rows]), f"{name}.csv")
    assert read(tmp_path).reading_times["item"].tolist() == ["0", "1", "2", "3"]
    found = read(tmp_path, columns={"text": "t", "position": "n"}).reading_times
    assert found["item"].tolist() == ["0/1/1000000", "0/1/1000001", "1/1/1000000", "1/1/1000001"]
    assert found["text"].tolist() == ["a b", "a b", "a c", "a c"]
    assert found["text"].map(id).nunique() == 2  # one object for all rows of a text
    with pytest.raises(ValueError, match=r"a.csv: `columns` has 'T' as text, but the file has only"):
        read(tmp_path, columns={"text": "T"})


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.csv", PROTOCOL, "x.csv:4: expected one word, got 'so, big'"),
        ("x.csv", "word,time\na,1\n,2\n", "x.csv:3: expected one word, got ''"),
        ("x.csv", "word,time\na,fast\n", "x.csv:2: expected a number as time, or an empty cell, got 'fast'"),
        ("x.csv", "word,time,frequency\na,1,x\n", "x.csv:2: expected a number as frequency"),
        ("x.csv", "word,text,zone,rt\na,t,1,1\nb,t,1,2\n", "x.csv:3: expected one word at a position of a text"),
        ("x.csv", "word,text,zone,rt\na,t,,1\n", "x.csv:2: expected the position of the word"),
        ("x.jsonl", '{"word": "a", "text": null, "rt": 1}\n', "x.jsonl:1: expected the text of the word, got ''"),
        ("x.csv", "words,time\na,1\n", "expected a column of words, got columns"),
        ("x.csv", "word,ms\na,1\n", "expected columns of times"),
        ("x.csv", "word,time\n", "of 0 rows"),
        ("x.csv", "word,time\na,1,2\n", "x.csv:2: expected 2 columns"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, text, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        read(written(tmp_path, text, name))


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        read(tmp_path / "other.csv")
    with pytest.raises(ValueError, match="columns must be some of"):
        ReadingFiles("x.csv", columns={"words": "x"})
    with pytest.raises(ValueError, match=r"expected columns of times ms"):
        read(written(tmp_path, "word,time\na,1\n"), times=["ms"])

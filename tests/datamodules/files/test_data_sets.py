"""Data sets of Hugging Face's that cannot be read: one line that names them, with the library's own reason."""

import pandas as pd
import pytest

from lmdyn.datamodules import TextCorpus
from lmdyn.datamodules.files.data_sets import load_dataset, read_rows


def parquet(folder, rows):
    path = folder / "x.parquet"
    pd.DataFrame(rows).to_parquet(path)
    return {"path": "parquet", "data_files": {"train": str(path)}, "cache_dir": str(folder / "cache")}


def test_the_reason_is_that_of_the_cause(tmp_path):
    dataset = parquet(tmp_path, {"text": ["a", "b"]})
    path = tmp_path / "x.parquet"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(
        ValueError, match=r"x\.parquet.* cannot be opened \(ArrowInvalid: .*: give the path"
    ) as found:
        load_dataset(dataset)
    assert "\n" not in str(found.value)


def test_rows_up_to_the_damage():
    def rows():
        yield from (1, 2)
        raise OSError("no more")

    read = read_rows(rows(), {"path": "here"})
    assert [next(read), next(read)] == [1, 2]
    with pytest.raises(ValueError, match=r"dataset {path: here} cannot be read \(OSError: no more\)"):
        next(read)
    assert list(read_rows([1, 2], {})) == [1, 2]


@pytest.mark.parametrize(
    ("rows", "kind"), [([1, 2], "int64"), ([["a"], ["b"]], "a list"), ([1.5], "float64")]
)
def test_a_column_without_text(tmp_path, rows, kind):
    corpus = TextCorpus(dataset=parquet(tmp_path, {"text": rows}), cache_dir=str(tmp_path))
    with pytest.raises(ValueError, match=rf"x\.parquet.*'text' is .*{kind}, expected text: set text_column"):
        corpus.prepare_data()


def test_text_that_is_not_utf8(tmp_path):
    dataset = parquet(tmp_path, {"text": ["Example", "other"]})
    path = tmp_path / "x.parquet"
    content = path.read_bytes()
    assert b"Example" in content
    path.write_bytes(content.replace(b"Example", b"Ex\xffmple"))
    with pytest.raises(ValueError, match=r"x\.parquet.* cannot be read \(UnicodeDecodeError"):
        TextCorpus(dataset=dataset, cache_dir=str(tmp_path)).prepare_data()

"""What the corpora of annotated files share, for each format."""

from pathlib import Path
from typing import NamedTuple

import pytest

from lmdyn.datamodules import ConlluCorpus, SemtagCorpus
from lmdyn.datamodules.corpora.corpus import FileCorpus


class Format(NamedTuple):
    corpus: type[FileCorpus]
    suffix: str
    row: str
    """A sentence of one word, Hi, with the label A in the layer."""
    layer: str

    def write(self, folder: Path, text: str, name: str = "en") -> str:
        path = folder / f"{name}.{self.suffix}"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def prepared(self, folder: Path, *files: str | list[str], **settings) -> FileCorpus:
        corpus = self.corpus(*files, cache_dir=str(folder / "cache"), **settings)
        corpus.prepare_data()
        corpus.setup()
        return corpus


FORMATS = [
    Format(ConlluCorpus, "conllu", "1\tHi\thi\tA\tUH\t_\t0\troot\t_\t_\n", "upos"),
    Format(SemtagCorpus, "conll", "Hi\tHi\thi\tA\ts\tO\t[]\n", "semtag"),
]


@pytest.fixture(params=FORMATS, ids=lambda form: form.corpus.__name__)
def form(request) -> Format:
    return request.param


def test_batches_have_the_layer(form, tmp_path):
    path = form.write(tmp_path, form.row + "\n" + form.row.replace("Hi", "Ho").replace("\tA\t", "\tB\t"))
    corpus = form.prepared(tmp_path, path, path, layers=[form.layer], batch_size=1)
    assert corpus.label_names[form.layer] == ["A", "B"]
    batch = next(iter(corpus.val_dataloader()))
    words = corpus.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    assert words[:3] == ["Hi", "<eos>", "Ho"]
    assert batch[form.layer][0, :3].tolist() == [0, -100, 1]
    assert batch[f"target_{form.layer}"][0, :-1].tolist() == batch[form.layer][0, 1:].tolist()


def test_lowercase(form, tmp_path):
    path = form.write(tmp_path, form.row)
    for lowercase, word in ((False, "Hi"), (True, "hi")):
        corpus = form.prepared(tmp_path, path, lowercase=lowercase)
        assert corpus.tokenizer.decode(corpus.encoded("train").tokens.tolist()) == f"{word} <eos>"


def test_key_is_of_the_content(form, tmp_path):
    path = form.write(tmp_path, form.row)
    key = form.corpus(path).content_key()
    assert form.corpus(form.write(tmp_path, form.row, "elsewhere")).content_key() == key
    assert form.corpus(path, lowercase=True).content_key() != key
    assert form.corpus(form.write(tmp_path, form.row.replace("A", "B"), "other")).content_key() != key
    assert form.corpus(validation=path).content_key() != key

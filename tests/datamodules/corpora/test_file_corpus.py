"""What the corpora of annotated files share, for one of their formats."""

from lmdyn.datamodules import ConlluCorpus

ROW = "1\tHi\thi\tA\tUH\t_\t0\troot\t_\t_\n"


def write(folder, text, name="en"):
    path = folder / f"{name}.conllu"
    path.write_text(text, encoding="utf-8")
    return str(path)


def prepared(folder, *files, **settings):
    corpus = ConlluCorpus(*files, cache_dir=str(folder / "cache"), **settings)
    corpus.setup()
    return corpus


def test_batches_have_the_layer(tmp_path):
    path = write(tmp_path, ROW + "\n" + ROW.replace("Hi", "Ho").replace("\tA\t", "\tB\t"))
    corpus = prepared(tmp_path, path, path, layers=["upos"], batch_size=1)
    assert corpus.label_names["upos"] == ["A", "B"]
    batch = next(iter(corpus.val_dataloader()))
    words = corpus.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    assert words[:3] == ["Hi", "<eos>", "Ho"]
    assert batch["upos"][0, :3].tolist() == [0, -100, 1]
    assert batch["target_upos"][0, :-1].tolist() == batch["upos"][0, 1:].tolist()


def test_lowercase(tmp_path):
    path = write(tmp_path, ROW)
    for lowercase, word in ((False, "Hi"), (True, "hi")):
        corpus = prepared(tmp_path, path, lowercase=lowercase)
        assert corpus.tokenizer.decode(corpus.encoded("train").tokens.tolist()) == f"{word} <eos>"


def test_key_is_of_the_content(tmp_path):
    path = write(tmp_path, ROW)
    key = ConlluCorpus(path).content_key()
    assert ConlluCorpus(write(tmp_path, ROW, "elsewhere")).content_key() == key
    assert ConlluCorpus(path, lowercase=True).content_key() != key
    assert ConlluCorpus(write(tmp_path, ROW.replace("A", "B"), "other")).content_key() != key
    assert ConlluCorpus(validation=path).content_key() != key

"""Streams of text: each document once, ranks alike, resumed at the very row."""

import json
from collections import Counter

import pandas as pd
import pytest

from lmdyn.datamodules import PretrainingCorpus, StreamedText
from lmdyn.datamodules.corpora.tokenization import subword_tokenizer
from lmdyn.datamodules.pretraining.stream_reader import START, documents_of

# a machine, or a test's share of it, may have one core
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

WORDS = [f"{a}{b}" for a in "bcdfgh" for b in ("alo", "iru", "eto", "una")]


def document(i):
    """A text whose words tell which document it is."""
    return (
        f"doc{i} "
        + " ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(20 + i % 9))
        + ". Then more ."
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    texts = [document(i) for i in range(240)]
    words = Counter(word for text in texts for word in text.split())
    subword_tokenizer("wordpiece", words, vocab_size=420).save_pretrained(str(folder / "tokenizer"))
    for part in range(4):
        rows = pd.DataFrame({"text": texts[part * 60 : (part + 1) * 60]})
        rows.to_parquet(folder / f"part-{part}.parquet")
    write(folder / "one.jsonl", texts)
    write(folder / "short.jsonl", texts[:30])
    write(folder / "sentences.jsonl", SENTENCES)
    return folder


SENTENCES = [f"{WORDS[i % len(WORDS)]} sentence{i} ." for i in range(100)]


def write(file, texts):
    file.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))


def mixed(folder, *files):
    """Datasets of these files: parquet in four parts is divided by files, json by documents."""
    return [
        {"path": "parquet" if file.endswith("parquet") else "json", "data_files": str(folder / file)}
        for file in files
    ]


def a_pass(loader, reader=0, state=None):
    """The documents of a reader's first pass from a state on, and the state after each."""
    taken = []
    readers = loader._deal.readers
    for text, after in documents_of(loader.text, reader, readers, {**START, **(state or {})}):
        if after["pass"] > 0:
            return taken
        taken.append((text, after))
    raise AssertionError("a stream has no end")


def make(folder, *, files="part-*.parquet", path="parquet", dataset=None, **settings):
    """Batches of an epoch of seven, as a rank has them."""
    about = {"global_rank": settings.pop("rank", 0), "world_size": settings.pop("ranks", 1)}
    about |= {"limit_train_batches": settings.pop("limit", 1.0)}
    stream = StreamedText(
        dataset or {"path": path, "data_files": str(folder / files)}, tokenizer=str(folder / "tokenizer"),
        epoch_batches=7, block_rows=12, text_column=settings.pop("column", "text"),
    )  # fmt: skip
    format = {"pairs": "order", "sequence_length": 24, "batch_size": 4, **settings}
    data = PretrainingCorpus(stream=stream, **format)
    if about["world_size"] > 1 or about["limit_train_batches"] != 1.0:
        data.trainer = type("Trainer", (), about)()
    data.prepare_data()
    return data.train_dataloader()


def take(loader, n):
    taken = []
    while len(taken) < n:
        for batch in loader:
            taken.append(batch)
            if len(taken) == n:
                break
    return taken


@pytest.mark.parametrize("files", [("part-*.parquet", "sentences.jsonl"), ("short.jsonl", "sentences.jsonl")])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_pass_reads_every_document_of_every_dataset_once(folder, files, ranks):
    """Two readers share the documents, and each reads of both datasets."""
    articles = [document(i) for i in range(240 if "parquet" in files[0] else 30)]
    dataset = mixed(folder, *files)
    read = [
        [text for text, _ in a_pass(make(folder, dataset=dataset, rank=r, ranks=ranks), r)]
        for r in range(ranks)
    ]
    assert sorted(t for texts in read for t in texts) == sorted(articles + SENTENCES)
    for texts in read:
        assert len([t for t in texts if "sentence" in t]) == len(SENTENCES) // ranks
        assert len([t for t in texts if "doc" in t]) == len(articles) // ranks


def test_the_dataset_that_gave_least_text_is_next(folder):
    """Documents of one length alternate until one dataset ends; to one of a long text come as many short ones."""
    write(folder / "a.jsonl", ["a" * 10 for _ in range(3)])
    write(folder / "b.jsonl", ["b" * 10 for _ in range(6)])
    write(folder / "c.jsonl", ["c" * 4 for _ in range(9)])

    def order(*files):
        return "".join(text[0] for text, _ in a_pass(make(folder, dataset=mixed(folder, *files))))

    assert order("a.jsonl", "b.jsonl") == "ababab" + "bbb"
    assert order("b.jsonl", "a.jsonl") == "bababa" + "bbb"
    #  given before: a 0, c 0; a 10, c 0, 4, 8, then 12; a 20, c 12, 16, then 20; a 20, c 20; a ends at 30; c 20, ...
    assert order("a.jsonl", "c.jsonl") == "accc" + "acc" + "accc" + "c"
    assert order("b.jsonl", "a.jsonl", "a.jsonl") == "baa" * 3 + "bbb"


@pytest.mark.slow
def test_two_datasets_resume_at_every_document(folder):
    """Also where one of them has ended."""
    write(folder / "few.jsonl", SENTENCES[:23])
    for files in (("few.jsonl", "short.jsonl"), ("short.jsonl", "few.jsonl")):
        dataset = mixed(folder, *files)
        reference = a_pass(make(folder, dataset=dataset))
        assert len(reference) == 53
        for k, (_, state) in enumerate(reference):
            assert a_pass(make(folder, dataset=dataset), state=state) == reference[k + 1 :], k


def test_errors_name_the_dataset_of_several(folder):
    good = mixed(folder, "one.jsonl")[0]
    (folder / "body.jsonl").write_text('{"body": "text"}\n')
    write(folder / "blank.jsonl", ["", "  "])
    for file, message in (
        ("nothing.jsonl", r"nothing\.jsonl.*cannot be opened"),
        ("body.jsonl", r"body\.jsonl.*text in column 'text', got None: .*columns: body"),
        ("blank.jsonl", r"blank\.jsonl.*has no text"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            take(make(folder, dataset=[good, *mixed(folder, file)]), 1)
        assert "one.jsonl" not in str(caught.value)


def test_a_dataset_may_name_its_own_split(folder):
    files = {"test": str(folder / "short.jsonl"), "train": str(folder / "sentences.jsonl")}
    dataset = [{"path": "json", "data_files": files, "split": "test"}, {"path": "json", "data_files": files}]
    texts = [text for text, _ in a_pass(make(folder, dataset=dataset))]
    assert sorted(texts) == sorted([document(i) for i in range(30)] + SENTENCES)


def test_the_text_may_have_another_column(folder):
    (folder / "said.jsonl").write_text('{"text": "no", "said": "the text"}\n')
    stream = StreamedText(mixed(folder, "said.jsonl")[0], epoch_batches=1, text_column="said")
    assert next(documents_of(stream, 0, 1, START))[0] == "the text"


def test_bad_sources_are_clear_errors(folder, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    stream = StreamedText({"path": "someone/no-such-dataset"}, epoch_batches=1)
    with pytest.raises(ValueError, match=r"someone/no-such-dataset.*can be reached"):
        stream.open()
    (folder / "strange.jsonl").write_text('{"text": 3}\n')
    with pytest.raises(ValueError, match="expected text in column 'text', got 3"):
        take(make(folder, files="strange.jsonl", path="json"), 1)
    with pytest.raises(ValueError, match=r"expected text in column 'body', got None: .*columns: text"):
        take(make(folder, column="body"), 1)
    (folder / "few.jsonl").write_text('{"text": "one document"}\n')
    with pytest.raises(ValueError, match="no text for one of the readers"):
        take(make(folder, files="few.jsonl", path="json", rank=1, ranks=2), 1)


def test_documents_without_text_are_counted(folder, caplog):
    lines = [json.dumps({"text": document(i) if i % 3 else None}) + "\n" for i in range(12)]
    (folder / "gaps.jsonl").write_text("".join(lines))
    take(make(folder, files="gaps.jsonl", path="json"), 12)
    assert "lmdyn left out 4 documents without text" in caplog.text


def test_other_text_is_said(folder, caplog):
    """Files may have moved, so that it is no error."""
    loader = make(folder)
    take(loader, 2)
    state = loader.state_dict()
    make(folder).load_state_dict(state)
    other = make(folder, files="part-0*.parquet")
    assert not caplog.records
    other.load_state_dict(state)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "part-*.parquet" in said.split(" before and reads ")[0]
    assert "part-0*.parquet" in said.split(" before and reads ")[1]


def test_a_trainer_may_end_epochs_earlier(folder):
    loader = make(folder, limit=3)
    assert [len(list(loader)) for _ in range(3)] == [3, 3, 3]

"""Streams of text: each document once, ranks alike, resumed at the very row."""

import io
import json

import pandas as pd
import pytest
import torch

from lmdyn.datamodules import MaskedCorpus, StreamedText
from lmdyn.datamodules.streaming import _START
from lmdyn.datamodules.tokenization import subword_tokenizer

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
    words = [t.split() for t in texts]
    subword_tokenizer("wordpiece", words, vocab_size=420).save_pretrained(str(folder / "tokenizer"))
    for part in range(4):
        rows = pd.DataFrame({"text": texts[part * 60 : (part + 1) * 60]})
        rows.to_parquet(folder / f"part-{part}.parquet")
    (folder / "one.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return folder


def make(
    folder,
    *,
    files="part-*.parquet",
    path="parquet",
    workers=0,
    epoch_batches=7,
    column="text",
    rank=0,
    ranks=1,
    **format,
):
    stream = StreamedText(
        {"path": path, "data_files": str(folder / files)}, tokenizer=str(folder / "tokenizer"),
        epoch_batches=epoch_batches, block_rows=12, text_column=column,
    )  # fmt: skip
    data = MaskedCorpus(
        stream=stream, sequence_length=24, batch_size=4, num_workers=workers, **{"pairs": "order", **format}
    )
    if ranks > 1:
        data.trainer = type("Trainer", (), {"global_rank": rank, "world_size": ranks})()
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


def through_a_checkpoint(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def states_of(loader):
    loader._dataset.states = [{**_START, "worker": 0}]
    return loader._dataset.batches(0)


def equal(a, b):
    return len(a) == len(b) and all(torch.equal(x[k], y[k]) for x, y in zip(a, b, strict=True) for k in x)


def test_rows_hold_the_text_once(folder):
    """In a pass over the text every document's own word appears once, but for the row that two passes share."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    loader = make(folder, pairs=None)
    text = []
    for batch in take(loader, 60):
        ids = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
        text += [tokenizer.decode(row[1:-1]) for row in ids]
    joined = " ".join(text)
    total = 60 * 4 * 22
    per_pass = sum(len(tokenizer.tokenize(document(i))) for i in range(240))
    found = sum(f"doc{i} " in joined for i in range(240))
    assert found >= min(1.0, total / per_pass) * 240 * 0.75  # names cut by the end of a row are not counted
    assert joined.count("doc5 ") <= 1 + total // per_pass


def test_an_epoch_has_as_many_batches_as_asked(folder):
    loader = make(folder)
    assert len(loader) == 7
    first, second = list(loader), list(loader)
    assert len(first) == len(second) == 7
    assert not torch.equal(first[0]["input_ids"], second[0]["input_ids"])


@pytest.mark.parametrize(("files", "workers"), [("part-*.parquet", 0), ("one.jsonl", 2)])
def test_ranks_and_workers_read_different_documents(folder, files, workers):
    path = "parquet" if files.endswith("parquet") else "json"
    rows = []
    for rank in range(2):
        loader = make(folder, files=files, path=path, rank=rank, ranks=2, workers=workers, pairs=None)
        batches = take(loader, 10)
        ids = torch.cat([torch.where(b["labels"] == -100, b["input_ids"], b["labels"]) for b in batches])
        rows.append({tuple(row.tolist()) for row in ids})
        assert len(rows[-1]) == 40
    assert not rows[0] & rows[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_goes_on_with_the_same_batches(folder, workers):
    reference = take(make(folder, workers=workers), 30)
    for stop in (1, 5, 7, 12, 23):  # within a block, at the end of an epoch, beyond the end of the text
        loader = make(folder, workers=workers)
        take(loader, stop)
        state = through_a_checkpoint(loader.state_dict())
        resumed = make(folder, workers=workers)
        iter(resumed)
        resumed.load_state_dict(state)
        assert equal(reference[stop:], take(resumed, 30 - stop)), stop


def test_the_global_generator_is_left_alone(folder):
    before = torch.get_rng_state()
    take(make(folder, workers=0), 9)
    assert torch.equal(before, torch.get_rng_state())


def test_other_numbers_of_ranks_or_workers_are_refused(folder):
    loader = make(folder)
    take(loader, 2)
    with pytest.raises(ValueError, match="num_workers"):
        make(folder, workers=2).load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="1 ranks, this run has 2"):
        make(folder, ranks=2).load_state_dict(loader.state_dict())


def test_bad_sources_are_clear_errors(folder, monkeypatch):
    with pytest.raises(ValueError, match=r"no column 'body'.*text"):
        take(make(folder, column="body"), 1)
    with pytest.raises(ValueError, match="cannot be opened"):
        take(make(folder, files="nothing.parquet"), 1)
    with pytest.raises(ValueError, match="epoch_batches"):
        StreamedText({"path": "text"}, epoch_batches=0)
    with pytest.raises(ValueError, match="path"):
        StreamedText({"name": "x"}, epoch_batches=1)
    with pytest.raises(ValueError, match="tokenizer"):
        MaskedCorpus(stream=StreamedText({"path": "text"}, epoch_batches=1)).prepare_data()
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    stream = StreamedText({"path": "someone/no-such-dataset"}, epoch_batches=1)
    with pytest.raises(ValueError, match=r"someone/no-such-dataset.*can be reached"):
        stream.open()
    for line, message in (('{"text": 3}', "holds int, expected text"), ('{"text": "  "}', "has no text")):
        (folder / "strange.jsonl").write_text(5 * f"{line}\n")
        with pytest.raises(ValueError, match=message):
            take(make(folder, files="strange.jsonl", path="json"), 1)
    (folder / "few.jsonl").write_text('{"text": "one document"}\n')
    with pytest.raises(ValueError, match="fewer documents than ranks"):
        take(make(folder, files="few.jsonl", path="json", rank=1, ranks=2), 1)


def test_documents_without_text_are_counted(folder, caplog):
    lines = [json.dumps({"text": document(i) if i % 3 else None}) + "\n" for i in range(12)]
    (folder / "gaps.jsonl").write_text("".join(lines))
    take(make(folder, files="gaps.jsonl", path="json"), 12)
    assert "4 documents without text are left out" in caplog.text


def test_other_settings_are_refused(folder):
    loader = make(folder)
    take(loader, 2)
    state = loader.state_dict()
    other = make(folder)
    other._settings = {**other._settings, "batch_size": 16}
    with pytest.raises(ValueError, match=r"batch_size.*needs the same"):
        other.load_state_dict(state)


def test_a_trainer_may_end_epochs_earlier(folder):
    stream = StreamedText(
        {"path": "parquet", "data_files": str(folder / "part-*.parquet")}, tokenizer=str(folder / "tokenizer"),
        epoch_batches=7, block_rows=12,
    )  # fmt: skip
    data = MaskedCorpus(stream=stream, sequence_length=24, batch_size=4)
    data.trainer = type("Trainer", (), {"global_rank": 0, "world_size": 1, "limit_train_batches": 3})()
    data.prepare_data()
    loader = data.train_dataloader()
    assert [len(list(loader)) for _ in range(3)] == [3, 3, 3]


def test_what_is_left_over_is_sent_once_a_block(folder):
    loader = make(folder)
    sent = [state for _, (_, state) in zip(range(7), states_of(loader), strict=False)]
    assert [sorted(state) == ["batch"] for state in sent] == [True, True, False] * 2 + [True]

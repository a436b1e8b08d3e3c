import os
import threading
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lmdyn.datamodules import Corpus, Document, Sentence
from lmdyn.datamodules.corpora import encoding as encoding_module
from lmdyn.datamodules.corpora.tokenization import word_tokenizer

ONE = Sentence(("the", "U.S.", "sleeps"), upos=("DET", "PROPN", "VERB"), topic="one")
CAT = Sentence(("the", "cat"), upos=("DET", "NOUN"), topic="two")
UNKNOWN = Sentence(("<unk>", "'t", "the"), topic="two")
DOG = Sentence(("the", "dog", "!"), upos=("DET", None, "PUNCT"), topic="a")
TEXT = {
    "train": [Document("one", (ONE,)), Document("two", (CAT, UNKNOWN))],
    "validation": [Document("a", (DOG,))],
}


class Tiny(Corpus):
    splits = ("train", "validation")

    def __init__(self, text=TEXT, **settings):
        super().__init__(**settings)
        self.text = text
        self.calls = []

    def documents(self, split):
        self.calls.append(split)
        yield from self.text[split]

    def content_key(self):
        return {"text": repr(self.text)}


def tiny(tmp_path, tokenizer=None, cls=Tiny, splits=Tiny.splits, **settings):
    corpus = cls(**{"cache_dir": str(tmp_path / "cache"), "batch_size": 1, **settings})
    corpus.splits = splits
    if tokenizer is not None:
        corpus.tokenizer = tokenizer
    corpus.setup()
    return corpus


# ------------------------------------------------------------------------------------------ encoding


def test_encoded_arrays(tmp_path):
    corpus = tiny(tmp_path)
    train, validation = corpus.encoded("train"), corpus.encoded("validation")
    assert corpus.tokenizer.convert_ids_to_tokens(train.tokens.tolist()) == [
        *("the", "U.S.", "sleeps", "<eos>", "the", "cat", "<eos>", "<unk>", "'t", "the", "<eos>")
    ]
    assert corpus.label_names == {
        "upos": ["DET", "NOUN", "PROPN", "VERB", "PUNCT"],
        "topic": ["one", "two", "a"],
    }
    assert train.layer("upos").tolist() == [0, 2, 3, -100, 0, 1, -100, -100, -100, -100, -100]
    assert train.layer("topic").tolist() == [0] * 4 + [1] * 7
    assert train.sentence_starts.tolist() == [0, 4, 7]
    assert train.document_starts.tolist() == [0, 1]
    assert train.word_start.tolist() == [True] * 3 + [False] + [True] * 2 + [False] + [True] * 3 + [False]
    assert validation.tokens.tolist() == [corpus.tokenizer.convert_tokens_to_ids("the"), 1, 1, 2]
    assert validation.layer("upos").tolist() == [0, -100, 4, -100]
    assert validation.layer("topic").tolist() == [2] * 4
    for array in (train.tokens, train.layer("upos"), train.sentence_starts):
        assert isinstance(array, np.memmap)


def test_chunks_do_not_show(tmp_path, monkeypatch):
    whole = tiny(tmp_path / "a").encoded("train")
    monkeypatch.setattr(encoding_module, "_SENTENCES_PER_CHUNK", 1)
    monkeypatch.setattr(encoding_module, "_TOKENS_PER_CHUNK", 2)
    corpus = tiny(tmp_path / "b")
    chunked = corpus.encoded("train")
    assert chunked.fingerprint(["upos", "topic"]) == whole.fingerprint(["upos", "topic"])
    for layer in ("upos", "topic"):
        assert chunked.layer(layer).tolist() == whole.layer(layer).tolist()
    assert chunked.sentence_starts.tolist() == whole.sentence_starts.tolist()
    assert corpus.token_counts["count"].sum() == whole.num_tokens


def test_layer_that_comes_late_is_filled_up(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding_module, "_SENTENCES_PER_CHUNK", 1)
    text = {"train": [Document("d", (Sentence(("a", "b")), Sentence(("c",), xpos=("X",)), Sentence(("d",))))]}
    corpus = tiny(tmp_path, splits=("train",), text=text, eos=False)
    assert corpus.encoded("train").layer("xpos").tolist() == [-100, -100, 0, -100]


def test_token_counts(tmp_path):
    counts = tiny(tmp_path).token_counts
    assert isinstance(counts, pd.DataFrame)
    assert list(counts.columns) == ["token", "count", "DET", "NOUN", "PROPN", "VERB", "PUNCT"]
    table = counts.set_index("token")
    words = Counter(w for d in TEXT["train"] for s in d for w in s.words)
    assert table["count"].to_dict() == {**dict.fromkeys(table.index, 0), **words, "<eos>": 3}
    assert (table.loc["the", "DET"], table.loc["cat", "NOUN"], table["DET"].sum()) == (2, 1, 2)
    assert counts.index.tolist() == list(range(len(counts)))


def test_second_start_reads_nothing(tmp_path):
    first = tiny(tmp_path)
    stats = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in (tmp_path / "cache").rglob("*")}
    assert first.calls == ["train", "train", "validation"]
    second = tiny(tmp_path)
    second.train_dataloader()
    assert second.calls == []
    assert {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in (tmp_path / "cache").rglob("*")} == stats
    assert not [p for p in stats if p.name.startswith(".")]


def test_handed_tokenizer_needs_no_training_split_and_shares_the_cache(tmp_path):
    run = tiny(tmp_path)
    probe = tiny(tmp_path, run.tokenizer, splits=("validation",))
    assert probe.calls == ["validation"]
    assert probe.encoded("validation").tokens.tolist() == run.encoded("validation").tokens.tolist()
    assert probe.label_names["upos"] == ["DET", "PUNCT"]
    with pytest.raises(ValueError, match=r"no split 'train', only validation"):
        _ = probe.token_counts
    run.tokenizer.save_pretrained(str(tmp_path / "tokenizer"))
    assert tiny(tmp_path, AutoTokenizer.from_pretrained(str(tmp_path / "tokenizer"))).calls == []


def test_a_new_tokenizer_encodes_again(tmp_path):
    corpus = tiny(tmp_path)
    before = corpus.encoded("train").tokens.tolist()
    corpus.tokenizer = word_tokenizer({"the": 1})
    with pytest.raises(RuntimeError, match="not set up"):
        corpus.encoded("train")
    corpus.setup()
    assert corpus.encoded("train").tokens.tolist() != before
    assert len(corpus.token_counts) == 4


def test_concurrent_writers(tmp_path):
    barrier = threading.Barrier(4)
    failures = []

    class Slow(Tiny):
        def documents(self, split):
            barrier.wait(timeout=20)
            yield from super().documents(split)

    def work():
        try:
            found = tiny(tmp_path, word_tokenizer({"the": 1}), Slow)
            assert found.encoded("train").num_tokens == 11
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_failure_leaves_nothing(tmp_path):
    class Broken(Tiny):
        def documents(self, split):
            yield from super().documents(split)
            raise ValueError("line 7 is broken")

    with pytest.raises(ValueError, match="split 'train' of the corpus: line 7 is broken"):
        tiny(tmp_path, word_tokenizer({"the": 1}), Broken)
    assert list((tmp_path / "cache").iterdir()) == []


# ------------------------------------------------------------------------------------------ loaders and errors


def test_loaders(tmp_path):
    corpus = tiny(tmp_path, batch_size=2, sequence_length=3)
    loader = corpus.train_dataloader()
    assert (loader.layers, loader.num_tokens) == (("upos", "topic"), 10)
    batch = next(iter(loader))
    assert sorted(batch) == sorted(
        ["attention_mask", "continues", "input_ids", "labels", "target_topic", "target_upos", "topic", "upos"]
    )
    assert batch["input_ids"].shape == (2, 3)
    assert corpus.val_dataloader().num_tokens == 3
    with pytest.raises(ValueError, match="no split 'test'"):
        corpus.test_dataloader()


def test_errors(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"`layers` names 'xpos', [^(]*\(upos, topic\)"):
        tiny(tmp_path, layers=["upos", "xpos"])
    with pytest.raises(ValueError, match="split 'train' of the corpus: no sentence is left"):
        tiny(tmp_path, text={"train": [], "validation": TEXT["validation"]})
    with pytest.raises(ValueError, match="split 'validation' of the corpus: no sentence is left"):
        tiny(tmp_path, text={"train": TEXT["train"], "validation": []})
    with pytest.raises(RuntimeError, match="has no tokenizer: give or assign"):
        _ = Tiny().tokenizer
    with pytest.raises(ValueError, match="give train, or a tokenizer"):
        tiny(tmp_path, splits=("validation",))
    no_end = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")), unk_token="a"
    )
    with pytest.raises(ValueError, match="set eos: false"):
        tiny(tmp_path, no_end)


def test_damaged_cache_is_named_and_old_leftovers_go(tmp_path):
    tiny(tmp_path)
    (folder,) = (tmp_path / "cache").glob("text-*")
    path = folder / "train" / "tokens.bin"
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])  # one bit
    with pytest.raises(ValueError, match=r"damaged \(train/tokens\.bin has changed since it was written\)"):
        tiny(tmp_path).setup()
    path.write_bytes(whole[:-4])
    with pytest.raises(ValueError, match=r"damaged \(train/tokens\.bin has changed .*\): remove the folder"):
        tiny(tmp_path).setup()
    old, young, other = (tmp_path / "cache" / name for name in (".text-old", ".text-young", ".other-old"))
    for leftover in (old, young, other):
        leftover.mkdir()
        (leftover / "x").write_text("x")
    for leftover in (old, other):
        os.utime(leftover, (0, 0))
    tiny(tmp_path, eos=False)
    assert not old.exists()
    assert young.exists()
    assert other.exists()

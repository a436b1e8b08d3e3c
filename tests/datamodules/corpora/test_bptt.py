import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from lmdyn.datamodules import Document, Sentence, StreamLoader
from lmdyn.datamodules.corpora.encoding import EncodedSplit, encode_documents, merge_label_names
from lmdyn.datamodules.corpora.tokenization import word_tokenizer

TAGS = ("NOUN", "VERB", "DET")


def encode(folder: Path, size: int) -> EncodedSplit:
    """A split whose token i is the word ``w<i>``: ids are 3 + i; every fifth word has no tag."""
    words = [f"w{i}" for i in range(size)]
    tags = [None if i % 5 == 4 else TAGS[i % 3] for i in range(size)]
    sentences = tuple(
        Sentence(tuple(words[i : i + 7]), upos=tuple(tags[i : i + 7]), topic=f"t{i // 20}")
        for i in range(0, size, 7)
    )
    vocabulary = {word: size - i for i, word in enumerate(words)}
    folder.mkdir(exist_ok=True)
    data = encode_documents([Document("d", sentences)], folder, word_tokenizer(vocabulary), eos=False)
    data.relabel(merge_label_names([data.names]))
    return data


def naive_batches(tokens, labels, streams, width, rank, world, limit=None):
    """Second implementation in plain lists: cut predictions into runs, runs into windows."""
    pairs = [(tokens[i], tokens[i + 1], labels[i], labels[i + 1]) for i in range(len(tokens) - 1)][:limit]
    runs, start = [], 0
    for s in range(streams):
        size = len(pairs) // streams + (s < len(pairs) % streams)
        runs.append(pairs[start : start + size])
        start += size
    longest = max(map(len, runs))
    rows = runs[rank::world]
    if not rows:
        return []
    padded = [run + [(0, -100, -100, -100)] * (longest - len(run)) for run in rows]
    batches = []
    for start in range(0, longest, width):
        window = [run[start : start + width] for run in padded]
        columns = enumerate(("input_ids", "labels", "upos", "target_upos"))
        batch = {name: [[p[i] for p in row] for row in window] for i, name in columns}
        batch["attention_mask"] = [[int(p[1] != -100) for p in row] for row in window]
        batches.append({**batch, "continues": [start > 0] * len(rows)})
    return batches


def as_lists(loader):
    return [{name: tensor.tolist() for name, tensor in batch.items()} for batch in loader]


@pytest.mark.parametrize(
    ("size", "streams", "width"), [(50, 4, 5), (51, 4, 6), (33, 5, 40), (4, 6, 2), (2, 1, 1)]
)
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("limit", [None, 1, 17])
def test_agrees_with_a_naive_cut(tmp_path, size, streams, width, world, limit):
    data = encode(tmp_path / "data", size)
    tokens, labels = data.tokens.tolist(), data.layer("upos").tolist()
    whole = StreamLoader(data, streams, width, layers=["upos"])
    if limit is not None:
        whole = whole.limit(limit)
    used = Counter()
    for rank in range(world):
        loader = whole.shard(rank, world)
        batches = as_lists(loader)
        assert batches == naive_batches(tokens, labels, streams, width, rank, world, limit)
        assert len(loader) == len(batches)
        targets = [t for b in batches for row in b["labels"] for t in row if t != -100]
        assert loader.num_tokens == len(targets)
        used.update(targets)
    # the tokens are distinct: each prediction is named by its target
    expected = tokens[1:] if limit is None else tokens[1 : limit + 1]
    assert used == Counter(expected)
    assert whole.total_tokens == loader.total_tokens == len(expected)


def test_rows_continue_and_types(tmp_path):
    loader = StreamLoader(encode(tmp_path / "d", 100), 3, 4, layers=["topic"])
    before = None
    for batch in loader:
        names = ["input_ids", "labels", "attention_mask", "topic", "target_topic"]
        types = {**dict.fromkeys(names, torch.int64), "continues": torch.bool}
        assert {k: v.dtype for k, v in batch.items()} == types
        if before is not None:
            assert torch.equal(batch["input_ids"][:, 0], before)
        before = batch["labels"][:, -1]
    assert loader.label_names == {"topic": ["t0", "t1", "t2", "t3", "t4"]}


def test_fingerprint_is_of_what_is_served(tmp_path):
    data, copy, other = encode(tmp_path / "a", 60), encode(tmp_path / "b", 60), encode(tmp_path / "c", 61)
    base = StreamLoader(data, 4, 5)
    assert StreamLoader(copy, 4, 5).fingerprint == base.fingerprint
    assert base.limit(1000).fingerprint == base.fingerprint
    assert StreamLoader(data, 4, 5, seed=1).fingerprint == base.fingerprint
    shuffled = [StreamLoader(data, 4, 5, layers=["shuffled_upos"], seed=seed) for seed in (0, 1)]
    sizes = [StreamLoader(other, 4, 5), StreamLoader(data, 3, 5), StreamLoader(data, 4, 6)]
    different = [*sizes, *shuffled, StreamLoader(data, 4, 5, layers=["upos"]), base.limit(58)]
    assert len({base.fingerprint, *(loader.fingerprint for loader in different)}) == 1 + len(different)


def test_shuffled_layer_keeps_distribution_and_positions(tmp_path):
    data = encode(tmp_path / "d", 500)
    loader = StreamLoader(data, 4, 9, layers=["upos", "shuffled_upos"], seed=3)
    plain = torch.cat([b["upos"].flatten() for b in loader])
    mixed = torch.cat([b["shuffled_upos"].flatten() for b in loader])
    assert torch.equal(plain == -100, mixed == -100)
    assert Counter(data.layer("upos").tolist()) == Counter(data.shuffled("upos", 3).tolist())
    agree = (plain == mixed)[plain != -100].float().mean()
    assert 0.25 < agree < 0.42  # three tags, a third each
    again = StreamLoader(encode(tmp_path / "e", 500), 4, 9, layers=["shuffled_upos"], seed=3)
    assert torch.equal(mixed, torch.cat([b["shuffled_upos"].flatten() for b in again]))
    assert not np.array_equal(data.shuffled("upos", 3), data.shuffled("upos", 4))
    assert loader.label_names["shuffled_upos"] == loader.label_names["upos"] == sorted(TAGS)
    assert isinstance(data.shuffled("upos", 3), np.memmap)


def test_memory_mapped_also_after_pickling(tmp_path):
    loader = StreamLoader(encode(tmp_path / "d", 5000), 4, 5, layers=["upos"])
    expected = as_lists(loader)
    pickled = pickle.dumps(loader.data)
    assert len(pickled) < 1000
    assert as_lists(StreamLoader(pickle.loads(pickled), 4, 5, layers=["upos"])) == expected
    assert isinstance(loader.data.tokens, np.memmap)
    assert all(isinstance(array, np.memmap) for array in loader._arrays.values())


def test_state(tmp_path):
    loader = StreamLoader(encode(tmp_path / "d", 60), 4, 5)
    batches = as_lists(loader)
    assert len(batches) == 3
    assert loader.state_dict()["position"] == 3
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    assert state["position"] == 1
    # what version 0.1 wrote
    state = {name: state[name] for name in ("position", "global_batch", "text")}
    fresh = StreamLoader(encode(tmp_path / "e", 60), 4, 5)
    fresh.load_state_dict(state)
    iter(fresh)  # opened and never read
    assert fresh.state_dict()["position"] == 1
    assert len(fresh) == 3
    assert as_lists(fresh) == batches[1:]
    assert as_lists(fresh) == batches
    fresh.load_state_dict({**state, "position": 3})
    assert fresh.state_dict()["position"] == 0
    assert as_lists(fresh) == batches
    with pytest.raises(ValueError, match=r"sequence_length 5 \(now 6\): to resume exactly, keep"):
        StreamLoader(encode(tmp_path / "f", 60), 4, 6).load_state_dict(fresh.state_dict())
    with pytest.raises(ValueError, match="order"):
        fresh.load_state_dict({**state, "order": 1})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"streams": 0}, "sizes of at least 1.*streams"),
        ({"sequence_length": 0}, "sizes of at least 1.*sequence_length"),
        ({"rank": 2, "world_size": 2}, "rank must be from 0 to 1, got 2"),
        ({"max_tokens": 0}, "sizes of at least 1.*max_tokens"),
        ({"layers": ["xpos"]}, r"'xpos', expected layers of the batches: upos, topic"),
    ],
)
def test_bad_settings(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        StreamLoader(encode(tmp_path / "d", 60), **{"streams": 4, "sequence_length": 5, **settings})

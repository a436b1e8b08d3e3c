"""Rows to pretrain on: what is in them, that each epoch is a pure function, that resuming is exact."""

import numpy as np
import pytest
import torch

from lmdyn.datamodules import GrammarCorpus, Masking, PretrainingCorpus

# a machine, or a test's share of it, may have one core
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SMALL = {
    "n_train_tokens": 6000, "n_validation_tokens": 1500, "n_test_tokens": 300, "n_nouns": 60, "n_verbs": 40,
    "n_adjectives": 20, "n_adverbs": 10, "n_names": 30, "n_facts": 10,
}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


def make(cache, vocabulary="wordpiece", **settings):
    corpus = GrammarCorpus(**SMALL, vocabulary=vocabulary, vocab_size=300, cache_dir=cache)
    data = PretrainingCorpus(corpus, **{"sequence_length": 32, "batch_size": 8, **settings})
    data.setup()
    return data


def original(batch):
    return torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])


@pytest.mark.parametrize("vocabulary", ["wordpiece", "unigram"])
def test_rows_are_windows_of_the_text(cache, vocabulary):
    data = make(cache, vocabulary, masking=Masking(max_ngram=3))
    text, tokenizer = data.corpus.encoded("validation"), data.tokenizer
    assert tokenizer.sep_token_id not in text.tokens  # no end-of-sentence tokens
    seen = []
    for batch in data.val_dataloader():
        ids = original(batch)
        assert (ids[:, 0] == tokenizer.cls_token_id).all()
        assert (ids[:, -1] == tokenizer.sep_token_id).all()
        assert (batch["token_type_ids"] == 0).all()
        assert "attention_mask" not in batch
        for row, number in zip(ids, batch["example"].tolist(), strict=True):
            np.testing.assert_array_equal(row[1:-1], text.tokens[30 * number : 30 * number + 30])
            seen.append(number)
    assert sorted(seen) == list(range(len(text.tokens) // 30))


def test_masks_and_positions_agree(cache):
    data = make(cache)
    for batch in data.train_dataloader():
        labels, positions = batch["labels"], batch["masked_positions"]
        assert positions.shape[1] == round(0.15 * 32)
        for row in range(len(labels)):
            there = positions[row][positions[row] >= 0]
            assert torch.equal(there, torch.nonzero(labels[row] != -100)[:, 0])
            assert len(there) > 0
        special = torch.isin(original(batch), torch.tensor([2, 3, 4, 0]))
        assert (labels[special] == -100).all()


def segments(batch, row):
    """The tokens of A and of B, without special ones."""
    ids, kinds = original(batch)[row], batch["token_type_ids"][row]
    first, second = ids[kinds == 0], ids[kinds == 1]
    assert first[-1] == second[-1] == 3
    return first[1:-1].tolist(), second[:-1].tolist()


def at(joined, part):
    """Where a segment stands in the text; None where that is in doubt."""
    part = "".join(map(chr, part))
    return joined.index(part) if joined.count(part) == 1 else None


def test_sentence_order(cache):
    data = make(cache, pairs="order", sequence_length=96)
    text = data.corpus.encoded("train")
    joined = "".join(map(chr, text.tokens))
    sentences = set(text.sentence_starts.tolist())
    documents = {int(text.sentence_starts[i]) for i in text.document_starts}
    labels, boundaries, cuts = [], [], {0: [], 1: []}
    loader = data.train_dataloader()
    for _ in range(20):
        for batch in loader:
            swapped = batch["sentence_order_label"]
            labels += swapped.tolist()
            for row in range(len(swapped)):
                a, b = segments(batch, row)
                assert len(a) + len(b) == 93
                if swapped[row]:
                    a, b = b, a
                i, j = at(joined, a), at(joined, b)
                if i is None or j is None:
                    continue
                assert i + len(a) <= j < i + 200  # B follows A, at most what was taken off lies between
                whole = [i in sentences, i + len(a) in sentences, j in sentences, j + len(b) in sentences]
                boundaries.append(j in documents)
                read = whole[2:] + whole[:2] if swapped[row] else whole
                cuts[int(swapped[row])].append(read)
    assert 0.4 < np.mean(labels) < 0.6
    assert np.mean(boundaries) < 0.05  # where a row has no sentence that continues its document
    # where sentences are cut, in the order in which they are read, does not tell the label
    shares = [np.mean(cuts[label], axis=0) for label in (0, 1)]
    assert np.abs(shares[0] - shares[1]).max() < 0.08, shares


def test_next_sentence_comes_from_another_document(cache):
    data = make(cache, pairs="next", sequence_length=48)
    text = data.corpus.encoded("train")
    joined = "".join(map(chr, text.tokens))
    starts = text.sentence_starts[np.asarray(text.document_starts)]
    document = np.searchsorted(starts, np.arange(len(text.tokens)), side="right")
    checked = {0: 0, 1: 0}
    for batch in data.train_dataloader():
        random = batch["next_sentence_label"]
        for row in range(len(random)):
            a, b = segments(batch, row)
            assert len(a) + len(b) == 45
            i, j = at(joined, a), at(joined, b)
            if i is None or j is None:
                continue
            checked[int(random[row])] += 1
            if random[row]:
                assert document[j] != document[i + len(a) - 1]
            else:
                assert i + len(a) <= j < i + 150
    assert min(checked.values()) > 10


def test_short_rows_are_padded(cache):
    data = make(cache, pairs="order", short_share=0.5)
    lengths = []
    for batch in data.train_dataloader():
        mask = batch["attention_mask"]
        lengths += mask.sum(1).tolist()
        assert (batch["input_ids"][mask == 0] == data.tokenizer.pad_token_id).all()
        assert (batch["labels"][mask == 0] == -100).all()
        counts = (batch["labels"] != -100).sum(1)
        assert (counts <= (0.15 * mask.sum(1)).round().clamp(min=1)).all()
    short = np.mean(np.array(lengths) < 32)
    assert 0.35 < short < 0.6


def test_epochs_differ_and_are_pure_functions(cache):
    def epochs(loader, n):
        return [[{k: v.clone() for k, v in b.items()} for b in loader] for _ in range(n)]

    data = make(cache, pairs="order")
    torch.manual_seed(1)
    first = epochs(data.train_dataloader(), 3)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = epochs(data.train_dataloader(), 3)
    assert torch.equal(state, torch.get_rng_state())
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a, b, strict=True):
            assert all(torch.equal(x[k], y[k]) for k in x)
    assert not torch.equal(first[0][0]["input_ids"], first[1][0]["input_ids"])
    assert not torch.equal(first[1][0]["input_ids"], first[2][0]["input_ids"])
    validation = epochs(data.val_dataloader(), 2)
    assert torch.equal(validation[0][0]["input_ids"], validation[1][0]["input_ids"])
    other = make(cache, pairs="order", seed=1).train_dataloader()
    assert not torch.equal(next(iter(other))["input_ids"], first[0][0]["input_ids"])


def test_resuming_with_other_settings_is_refused(cache):
    loader = make(cache).train_dataloader()
    next(iter(loader))
    for settings in ({"seed": 9}, {"sequence_length": 24}):
        with pytest.raises(ValueError, match="to resume exactly, keep"):
            make(cache, **settings).train_dataloader().load_state_dict(loader.state_dict())


def test_ranks_share_the_rows(cache):
    """Of validation; those of training are in test_elastic.py."""
    whole = make(cache).loader("validation")
    shards = [whole.shard(rank, 3) for rank in range(3)]
    got = {
        int(e): row
        for shard in shards
        for b in shard
        for e, row in zip(b["example"], b["input_ids"], strict=True)
    }
    expected = {int(e): row for b in whole for e, row in zip(b["example"], b["input_ids"], strict=True)}
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[e], expected[e]) for e in got)
    assert whole.fingerprint == shards[1].fingerprint
    limited = whole.limit(200)
    assert sum(len(b["example"]) for b in limited) == 6
    assert limited.fingerprint != whole.fingerprint

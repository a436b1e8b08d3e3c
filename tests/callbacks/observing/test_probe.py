"""Probe sets and the pass over them."""

import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lmdyn.callbacks import ProbeSet
from lmdyn.callbacks.observing.probe import Watch, probe_pass


def batches(n=6, tokens=4):
    return [{"input_ids": torch.full((2, tokens), i), "labels": torch.full((2, tokens), i)} for i in range(n)]


def first_ids(probe, rank, world_size):
    return [int(b["input_ids"][0, 0]) for b in probe.batches(rank, world_size)]


def test_ranks_share_batches_without_overlap():
    probe = ProbeSet(batches())
    assert first_ids(probe, 0, 1) == [0, 1, 2, 3, 4, 5]
    assert first_ids(probe, 0, 4) == [0, 4]
    assert first_ids(probe, 3, 4) == [3]
    assert first_ids(probe, 6, 7) == []


def test_max_tokens_takes_whole_batches_and_the_same_on_each_rank():
    probe = ProbeSet(batches(), max_tokens=17)  # 8 tokens a batch
    assert first_ids(probe, 0, 1) == [0, 1, 2]
    assert first_ids(probe, 1, 2) == [1]
    with pytest.raises(ValueError, match="max_tokens is 0"):
        ProbeSet(batches(), max_tokens=0)


def test_dataloaders_are_read_in_order_whatever_their_sampler():
    data = [{"input_ids": torch.tensor([i]), "labels": torch.tensor([i])} for i in range(7)]
    loader = DataLoader(data, batch_size=2, shuffle=True)
    seen = [b["input_ids"].flatten().tolist() for b in ProbeSet(loader).batches()]
    assert seen == [[0, 1], [2, 3], [4, 5], [6]]
    shares = [b["input_ids"].flatten().tolist() for r in (0, 1) for b in ProbeSet(loader).batches(r, 2)]
    assert sorted(i for share in shares for i in share) == list(range(7))


def test_what_cannot_be_looked_at_twice_or_holds_no_dicts_is_refused():
    with pytest.raises(TypeError, match="is an iterator, which lmdyn can read only once"):
        ProbeSet(iter(batches()))
    with pytest.raises(ValueError, match=r"a float32 \(1,\)\. Set `batch"):
        list(ProbeSet([torch.zeros(1)]).batches())


class Counter(nn.Module):
    """Answers how many tokens of its stream it has seen."""

    def forward(self, input_ids, state=None, continues=None):
        count = torch.zeros(len(input_ids), 1)
        if state is not None:
            count = torch.where(continues[:, None], state[0], count)
        logits = torch.zeros(*input_ids.shape, 3) + count[:, :, None]
        return type("Output", (), {"logits": logits, "state": (count + input_ids.shape[1],)})()


class Record:
    def __init__(self):
        self.counts = []

    def update(self, seen):
        self.counts.append(seen.logits[:, 0, 0].tolist())


def test_state_is_carried_where_the_batch_continues():
    zeros = torch.zeros(2, 5, dtype=torch.long)
    windows = [
        {"input_ids": zeros, "labels": zeros, "continues": c}
        for c in (torch.tensor([False, False]), torch.tensor([True, False]), torch.tensor([True, True]))
    ]
    record = Record()
    probe_pass(Counter(), ProbeSet(windows), [Watch(record)])
    assert record.counts == [[0, 0], [5, 0], [10, 5]]
    unrelated = [{k: v for k, v in w.items() if k != "continues"} for w in windows]
    record = Record()
    probe_pass(Counter(), ProbeSet(unrelated), [Watch(record)])
    assert record.counts == [[0, 0]] * 3


def test_a_pass_gives_each_consumer_the_batches_of_its_own_probe_set():
    ids = torch.arange(7 * 6).view(7, 6)
    batches = [{"input_ids": rows, "labels": rows} for rows in ids.split([2, 1, 3, 1])]
    limits = (None, 1, 12, 13, 18, 100)

    class Ids:
        def __init__(self):
            self.ids = []

        def update(self, seen):
            self.ids += seen.labels.flatten().tolist()

    together = [Watch(Ids(), max_tokens=most) for most in limits]
    probe_pass(Counter(), ProbeSet(batches), together)
    for most, watch in zip(limits, together, strict=True):
        alone = Watch(Ids())
        probe_pass(Counter(), ProbeSet(batches, max_tokens=most), [alone])
        assert watch.consumer.ids == alone.consumer.ids
    assert [len(watch.consumer.ids) for watch in together] == [42, 12, 12, 18, 18, 42]


def test_lists_of_ids_are_batches_unless_rows_differ_in_length():
    (batch,) = ProbeSet([{"input_ids": [[1, 2], [3, 4]]}]).batches()
    assert torch.equal(batch["input_ids"], torch.tensor([[1, 2], [3, 4]]))
    with pytest.raises(ValueError, match="rows of equal length in `input_ids`"):
        list(ProbeSet([{"input_ids": [[1, 2], [3]]}]).batches())


class Attention(nn.Module):
    """Weights of two runs of one attention, which calls the fused function."""

    def __init__(self):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 9)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for _ in range(2):
            x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x)


class Kept:
    """Consumer that keeps what it receives."""

    def update(self, seen):
        self.found = dict(seen.attentions)


def test_weights_are_read_as_they_arise_and_not_kept():
    alive = []

    def read(batch, path, weights):
        assert path == "attention"
        assert batch["input_ids"].shape == (2, 5)
        assert sum(reference() is not None for reference in alive) == 0  # the first run's are gone
        alive.append(weakref.ref(weights))
        return weights.sum((0, 2))

    ids = torch.arange(10).view(2, 5) % 9
    probe, sites = ProbeSet([{"input_ids": ids, "labels": ids}]), {"a": "attention"}
    module = Attention()
    reader, whole = Watch(Kept(), attention_sites=sites, read=read), Watch(Kept(), attention_sites=sites)
    probe_pass(module, probe, [Watch(Kept()), reader])
    alone = reader.consumer.found
    assert list(alone) == ["a@0", "a@1"]
    alive.clear()
    with pytest.raises(AssertionError, match="1 == 0"):  # another consumer keeps all weights
        probe_pass(module, probe, [whole, reader])
    probe_pass(
        module,
        probe,
        [whole, Watch(reader.consumer, attention_sites=sites, read=lambda *of: of[2].sum((0, 2)))],
    )
    reads = []
    few = Watch(Kept(), attention_sites=sites, max_tokens=1, read=lambda *of: reads.append(of[1]))
    probe_pass(module, ProbeSet([*probe.batches()] * 3), [few, whole])
    assert reads == ["attention"] * 2  # the two runs of its one batch
    for name, weights in whole.consumer.found.items():
        assert torch.equal(weights.sum((0, 2)), alone[name])
        assert torch.equal(weights.sum((0, 2)), reader.consumer.found[name])

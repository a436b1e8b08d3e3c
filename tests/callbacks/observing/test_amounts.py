"""Amounts of a probe set are counted as far as they are asked for; widths are those of the sites."""

import torch
from torch import nn

from lmdyn.callbacks.observing.amounts import count_labels, count_tokens, parameter_bytes, site_widths
from lmdyn.callbacks.observing.probe import ProbeSet


class Counting(list):
    """Batches that count how often one is taken."""

    taken = 0

    def __iter__(self):
        for batch in super().__iter__():
            self.taken += 1
            yield batch


def batches(number=4):
    ids = torch.tensor([[1, 2, 2], [3, 1, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    labels = ids.masked_fill(mask == 0, -100)
    return Counting([{"input_ids": ids, "attention_mask": mask, "labels": labels}] * number)


def test_tokens():
    assert count_tokens(ProbeSet(batches())) == 20
    loader = batches()
    assert count_tokens(ProbeSet(loader), 7) == 7
    assert loader.taken == 2
    assert count_tokens(ProbeSet(batches()), 21) == 20


def test_labels():
    assert count_labels(ProbeSet(batches()), ["labels"])["labels"].tolist() == [0, 8, 8, 4]


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(4, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, input_ids):
        return self.head(self.block(self.block(self.embed(input_ids))))


def test_widths():
    module, probe = Shared(), ProbeSet(batches())
    sites = {"h": "block", "logits": "head"}
    expected = {"h@0": 6, "h@1": 6, "logits": 4}
    assert site_widths(module, probe, sites) == expected
    assert parameter_bytes(module) == 4 * (24 + 42 + 28)

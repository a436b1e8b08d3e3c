"""A sample of rows by their keys: that of the smallest, for any batches and order."""

import pytest
import torch

from lmdyn.analysis.geometry.sampled_rows import SampledRows
from lmdyn.analysis.statistics.hashing import splitmix64

KEYS = splitmix64(torch.arange(1000))
ROWS = {"a": torch.arange(1000.0)[:, None], "b": torch.arange(2000.0).reshape(1000, 2)}
BEST = KEYS.argsort()


def sampled(order, batch, size=50):
    sample = SampledRows(size)
    for rows in order.split(batch):
        sample.update(KEYS[rows], {name: x[rows] for name, x in ROWS.items()})
    return sample


@pytest.mark.parametrize("batch", [1, 7, 60, 1000])
def test_it_is_that_of_the_smallest_keys(batch):
    for order in (torch.arange(1000), torch.arange(1000).flip(0)):
        sample = sampled(order, batch)
        assert sum(len(keys) for keys, _ in sample._parts) < 3 * 50  # it does not grow with the stream
        sample.reduce()
        for name, x in ROWS.items():
            assert torch.equal(sample.rows(name), x[BEST[:50]])


def test_a_short_stream_is_taken_whole():
    sample = sampled(torch.arange(1000), 30, 5000)
    sample.reduce()
    assert torch.equal(sample.rows("a"), ROWS["a"][BEST])
    empty = SampledRows(5)
    empty.update(KEYS[:0], {"a": ROWS["a"][:0]})
    empty.reduce()
    with pytest.raises(KeyError):
        empty.rows("a")


def test_rows_are_copied():
    x = ROWS["a"].clone()
    sample = SampledRows(5000)  # so that no row is dropped meanwhile
    sample.update(KEYS, {"a": x})
    x.zero_()
    sample.reduce()
    assert float(sample.rows("a").sum()) > 0

"""Streaming means by group: equal to means of everything at once."""

import pytest
import torch

from lmdyn.analysis import GroupedMeans


def test_batches_add_up_to_the_whole():
    g = torch.Generator().manual_seed(0)
    groups = torch.randint(-1, 6, (1000,), generator=g)
    groups[groups == 3] = 4  # an empty group
    values = torch.randn(1000, generator=g, dtype=torch.float64) + 100
    values[::11] = torch.nan
    means = GroupedMeans(6)
    for part in torch.arange(1000).split(137):
        means.update(groups[part], {"x": values[part]})
    for group in range(6):
        chosen = values[(groups == group) & ~values.isnan()]
        assert means.count("x")[group] == len(chosen)
        if len(chosen):
            assert means.mean("x")[group] == pytest.approx(float(chosen.mean()), abs=1e-11)
    assert means.mean("x")[3].isnan()
    chosen = values[(groups >= 0) & ~values.isnan()]
    assert means.total_mean("x") == pytest.approx(float(chosen.mean()), abs=1e-11)

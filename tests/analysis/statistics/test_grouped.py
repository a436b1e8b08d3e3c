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


def test_float32_values_are_summed_in_float64():
    means = GroupedMeans(1)
    for _ in range(100):
        means.update(torch.zeros(1000, dtype=torch.int64), {"x": torch.full((1000,), 0.1)})
    assert means.mean("x").item() == pytest.approx(float(torch.tensor(0.1)), abs=1e-12)


def test_refuses_what_does_not_fit():
    means = GroupedMeans(2)
    with pytest.raises(ValueError, match=r"expected groups below 2, got 5"):
        means.update(torch.tensor([5]), {"x": torch.tensor([1.0])})
    with pytest.raises(ValueError, match="one value for each"):
        means.update(torch.tensor([0, 1]), {"x": torch.tensor([1.0])})


def test_nan_makes_its_group_nan_where_it_is_not_skipped():
    groups, values = torch.tensor([0, 0, 1, -1]), torch.tensor([1.0, torch.nan, 2.0, torch.nan])
    for skip, expected in ((True, [1.0, 2.0]), (False, [torch.nan, 2.0])):
        means = GroupedMeans(2, skip_nan=skip)
        means.update(groups, {"x": values})
        torch.testing.assert_close(
            means.mean("x"), torch.tensor(expected, dtype=torch.float64), equal_nan=True
        )

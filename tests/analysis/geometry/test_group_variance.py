"""Variance between groups: closed forms, expectations over permutations, a naive oracle, streams."""

import itertools
import math

import numpy as np
import pytest
import torch

from lmdyn.analysis import GroupSums, group_variance, nested_variance


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def summed(x, groups, number, size=7):
    sums = GroupSums(number)
    for rows in torch.arange(len(x)).split(size):
        sums.update(x[rows], groups[rows])
    sums.reduce()
    return sums.result()


GROUPS = torch.tensor([0, 1, 2] * 7 + [0, 0, 2])
PARENT = torch.tensor([0, 0, 1])


def naive(x, groups, parents):
    """From all pairs of vectors: the mean squared distance of two vectors is twice the variance."""
    x, labels = x.numpy(), groups.numpy()

    def pairs(rows):
        return sum(((a - b) ** 2).sum() for a in rows for b in rows) / 2 / max(len(rows), 1)

    def mean(rows):
        return np.array(rows).mean(0)

    def members(of):
        return [v for v, g in zip(x, labels, strict=True) if g in of]

    total = pairs(list(x))
    names = sorted(set(labels))
    within = sum(pairs(members({g})) for g in names)
    above = {int(p): {g for g in names if parents[g] == p} for p in parents}
    in_coarse = sum(pairs(members(of)) for of in above.values())
    s2 = within / (len(x) - len(names))
    apart = [
        ((mean(members({a})) - mean(members({b}))) ** 2).sum() for a, b in itertools.combinations(names, 2)
    ]
    return {
        "variance": total / len(x), "between": 1 - within / total, "coarse": 1 - in_coarse / total,
        "fine": (in_coarse - within) / total, "separation": math.sqrt(np.mean(apart) / (2 * s2)),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_those_of_all_pairs(seed):
    x = normal(24, 4, seed=seed) + 3.0 * normal(3, 4, seed=seed + 9)[GROUPS]
    found = summed(x, GROUPS, 3)
    flat, tree, expected = (
        group_variance(found),
        nested_variance(found, PARENT),
        naive(x, GROUPS, PARENT.tolist()),
    )
    for name in ("variance", "between", "separation"):
        assert getattr(flat, name) == pytest.approx(expected[name], rel=1e-12), name
    for name in ("variance", "coarse", "fine"):
        assert getattr(tree, name) == pytest.approx(expected[name], rel=1e-12), name
    assert tree.coarse + tree.fine == pytest.approx(flat.between, rel=1e-12)
    means = torch.stack([x[g == GROUPS].mean(0) for g in range(3)])
    assert torch.allclose(found.means, means, rtol=1e-12)
    assert flat.planar == pytest.approx(1.0)  # three points are in a plane


def test_floors_are_means_over_all_permutations():
    x = normal(7, 2) ** 3  # not Gaussian
    labels = [0, 0, 0, 1, 1, 2, 2]
    shares = [
        group_variance(summed(x, torch.tensor(p), 3)).between for p in set(itertools.permutations(labels))
    ]
    assert np.mean(shares) == pytest.approx(2 / 6, rel=1e-10)
    assert group_variance(summed(x, torch.tensor(labels), 3)).between_floor == pytest.approx(2 / 6)
    assert np.std(shares) > 0.05  # a single draw is not its mean
    # fine groups at random in their coarse group: {0, 1} of the first five, {2, 3} of the last two
    parents = torch.tensor([0, 0, 1, 1])
    found = [
        nested_variance(summed(x, torch.tensor([*p, *q]), 4), parents)
        for p in set(itertools.permutations([0, 0, 0, 1, 1]))
        for q in ((2, 3), (3, 2))
    ]
    assert np.mean([one.fine for one in found]) == pytest.approx(found[0].fine_floor, rel=1e-10)
    assert len({round(one.coarse, 12) for one in found}) == 1  # the same coarse groups
    assert np.std([one.fine for one in found]) > 0.01


def test_random_groups_are_at_the_floor_and_planted_ones_are_not():
    x = normal(4000, 6)
    groups = torch.randint(0, 20, (4000,), generator=torch.Generator().manual_seed(1))
    at_random = group_variance(summed(x, groups, 20, 500))
    assert at_random.between == pytest.approx(at_random.between_floor, rel=0.25)
    assert at_random.separation == pytest.approx(at_random.separation_floor, rel=0.15)
    planted = group_variance(summed(x + normal(20, 6, seed=2)[groups], groups, 20, 500))
    assert planted.between == pytest.approx(0.5, abs=0.1)
    assert planted.separation > 5 * planted.separation_floor
    assert 2 / 6 < planted.planar < 0.8  # of about six equal directions


def test_points_of_a_plane_are_planar_and_points_of_a_simplex_are_not():
    simplex = 5 * torch.eye(8, dtype=torch.float64)
    plane = normal(8, 2) @ normal(2, 8, seed=1)
    groups = torch.arange(8).repeat(4)
    for means, share in ((simplex, 2 / 7), (plane, 1.0)):
        assert group_variance(summed(means[groups], groups, 8)).planar == pytest.approx(share, abs=1e-9)


def test_batches_order_and_large_means_do_not_matter():
    x, groups = normal(24, 4) + 1e6, torch.stack([GROUPS, 3 + GROUPS % 2], 1)
    one = summed(x, groups, 5, 24)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(3))
    other = summed(x[order], groups[order], 5, 5)
    centred = summed(x - 1e6, groups, 5, 24)
    for name in ("counts", "scatter"):
        assert torch.allclose(getattr(one, name), getattr(other, name), rtol=1e-9)
        assert torch.allclose(getattr(one, name), getattr(centred, name), rtol=1e-9)
    assert torch.allclose(one.means - 1e6, centred.means, atol=1e-9)
    columns = [summed(x, groups[:, 0], 5).of(range(3)), one.of(range(3))]
    assert group_variance(columns[0]).between == pytest.approx(group_variance(columns[1]).between, rel=1e-12)


def test_groups_merged_are_those_of_all_their_vectors():
    x, parents = normal(24, 4) + 1e3, torch.tensor([0, 2, 2, 0])  # no vector in group 3, and none in parent 1
    merged, expected = summed(x, GROUPS, 4).merged(parents), summed(x, parents[GROUPS], 3)
    for name in ("counts", "means", "scatter"):
        torch.testing.assert_close(
            getattr(merged, name), getattr(expected, name), rtol=1e-9, atol=1e-9, equal_nan=True
        )


def test_vectors_of_no_group_may_be_anything():
    x, groups = normal(24, 4), GROUPS.clone()
    groups[[0, 5, 23]] = -1
    expected = summed(x[groups >= 0], groups[groups >= 0], 3)
    x[[0, 5, 23]] = math.nan
    found = summed(x, groups, 3, 1)
    assert found.finite
    assert torch.allclose(found.means, expected.means, rtol=1e-12)
    x[3] = math.inf
    assert not summed(x, groups, 3).finite

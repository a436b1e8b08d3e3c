"""TwoNN: manifolds of known dimension, scikit-dimension as oracle, duplicates, invariances."""

import math

import pytest
import torch

from lmdyn.analysis.geometry.intrinsic_dimension import intrinsic_dimension

F64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def uniform(n, dimension, within=30, seed=0):
    """A cube, rotated into more dimensions."""
    x = torch.rand(n, dimension, generator=generator(seed), dtype=F64)
    axes = torch.linalg.qr(torch.randn(within, dimension, generator=generator(1), dtype=F64)).Q
    return x @ axes.T


def whole(x):
    return intrinsic_dimension(x, [1]).dimensions[0]


def naive(x):
    """Its definition, one vector at a time."""
    logs = []
    for i in range(len(x)):
        distances = sorted(float((x[i] - x[j]).square().sum().sqrt()) for j in range(len(x)) if j != i)
        logs.append(math.log(distances[1] / distances[0]))
    kept = sorted(logs)[: int(0.9 * len(x))]
    points = [(log, -math.log(1 - (i + 1) / len(x))) for i, log in enumerate(kept)]
    return sum(a * b for a, b in points) / sum(a * a for a, _ in points)


def test_it_is_the_definition():
    x = torch.randn(60, 4, generator=generator(), dtype=F64)
    for factor in (1, 1e100):
        assert whole(factor * x) == pytest.approx(naive(x), rel=1e-10)


def test_clusters_far_apart_have_their_own_neighbours():
    """Distances that are below the rounding errors of products of the vectors."""
    x = torch.randn(80, 4, generator=generator(), dtype=F64)
    x[::2, 0] += 1e9
    assert whole(x) == pytest.approx(naive(x), rel=1e-6)


@pytest.mark.parametrize("d", [3, 40])
def test_it_is_that_of_scikit_dimension(d):
    skdim = pytest.importorskip("skdim.id")
    x = torch.randn(400, d, generator=generator(), dtype=F64) * torch.linspace(0.1, 2, d)
    assert whole(x) == pytest.approx(skdim.TwoNN().fit_transform(x.numpy()), rel=1e-9)


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_manifolds_of_known_dimension(dimension):
    """Flat tori, which have no borders."""
    angles = 2 * math.pi * torch.rand(1500, dimension, generator=generator(), dtype=F64)
    assert whole(torch.cat([angles.cos(), angles.sin()], 1)) == pytest.approx(dimension, rel=0.08)


def test_parts_are_the_first_rows():
    x = uniform(400, 3)
    found = intrinsic_dimension(x)
    assert found.distinct == 400
    assert found.dimensions[1] == pytest.approx(whole(x[:200]), rel=1e-12)
    assert found.dimensions[2] == pytest.approx(whole(x[:100]), rel=1e-12)
    with pytest.raises(ValueError, match="whole numbers from 1"):
        intrinsic_dimension(x, [0])


def test_equal_rows_count_once():
    """Also those that differ by the rounding of another batch; at a mean far from 0 too."""
    x = uniform(300, 3).float() + 10
    again = torch.cat([x, x[:100], x[:50] * (1 + 1e-7), x[:1].expand(30, -1)])
    found = intrinsic_dimension(again)
    assert found.distinct == 300
    assert found == intrinsic_dimension(x)
    assert intrinsic_dimension(torch.cat([x, x[:50] * (1 + 1e-4)])).distinct == 350  # the control
    order = torch.randperm(len(again), generator=generator())
    assert intrinsic_dimension(again[order]).distinct == 300


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_rows_near_to_a_row_before_them_are_left_out(dtype):
    """All rows one by one, on duplicates, grids, and chains of rows that are near to the next only."""
    step = 60 * torch.finfo(dtype).eps
    grid = torch.cartesian_prod(torch.arange(12.0), torch.arange(12.0))
    some = torch.randn(150, 64, generator=generator())
    for x, fewer in (
        (grid, False), (torch.cat([grid, grid[:20]]), True), (some, False), (torch.cat([some, some[:40]]), True),
        (1 + step * torch.arange(100, dtype=dtype)[:, None], True), (torch.cat([some * 1e-2, some[:1] * 10]), False),
    ):  # fmt: skip
        x = x.to(dtype)[torch.randperm(len(x), generator=generator(1))]
        tolerance = 100 * torch.finfo(dtype).eps * x.double().square().sum(1).mean().sqrt()
        kept = []
        for row in x.double():
            if all((row - other).norm() > tolerance for other in kept):
                kept.append(row)
        assert intrinsic_dimension(x).distinct == len(kept)
        assert (len(kept) < len(x)) is fewer

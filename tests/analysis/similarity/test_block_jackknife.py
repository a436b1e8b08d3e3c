"""The jackknife of similarity: unbiased where a bootstrap is not, and errors of the right size."""

import pytest
import torch

from lmdyn.analysis import CrossCovariance, cca, jackknife, jackknife_similarity, svcca, svcca_ranks

BLOCKS = 24


def sample(seed, blocks=BLOCKS, rows=40, d=30):
    """Two noisy views of as many common variables, as blocks of rows."""
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(blocks * rows, d, generator=g, dtype=torch.float64)
    maps = torch.Generator().manual_seed(99)  # the same population in each sample
    views = []
    for _ in range(2):
        noise = torch.randn(len(common), d, generator=g, dtype=torch.float64)
        views.append(common @ torch.randn(d, d, generator=maps, dtype=torch.float64) + 2 * noise)
    parts = []
    for x, y in zip(*(view.reshape(blocks, rows, d) for view in views), strict=True):
        parts.append(CrossCovariance())
        parts[-1].update(x, y)
    return parts, *views


def test_it_is_the_jackknife_of_the_values_without_each_block():
    parts, x, y = sample(0, rows=15, d=6)
    found = jackknife_similarity(parts, ["cca", "svcca", "svcca_2"])
    kept = torch.arange(len(x)).split(15)
    rest = [[i for j, rows in enumerate(kept) if j != b for i in rows.tolist()] for b in range(BLOCKS)]
    expected = jackknife(float(cca(x, y)), [float(cca(x[r], y[r])) for r in rest])
    assert float(found["cca"].value) == pytest.approx(float(expected.value), abs=1e-10)
    assert float(found["cca"].error) == pytest.approx(float(expected.error), rel=1e-7)
    fixed = jackknife(
        float(svcca(x, y, directions=2)), [float(svcca(x[r], y[r], directions=2)) for r in rest]
    )
    assert float(found["svcca_2"].error) == pytest.approx(float(fixed.error), rel=1e-7)
    one, two = svcca_ranks(x, y)
    assert one == two != 2
    same = jackknife_similarity(parts, [f"svcca_{one}"])[f"svcca_{one}"]  # of svcca the ranks are held
    assert float(found["svcca"].error) == pytest.approx(float(same.error), rel=1e-12)
    with pytest.raises(ValueError, match="at least 2 blocks with samples, got 1"):
        jackknife_similarity(parts[:1])
    with pytest.raises(ValueError, match="unknown measure svcca_, did you mean"):
        jackknife_similarity(parts, ["svcca_"])

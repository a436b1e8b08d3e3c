"""Symmetric products."""

import pytest
import torch

from lmdyn.analysis.statistics.precision import add_scatter, mirrored, scatter_matrix


@pytest.mark.parametrize("d", [1, 5, 127, 128, 131, 300])
def test_scatter_matrix(d):
    v = torch.randn(40, d, dtype=torch.float64)
    s = scatter_matrix(v)
    torch.testing.assert_close(s, v.T @ v, atol=1e-12, rtol=0)
    assert torch.equal(s, s.T)


def test_sums_are_mirrored_once_and_go_on():
    v = torch.randn(90, 150, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sums = torch.zeros(150, 150, dtype=torch.float64)
    for rows in v.split(30):
        add_scatter(rows, sums)
    for _ in range(2):  # what was mirrored before does not count twice
        torch.testing.assert_close(mirrored(sums), v.T @ v, atol=1e-12, rtol=0)
        assert torch.equal(sums, sums.T)
    add_scatter(v, sums)
    torch.testing.assert_close(mirrored(sums), 2 * v.T @ v, atol=1e-12, rtol=0)

"""Symmetric products."""

import pytest
import torch

from lmdyn.analysis.statistics.precision import scatter_matrix


@pytest.mark.parametrize("d", [1, 5, 127, 128, 131, 300])
def test_scatter_matrix(d):
    v = torch.randn(40, d, dtype=torch.float64)
    s = scatter_matrix(v)
    torch.testing.assert_close(s, v.T @ v, atol=1e-12, rtol=0)
    assert torch.equal(s, s.T)

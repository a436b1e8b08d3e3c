"""Precision: float64 for sums, and symmetric products."""

import pytest
import torch

from lmdyn.analysis.statistics.precision import at_least_float32, exact_float, scatter_matrix


@pytest.mark.parametrize("d", [1, 5, 127, 128, 131, 300])
def test_scatter_matrix(d):
    v = torch.randn(40, d, dtype=torch.float64)
    s = scatter_matrix(v)
    torch.testing.assert_close(s, v.T @ v, atol=1e-12, rtol=0)
    assert torch.equal(s, s.T)


def test_exact_float_has_no_graph():
    x = torch.ones(2, dtype=torch.bfloat16, requires_grad=True) * 3
    assert x.requires_grad
    assert exact_float(x).dtype == torch.float64
    assert not exact_float(x).requires_grad
    assert exact_float(x).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float32, torch.float32),
        (torch.float64, torch.float64), (torch.int64, torch.float32),
    ],
)  # fmt: skip
def test_at_least_float32(dtype, expected):
    assert at_least_float32(torch.zeros(1, dtype=dtype)) == expected

"""Precision: float64 for sums, symmetric products, and which topics of the mathematics import each other."""

import ast
from pathlib import Path

import pytest
import torch

from lmdyn.analysis.statistics.precision import at_least_float32, exact_float, scatter_matrix

ANALYSIS = Path(__file__).parents[3] / "lmdyn" / "analysis"
SHARED = {"inspection", "statistics"}


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


def test_topics_import_each_other_only_where_the_mathematics_needs_it():
    edges = set()
    for path in ANALYSIS.glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            parts = (module or "").split(".")
            if parts[:2] == ["lmdyn", "analysis"] and len(parts) > 2:
                edges.add((path.parent.name, parts[2]))
    between = {(a, b) for a, b in edges if a != b and b not in SHARED}
    assert between == {("dynamics", "similarity"), ("probing", "dynamics")}
    assert not {a for a, b in edges if b not in SHARED} & SHARED

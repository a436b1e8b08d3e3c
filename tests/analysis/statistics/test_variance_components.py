"""Components of variance against an analysis of variance with loops."""

import numpy as np
import pytest

from lmdyn.analysis.statistics.variance_components import variance_components


def naive(y):
    a, b = len(y), len(y[0])
    grand = sum(map(sum, y)) / (a * b)
    rows = [sum(row) / b for row in y]
    columns = [sum(y[i][j] for i in range(a)) / a for j in range(b)]
    ss_rows = sum((r - grand) ** 2 for r in rows for _ in range(b))
    ss_columns = sum((c - grand) ** 2 for c in columns for _ in range(a))
    ss_total = sum((y[i][j] - grand) ** 2 for i in range(a) for j in range(b))
    ms_rest = (ss_total - ss_rows - ss_columns) / ((a - 1) * (b - 1))
    return (ss_rows / (a - 1) - ms_rest) / b, (ss_columns / (b - 1) - ms_rest) / a, ms_rest, grand


@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (6, 4)])
def test_against_loops(shape):
    y = np.random.default_rng(0).normal(size=shape)
    assert tuple(variance_components(y)) == pytest.approx(naive(y.tolist()))

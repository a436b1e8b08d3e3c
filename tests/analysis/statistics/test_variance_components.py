"""Components of variance against an analysis of variance with loops, and against what was put in."""

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


def test_on_average_what_was_put_in():
    rng = np.random.default_rng(1)
    found = [
        variance_components(
            2 * rng.normal(size=(3, 1)) + rng.normal(size=(1, 3)) + 0.5 * rng.normal(size=(3, 3))
        )
        for _ in range(4000)
    ]
    rows, columns, rest, _ = np.array(found).mean(0)
    assert rows == pytest.approx(4, rel=0.1)
    assert columns == pytest.approx(1, rel=0.1)
    assert rest == pytest.approx(0.25, rel=0.05)
    assert min(f.columns for f in found) < 0  # unbiased, and so at times negative

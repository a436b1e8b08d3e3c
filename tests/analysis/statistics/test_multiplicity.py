"""Holm's correction and simultaneous intervals, by what they promise."""

import numpy as np
import pytest

from lmdyn.analysis.statistics.multiplicity import holm, simultaneous_confidence


def naive(p, alpha):
    """Holm's step-down procedure as printed: which hypotheses are rejected at a level."""
    rejected = np.zeros(len(p), dtype=bool)
    for i, k in enumerate(np.argsort(p)):
        if p[k] > alpha / (len(p) - i):
            break
        rejected[k] = True
    return rejected


def test_against_the_procedure_itself():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = rng.uniform(size=7) ** 3
        adjusted = np.array(holm(p.tolist()))
        for alpha in (0.01, 0.05, 0.2):
            assert ((adjusted <= alpha) == naive(p, alpha)).all()
    assert holm([0.9, 0.9]) == [1.0, 1.0]
    with pytest.raises(ValueError, match="from 0 to 1"):
        holm([1.2])


def test_simultaneous():
    assert simultaneous_confidence(0.95, 1) == pytest.approx(0.95)
    assert simultaneous_confidence(0.95, 3) == pytest.approx(1 - 0.05 / 3)
    with pytest.raises(ValueError, match="intervals >= 1"):
        simultaneous_confidence(0.95, 0)

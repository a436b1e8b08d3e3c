"""Scales: their inverses, their ends, and errors by the slope."""

import math

import numpy as np
import pytest
from scipy import special

from lmdyn.analysis.statistics.scales import error_on_scale, from_scale, to_scale

SCALES = ("plain", "fisher", "logit", "log")


def test_against_scipy():
    for p in (0.01, 0.5, 0.999):
        assert to_scale(p, "logit") == pytest.approx(special.logit(p))
        assert to_scale(p, "fisher") == pytest.approx(np.arctanh(p))
        assert from_scale(special.logit(p), "logit") == pytest.approx(p)
    for z in (-800.0, 800.0):
        assert from_scale(z, "logit") == pytest.approx(special.expit(z))


@pytest.mark.parametrize("scale", SCALES)
def test_inverse_and_slope(scale):
    for value in (0.02, 0.3, 0.97):
        assert from_scale(to_scale(value, scale), scale) == pytest.approx(value)
        step = 1e-6
        slope = (to_scale(value + step, scale) - to_scale(value - step, scale)) / (2 * step)
        assert error_on_scale(value, 0.01, scale) == pytest.approx(0.01 * slope, rel=1e-6)


def test_ends():
    assert [to_scale(1.0, s) for s in ("fisher", "logit")] == [math.inf] * 2
    assert [to_scale(0.0, s) for s in ("logit", "log")] == [-math.inf] * 2
    ends = [from_scale(z, s) for z, s in ((-math.inf, "fisher"), (math.inf, "logit"), (-math.inf, "log"))]
    assert ends == [-1, 1, 0]
    assert to_scale(math.inf, "log") == math.inf
    assert error_on_scale(1.0, 0.1, "fisher") == math.inf
    with pytest.raises(ValueError, match=r"from -1\.0 to 1\.0"):
        to_scale(1.5, "fisher")
    with pytest.raises(ValueError, match="scale must be one of plain"):
        to_scale(1.5, "probit")

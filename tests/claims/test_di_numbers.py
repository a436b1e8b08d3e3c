"""The claims on interdependence: what their own numbers compute, and that observers write what they read."""

import math

import pandas as pd
import pytest

from lmdyn.claims import NotMeasured, Rows
from lmdyn.claims.studies.di_numbers import LogRatioOfMeans, WhenReached
from tests.helpers.observed_runs import FakeRun, rows


def run(*tables):
    return FakeRun(observed={"folder": ("my.lab.Observer", {}, pd.concat(tables))})


A, B = Rows("Observer", "a", "h1"), Rows("Observer", "b", "h1")
CURVES = run(
    rows("a", {0: 9.0, 10: 1.0, 50: 2.0, 100: 6.0}, "h1"),
    rows("b", {0: 9.0, 10: 2.0, 50: 2.0, 100: 2.0}, "h1"),
)


def test_ratios_of_means_over_training():
    assert LogRatioOfMeans(A, B).of([CURVES]).value == pytest.approx(math.log(3 / 2))  # step 0 does not count
    assert LogRatioOfMeans(A, B, first=True).of([CURVES]).value == pytest.approx(math.log(4.5 / 3.75))
    assert LogRatioOfMeans(A, B, until=0.1).of([CURVES]).value == pytest.approx(math.log(1 / 2))
    assert LogRatioOfMeans(A, B).of([CURVES]).error is None
    with pytest.raises(NotMeasured, match=r"no step > 0 until 0[.]01 of training"):
        LogRatioOfMeans(A, B, until=0.01).of([CURVES])


def test_values_when_a_level_is_reached():
    late = run(
        rows("a", {0: 0.0, 10: 0.4, 50: 0.6, 100: 0.3}, "h1"),
        rows("b", {0: 1.0, 10: 2.0, 50: 3.0, 100: 4.0}, "h1"),
    )
    assert WhenReached(B, A, 0.5).of([late]).value == 3.0
    assert WhenReached(B, A, 0.0).of([late]).value == 1.0
    with pytest.raises(NotMeasured, match="does not reach"):
        WhenReached(B, A, 0.7).of([late])

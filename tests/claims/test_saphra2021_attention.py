"""The claims on attention: when a curve is half way, and that each claim has its floor and its conditions."""

import math

import pytest

from lmdyn.claims import STUDIES, Rows
from lmdyn.claims.learning import HalfWay
from tests.helpers.observed_runs import FakeRun, rows

A = Rows("Observer", "a", "h1")


def run(values):
    return [FakeRun(observed={"folder": ("my.lab.Observer", {}, rows("a", values, "h1"))})]


def test_half_way_down_and_up():
    falling = HalfWay(A, 0.0).of(run({0: 0.8, 10: 0.6, 100: 0.3, 1000: 0.0}))
    assert (falling.low, falling.high) == (pytest.approx(math.log10(11)), pytest.approx(2))
    rising = HalfWay(A).of(run({0: 0.1, 10: 0.2, 100: 0.25, 1000: 0.5}))
    assert (rising.low, rising.high) == (pytest.approx(math.log10(101)), pytest.approx(3))


def test_half_way_for_good():
    back = HalfWay(A, 0.0).of(run({0: 0.8, 10: 0.3, 100: 0.7, 1000: 0.0}))
    assert back.high == pytest.approx(3)  # at 10 it was half way too, and went back


def test_a_curve_that_is_no_way_has_no_half():
    assert math.isnan(HalfWay(A).of(run({0: 0.5, 10: 0.7, 100: 0.5})).value)
    assert math.isnan(HalfWay(A).of(run({0: math.nan, 10: 0.7})).value)


def test_claims_of_all_three_sections():
    study = STUDIES["saphra2021_attention"]
    assert len({claim.fingerprint for claim in study.claims}) == len(study.claims) == 42
    for section in ("4.1.1", "5.1.2", "6.1.2"):
        assert any(f"section {section}" in claim.where for claim in study.claims)
    for claim in study.claims:
        assert claim.void_unless
        assert claim.floor
    tagged = [claim for claim in study.claims if "tagger" in claim.name]
    assert all("test/test_accuracy" in c.number.reads() for t in tagged for c in t.void_unless[1:])
    assert all(len(claim.void_unless) == 2 for claim in tagged)

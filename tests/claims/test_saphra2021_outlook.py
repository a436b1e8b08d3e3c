"""The claims of the outlook: sums of intervals, shares, the pieces of a course; floors and conditions."""

import math

import pandas as pd
import pytest

from lmdyn.analysis.words import sparsity
from lmdyn.claims import STUDIES, At, NotMeasured, Rows
from lmdyn.claims.courses import Cumulated, LargestRise, Ratio, RiseAlongLine
from lmdyn.claims.learning import HalfWay
from lmdyn.claims.studies import saphra2021_outlook as outlook
from tests.helpers.observed_runs import FakeRun, rows


def run(*tables):
    return [FakeRun(observed={"folder": ("my.lab.Observer", {}, pd.concat(tables, ignore_index=True))})]


def intervals(updates=None):
    """Losses at four steps, and what two layers and two classes of words contributed to each change."""
    where = {"by": "", "group": ""}
    classes = [
        rows("a", {1: -v, 10: -2 * v, 100: -v}, "low", by="upos", group=group)
        for group, v in (("DET", 1.0), ("NOUN", 2.0), ("VERB", 3.0))
    ]
    return run(
        rows("loss", {0: 9.0, 1: 8.0, 10: 6.0, 100: 5.0}, **where),
        rows("updates", updates or {1: 1.0, 10: 9.0, 100: 90.0}, **where),
        rows("a", {1: -0.5, 10: -1.0, 100: -0.25}, "low", **where),
        rows("a", {1: -0.1, 10: 0.3, 100: -0.75}, "high", **where),
        *classes,
    )


WHOLE = (("by", ""),)


def test_sums_of_intervals_begin_at_0():
    table = Cumulated("Observer", "a", "low", WHOLE).table(intervals())
    assert list(table["step"]) == [0, 1, 10, 100]
    assert list(table["value"]) == pytest.approx([0, -0.5, -1.5, -1.75])


def test_half_of_what_a_layer_pays():
    low, high = (HalfWay(Cumulated("Observer", "a", site, WHOLE)).of(intervals()) for site in ("low", "high"))
    assert (low.low, low.high) == (pytest.approx(math.log10(2)), pytest.approx(1))
    assert (high.low, high.high) == (
        pytest.approx(math.log10(11)),
        pytest.approx(2),
    )  # it had paid, and got it back


def test_sums_over_classes_of_words():
    def of(*groups):
        return At(Cumulated("Observer", "a", "low", (("by", "upos"),), groups=groups))

    found = intervals()
    assert of("NOUN", "VERB").of(found).value == pytest.approx(-20)
    assert Ratio(of("NOUN"), of("NOUN", "VERB")).of(found).value == pytest.approx(0.4)
    assert of("NOUN", "INTJ").of(found).value == pytest.approx(-8)  # there is no interjection
    with pytest.raises(NotMeasured, match="no rows of the groups INTJ"):
        of("INTJ").of(found)


def test_a_missing_interval_is_no_sum():
    found = run(
        rows("loss", {0: 9.0, 1: 8.0, 10: 6.0}, by=""), rows("a", {1: -1.0, 10: math.nan}, "low", by="")
    )
    assert math.isnan(At(Cumulated("Observer", "a", "low")).of(found).value)
    found = run(rows("loss", {0: 9.0, 1: 8.0, 10: 6.0}, by=""), rows("a", {10: -1.0}, "low", by=""))
    assert math.isnan(At(Cumulated("Observer", "a", "low")).of(found).value)
    with pytest.raises(NotMeasured, match="1 observations"):
        At(Cumulated("Observer", "a", "low")).of(run(rows("a", {10: -1.0}, "low", by="")))


def test_intervals_that_do_not_join_have_no_sum():
    """A checkpoint between two observations, from which the later interval begins."""
    values = Cumulated("Observer", "a", "low", WHOLE).table(intervals({1: 1.0, 10: 4.0, 100: 90.0}))["value"]
    assert values.isna().tolist() == [False, False, True, True]


def test_a_ratio_to_nothing_is_undefined():
    nothing = run(rows("a", {0: 1.0, 1: 0.0}))
    assert math.isnan(Ratio(At(Rows("Observer", "a"), 0), At(Rows("Observer", "a"))).of(nothing).value)


@pytest.mark.parametrize(
    ("values", "pieces"),
    [
        ((8, 2, 4, 16, 8), (1 / 4, 8, 1 / 2)),  # collapse, expansion, compression
        ((2, 4, 8, 16, 32), (1, 16, 1)),  # expansion only
        ((32, 16, 8, 4, 2), (1, 1, 1 / 16)),  # it only falls: no rise, and all of it after
        ((8, 6, 12, 1, 1.5), (6 / 8, 2, 1.5 / 12)),  # the largest rise is not from the smallest value
        ((4, 4, 4, 4, 4), (1, 1, 1)),
    ],
)
def test_pieces_of_a_course(values, pieces):
    found = run(rows("a", dict(zip((0, 1, 10, 100, 1000), map(float, values), strict=True))))
    numbers = [
        LargestRise(Rows("Observer", "a"), piece).of(found).value for piece in ("before", "rise", "after")
    ]
    assert numbers == pytest.approx([math.log(piece) for piece in pieces])
    assert sum(numbers) == pytest.approx(math.log(values[-1] / values[0]))


def test_pieces_of_what_has_no_logarithm():
    assert math.isnan(LargestRise(Rows("Observer", "a")).of(run(rows("a", {0: 1.0, 1: 0.0}))).value)
    with pytest.raises(ValueError, match="piece must be one of"):
        LargestRise(Rows("Observer", "a"), "fall")


def test_rise_along_a_line_of_the_last_step():
    def rise(*losses):
        last = [rows("a", {0: 9.0 - i, 7: loss}, alpha=f"{i / 2:g}") for i, loss in enumerate(losses)]
        return RiseAlongLine(Rows("Observer", "a")).of(run(*reversed(last))).value

    assert rise(5.0, 4.9, 3.0) == 0  # above the straight line between its ends, and no rise
    assert rise(5.0, 5.5, 3.0) == 0.5
    assert rise(5.0, 2.0, 3.0) == 1.0
    assert math.isnan(rise(5.0, math.nan, 3.0))
    two = [rows("a", {7: 1.0}, alpha="0", reference=name) for name in ("initial", "partner")]
    with pytest.raises(ValueError, match="several lines at one step"):
        RiseAlongLine(Rows("Observer", "a")).of(run(*two))


def test_classes_are_those_of_the_measures():
    assert (outlook.OPEN_CLASSES, outlook.CLOSED_CLASSES) == (sparsity.OPEN_CLASSES, sparsity.CLOSED_CLASSES)


def test_claims_of_all_questions():
    study = STUDIES["saphra2021_outlook"]
    assert len({claim.fingerprint for claim in study.claims}) == len(study.claims) == 37
    for claim in study.claims:
        assert claim.void_unless
        assert claim.floor
    read = set().union(*(claim.reads() for claim in study.claims))
    observers = {name.partition("/")[0] for name in read}
    assert observers == {
        "Curvature", "DiagnosticProbe", "Geometry", "Induction", "Landscape", "LossChangeAllocation", "Trajectory",
    }  # fmt: skip


def test_groups_of_two_divisions_are_not_added():
    """The embedding's rows have a part of speech, and so have the tokens that it predicts."""
    of_rows = rows("a", {1: -5.0, 10: -5.0}, "low", by="row_upos", group="NOUN")
    of_tokens = rows("a", {1: -1.0, 10: -1.0}, "low", by="upos", group="NOUN")
    found = run(rows("loss", {0: 9.0, 1: 8.0, 10: 6.0}, by="", group=""),
                rows("updates", {1: 1.0, 10: 9.0}, by="", group=""), of_rows, of_tokens)  # fmt: skip
    with pytest.raises(
        ValueError, match=r"several rows of 'a' per step: set `where` .by: 'row_upos', 'upos'"
    ):
        At(Cumulated("Observer", "a", "low", groups=("NOUN",))).of(found)
    tokens = Cumulated("Observer", "a", "low", (("by", "upos"),), groups=("NOUN", "NOUN"))
    assert At(tokens).of(found).value == pytest.approx(-2)

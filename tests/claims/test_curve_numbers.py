"""The claims of the outlook: sums of intervals, shares, the pieces of a course; floors and conditions."""

import math

import pandas as pd
import pytest

from lmdyn.claims import At, NotMeasured, Rows
from lmdyn.claims.curve_numbers import Cumulated, LargestRise, Ratio, RiseAlongLine, RiseOverChord
from lmdyn.claims.learning_numbers import Agreement, HalfWay
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
    # it had paid, and got it back
    assert (high.low, high.high) == (pytest.approx(math.log10(11)), pytest.approx(2))


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
    with pytest.raises(NotMeasured, match="only one observation"):
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
        ((8, 2, 4, 16, 8), (1 / 4, 8)),  # collapse, expansion
        ((2, 4, 8, 16, 32), (1, 16)),  # expansion only
        ((32, 16, 8, 4, 2), (1, 1)),  # it only falls: no rise
        ((8, 6, 12, 1, 1.5), (6 / 8, 2)),  # the largest rise is not from the smallest value
        ((4, 4, 4, 4, 4), (1, 1)),
    ],
)
def test_pieces_of_a_course(values, pieces):
    found = run(rows("a", dict(zip((0, 1, 10, 100, 1000), map(float, values), strict=True))))
    numbers = [LargestRise(Rows("Observer", "a"), piece).of(found).value for piece in ("before", "rise")]
    assert numbers == pytest.approx([math.log(piece) for piece in pieces])


def cells(values, allocation):
    """Shares of two layers in two classes of words, and sums over layers, by one of two observers."""
    names = [(site, group) for site in ("low", "high") for group in ("DET", "NOUN")]
    parts = [
        rows("a", {0: math.nan, 9: value}, site, by="upos", group=group)
        for (site, group), value in zip(names, values, strict=True)
    ]
    parts += [rows("a", {9: -100.0}, "", by="upos", group=group) for group in ("DET", "NOUN")]
    parts += [rows("a", {9: 100.0}, site, by="rank", group="1-9") for site in ("low", "high")]
    return ("my.lab.Observer", {"allocation": allocation}, pd.concat(parts, ignore_index=True))


def of_way(way):
    return Rows("Observer", "a", where=(("by", "upos"),), settings=(("allocation", way),))


def agreement(a, b, kind, step="last"):
    both = [FakeRun(observed={"chord": cells(a, "chord"), "path": cells(b, "path")})]
    return Agreement(of_way("path"), of_way("chord"), step, kind).of(both).value


@pytest.mark.parametrize(
    ("a", "b", "signs", "chance", "ranks"),
    [
        ((-1.0, -2.0, 3.0, 4.0), (-2.0, -4.0, 6.0, 8.0), 1, 0.5, 1),
        ((-1.0, -2.0, 3.0, 4.0), (1.0, 2.0, -3.0, -4.0), 0, 0.5, -1),
        ((-1.0, -2.0, 3.0, 4.0), (-1.0, 2.0, 3.0, 4.0), 0.75, 0.5, 0.8),  # ranks 2 1 3 4 and 1 2 3 4
        ((-1.0, -2.0, -3.0, -4.0), (-4.0, -3.0, -2.0, -1.0), 1, 1, -1),  # one sign tells nothing
        ((-1.0, -2.0, -3.0, 4.0), (-1.0, -2.0, 3.0, -4.0), 0.5, 0.75 * 0.75 + 0.25 * 0.25, None),
        # of what is 0 in both, nothing is known
        ((0.0, 0.0, 1.0, -1.0), (0.0, 1.0, 1.0, 2.0), 1 / 3, 1 / 3, None),
    ],
)
def test_agreement_of_cells_is_counted_by_hand(a, b, signs, chance, ranks):
    assert agreement(a, b, "signs") == signs
    assert agreement(a, b, "signs_by_chance") == pytest.approx(chance)
    if ranks is not None:
        assert agreement(a, b, "ranks") == pytest.approx(ranks)


def test_agreement_of_what_is_void_or_missing():
    """An interval that is void has no signs; a step that was not observed, or another class, is no agreement."""
    whole = (1.0, -1.0, 2.0, -2.0)
    for kind in ("signs", "signs_by_chance", "ranks"):
        assert math.isnan(agreement(whole, (1.0, math.nan, 2.0, -2.0), kind))
        assert math.isnan(agreement(whole, whole, kind, step="first"))
    assert math.isnan(agreement(whole, (1.0, 1.0, 1.0, 1.0), "ranks"))
    assert math.isnan(agreement((0.0,) * 4, (0.0,) * 4, "signs"))
    path, chord = of_way("path"), of_way("chord")
    *about, known = cells(whole, "chord")

    def of(table=known, **settings):
        observed = {"path": cells(whole, "path"), "chord": (*about, table)}
        return Agreement(path, chord, **settings).of([FakeRun(observed=observed)])

    other = known.assign(group=known["group"].replace("DET", "ADP"))
    late = known.assign(step=known["step"].replace(9, 12))
    for make, error, said in (
        (lambda: of(step=5), NotMeasured, "did not observe step 5"),
        (lambda: of(other), NotMeasured, r"only one of .*ADP"),
        (lambda: of(column="parameter"), NotMeasured, "no column 'parameter'"),
        (lambda: of(late), NotMeasured, "observed step 9, but .* step 12"),
        (lambda: of(pd.concat([known] * 2)), ValueError, "several rows of 'a' per site and group"),
        (lambda: of(kind="sizes"), ValueError, "kind must be 'signs'"),
        (lambda: Agreement(path, Cumulated("Observer", "a")), ValueError, "must be Rows, not a subclass"),
        (lambda: Agreement(Rows("Observer", "a", "low"), chord), ValueError, "remove `site` from `rows`"),
    ):
        with pytest.raises(error, match=said):
            make()


def test_agreement_of_matrices_leaves_out_layers():
    """The rows of a layer have no matrix."""

    def measured(way, values):
        parts = [
            rows("a", {9: v}, site, by="", parameter=f"{site}.{name}")
            for (site, name), v in zip([("low", "w"), ("low", "b"), ("high", "w")], values, strict=True)
        ]
        parts += [
            rows("a", {9: 7.0 if way == "path" else -7.0}, site, by="", parameter=parameter)
            for site, parameter in (("low", ""), ("high", ""), ("high@0", "of an application"))
        ]
        return "my.lab.Observer", {"allocation": way}, pd.concat(parts, ignore_index=True)

    path, chord = (
        Rows("Observer", "a", where=(("by", ""),), settings=(("allocation", way),))
        for way in ("path", "chord")
    )
    observed = {"path": measured("path", (-1.0, -2.0, 3.0)), "chord": measured("chord", (-1.0, -2.0, -3.0))}
    found = [
        Agreement(path, chord, 9, kind, "parameter").of([FakeRun(observed=observed)]).value
        for kind in ("signs", "signs_by_chance", "ranks")
    ]
    assert found == pytest.approx([2 / 3, 2 / 3, -0.5])  # ranks 2 1 3 and 3 2 1
    table = observed["path"][2]
    observed["path"] = ("my.lab.Observer", {"allocation": "path"}, table[table["parameter"].eq("")])
    with pytest.raises(NotMeasured, match="no 'a' by parameter at step 9"):
        Agreement(path, chord, 9, "signs", "parameter").of([FakeRun(observed=observed)])


def test_pieces_of_what_has_no_logarithm():
    assert math.isnan(LargestRise(Rows("Observer", "a")).of(run(rows("a", {0: 1.0, 1: 0.0}))).value)
    with pytest.raises(ValueError, match="piece must be 'before' or 'rise'"):
        LargestRise(Rows("Observer", "a"), "fall")


def test_rise_along_a_line_of_the_last_step():
    def rise(*losses):
        last = [rows("a", {0: 9.0 - i, 7: loss}, alpha=f"{i / 2:g}") for i, loss in enumerate(losses)]
        return RiseAlongLine(Rows("Observer", "a")).of(run(*reversed(last))).value

    assert rise(5.0, 4.9, 3.0) == pytest.approx(-0.1)  # above the straight line between its ends, and no rise
    assert rise(5.0, 3.5, 3.0) == -0.5  # how it falls differs from seed to seed
    assert rise(5.0, 5.5, 3.0) == 0.5
    assert rise(5.0, 2.0, 3.0) == 1.0
    assert math.isnan(rise(5.0, math.nan, 3.0))
    two = [rows("a", {7: 1.0}, alpha="0", reference=name) for name in ("initial", "partner")]
    with pytest.raises(ValueError, match="several lines at one step"):
        RiseAlongLine(Rows("Observer", "a")).of(run(*two))


def test_rise_over_the_chord_by_step():
    line = Rows("Observer", "line_loss", error=("rise_low", "rise_high"))
    number = RiseOverChord(line.observer, line.quantity, error=line.error)
    losses = {"0": (5.0, 5.0), "0.5": (4.5, 2.0), "1": (3.0, 3.0)}
    tables = [rows("line_loss", {0: a, 7: b}, alpha=alpha) for alpha, (a, b) in reversed(losses.items())]
    for name, end in (("rise_low", -2.1), ("rise_high", -1.9)):
        tables.append(rows(name, {0: 1.0, 7: end}, alpha=""))
    assert number.table(run(*tables))["value"].tolist() == [0.5, -2.0]  # no barrier: 0 would be the barrier
    assert At(number).of(run(*tables)).error == pytest.approx(0.1 / 1.96, rel=1e-4)
    assert At(number).of(run(*tables[:3])).error is None  # a record of an earlier version
    assert At(number).between() is None
    with pytest.raises(ValueError, match="several lines at one step"):
        number.table(run(*tables, *(rows("line_loss", {7: 1.0}, alpha="0", reference=n) for n in "ab")))


def test_groups_of_two_divisions_are_not_added():
    """The embedding's rows have a part of speech, and so have the tokens that it predicts."""
    of_rows = rows("a", {1: -5.0, 10: -5.0}, "low", by="row_upos", group="NOUN")
    of_tokens = rows("a", {1: -1.0, 10: -1.0}, "low", by="upos", group="NOUN")
    found = run(rows("loss", {0: 9.0, 1: 8.0, 10: 6.0}, by="", group=""),
                rows("updates", {1: 1.0, 10: 9.0}, by="", group=""), of_rows, of_tokens)  # fmt: skip
    with pytest.raises(ValueError, match=r"several rows of 'a' per step: .* .by: 'row_upos', 'upos'"):
        At(Cumulated("Observer", "a", "low", groups=("NOUN",))).of(found)
    tokens = Cumulated("Observer", "a", "low", (("by", "upos"),), groups=("NOUN", "NOUN"))
    assert At(tokens).of(found).value == pytest.approx(-2)

"""When something is learned: orders against a naive count of pairs, layers together, facts lost."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import somersd

from lmdyn.analysis.statistics.correlation import somers_d
from lmdyn.claims import At, Change, NotMeasured, Rows
from lmdyn.claims import learning_numbers as N
from tests.helpers.observed_runs import FakeRun, rows

STEPS = (0, 10, 100, 1000)


def run(*tables):
    return [FakeRun(observed={"folder": ("my.lab.Observer", {}, pd.concat(tables, ignore_index=True))})]


def groups(curves, quantity="x"):
    return [rows(quantity, dict(zip(STEPS, v, strict=True)), by="pos", group=g) for g, v in curves.items()]


def test_somers_d_against_scipy():
    random = np.random.default_rng(0)
    for n in (3, 5, 8):
        for _ in range(30):
            given, times = random.integers(0, 4, n).astype(float), random.integers(0, 5, n).astype(float)
            if len(set(given)) < 2:
                assert math.isnan(somers_d(given, times))
            elif len(set(times)) > 1:
                assert somers_d(given, times) == pytest.approx(somersd(given, times).statistic)


def test_somers_d_of_random_orders_is_0_on_average():
    given = np.array([0.0, 0, 0, 1, 2, 3, 4, 5])
    found = [somers_d(given, np.random.default_rng(s).permutation(8).astype(float)) for s in range(500)]
    assert abs(np.mean(found)) < 0.05
    assert 0.03 < np.mean(np.array(found) >= 0.5) < 0.1  # what the study's docstring says: 7 %


CURVES = {
    "a": (0.0, 0.8, 0.9, 0.9), "b": (0.0, 0.1, 0.9, 0.9), "c": (0.0, 0.0, 0.1, 0.9), "never": (0.0, 0.0, 0.0, 0.005),
}  # fmt: skip
X = Rows("Observer", "x", where=(("by", "pos"),))


@pytest.mark.parametrize("rule", ["half", "area"])
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((("a",), ("b",), ("c",)), 1.0),
        ((("c",), ("b",), ("a",)), -1.0),
        ((("a",), ("c",), ("b",)), 1 / 3),
        ((("b", "a"), ("c",)), 1.0),  # a and b are not ordered
        ((("a",), ("b",), ("c",), ("never",)), 1.0),
        ((("never",), ("a",), ("b",), ("c",)), 0.0),  # never is after all: 3 pairs of 6
    ],
)
def test_agreement_with_an_order(order, expected, rule):
    assert N.OrderAgreement(X, order, rule).of(run(*groups(CURVES))).value == pytest.approx(expected)


def test_agreement_of_numbers_of_words():
    counts = groups({"a": (5,) * 4, "b": (9,) * 4, "c": (7,) * 4}, "words")
    number = N.OrderAgreement(
        Rows("Observer", "words", where=(("by", "pos"),)), (("b",), ("c",), ("a",)), "largest"
    )
    assert number.of(run(*counts)).value == 1
    assert number.between() == (-1, 1)
    assert number.reads() == {"Observer/words"}


def test_mean_delay_is_over_the_pairs_of_the_order():
    learned = [N.LearnedAt(Rows("Observer", "x", where=(("by", "pos"), ("group", name)))) for name in "abc"]
    a, b, c = (one.of(run(*groups(CURVES))).value for one in learned)
    number = N.MeanDelay(X, (("a",), ("b", "c")))
    assert number.of(run(*groups(CURVES))).value == pytest.approx((b + c) / 2 - a)
    assert N.MeanDelay(X, (("b", "c"), ("a",))).of(run(*groups(CURVES))).value == pytest.approx(
        a - (b + c) / 2
    )
    assert (number.between(), number.null()) == (None, 0.0)


def test_agreement_where_next_to_nothing_was_learned():
    order = (("never",), ("a",))
    flat = {"never": (0.0,) * 4, "a": CURVES["a"], "b": (0.0,) * 4}
    assert math.isnan(N.OrderAgreement(X, order).of(run(*groups(flat))).value)
    with pytest.raises(NotMeasured, match="no rows of 'x' for group z"):
        N.OrderAgreement(X, (("a",), ("z",))).of(run(*groups(CURVES)))


@pytest.mark.parametrize("order", [(("a", "b"),), (("a",), ("a",)), (("a",), ())])
def test_orders_that_are_none(order):
    with pytest.raises(ValueError, match="expected two or more tuples of groups"):
        N.OrderAgreement(X, order)
    with pytest.raises(ValueError, match="rule must be 'half', 'area' or 'largest', got 'first'"):
        N.OrderAgreement(X, (("a",), ("b",)), "first")


def test_the_same_order():
    other = groups({"a": CURVES["c"], "b": CURVES["b"], "c": CURVES["a"]}, "y")
    y = Rows("Observer", "y", where=(("by", "pos"),))
    assert N.SameOrder(X, y, ("a", "b", "c")).of(run(*groups(CURVES), *other)).value == -1
    assert N.SameOrder(X, X, ("a", "b", "c")).of(run(*groups(CURVES))).value == 1
    assert N.SameOrder(X, y, ("a", "b", "c")).between() == (-1, 1)


def test_learned_at_is_interpolated():
    a = Rows("Observer", "x", where=(("by", "pos"), ("group", "a")))
    table = groups({"a": (0.0, 0.0, 0.8, 0.8)})
    middle = (math.log1p(10) + math.log1p(100)) / 2  # half of the last is half way between the two
    assert N.LearnedAt(a).of(run(*table)).value == pytest.approx(middle / math.log(10))
    assert math.isnan(N.LearnedAt(a).of(run(*groups({"a": (0.0,) * 4}))).value)
    for sign in (1, -1):  # also of a curve that falls
        moved = groups({"a": [0.5 + sign * v for v in (0.0, 0.0, 0.4, 0.4)]})
        assert N.LearnedAt(a, from_first=True).of(run(*moved)).value == pytest.approx(middle / math.log(10))


def layer_tables():
    return [
        rows("f1", {0: 0.1 * i, 10: 0.2 * i}, f"layer@{i}", task=task)
        for i in (1, 2, 3)
        for task in ("pos", "srl")
    ]


def test_over_all_layers():
    over = N.Over("Observer", "f1", where=(("task", "pos"),))
    found = over.table(run(*layer_tables()))
    assert found["value"].tolist() == pytest.approx([0.2, 0.4])
    assert found["tokens"].tolist() == [0, 100]
    assert At(over).of(run(*layer_tables())).value == pytest.approx(0.4)
    assert Change(over).of(run(*layer_tables())).value == pytest.approx(0.2)
    largest = N.Over("Observer", "f1", where=(("task", "pos"),), how="max")
    assert At(largest).of(run(*layer_tables())).value == pytest.approx(0.6)


def test_over_heads_of_a_layer():
    heads = [rows("d", {0: 0.1, 10: 0.3 * h}, "layer@0", head=h) for h in (0, 1)]
    assert At(N.Over("Observer", "d", "layer@0", over="head", how="max")).of(
        run(*heads)
    ).value == pytest.approx(0.3)


def test_over_what_is_not_told_apart():
    with pytest.raises(ValueError, match="several rows of 'f1' per step and site"):
        At(N.Over("Observer", "f1")).of(run(*layer_tables()))
    with pytest.raises(NotMeasured, match="holds no rows of 'x'"):
        At(N.Over("Observer", "x")).of(run(*layer_tables()))
    with pytest.raises(NotMeasured, match="no column 'head'"):
        At(N.Over("Observer", "f1", "layer@1", where=(("task", "pos"),), over="head")).of(
            run(*layer_tables())
        )
    with pytest.raises(ValueError, match="omit site='layer@1'"):
        N.Over("Observer", "f1", "layer@1")


def test_from_its_peak():
    values = {0: 0.1, 10: 0.6, 20: 0.8, 60: 0.9, 95: 0.5, 100: 0.3}
    found = run(rows("x", values), rows("x_error", dict.fromkeys(values, 0.1)))
    known = Rows("Observer", "x", error="x_error")
    assert N.FromPeak(known, 0.1, 0.2).of(found).value == pytest.approx(0.4 - 0.7)
    assert N.FromPeak(known, 0.1, 0.2).of(found).error == pytest.approx(0.1)  # two and two of 0.1 each
    assert N.WindowMean(known, 0.5, 1.0).of(found).value == pytest.approx((0.9 + 0.5 + 0.3) / 3)
    rising = run(rows("x", {step: step / 100 for step in (0, 10, 20, 60, 100)}))
    # not cut off at 0
    assert N.FromPeak(Rows("Observer", "x"), 0.1, 0.2).of(rising).value == pytest.approx(0.85)
    with pytest.raises(NotMeasured, match=r"observed no step from 30 to 40"):
        N.FromPeak(known, 0.3, 0.4).of(found)
    with pytest.raises(ValueError, match="since < until"):
        N.WindowMean(known, 0.4, 0.3)
    assert N.FromPeak(Rows("Observer", "a_share"), 0.1, 0.2).between() == (-1, 1)


@pytest.mark.slow
def test_from_its_peak_of_flat_noise_is_0_on_average():
    """The control: the last value minus the largest of 20 is −1.87 standard deviations on average."""
    steps = np.arange(1, 21) * 10
    noise = np.random.default_rng(0).standard_normal((100, 20))
    tables = [run(rows("x", dict(zip(steps.tolist(), one, strict=True)))) for one in noise]
    found = [N.FromPeak(Rows("Observer", "x"), 0.3, 0.7).of(table).value for table in tables]
    assert abs(np.mean(found)) < 3 * np.std(found) / 10  # 0.4: the control would be five times that
    assert np.mean(noise[:, -1] - noise.max(1)) == pytest.approx(-1.87, abs=0.35)


def hits(known):
    """Facts by the observations at which they are known."""
    return [
        rows("hit", {step: float(step in at) for step in STEPS}, relation="r", fact=fact)
        for fact, at in known.items()
    ]


def test_facts_lost():
    number = N.LostShare(Rows("Observer", "hit"))
    facts = run(*hits({"a": (100, 1000), "b": (100,), "c": (1000,), "d": (), "e": (10, 100, 1000)}))
    assert number.of(facts).value == pytest.approx(1 / 4)
    assert math.isnan(number.of(run(*hits({"a": (), "b": ()}))).value)


def test_facts_lost_at_random_is_what_shuffled_facts_lose():
    known = {"a": (100, 1000), "b": (100,), "c": (1000,), "d": (), "e": (10, 100, 1000), "f": (), "g": (10,)}
    table = np.array([[step in at for step in STEPS] for at in known.values()])
    random = np.random.default_rng(0)
    ever = []
    for _ in range(4000):
        shuffled = np.stack([random.permutation(column) for column in table.T], axis=1)
        ever.append(shuffled.any(1).sum())
    expected = 1 - table[:, -1].sum() / np.mean(ever)
    found = N.LostShare(Rows("Observer", "hit"), at_random=True).of(run(*hits(known))).value
    assert found == pytest.approx(expected, abs=0.01)

"""Ages of acquisition: planted sigmoids, the published formulas by hand, and regressions on simulated words."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.interpolate import make_smoothing_spline

from lmdyn import analysis as A

rng = np.random.default_rng
STEPS = np.array([0, *np.unique(np.geomspace(1, 1e5, 40).round())])
AFTER = STEPS[STEPS > 0]


def planted_at(lower, upper, xmid, scale):
    return A.Sigmoid(float(lower), float(upper), float(xmid), float(scale))


def course(sigmoid):
    return np.array([sigmoid.upper, *sigmoid.at(AFTER)])


@pytest.mark.parametrize(
    "planted", [planted_at(3, 14, 2.5, 0.3), planted_at(-1, 9, 4.6, 0.1), planted_at(2, 15, 1.5, 0.8)]
)
def test_a_planted_sigmoid_gives_its_age(planted):
    fit = A.fit_sigmoid(STEPS, course(planted))
    assert vars(fit) == pytest.approx(vars(planted), abs=1e-8)
    for level in (0.3, 0.7):
        cutoff = planted.lower + level * (planted.upper - planted.lower)
        x = planted.xmid - planted.scale * math.log(1 / (1 - level) - 1)
        found = A.acquisition_step(STEPS, course(planted), unigram=cutoff + 1)
        assert math.log10(found.age) == pytest.approx(x, abs=1e-9)
        assert found.low < found.age <= found.high
        assert AFTER[list(AFTER).index(found.low) + 1] == found.high
    noisy = course(planted) + 0.05 * rng(0).standard_normal(len(STEPS))
    assert math.log10(A.acquisition_step(STEPS, noisy, unigram=cutoff + 1).age) == pytest.approx(x, abs=0.05)


def test_the_search_begins_in_the_right_valley():
    """A run of few observations, and an outlier in the last of many that are near each other."""
    steps, planted = np.geomspace(1, 1e6, 6), planted_at(2, 12, 3.0455361811209665, 0.14442541471600873)
    assert A.fit_sigmoid(steps, planted.at(steps)).step(8.0) == pytest.approx(planted.step(8.0))
    steps = np.array([4.56, 7.28, 16.4, 26.3, 206, 392, 566, 634, 51743, 249769, 272787, 276860])
    for outlier in (30, 300, 3198.5):
        values = np.array([12.09, 12.05, 12.04, 12.02, 12, 11.97, 12.12, 12.15, 2.62, 1.86, 2.02, outlier])
        others = values[:-1] - values[:-1].mean()
        fit = A.fit_sigmoid(steps, values)
        assert ((fit.at(steps) - values) ** 2).sum() == pytest.approx(others @ others, rel=1e-4)
        assert A.acquisition_step(steps, values, unigram=9.0).censored == "right"


def test_a_fall_between_two_observations_has_one_age():
    """Of a step the sum of squares has no single minimum: its last bits must not choose the age."""
    x, noise = np.log10(AFTER), rng(0)
    for middle in (1.9, 2.6, 3.3):
        values = np.where(x < middle, 13.0, 11.0) + 0.1 * noise.standard_normal(len(x))
        fits = [A.fit_sigmoid(AFTER, values * (1 + 1e-15 * noise.standard_normal(len(x)))) for _ in range(5)]
        assert np.ptp([math.log10(fit.step(12.0)) for fit in fits]) < 1e-8


def test_words_that_are_never_or_at_once_acquired():
    falling = planted_at(5, 12, 2.0, 0.3)
    first, last = AFTER[0], AFTER[-1]
    for curve, unigram, side in (
        (falling, 5.5, "right"),
        (falling, 14, "left"),
        (planted_at(5, 12, 7, 0.3), 8, "right"),
        (planted_at(5, 12, -2, 0.3), 8, "left"),
        (planted_at(9, 6, 2, 0.3), 8, "left"),  # rises, from below
        (planted_at(12, 9, 2, 0.3), 8, "right"),
    ):
        found = A.acquisition_step(STEPS, course(curve), unigram=float(unigram))
        expected = (first, 0, first) if side == "left" else (last, last, np.inf)
        assert (found.age, found.low, found.high, found.censored) == (*expected, side)


def test_ages_of_2022_by_hand():
    planted, vocabulary = planted_at(4, 15, 3.2, 0.4), 30_004
    values = course(planted)
    cutoff = 0.5 * (math.log2(vocabulary) + values.min())
    log_age = 3.2 - 0.4 * math.log((15 - 4) / (15 - cutoff) - 1)
    found = A.acquisition_step(STEPS, values, "2022", vocabulary=vocabulary)
    assert found.cutoff == pytest.approx(cutoff)
    assert math.log10(found.age) == pytest.approx(log_age, abs=1e-9)
    rising = A.acquisition_step(STEPS, course(planted_at(15, 4, 3.2, 0.4)), "2022", vocabulary=vocabulary)
    assert (rising.age, rising.censored) == (AFTER[-1], "right")
    above = A.acquisition_step(STEPS, course(planted_at(4, 9, 3.2, 0.4)), "2022", vocabulary=2**15)
    assert (above.age, above.censored) == (AFTER[0], "left")  # its cutoff of 9.5 is above the fit
    never_learned = course(planted_at(14.9, 15.2, 3.2, 0.1))
    assert A.acquisition_step(STEPS, never_learned, "2022", vocabulary=vocabulary).censored == "right"
    assert A.acquisition_step(STEPS, never_learned, "2022", vocabulary=2**15 + 10_000).censored == "interval"


def test_ages_of_2024_are_points_of_the_spline():
    values = course(planted_at(4, 15, 3.2, 0.4))
    spline = make_smoothing_spline(np.log10(AFTER), values[1:])
    points = np.linspace(0, np.log10(AFTER[-1]), 1000)
    cutoff = (math.log2(1000) + spline(points).min()) / 2
    expected = next(10**x for x in points if spline(x) <= cutoff)
    assert A.acquisition_step(STEPS, values, "2024", vocabulary=1000).age == pytest.approx(expected)
    assert A.acquisition_step(STEPS, values, "2024", vocabulary=2).censored == "right"
    assert A.acquisition_step(STEPS, values - 3, "2024", vocabulary=2**30).censored == "left"


def test_forgetting_is_the_sum_of_rises():
    x = np.log10(AFTER)
    falls = 12 - 1.5 * x
    bump = 2.0 * np.exp(-(((x - 3.5) / 0.4) ** 2))
    curve = falls + bump
    expected = np.diff(curve).clip(min=0).sum()
    assert A.forgettability(AFTER, curve) == pytest.approx(expected, rel=0.05)
    assert expected > 0.5
    assert A.forgettability(AFTER, falls) == pytest.approx(0, abs=1e-6)


def test_refusals():
    values = course(planted_at(4, 15, 3.2, 0.4))
    with pytest.raises(ValueError, match="requires `unigram`"):
        A.acquisition_step(STEPS, values)
    with pytest.raises(ValueError, match="requires `vocabulary`"):
        A.acquisition_step(STEPS, values, "2022")
    with pytest.raises(ValueError, match="5 observations after step 0 with a finite value, got 4 of 5"):
        A.fit_sigmoid(STEPS[:5], values[:5])
    with pytest.raises(ValueError, match="expected increasing steps"):
        A.fit_sigmoid(STEPS[::-1], values)


def simulated(seed, words=400, decades=(2.6, 3.8)):
    """Ages of words of which those outside of a run are censored: by frequency, length, and a norm without effect."""
    g = rng(seed)
    unigram, length = g.normal(12, 2, words), g.integers(2, 12, words)
    norm = 0.7 * (unigram - 12) / 2 + 0.7 * g.standard_normal(words)
    age = 10 ** (0.6 + 0.2 * unigram + 0.03 * length + 0.4 * g.standard_normal(words))
    steps = np.geomspace(10 ** decades[0], 10 ** decades[1], 9)
    after = np.searchsorted(steps, age)
    table = pd.DataFrame({"word": ["x" * n + f" {i}" for i, n in enumerate(length)], "unigram": unigram})
    table["age"] = age.clip(steps[0], steps[-1])
    table["low"] = np.array([0, *steps])[after]
    table["high"] = np.array([*steps, np.inf])[after]
    table["censored"] = np.where(after == 0, "left", np.where(after == len(steps), "right", "interval"))
    return table, pd.DataFrame({"word": table["word"], "characters": length, "norm": norm})


@pytest.mark.parametrize("censoring", ["tobit", "interval"])
def test_censoring_is_recovered(censoring):
    """The planted coefficients are within their intervals as often as they should; least squares is biased."""
    on, planted = ["unigram", "characters", "norm"], [0.6, 0.2, 0.03, 0.0]
    covered, biased, values = [], [], []
    for seed in range(8):
        ages, norms = simulated(seed)
        found = A.acquisition_regression(ages, on, norms, censoring)
        ends = zip(planted, found.coefficients["low"], found.coefficients["high"], strict=True)
        covered += [low < p < high for p, low, high in ends]
        values.append(found.coefficients["value"][1])
        plain = A.acquisition_regression(ages, on, norms, "none").coefficients
        biased.append(plain["low"][1] < 0.2 < plain["high"][1])
    assert found.censored > 60
    assert found.words == 400
    assert sum(covered) >= 0.85 * len(covered)
    assert np.mean(values) == pytest.approx(0.2, abs=0.02)
    assert not any(biased)
    assert found.sigma == pytest.approx(0.4, abs=0.06)


def test_without_censoring_it_is_least_squares():
    ages, norms = simulated(0, decades=(-3.0, 9.0))
    on = ["unigram", "characters", "norm"]
    assert ages["censored"].eq("interval").all()
    found = A.acquisition_regression(ages, on, norms)
    x = np.column_stack([np.ones(400), ages["unigram"], norms["characters"], norms["norm"]])
    y = np.log10(ages["age"])
    expected, (squares,), *_ = np.linalg.lstsq(x, y, rcond=None)
    np.testing.assert_allclose(found.coefficients["value"], expected, atol=1e-7)
    assert found.sigma == pytest.approx(math.sqrt(squares / 400))
    errors = np.sqrt(np.diag(np.linalg.inv(x.T @ x)) * squares / 400)
    np.testing.assert_allclose(found.coefficients["error"], errors, rtol=1e-5)
    others = np.delete(x, 1, axis=1)
    rest = x[:, 1] - others @ np.linalg.lstsq(others, x[:, 1], rcond=None)[0]
    assert found.coefficients["inflation"][1] == pytest.approx(np.var(x[:, 1]) / np.var(rest))
    assert found.coefficients["inflation"][1] > 1.5


def test_bad_tables_of_norms():
    ages, norms = simulated(0, 20)
    with pytest.raises(ValueError, match=r"none of 20 words, such as .* in the same way"):
        A.acquisition_regression(ages, norms=norms.assign(word=norms["word"].str.upper()))
    with pytest.raises(ValueError, match="no column concreteness for `on`: choose among age, "):
        A.acquisition_regression(ages, ["concreteness"], norms)
    with pytest.raises(ValueError, match="no constant predictor, got"):
        A.acquisition_regression(ages, ["unigram", "norm"], norms.head(3))
    assert A.acquisition_regression(ages, ["unigram", "norm"], norms.head(15)).left_out == 5


def test_from_the_rows_of_the_observer():
    rows = []
    mids = {"the": 1.5, "cat": 2.5, "lamp": 3.5, "axolotl": 9.0}
    for run, shift in (("a", 0.0), ("b", 0.1), ("c", -0.2)):
        for word, xmid in mids.items():
            values = course(planted_at(4, 14, xmid + shift, 0.2))
            rows += [(run, step, "surprisal", word, v) for step, v in zip(STEPS, values, strict=True)]
            rows += [(run, step, "unigram", word, 10.0) for step in STEPS]
        rows += [(run, step, "surprisal", "", 9.0) for step in STEPS]
    table = pd.DataFrame(rows, columns=["run", "step", "quantity", "word", "value"])
    ages = A.word_acquisition(table)
    assert len(ages) == 12
    of_cat = ages[(ages["run"] == "a") & (ages["word"] == "cat")].iloc[0]
    assert math.log10(of_cat["age"]) == pytest.approx(2.5, abs=1e-8)
    assert ages.loc[ages["word"] == "axolotl", "censored"].eq("right").all()
    assert A.acquisition_agreement(ages) == pytest.approx(1)
    one = A.word_acquisition(table[table["run"] == "a"].drop(columns="run"), "2022", vocabulary=2**14)
    assert one["word"].tolist() == list(mids)
    with pytest.raises(ValueError, match="expected several runs"):
        A.acquisition_agreement(ages[ages["run"] == "a"])
    with pytest.raises(ValueError, match="pass observations of Surprisals"):
        A.word_acquisition(table[table["word"].eq("")])

"""Minimal pairs: scores by the definition, onsets that are planted, flips and agreement counted by hand."""

import itertools

import numpy as np
import pandas as pd
import pytest

from lmdyn.analysis import flips, onset, pair_accuracy, pair_agreement, sentence_scores
from lmdyn.analysis.statistics.intervals import share_interval

STEPS = np.unique(np.round(10 ** np.arange(0, 4.01, 1 / 8)).astype(int))  # eight a decade, to 10,000
PLANTED = 24  # the observation at step 1,000
rng = np.random.default_rng


def test_scores_are_sums_and_means():
    pieces = pd.DataFrame({"text": [0, 0, 1, 1, 3], "log_probability": [-1.0, -2.0, -4.0, np.nan, -1.5]})
    found = sentence_scores(pieces, ["ab cd ", "e", "", "fgh"])
    np.testing.assert_array_equal(found["log_probability"], [-3, np.nan, np.nan, -1.5])
    np.testing.assert_array_equal(found["by_token"], [-1.5, np.nan, np.nan, -1.5])
    np.testing.assert_array_equal(found["by_character"], [-3 / 5, np.nan, np.nan, -0.5])


def test_the_first_piece_counts_if_it_follows_a_token():
    pieces = pd.DataFrame({"text": [0, 0, 1], "log_probability": [np.nan, -2.0, np.nan]})
    pieces.attrs["start"] = ""
    np.testing.assert_array_equal(sentence_scores(pieces, ["a b", "c"])["by_token"], [-2, np.nan])
    pieces.attrs["start"] = "<s>"
    assert sentence_scores(pieces, ["a b", "c"])["by_token"].isna().all()


def test_ties_count_half_or_are_drawn():
    good, bad = [0.0, -1.0, -2.0, -np.inf, np.inf, np.nan], [-1.0, -1.0, -1.0, -1.0, -1.0, -1.0]
    np.testing.assert_array_equal(pair_accuracy(good, bad), [1, 0.5, 0, np.nan, np.nan, np.nan])
    many = pair_accuracy(np.zeros(4000), np.zeros(4000), ties="draw")
    assert set(many) == {0, 1}
    assert many.mean() == pytest.approx(0.5, abs=0.03)
    np.testing.assert_array_equal(many, pair_accuracy(np.ones(4000), np.ones(4000), ties="draw"))
    assert not np.array_equal(many, pair_accuracy(np.zeros(4000), np.zeros(4000), ties="draw", seed=1))
    np.testing.assert_array_equal(pair_accuracy(good, bad, ties="draw")[[0, 2, 3]], [1, 0, np.nan])
    with pytest.raises(ValueError, match="scores of one shape"):
        pair_accuracy([1.0], [1.0, 2.0])


def curve(seed, accuracy, pairs=200):
    """Independent counts: chance before the planted step, ``accuracy`` (of each later one) from it on."""
    p = np.full(len(STEPS), 0.5)
    p[PLANTED:] = accuracy
    return rng(seed).binomial(pairs, p) / pairs


def stays_above(accuracies, pairs=200):
    """The usual criterion: the first step from which every interval is above chance."""
    above = [share_interval(a, pairs)[0] > 0.5 for a in accuracies]
    return next((STEPS[i] for i in range(len(STEPS)) if all(above[i:])), np.inf)


def test_an_onset_is_where_it_is_planted():
    found = [onset(STEPS, curve(seed, 0.6), 200) for seed in range(40)]
    assert None not in found
    assert np.median(found) == STEPS[PLANTED]
    assert np.mean(np.abs(np.log10(found) - np.log10(STEPS[PLANTED])) < 0.26) >= 0.9  # two observations
    late = [stays_above(curve(seed, 0.6)) for seed in range(40)]
    assert np.median(late) >= 2 * STEPS[PLANTED]
    assert np.median([onset(STEPS, curve(seed, 0.4), 200) for seed in range(10)]) == STEPS[PLANTED]


def test_constant_chance_has_no_onset():
    found = [onset(STEPS, curve(100 + seed, 0.5), 200) for seed in range(60)]
    assert sum(step is not None for step in found) <= 3
    same = [onset(STEPS, np.full(len(STEPS), rng(seed).binomial(200, 0.5) / 200), 200) for seed in range(60)]
    assert sum(step is not None for step in same) <= 6  # the same pairs: noise that lasts
    assert onset(STEPS, np.full(len(STEPS), 0.5), 1000) is None
    assert onset([], [], 10) is None


def test_a_course_in_stages_begins_with_the_first():
    rising = 0.5 + 0.45 * np.clip((np.arange(len(STEPS) - PLANTED) + 4) / 8, 0, 1)
    found = [onset(STEPS, curve(seed, rising, 1000), 1000) for seed in range(20)]
    assert np.median(found) == STEPS[PLANTED]
    learned_from_start = onset(STEPS, np.full(len(STEPS), 0.9), 200)
    assert learned_from_start == 1


def test_a_wrong_preference_is_no_onset_above_chance():
    course = np.full(len(STEPS), 0.6)
    course[:10], course[10:PLANTED] = 0.5, 0.2
    found = [rng(seed).binomial(200, course) / 200 for seed in range(20)]
    assert {onset(STEPS, values, 200) for values in found} == {STEPS[10]}
    assert {onset(STEPS, values, 200, above=True) for values in found} == {STEPS[PLANTED]}
    assert onset(STEPS, curve(0, 0.3), 200, above=True) is None
    exact = [onset(STEPS, curve(seed, 0.6), 200, above=True) for seed in range(20)]
    assert np.median(exact) == STEPS[PLANTED]
    at_chance = [onset(STEPS, curve(100 + seed, 0.5), 200, above=True) for seed in range(60)]
    assert sum(step is not None for step in at_chance) <= 3


def test_onsets_leave_out_what_is_not_finite():
    values = curve(0, 0.8)
    values[[3, -1]] = np.nan
    assert onset(STEPS, values, np.full(len(STEPS), 200)) == STEPS[PLANTED]
    assert onset(STEPS, values * np.nan, 200) is None
    for steps, accuracies in (([1, 1], [0.5, 0.5]), ([1, 2], [0.5, 1.2]), ([1], [0.5, 0.5])):
        with pytest.raises(ValueError, match=r"expected (increasing steps|accuracies from 0 to 1)"):
            onset(steps, accuracies, 10)


def test_flips_are_counted_as_by_hand():
    ratios = rng(0).integers(-1, 2, (12, 30)).astype(float)
    ratios[5, :4] = np.nan
    expected = []
    for pair in ratios.T:
        signs = [s for s in pair if s in (-1, 1)]
        expected.append(sum(a != b for a, b in itertools.pairwise(signs)))
    assert flips(ratios).tolist() == expected
    assert sum(expected) > 30
    assert flips([[1.0, -1.0]]).tolist() == [0, 0]


def test_agreement_is_that_by_the_definition():
    first, second = rng(1).normal(0.3, 1, (2, 300))
    second[:120] = first[:120]
    first[:5], second[7] = 0, np.nan
    kept = np.array([i for i in range(300) if i >= 5 and i != 7])
    found = pair_agreement(first, second)
    assert found.pairs == len(kept) == 294
    assert found.share == pytest.approx(np.mean((first[kept] > 0) == (second[kept] > 0)))
    a, b = first[kept] > 0, second[kept] > 0
    by_chance = a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean())
    assert found.kappa == pytest.approx((found.share - by_chance) / (1 - by_chance))
    assert pair_agreement([1.0], [2.0]).share == 1
    assert np.isnan(pair_agreement([1.0], [2.0]).kappa)
    assert pair_agreement([0.0], [2.0]).pairs == 0
    with pytest.raises(ValueError, match="first and second of one shape"):
        pair_agreement([1.0], [1.0, 2.0])

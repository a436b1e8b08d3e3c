"""The claims on acquisition: what their own numbers compute."""

import math

import numpy as np
import pandas as pd
import pytest

from lmdyn.claims import NotMeasured, Rows
from lmdyn.claims.studies.acquisition_numbers import ExtremumAt, FrequencySlope
from tests.helpers.observed_runs import FakeRun, rows


def run(table, **condition):
    return FakeRun(observed={"folder": ("my.lab.Observer", {}, table)}, condition=condition)


def test_where_a_curve_is_lowest_and_highest():
    curve = Rows("Observer", "a")
    found = ExtremumAt(curve).of([run(rows("a", {0: 5.0, 9: 1.0, 99: 1.0, 999: 7.0}))])
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)  # the first of two
    last = ExtremumAt(curve, "maximum").of([run(rows("a", {0: 5.0, 9: 1.0, 999: 7.0}))])
    assert (last.value, last.low, last.high) == (3.0, 3.0, math.inf)
    assert math.isnan(ExtremumAt(curve).of([run(rows("a", {0: math.nan, 9: math.nan}))]).value)


def words(slope, n=40):
    """Words whose surprisal falls from that of a guess to 1 bit around an age that rises with their rarity."""
    steps = np.unique(np.logspace(0, 4, 60).astype(int))
    tables = []
    for i, unigram in enumerate(np.linspace(4, 10, n)):
        age = 1 + slope * unigram + (i * 7 % 5 - 2) / 20
        values = 1 + 9 / (1 + np.exp(20 * (np.log10(steps) - age)))
        word = "w" * (1 + i % 7)
        table = rows("surprisal", dict(zip(steps.tolist(), values, strict=True)))
        tables.append(pd.concat([table, rows("unigram", {1: unigram})]).assign(word=f"{i}{word}"))
    return pd.concat(tables)


@pytest.mark.parametrize("slope", [0.3, 0.0])
def test_how_much_later_rare_words_are_learned(slope):
    found = FrequencySlope(Rows("Observer", "surprisal"), 1024).of([run(words(slope))])
    assert found.value == pytest.approx(slope, abs=0.02)
    assert 0 < found.error < 0.02
    of_its_data = run(words(slope), **{"data.corpus.vocab_size": 1024})
    assert FrequencySlope(Rows("Observer", "surprisal"), 2).of([of_its_data]) == found


def test_too_few_words_have_no_slope():
    with pytest.raises(NotMeasured, match=r"folder of run: .*at least"):
        FrequencySlope(Rows("Observer", "surprisal"), 1024).of([run(words(0.3, n=3))])

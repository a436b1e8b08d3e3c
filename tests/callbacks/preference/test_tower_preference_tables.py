"""Tables of token preference: they say what the observations say, in one orientation."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lmdyn.callbacks.preference.tower_preference_tables import oriented, preference_tables

tables_of = partial(preference_tables, settings={}, resamplings=20)

COLUMNS = ["step", "tokens", "quantity", "site", "by", "group", "upos", "value"]
TAGS = ["PROPN", "NOUN", "VERB", "ADP"]
N = 80
WORDS = [f"w{i}" for i in range(N)]
TAG = [TAGS[i % 3] if i < 76 else "ADP" for i in range(N)]  # 4 ADP: too few for a distribution
TRUTH = np.array([{"PROPN": -1.0, "NOUN": 0.1, "VERB": 1.0, "ADP": 2.0}[tag] for tag in TAG])
TRUTH = TRUTH + 0.3 * np.random.default_rng(7).normal(size=N)
COUNT = np.floor(5000 / (np.random.default_rng(8).permutation(N) + 1))


def observed(scores, step=100, primary=1, words=WORDS, counts=COUNT, tags=TAG, references=()):
    """What ``TowerPreference`` says at one step."""
    rows = [
        *(("mean_probability", "tower", t, None, 0.25 if t == str(primary) else 0.125) for t in "12"),
        ("primary_tower", "", "", None, primary),
    ]
    for name, value in references:
        rows += [(q, "reference", name, None, value) for q in ("correlation", "rank_correlation")]
    for tag in sorted({tag for tag in tags if tag}):
        mean = np.mean([s for s, t in zip(scores, tags, strict=True) if t == tag])
        rows.append(("preference", "upos", tag, None, mean))
    for word, tag, score, count in zip(words, tags, scores, counts, strict=True):
        rows.append(("preference", "token", word, tag, score))
        rows.append(("count", "token", word, None, count))
    table = pd.DataFrame(rows, columns=["quantity", "by", "group", "upos", "value"])
    return table.assign(step=step, tokens=step * 10, site="")[COLUMNS]


def trained(noise=0.0, *, told=True):
    """Four steps in which the other tower is primary at the second; without ``told`` nobody says so."""
    random = np.random.default_rng(3)
    tables = []
    for i, step in enumerate((0, 10, 20, 30)):
        sign = -1 if i == 1 else 1
        scores = sign * (i + 1) * (TRUTH + noise * random.normal(size=N))
        known = [("other", sign * 0.6), ("previous", 0.125)]
        primary = 2 if sign < 0 and told else 1
        tables.append(observed(scores, step, primary, references=known))
    return pd.concat(tables, ignore_index=True)


@pytest.fixture(scope="module")
def several():
    """Three runs of which two lack types, each other ones."""
    random = np.random.default_rng(4)
    tables = {}
    for i, run in enumerate(("runs/study/elmo_1", "runs/study/gpt_1", "runs/study/gpt_2")):
        kept = [j for j in range(N) if i == 0 or j % 7 != i]
        scores = TRUTH + 0.5 * random.normal(size=N)
        words, tags = ([of[j] for j in kept] for of in (WORDS, TAG))
        tables[run] = observed(scores[kept], words=words, counts=COUNT[kept], tags=tags)
    return pd.concat([table.assign(run=run) for run, table in tables.items()], ignore_index=True)


def scores_of(observations, run):
    rows = observations[observations["run"].eq(run) & observations["by"].eq("token")]
    return rows[rows["quantity"].eq("preference")].set_index("group")["value"]


@pytest.mark.parametrize("told", [True, False])
def test_one_orientation_over_training(told):
    value = oriented(trained(told=told)).set_index(["quantity", "group", "step"])["value"].sort_index()
    turned = -1 if told else 1
    mean = TRUTH[np.array(TAG) == "VERB"].mean()
    # a turn that nobody told of stays one
    expected = mean * np.array([1, 2 if told else -2, 3, 4])
    assert np.allclose(value["preference", "VERB"], expected)
    for quantity in ("correlation", "rank_correlation"):
        assert np.allclose(value[quantity, "previous"], 0.125)  # recorded in one orientation
        assert np.allclose(value[quantity, "other"], [0.6, -turned * 0.6, 0.6, 0.6])
    assert oriented(observed(TRUTH)).empty


def test_of_three_towers_only_the_last_pair_is_followed():
    """The primary is compared with the next best: 1 and 2 in the end, before them 2 and 1, and 1 and 3."""
    tables = []
    for step, means in ((0, (0.3, 0.1, 0.2)), (10, (0.2, 0.3, 0.1)), (20, (0.3, 0.2, 0.1))):
        table = observed(TRUTH if step != 10 else -TRUTH, step)
        table = pd.concat([pd.DataFrame([{**table.iloc[0], "group": "3"}]), table], ignore_index=True)
        is_mean = table["quantity"].eq("mean_probability")
        table.loc[is_mean, "value"] = [means[int(k) - 1] for k in table.loc[is_mean, "group"]]
        tables.append(table)
    value = oriented(pd.concat(tables, ignore_index=True)).dropna(subset="value")
    value = value[value["by"].eq("upos")].set_index("group")
    for tag in TAGS:
        assert value.loc[tag]["step"].tolist() == [10, 20]
        assert np.allclose(value.loc[tag]["value"], TRUTH[np.array(TAG) == tag].mean())


def test_correlations_of_several_runs(several):
    tables = tables_of(several)
    found = tables["correlations"].set_index(["first", "second"])
    assert list(found.index) == [("elmo_1", "gpt_1"), ("elmo_1", "gpt_2"), ("gpt_1", "gpt_2")]
    for (first, second), row in found.iterrows():
        x, y = (scores_of(several, f"runs/study/{run}") for run in (first, second))
        both = [word for word in x.index if word in y.index]
        assert row["types"] == len(both) < N
        assert row["pearson"] == pytest.approx(stats.pearsonr(x[both], y[both]).statistic)
        assert row["spearman"] == pytest.approx(stats.spearmanr(x[both], y[both]).statistic)
        assert row["pearson_low"] < row["pearson"] < row["pearson_high"]
        assert row["shuffled_high"] < row["pearson_low"]  # the control is far below


def test_the_observers_settings_say_how_many_types(several):
    assert (tables_of(several, settings={"top": 40})["correlations"]["types"] <= 40).all()
    assert (tables_of(several)["correlations"]["types"] > 40).all()

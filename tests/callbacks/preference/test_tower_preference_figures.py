"""Figures and tables of token preference: what is drawn and told is what the observations say, in one orientation."""

import io

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lmdyn.callbacks.preference.tower_preference_figures import preference_figures
from lmdyn.callbacks.preference.tower_preference_tables import FREQUENCY_RANK, preference_tables

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
        ("mean_probability", "tower", "1", None, 0.25), ("mean_probability", "tower", "2", None, 0.125),
        ("head_loss", "tower", "1", None, 4.0), ("head_loss", "tower", "2", None, 5.0),
        ("primary_tower", "", "", None, primary), ("spread", "", "", None, np.std(scores)),
        ("reliability", "", "", None, 0.9), ("learning_rate", "", "", None, 0.001),
        ("frequency_rank_correlation", "", "", None, 0.1),
    ]  # fmt: skip
    for name, value in references:
        rows += [(q, "reference", name, None, value) for q in ("correlation", "rank_correlation")]
    for tag in sorted({tag for tag in tags if tag}):
        mean = np.mean([s for s, t in zip(scores, tags, strict=True) if t == tag])
        rows.append(("preference", "upos", tag, None, mean))
    for word, tag, score, count in zip(words, tags, scores, counts, strict=True):
        rows.append(("preference", "token", word, tag, score))
        rows.append(("standard_error", "token", word, None, 0.05))
        rows.append(("count", "token", word, None, count))
    table = pd.DataFrame(rows, columns=["quantity", "by", "group", "upos", "value"])
    return table.assign(step=step, tokens=step * 10, site="")[COLUMNS]


def trained(noise=0.0, *, told=True, references=True):
    """Four steps in which the other tower is primary at the second; without ``told`` nobody says so."""
    random = np.random.default_rng(3)
    tables = []
    for i, step in enumerate((0, 10, 20, 30)):
        sign = -1 if i == 1 else 1
        scores = sign * (i + 1) * (TRUTH + noise * random.normal(size=N))
        known = [("other", sign * 0.6), ("previous", 0.125)] if references else []
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


def draw(figures, *names):
    for name in names or figures:
        figures[name].savefig(io.BytesIO(), dpi=40)  # warnings are errors


def panel(figure, title):
    return next(ax for ax in figure.axes if ax.get_title(loc="left") == title)


def lines(ax):
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


# ------------------------------------------------------------------------------------------ one observation


def test_one_run_at_one_step():
    figures = preference_figures(observed(TRUTH))
    assert set(figures) == {"sorted", "frequency", "by_upos"}
    draw(figures)
    (ax,) = figures["sorted"].axes
    line = lines(ax)["preference"]
    assert np.array_equal(line.get_ydata(), np.sort(TRUTH)[::-1])
    assert line.get_xdata().tolist() == list(range(1, N + 1))
    corners = ax.collections[0].get_paths()[0].vertices  # the band: two standard errors on both sides
    assert np.isclose(corners[:, 1].max(), TRUTH.max() + 0.1)
    assert np.isclose(corners[:, 1].min(), TRUTH.min() - 0.1)


def test_frequency_orders_the_types():
    (ax,) = preference_figures(observed(TRUTH))["frequency"].axes
    points = next(line for line in ax.lines if len(line.get_xdata()) == N and line.get_marker() == ".")
    by_rank = TRUTH[np.argsort(-COUNT, kind="stable")]
    assert points.get_xdata().tolist() == list(range(1, N + 1))
    assert np.array_equal(points.get_ydata(), by_rank)
    assert not np.array_equal(TRUTH, by_rank)


def test_distributions_by_tag_are_normalised_and_of_enough_types():
    (ax,) = preference_figures(observed(TRUTH))["by_upos"].axes
    drawn = lines(ax)
    counted = {tag: f"{tag} (n = {(np.array(TAG) == tag).sum()})" for tag in ("PROPN", "NOUN", "VERB")}
    assert set(drawn) == set(counted.values())  # four ADP are too few
    for tag, label in counted.items():
        line = drawn[label]
        x, y = line.get_data()
        assert np.trapezoid(y, x) == pytest.approx(1, abs=0.03)
        assert abs(np.trapezoid(x * y, x) - TRUTH[np.array(TAG) == tag].mean()) < 0.05
    assert {"← secondary", "primary →"} <= {text.get_text() for text in ax.texts}


def test_only_the_most_frequent_thousand_are_drawn():
    n = 1200
    scores, words = np.arange(n) / n, [f"v{i}" for i in range(n)]
    table = observed(scores, words=words, counts=np.arange(n) + 1.0, tags=[None] * n)
    figures = preference_figures(table)
    (ax,) = figures["sorted"].axes
    assert np.array_equal(lines(ax)["preference"].get_ydata(), scores[:199:-1])
    assert "1,000" in ax.get_title(loc="left")
    assert preference_tables(table)["instances"]["types"].item() == n


def test_no_tags():
    table = observed(TRUTH, tags=[None] * N)
    figures = preference_figures(pd.concat([table, table.assign(step=200)], ignore_index=True))
    assert set(figures) == {"sorted", "frequency", "over_training"}
    draw(figures, "over_training")
    assert set(preference_tables(table)) == {"instances", "frequency"}
    assert preference_figures(table)["frequency"].axes[0].get_xlabel().startswith("rank by frequency")


def test_two_identical_towers():
    table = observed(np.zeros(N))
    both = pd.concat([table, table.assign(step=200)], ignore_index=True)
    draw(preference_figures(both), "by_upos", "over_training")
    assert (
        preference_tables(both)["frequency"].isna().to_numpy().sum() == 2
    )  # a constant correlates with nothing


def test_a_diverged_run_has_no_figures():
    table = observed(TRUTH)
    table["value"] = np.nan
    assert preference_figures(table) == {}
    tables = preference_tables(table)
    assert set(tables) == {"instances"}
    assert tables["instances"]["types"].item() == 0
    assert tables["instances"]["primary_tower"].isna().item()


# ------------------------------------------------------------------------------------------ over training


def test_one_orientation_over_training():
    figures = preference_figures(trained())
    draw(figures, "over_training")
    drawn = lines(panel(figures["over_training"], "mean preference by tag"))
    assert set(drawn) == {*TAGS, "the other tower\nwas primary"}
    for tag in TAGS:
        mean = TRUTH[np.array(TAG) == tag].mean()
        assert np.allclose(drawn[tag].get_ydata(), mean * np.arange(1, 5))
        assert drawn[tag].get_xdata().tolist() == [0, 10, 20, 30]
    # the control: a turn that the observations do not tell shows as one
    untold = lines(panel(preference_figures(trained(told=False))["over_training"], "mean preference by tag"))
    assert np.sign(untold["VERB"].get_ydata()).tolist() == [1, -1, 1, 1]
    assert set(untold) == set(TAGS)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("references", [True, False])
def test_correlations_over_training(told, references):
    figure = preference_figures(trained(told=told, references=references))["over_training"]
    turned = 1 if told else -1
    expected = {
        "the last observation": ([1, turned, 1, 1], [0, 10, 20, 30]),
        "the observation before": ([turned, turned, 1], [10, 20, 30]),
    }
    if references:  # the previous checkpoint's is recorded in one orientation
        del expected["the observation before"]
        expected["the previous checkpoint"] = ([0.125] * 4, [0, 10, 20, 30])
        expected["other"] = ([0.6, 0.6 * turned, 0.6, 0.6], [0, 10, 20, 30])
    titles = {ax.get_title(loc="left") for ax in figure.axes}
    assert {t for t in titles if "correlation with" in t} == {
        "correlation with frequency rank", *(f"correlation with {name}" for name in expected),
    }  # fmt: skip
    for name, (values, steps) in expected.items():
        found = [line for line in panel(figure, f"correlation with {name}").lines if line.get_marker() == "."]
        assert [line.get_linestyle() for line in found] == ["-", "--"]  # Pearson, Spearman
        for line in found:
            assert line.get_xdata().tolist() == steps
            assert np.allclose(line.get_ydata(), values)


@pytest.mark.parametrize("told", [True, False])
def test_table_over_training_is_what_is_drawn(told):
    """When it emerges is a table too, in one orientation; not of one step alone."""
    observations = trained(told=told)
    table = preference_tables(observations)["over_training"]
    assert table.columns.tolist() == ["step", "quantity", "group", "value"]
    assert not table.duplicated(["step", "quantity", "group"]).any()
    value = table.set_index(["quantity", "group", "step"])["value"]
    turned = -1 if told else 1
    assert value["orientation", ""].tolist() == [1, turned, 1, 1]
    mean = TRUTH[np.array(TAG) == "VERB"].mean()
    # a turn that nobody told of stays one
    assert np.allclose(value["preference", "VERB"], mean * np.array([1, 2 if told else -2, 3, 4]))
    for quantity in ("correlation", "rank_correlation"):
        assert np.allclose(value[quantity, "the last observation"], [1, -turned, 1, 1])
        assert np.allclose(value[quantity, "the observation before"], [-turned, -turned, 1])
        assert np.allclose(value[quantity, "previous"], 0.125)  # recorded in one orientation
        assert np.allclose(value[quantity, "other"], [0.6, -turned * 0.6, 0.6, 0.6])
    figure = preference_figures(observations)["over_training"]
    for title, quantity in (
        ("spread of preference (standard deviation, nats)", "spread"),
        ("correlation with frequency rank", "frequency_rank_correlation"),
    ):
        assert panel(figure, title).lines[0].get_ydata().tolist() == value[quantity, ""].tolist()
    assert "over_training" not in preference_tables(observed(TRUTH))


def test_a_last_step_that_diverged_is_in_the_table_without_values():
    broken = observed(TRUTH, 40)
    broken = broken[broken["quantity"].eq("head_loss")].assign(value=np.nan)
    table = preference_tables(pd.concat([trained(), broken], ignore_index=True))["over_training"]
    assert set(table[table["step"].eq(40)]["quantity"]) == {"orientation"}
    assert table[table["step"].eq(40)]["value"].isna().all()
    whole = preference_tables(trained())["over_training"]
    pd.testing.assert_frame_equal(table[table["step"].ne(40)].reset_index(drop=True), whole)


def test_of_three_towers_only_the_last_pair_is_followed():
    """The primary is compared with the next best: 1 and 2 in the end, before them 2 and 1, and 1 and 3."""
    tables = []
    for step, means in ((0, (0.3, 0.1, 0.2)), (10, (0.2, 0.3, 0.1)), (20, (0.3, 0.2, 0.1))):
        table = observed(TRUTH if step != 10 else -TRUTH, step, primary=int(np.argmax(means)) + 1)
        third = pd.DataFrame([{**table.iloc[0], "group": "3"}])
        table = pd.concat([third, table], ignore_index=True)
        is_mean = table["quantity"].eq("mean_probability")
        table.loc[is_mean, "value"] = [means[int(k) - 1] for k in table.loc[is_mean, "group"]]
        tables.append(table)
    figure = preference_figures(pd.concat(tables, ignore_index=True))["over_training"]
    for tag in TAGS:
        line = lines(panel(figure, "mean preference by tag"))[tag]
        assert line.get_xdata().tolist() == [10, 20]
        assert np.allclose(line.get_ydata(), TRUTH[np.array(TAG) == tag].mean())


def test_tables_and_single_figures_are_of_the_last_step():
    table = trained()
    (ax,) = preference_figures(table)["sorted"].axes
    assert np.allclose(lines(ax)["preference"].get_ydata(), 4 * np.sort(TRUTH)[::-1])
    tables = preference_tables(table)
    assert tables["instances"]["step"].item() == 30
    means = tables["by_upos"].set_index("upos")
    assert list(means.index) == ["PROPN", "NOUN", "ADP", "VERB"]
    for tag in TAGS:
        of = 4 * TRUTH[np.array(TAG) == tag]
        assert means.loc[tag].tolist() == pytest.approx([of.mean(), (of > 0).mean(), len(of)])


# ------------------------------------------------------------------------------------------ several runs


def test_figures_of_several_runs(several):
    figures = preference_figures(several)
    assert set(figures) == {"sorted", "frequency", "by_upos", "correlations"}
    draw(figures)
    (ax,) = figures["sorted"].axes
    first = scores_of(several, "runs/study/elmo_1").sort_values(ascending=False)
    assert np.array_equal(lines(ax)["elmo_1, which orders"].get_ydata(), first)
    thin = next(line for line in ax.lines if line.get_linewidth() < 0.5 and len(line.get_xdata()))
    second = scores_of(several, "runs/study/gpt_1")
    assert len(second) < N
    assert np.array_equal(thin.get_ydata(), second[[word for word in first.index if word in second]])
    assert np.array_equal(thin.get_xdata(), 1 + np.flatnonzero(first.index.isin(second.index)))
    for name in ("frequency", "by_upos"):
        titles = [ax.get_title(loc="left") for ax in figures[name].axes]
        assert titles == ["elmo_1", "gpt_1", "gpt_2"]
    assert len({line.get_color() for ax in figures["frequency"].axes for line in ax.lines[1:2]}) == 3


def test_correlations_of_several_runs(several):
    tables = preference_tables(several)
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
        assert (
            tables["frequency"].loc[first, second]
            == tables["frequency"].loc[second, first]
            == row["spearman"]
        )
    texts = [text.get_text() for text in preference_figures(several)["correlations"].axes[0].texts]
    value = f"{found.loc[('elmo_1', 'gpt_1'), 'pearson']:.2f}"
    assert [texts[i] for i in (0, 1, 3)] == ["1.00", value, value]


def test_correlation_without_the_noise_of_both_runs(several):
    """Spearman 1904: noise of known reliability is divided out; without a reliability above 0 there is no number."""
    is_reliability = several["quantity"].eq("reliability")
    for second, expected in (
        (0.4, 0.6),
        (1.0, np.sqrt(0.9)),
        (0.0, np.nan),
        (-0.5, np.nan),
        (np.nan, np.nan),
    ):
        table = several.copy()
        table.loc[is_reliability & several["run"].str.endswith("gpt_1"), "value"] = second
        row = preference_tables(table, resamplings=0)["correlations"].iloc[0]
        assert row["pearson_disattenuated"] == pytest.approx(row["pearson"] / expected, nan_ok=True)
    missing = preference_tables(several[~is_reliability], resamplings=0)["correlations"]
    assert missing["pearson_disattenuated"].isna().all()


def test_disattenuation_finds_the_correlation_of_what_was_disturbed():
    random, n = np.random.default_rng(5), 4000
    truth = random.normal(size=(2, n))
    truth[1] = 0.7 * truth[0] + np.sqrt(1 - 0.7**2) * truth[1]
    words, tables = [f"v{i}" for i in range(n)], []
    for run, (of, noise) in enumerate(zip(truth, (0.5, 1.0), strict=True)):
        table = observed(of + noise * random.normal(size=n), words=words, counts=np.ones(n), tags=[None] * n)
        table.loc[table["quantity"].eq("reliability"), "value"] = 1 / (1 + noise**2)
        tables.append(table.assign(run=f"run{run}"))
    row = preference_tables(pd.concat(tables), resamplings=0)["correlations"].iloc[0]
    assert row["pearson_disattenuated"] == pytest.approx(0.7, abs=0.04)
    assert row["pearson"] < 0.5


def test_the_observers_settings_say_how_many_types(several):
    tables = preference_tables(several, {"top": 40})
    assert tables["instances"]["types"].tolist() == [40] * 3
    assert tables["by_upos"].groupby("run")["types"].sum().tolist() == [40] * 3
    x = scores_of(several, "runs/study/elmo_1")
    top = np.array(WORDS)[np.argsort(-COUNT, kind="stable")][:40]
    expected = stats.spearmanr(x[top], np.arange(40)).statistic
    assert tables["frequency"].loc["elmo_1", FREQUENCY_RANK] == pytest.approx(expected, abs=1e-3)
    assert expected != pytest.approx(preference_tables(several)["frequency"].loc["elmo_1", FREQUENCY_RANK])
    figures = preference_figures(several, {"top": 40})
    least, most = (f(tables["correlations"]["types"]) for f in (min, max))
    titles = [ax.get_title(loc="left") for ax in figures["correlations"].axes[:2]]
    assert titles == [f"Pearson, {least} to {most} types", f"Spearman, {least} to 40 types"]
    assert len(figures["sorted"].axes[0].lines[1].get_xdata()) == 40


def test_other_tables_of_several_runs(several):
    tables = preference_tables(several)
    instances = tables["instances"].set_index("run")
    assert list(instances.index) == ["elmo_1", "gpt_1", "gpt_2"]
    numbers = ["head_loss_1", "head_loss_2", "mean_probability_2"]
    assert instances.loc["gpt_1", numbers].tolist() == [4, 5, 0.125]
    assert instances["types"].tolist() == [N, N - 12, N - 12]  # one of seven is left out
    assert tables["by_upos"]["run"].value_counts().to_dict() == {"elmo_1": 4, "gpt_1": 4, "gpt_2": 4}


def test_rare_types_with_larger_preference_correlate_with_the_rank():
    for scores, expected in ((1 / COUNT, 1), (COUNT, -1)):
        table = preference_tables(observed(scores))["frequency"]
        assert table.loc["this run", FREQUENCY_RANK] == pytest.approx(expected)
        assert table.loc[FREQUENCY_RANK, "this run"] == pytest.approx(expected)


def test_several_runs_over_training():
    runs = {"a/version_0": trained(0.1), "b/version_0": trained(0.2), "c/version_0": observed(TRUTH, 30)}
    table = pd.concat([of.assign(run=run) for run, of in runs.items()], ignore_index=True)
    figures = preference_figures(table)
    draw(figures, "over_training")
    figure = figures["over_training"]
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    # of names that are the same in the end, as much as tells them apart; a run of one step has no course
    assert [t for t in titles if "tag" in t] == [f"mean preference by tag, {run}/version_0" for run in "ab"]
    spread = panel(figure, "spread of preference (standard deviation, nats)")
    for run, line in zip(("a/version_0", "b/version_0"), spread.lines, strict=False):
        rows = table[table["run"].eq(run) & table["quantity"].eq("spread")]
        assert line.get_ydata().tolist() == rows["value"].tolist()

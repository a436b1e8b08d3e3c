"""The claims on two towers: numbers of pairs of models against naive ones, verdicts on records with a known answer."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lmdyn.claims import Above, At, Claim, Difference, NotMeasured, Part, Rows, SeedPair, Study, by_seed
from lmdyn.claims import tower_pairs as T
from lmdyn.claims.among_seeds import AtEqualSteps
from lmdyn.claims.judge import judge
from tests.claims import test_judge as of_judge
from tests.helpers.observed_runs import FakeRun

WORDS = [f"w{i}" for i in range(200)]
TAGS = np.array(["VERB", "PROPN", "NOUN", "ADJ", "ADP", "ADV", "AUX", "DET"])[np.arange(200) % 8]
PREFERENCE = Rows("TowerPreference", "preference", where=(("by", "token"),))
LEAD = T.Lead(
    *(Rows("TowerPreference", "mean_probability", where=(("by", "tower"), ("group", t))) for t in ("1", "2"))
)


def rows_of(values, step, lead=0.2):
    """What ``TowerPreference`` writes of a model at a step."""
    probabilities = (0.1 * math.exp(lead), 0.1)
    rows = [("mean_probability", "tower", str(k + 1), None, v) for k, v in enumerate(probabilities)]
    rows.append(("head_reliability", "", "", None, 0.99))
    rows += [("preference", "token", w, t, v) for w, t, v in zip(WORDS, TAGS, values, strict=True)]
    table = pd.DataFrame(rows, columns=["quantity", "by", "group", "upos", "value"])
    return table.assign(step=step, tokens=step, site="")


def clusters_of(seed):
    """Ten clusters of twenty words, alike in all models, under other names."""
    members = [("membership", "cluster", f"{(i // 20 + seed) % 10}+", w, 1.0) for i, w in enumerate(WORDS)]
    table = pd.DataFrame(members, columns=["quantity", "by", "group", "token", "value"])
    return table.assign(step=100, tokens=100, site="")


def model(seed, values, *, tower="gpt", **about):
    untrained = rows_of(np.random.default_rng(seed + 1000).normal(size=200), 0, lead=0.001)
    observed = {
        "tower_preference": ("TowerPreference", {}, pd.concat([untrained, rows_of(values, 100, **about)])),
        "word_clusters": ("WordClusters", {}, clusters_of(seed)),
    }
    return FakeRun(f"{tower}_{seed}", SeedPair(seed), {"model.tower": tower}, observed)


def shared(n, rho, *, signs=None, seed=0, common=None, **about):
    """Models whose preferences correlate by ρ, and by its negative where signs differ."""
    random = np.random.default_rng(seed)
    common = random.normal(size=200) if common is None else common
    signs = [1] * n if signs is None else signs
    own = random.normal(size=(n, 200))
    values = [s * (math.sqrt(rho) * common + math.sqrt(1 - rho) * own[i]) for i, s in enumerate(signs)]
    return [model(11 + i, v, **about) for i, v in enumerate(values)], np.array(values)


def values_of(number, runs):
    return {seed: e.value for seed, e in number.of_seeds(by_seed(runs)).items()}


# ------------------------------------------------------------------------------------------ the numbers


def test_a_mean_over_pairs_and_its_jackknife():
    runs, values = shared(6, 0.5)
    r = {(i, j): np.corrcoef(values[i], values[j])[0, 1] for i, j in itertools.combinations(range(6), 2)}
    whole = np.mean(list(r.values()))
    found = values_of(T.AgreementOfPairs(PREFERENCE), runs)
    assert np.mean(list(found.values())) == pytest.approx(whole)
    for i in range(6):
        without = np.mean([v for pair, v in r.items() if i not in pair])
        assert found[SeedPair(11 + i)] == pytest.approx(6 * whole - 5 * without)
    # the error is that of resampled models, which pairs as such do not have
    pseudo = np.std(list(found.values()), ddof=1) / math.sqrt(6)
    assert pseudo > np.std(list(r.values()), ddof=1) / math.sqrt(15)


def test_signs_of_pairs():
    runs, values = shared(6, 0.6, signs=[1, 1, 1, -1, -1, 1])
    signed, size = T.AgreementOfPairs(PREFERENCE), T.AgreementOfPairs(PREFERENCE, of_pair="size")
    r = np.corrcoef(values)[~np.eye(6, dtype=bool)]
    found = [np.mean(list(values_of(n, runs).values())) for n in (signed, size, Difference(size, signed))]
    assert found == pytest.approx([r.mean(), np.abs(r).mean(), (np.abs(r) - r).mean()])
    assert found[2] > 0.3


def test_two_kinds_never_share_a_seed():
    common = np.random.default_rng(3).normal(size=200)
    gpt, x = shared(4, 0.7, common=common)
    elmo, y = shared(4, 0.7, common=common, seed=1, tower="elmo")
    a, b = (
        Rows("TowerPreference", "preference", where=PREFERENCE.where, run=(("tower", t),))
        for t in ("gpt", "elmo")
    )
    found = values_of(T.AgreementOfPairs(a, b), [*gpt, *elmo])
    r = np.array([[np.corrcoef(x[i], y[j])[0, 1] for j in range(4)] for i in range(4)])
    assert np.mean(list(found.values())) == pytest.approx(r[~np.eye(4, dtype=bool)].mean())
    few = T.AgreementOfPairs(a, b).of_seeds(by_seed([*gpt, *elmo[:2]]))
    assert all(isinstance(one, NotMeasured) for one in few.values())
    assert "2 models have this number" in str(few[SeedPair(11)])


def test_what_frequency_and_parts_of_speech_tell():
    """Preferences that are the tag's and the frequency's alone have nothing in common beyond."""
    random = np.random.default_rng(4)
    level = np.array([random.normal() for _ in range(8)])[np.arange(200) % 8] + np.arange(200) // 20 * 0.3
    noise = random.normal(size=(5, 200))
    runs = [model(11 + i, level + noise[i]) for i in range(5)]
    by = ("frequency", "upos")
    chance, beyond = (T.AgreementOfPairs(PREFERENCE, of_pair=o, by=by) for o in ("chance", "beyond"))
    signed = np.mean(list(values_of(T.AgreementOfPairs(PREFERENCE), runs).values()))
    assert signed > 0.4
    assert np.mean(list(values_of(chance, runs).values())) == pytest.approx(signed, abs=0.05)
    assert np.mean(list(values_of(beyond, runs).values())) == pytest.approx(0, abs=0.05)
    frequency = T.AgreementOfPairs(PREFERENCE, of_pair="beyond", by=("frequency",))
    # the control: what the tag tells is beyond it
    assert np.mean(list(values_of(frequency, runs).values())) > 0.1
    with pytest.raises(ValueError, match="require strata"):
        T.AgreementOfPairs(PREFERENCE, of_pair="chance")
    with pytest.raises(ValueError, match="require strata"):
        T.AgreementOfPairs(PREFERENCE, by=by)


def test_leads():
    leads = [0.02, 0.3, 0.2, 0.4, 0.05]
    _, values = shared(5, 0.6)
    runs = [model(11 + i, v, lead=lead) for i, (v, lead) in enumerate(zip(values, leads, strict=True))]
    assert [LEAD.of([run]).value for run in runs] == pytest.approx(leads)
    found = T.AgreementOfPairs(PREFERENCE, lead=LEAD, least=0.1).of_seeds(by_seed(runs))
    assert [isinstance(one, NotMeasured) for one in found.values()] == [True, False, False, False, True]
    r = np.corrcoef(values[1:4])[~np.eye(3, dtype=bool)]
    assert np.mean([found[SeedPair(s)].value for s in (12, 13, 14)]) == pytest.approx(r.mean())
    pairs = list(itertools.combinations(range(5), 2))
    expected = np.corrcoef(
        [np.corrcoef(values[i], values[j])[0, 1] for i, j in pairs],
        [min(leads[i], leads[j]) for i, j in pairs],
    )[0, 1]
    number = T.AgreementWithLead(PREFERENCE, LEAD)
    table = number.table([number.read([run]) for run in runs])
    assert number.statistic(table, np.arange(5)) == pytest.approx(expected)
    without = [number.statistic(table, np.delete(np.arange(5), i)) for i in range(5)]
    of_seeds = [one.value for one in number.of_seeds(by_seed(runs)).values()]
    assert np.arctanh(of_seeds) == pytest.approx(5 * np.arctanh(expected) - 4 * np.arctanh(without))


def test_curves_are_correlated_over_seeds_at_equal_steps():
    random = np.random.default_rng(3)
    shared, noise = random.normal(size=(2, 6, 3))
    trend = np.array([5.0, 3.0, 0.0])
    curves = {"x": trend + shared, "y": -trend + shared + 0.5 * noise}
    made = [
        of_judge.run(s, {q: {0: 1.0} | dict(zip((1, 10, 100), c[i], strict=True)) for q, c in curves.items()})
        for i, s in enumerate(range(2, 8))
    ]
    number = AtEqualSteps(*(Rows("Observer", q) for q in curves))
    table = number.table([number.read([run]) for run in made])
    expected = [np.corrcoef(curves["x"][:, t], curves["y"][:, t])[0, 1] for t in range(3)]
    assert number.statistic(table, np.arange(6)) == pytest.approx(np.mean(expected))
    assert min(expected) > 0.5  # over steps the curves go apart
    assert np.corrcoef(curves["x"].mean(0), curves["y"].mean(0))[0, 1] < -0.5
    assert all(-1 < one < 1 for one in values_of(number, made).values())


def test_clusters_agree_whatever_they_are_called():
    level = np.repeat(np.linspace(-1, 1, 10), 20)
    random = np.random.default_rng(5)
    runs = [model(11 + i, level + random.normal(size=200)) for i in range(4)]
    members = Rows("WordClusters", "membership", where=(("by", "cluster"),))
    found = values_of(T.AgreementOfClusters(members, PREFERENCE), runs)
    assert np.mean(list(found.values())) > 0.85
    unrelated = [model(11 + i, random.normal(size=200)) for i in range(4)]
    assert abs(np.mean(list(values_of(T.AgreementOfClusters(members, PREFERENCE), unrelated).values()))) < 0.5


def test_shares_of_a_part_of_speech():
    values = np.where(TAGS == "NOUN", np.where(np.arange(200) < 80, 1.0, -1.0), 0.5)
    found = T.ShareToPrimary(PREFERENCE, "NOUN").of([model(11, values)])
    share = np.mean(np.arange(200)[TAGS == "NOUN"] < 80)
    assert found.value == pytest.approx(share)
    assert found.error == pytest.approx(math.sqrt(share * (1 - share) / (TAGS == "NOUN").sum()))
    with pytest.raises(NotMeasured, match="part of speech X"):
        T.ShareToPrimary(PREFERENCE, "X").of([model(11, values)])


def test_what_lacks_is_told():
    runs, _ = shared(3, 0.5)
    with pytest.raises(NotMeasured, match="at step 7"):
        T.preferences_of(PREFERENCE, [runs[0]], 7)
    with pytest.raises(NotMeasured, match="compares several seeds"):
        T.AgreementOfPairs(PREFERENCE).of([runs[0]])
    broken = model(11, np.full(200, np.nan))
    broken.observed["tower_preference"][2]["value"] = math.nan
    with pytest.raises(NotMeasured, match="found no preference"):
        T.preferences_of(PREFERENCE, [broken])


def test_the_interval_covers_the_mean_over_models():
    """Of many draws of eight models with signs by chance the 95 % interval has the true mean in about as many."""
    number, covered = T.AgreementOfPairs(PREFERENCE), 0
    random, draws = np.random.default_rng(6), 300
    for _ in range(draws):
        weights = random.uniform(0.2, 1.0, size=8)  # how much of the common preference a model has
        r = np.outer(weights, weights)
        without = [number.statistic(r, np.delete(np.arange(8), i)) for i in range(8)]
        pseudo = 8 * number.statistic(r, np.arange(8)) - 7 * np.array(without)
        half = 2.365 * pseudo.std(ddof=1) / math.sqrt(8)
        covered += abs(pseudo.mean() - 0.6**2) <= half
    assert 0.9 < covered / draws <= 0.99


# ------------------------------------------------------------------------------------------ the study


def test_seeds_that_lack_a_part_are_in_no_pair():
    """A number of all seeds is of those alone that have every number of the claim."""
    runs, values = shared(6, 0.5)
    name, settings, table = runs[0].observed["tower_preference"]
    kept = table[table["quantity"].ne("head_reliability")].reset_index(drop=True)
    runs[0] = replace(runs[0], observed={"tower_preference": (name, settings, kept)})
    other = Rows("TowerPreference", "head_reliability")
    parts = (Part(T.AgreementOfPairs(PREFERENCE), Above(0.0)), Part(At(other), Above(0.0)))
    claim = Claim("both", "", "", parts, floor="none")
    (row,) = judge(Study("he2022_twotower", "", "", (claim,)), runs)
    assert [s.init for s in row.seeds] == [12, 13, 14, 15, 16]
    expected = np.corrcoef(values[1:])[~np.eye(5, dtype=bool)].mean()
    assert row.parts[0].mean == pytest.approx(expected)

"""What a change of the learning rate does, from pairs of forks; and claims on it where the truth is known."""

import functools
import math
from dataclasses import replace

import pandas as pd
import pytest

from lmdyn.claims import STUDIES, At, NotMeasured, Rows, SeedPair
from lmdyn.claims.forks import ForkEffect, RateAtFork, SinceFork, at_rate
from lmdyn.claims.judge import judge
from lmdyn.claims.runs import condition_of
from tests.helpers.observed_runs import FakeRun, rows
from tests.helpers.sparsity_observations import curve, observations

STUDY = STUDIES["saphra2019_sparsity"]
RHO = Rows("Observer", "rho")
CONDITION = {"model": "LSTM", "model.optimizer.lr": 20.0, "trainer.max_epochs": 11}
ABOUT = {"forked.run": "organism/lm", "forked.step": 100}


def forked(rate, values, seed=2, **about):
    """A fork that was observed since step 100, at a multiple of the rate 20."""
    condition = {**CONDITION, "model.optimizer.lr": 20.0 * rate, **ABOUT, "forked.rate": rate, **about}
    table = pd.concat([rows("rho", values), rows("learning_rate", dict.fromkeys(values, 20.0 * rate))])
    observed = {"observer": ("my.Observer", {}, table)}
    return FakeRun(f"rate_{rate:g}_{seed}", SeedPair(seed, seed), condition, observed)


KEPT = forked(1.0, {100: 0.4, 200: 0.5})
QUARTER = forked(0.25, {100: 0.4, 200: 0.8})
EFFECT = ForkEffect(at_rate(RHO, 0.25), at_rate(RHO, 1.0))


def test_the_effect_is_the_difference_of_the_changes_since_the_fork():
    both = [KEPT, QUARTER]
    assert EFFECT.of(both).value == pytest.approx(0.3)
    assert replace(EFFECT, log=True).of(both).value == pytest.approx(math.log(0.8 / 0.5))
    assert SinceFork(at_rate(RHO, 1.0)).of(both).value == pytest.approx(0.1)
    assert SinceFork(at_rate(RHO, 0.25), log=True).of(both).value == pytest.approx(math.log(2))
    assert math.isnan(SinceFork(at_rate(RHO, 1.0), log=True).of([forked(1.0, {100: -0.4, 200: 0.5})]).value)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (forked(0.25, {100: 0.4, 200: 0.8}, **{"model.dropout": 0.5}), "more than the learning rate: model.dropout: "),
        (forked(0.25, {100: 0.4, 200: 0.8}, **{"forked.step": 50}), "learning rate: forked.step: 50 in rate_0.25_2"),
        (forked(0.25, {100: 0.4, 200: 0.8}, **{"forked.run": "a/b"}), "learning rate: forked.run: "),
        (forked(0.25, {100: 0.4, 150: 0.8}), "rate_0.25_2 is observed until step 150 and rate_1_2 until 200"),
        (forked(0.5, {100: 0.4, 200: 0.8}), r"no run has observations of Observer \(forked.rate: 0.25\)"),
    ],
)  # fmt: skip
def test_forks_that_differ_in_more_are_not_compared(other, message):
    with pytest.raises(NotMeasured, match=message):
        EFFECT.of([KEPT, other])


def test_a_fork_that_was_not_observed_where_it_began():
    with pytest.raises(NotMeasured, match="did not observe step 100"):
        SinceFork(at_rate(RHO, 1.0)).of([forked(1.0, {150: 0.4, 200: 0.8})])


def test_whether_the_rate_was_reduced_before():
    rate = RateAtFork(at_rate(Rows("Observer", "learning_rate"), 1.0))
    assert rate.of([KEPT, QUARTER]).value == 1.0
    reduced = forked(1.0, {100: 0.4}, **{"model.optimizer.lr": 80.0})  # it was 80, and is 20 where it forks
    assert rate.of([reduced]).value == 0.25
    with pytest.raises(NotMeasured, match=r"names no model.optimizer.lr"):
        rate.of([forked(1.0, {100: 0.4}, **{"model.optimizer.lr": None})])


def test_other_claims_are_about_the_run_and_not_about_its_forks():
    run = replace(KEPT, name="run", condition=CONDITION)
    assert At(RHO).rows.locate([KEPT, run, QUARTER])[0] is run
    assert At(RHO).rows.locate([QUARTER])[0] is QUARTER  # given alone it is a run as any other
    with pytest.raises(NotMeasured, match="are forks, and the run itself is not among them: rate_1_2, rate_"):
        At(RHO).of([KEPT, QUARTER])
    with pytest.raises(
        ValueError, match="several runs of one seed"
    ):  # the control: no fork, nothing is left out
        At(RHO).of([run, replace(run, name="again")])


def test_a_fork_says_in_its_condition_from_where_it_went_on():
    about = {
        "run": "runs/s/organism/lm_3",
        "step": 3112,
        "rate": 0.25,
        "changes": {"a": "b"},
        "data_seed": None,
    }
    callbacks = [
        {"class_path": "lmdyn.callbacks.ForkedFrom", "init_args": about},
        {"class_path": "ModelSummary"},
    ]
    config = {"seed_everything": 3, "trainer": {"max_epochs": 11, "callbacks": callbacks}}
    assert condition_of(config) == {
        "trainer.max_epochs": 11, "forked.run": "organism/lm", "forked.step": 3112, "forked.rate": 0.25
    }  # fmt: skip
    del callbacks[0]
    assert condition_of(config) == {"trainer.max_epochs": 11}


# ------------------------------------------------------------------------------------------ claims of sparsity


@functools.cache
def kept_rows(*truth):
    """Those of the two steps and the quantities that claims on forks read."""
    found = observations(0.0, **{name: {key: dict(v) for key, v in values} for name, values in truth})
    name, settings, table = found["sparsity"]
    quantities = ("rho_gradient", "rho_activation", "chi_gradient_types", "chi_gradient_types_error", "words")
    read = table["step"].isin([0, 1000]) & table["quantity"].isin([*quantities, "unigram_entropy"])
    read &= ~table["pos_class"].str.startswith(("open", "closed"))
    return name, settings, table[read]


def study_forks(kept, quarter, loss=4.0):
    """Three forks of each of five seeds, whose beginning is step 0 of the observations; the third is like the first.

    A truth is what ``observations`` makes of ρ and χ, as pairs.
    """
    said = {STUDY.name: {claim.name: claim.fingerprint for claim in STUDY.claims}}
    found = []
    for seed in (2, 3, 4, 5, 6):
        for rate, truth in ((1.0, kept), (0.25, quarter), (0.999, kept)):
            condition = {"model.optimizer.lr": 20.0 * rate, **ABOUT, "forked.step": 0, "forked.rate": rate}
            name, settings, table = kept_rows(*truth)
            judged = table["quantity"].str.startswith(("rho", "chi")) & ~table["quantity"].str.endswith(
                "error"
            )
            differ = 0.0001 * (seed - 4) * (rate == 0.25)
            table = table.assign(value=table["value"] + differ * (judged & table["step"].gt(0)))
            values = {"loss": loss, "learning_rate": 20.0 * rate}
            curves = pd.concat([rows(q, {0: v, 1000: v}, by="", group="") for q, v in values.items()])
            observed = {
                "sparsity": (name, settings, table),
                "learning_curves": ("lmdyn.callbacks.LearningCurves", {}, curves),
            }
            found.append(FakeRun(f"{rate}_{seed}", SeedPair(seed, seed), condition, observed, said))
    return found


def verdicts(runs, *names):
    study = replace(STUDY, claims=tuple(c for c in STUDY.claims if c.name in names))
    return {row.claim.name: row for row in judge(study, runs)}


CHI = ("fork_chi_reduced", "fork_chi_kept")
LEVEL, RISING = ((("chi", (("1000+", tuple(curve(0.09, end).items())),)),) for end in (0.09, 0.1))


def test_a_rise_that_reductions_make():
    found = verdicts(study_forks(LEVEL, RISING), *CHI, "chi_rises_from_untrained")
    assert [found[name].verdict for name in CHI] == ["holds", "fails"]
    reduced = found["fork_chi_reduced"]
    assert reduced.parts[0].mean == pytest.approx(math.log(0.1 / 0.09), abs=1e-3)
    assert reduced.floor.mean == 0.0
    assert not reduced.exploratory
    assert reduced.runs == tuple(f"{rate}_{s}" for s in range(2, 7) for rate in (0.25, 1.0))
    other = found["chi_rises_from_untrained"]
    assert other.verdict == "not measured"
    assert "these are forks, and the run itself is not among them" in other.reasons[0]


def test_a_rise_without_reductions():
    found = verdicts(study_forks(RISING, LEVEL), *CHI)
    assert [found[name].verdict for name in CHI] == ["fails", "holds"]


def rho(end, *places):
    return (("rho", tuple((place, tuple(curve(0, end).items())) for place in places)),)


INPUTS = [("activation", site, "input") for site in ("embedding", "rnn_a", "rnn_b")]


@pytest.mark.slow
def test_correlations_that_a_reduction_makes():
    kinds = ("target_gradient_reduced", "target_gradient_kept", "input_first_reduction")
    names = [f"fork_{kind}{end}" for kind in kinds for end in ("", "_no_top20", "_count100")]
    found = verdicts(study_forks((), rho(0.3, *INPUTS, ("gradient", "rnn_b", "target"))), *names)
    expected = {name: "fails" if "kept" in name else "holds" for name in names}
    assert {name: row.verdict for name, row in found.items()} == expected
    found = verdicts(
        study_forks((), rho(0.3, *INPUTS[:2])), names[0], names[6]
    )  # all three sites are to rise
    assert [row.verdict for row in found.values()] == ["fails", "fails"]


def test_what_voids_claims_on_forks():
    runs = study_forks((), ())
    for run in runs:
        run.condition = {**run.condition, "model.optimizer.lr": 4 * run.condition["model.optimizer.lr"]}
    found = verdicts(runs, "fork_input_first_reduction", "fork_chi_reduced")
    assert found["fork_input_first_reduction"].verdict == "void"
    reason = found["fork_input_first_reduction"].reasons[0]
    assert "the rate was not reduced before the fork: 0.25 is not ≥ 0.999" in reason
    assert found["fork_chi_reduced"].verdict == "fails"  # any reduction is meant
    assert verdicts(study_forks((), (), loss=5.95), "fork_chi_reduced")["fork_chi_reduced"].verdict == "void"

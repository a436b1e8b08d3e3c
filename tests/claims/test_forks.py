"""What a change of the learning rate does, from pairs of forks; and claims on it where the truth is known."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from lmdyn.claims import At, NotMeasured, Rows, SeedPair
from lmdyn.claims.forks import ForkEffect, RateAtFork, SinceFork, at_rate
from lmdyn.runs.observed_run import condition_of
from tests.helpers.observed_runs import FakeRun, rows

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
        (forked(0.25, {100: 0.4, 150: 0.8}), "rate_0.25_2 ends at step 150, but rate_1_2 at 200"),
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
    with pytest.raises(NotMeasured, match=r"no number above 0 as model\.optimizer\.lr"):
        rate.of([forked(1.0, {100: 0.4}, **{"model.optimizer.lr": None})])


def test_other_claims_are_about_the_run_and_not_about_its_forks():
    run = replace(KEPT, name="run", condition=CONDITION)
    assert At(RHO).rows.locate([KEPT, run, QUARTER])[0] is run
    assert At(RHO).rows.locate([QUARTER])[0] is QUARTER  # given alone it is a run as any other
    with pytest.raises(NotMeasured, match="are forks, without the run itself: rate_1_2, rate_"):
        At(RHO).of([KEPT, QUARTER])
    with pytest.raises(ValueError, match="several runs of one seed"):  # the control: nothing is left out
        At(RHO).of([run, replace(run, name="again")])


def test_a_fork_says_in_its_condition_from_where_it_went_on():
    about = {"run": "runs/s/organism/lm_3", "step": 3112, "rate": 0.25}
    about |= {"changes": {"a": "b"}, "data_seed": None}
    callbacks = [
        {"class_path": "ModelSummary"},
        {"class_path": "lmdyn.callbacks.ForkedFrom", "init_args": about},
    ]
    config = {"seed_everything": 3, "trainer": {"max_epochs": 11, "callbacks": callbacks}}
    forked = {"forked.run": "organism/lm", "forked.step": 3112, "forked.rate": 0.25}
    assert condition_of(config) == {"trainer.max_epochs": 11, **forked}
    del callbacks[1]
    assert condition_of(config) == {"trainer.max_epochs": 11}

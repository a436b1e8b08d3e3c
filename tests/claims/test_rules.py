"""The second version of the rules: smaller than required, not within N tokens, and how many seeds would decide."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lmdyn import claims as C
from lmdyn.analysis.statistics.mean_over_seeds import mean_over_seeds
from lmdyn.analysis.statistics.multiplicity import holm
from lmdyn.claims import Above, At, Below, Change, Difference, Largest, Mean, Part, Rows, Smallest, Within
from lmdyn.claims.judge import judge
from lmdyn.claims.precision import MOST_SEEDS, seeds_needed
from lmdyn.claims.studies.sparsity_numbers import LogRatio
from lmdyn.claims.tower_pairs import AgreementOfPairs
from lmdyn.claims.verdicts.tables import questions_of
from lmdyn.claims.verdicts.words import verdict_words
from tests.claims.test_judge import X, claim, run, runs, verdict

SPREAD = np.array([-0.02, -0.01, 0.0, 0.01, 0.02])
ZERO = At(Rows("Observer", "zero"))
EFFECT = Difference(X, ZERO)  # 0 without an effect; X alone says nothing of the kind


def effects(middle, spread=SPREAD):
    return [run(s, {"x": middle + d, "zero": 0.0, "y": d}) for s, d in enumerate(spread, 2)]


def test_what_is_outside_with_the_claimed_sign_is_smaller_than_required():
    row = verdict([Part(EFFECT, Above(0.1))], effects(0.05))
    assert (row.verdict, row.rules_1[0]) == ("smaller than required", "fails")
    values = 0.05 + SPREAD
    assert row.p == pytest.approx(stats.ttest_1samp(values, 0.1).pvalue)
    assert row.p_sign == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue)
    assert verdict([Part(EFFECT, Below(-0.1))], effects(-0.05)).verdict == "smaller than required"
    assert verdict_words(row).startswith("smaller than required (of this text)")


@pytest.mark.parametrize(
    ("part", "middle", "words"),
    [
        (Part(X, Above(0.1)), 0.05, "fails (of"),  # no number without an effect is declared
        (Part(EFFECT, Above(0.1)), -0.05, "fails: opposite"),
        (Part(EFFECT, Above(0.1)), 0.01, "fails: not of that size"),
        (Part(EFFECT, Below(-0.1)), 0.05, "fails: opposite"),
        (Part(EFFECT, Within(0.1, 0.2)), 0.05, "fails (of"),  # a band has no side
        (Part(EFFECT, Above(-0.1)), -0.15, "fails (of"),  # 0 is in the region
    ],
)
def test_other_numbers_outside_fail(part, middle, words):
    row = verdict([part], effects(middle))
    assert (row.verdict, row.p_sign) == ("fails", None)
    assert verdict_words(row).startswith(words)


@pytest.mark.parametrize(("error", "expected"), [(0.001, "smaller than required"), (0.006, "fails")])
def test_with_three_seeds_each_ones_own_interval_has_the_sign(error, expected):
    number = Difference(*(At(Rows("Observer", q, error=f"{q}_error")) for q in "xz"))
    small = [run(s, {"x": s / 1000, "z": 0.0}, {"x": error, "z": 0.0}) for s in (10, 11, 12)]
    assert verdict([Part(number, Above(0.1))], small).verdict == expected


def test_of_all_parts_each_holds_or_is_smaller():
    low, edge, high, higher = (Part(EFFECT, Above(b), label=str(b)) for b in (0.1, 0.2, 0.3, 0.4))
    opposite, observed = Part(EFFECT, Below(-0.1), label="opposite"), effects(0.2)
    assert verdict([low, high], observed).verdict == "smaller than required"
    assert verdict([high, higher], observed).verdict == "smaller than required"
    assert verdict([high, edge], observed).verdict == "fails"  # the second one is undecided
    assert verdict([high, opposite], observed).verdict == "fails"
    assert verdict([high, higher], observed, combine="any").verdict == "fails"


def test_exclusion_and_sign_are_both_in_the_family():
    wide = 8 * SPREAD
    observed = [
        run(s, {"zero": 0.0, "a": 0.05 + d, "b": 0.19 + w, "c": 0.19 + w})
        for s, (d, w) in enumerate(zip(SPREAD, wide, strict=True), 2)
    ]

    def judged(**bounds):
        claims = [
            claim(Part(Difference(At(Rows("Observer", q)), ZERO), Above(bound)), name=q)
            for q, bound in bounds.items()
        ]
        return judge(C.Study("s2000_s", "", "", tuple(claims)), observed)

    found = judged(a=0.1, b=2.0, c=1.0)
    assert [row.verdict for row in found] == ["smaller than required"] * 3
    adjusted = holm([p for row in found for p in (row.p, row.p_sign)])
    for i, row in enumerate(found):
        assert row.p_holm == max(adjusted[2 * i : 2 * i + 2])
    assert [row.after_holm for row in found] == ["smaller than required", "fails", "fails"]
    assert [row.rules_1 for row in found] == [("fails", "fails")] * 3
    lost = judged(c=0.36, a=0.1)["c"]  # its exclusion is lost
    assert (lost.verdict, lost.after_holm) == ("smaller than required", "undecided")


@pytest.mark.parametrize(("middle", "expected"), [(0.0, "fails"), (0.1, "undecided"), (0.3, "holds")])
def test_a_shorter_run_may_confirm_and_cannot_refute(middle, expected):
    """The runs end at step 100, with 1,000 tokens."""
    part = Part(X, Above(0.1))
    row = verdict([part], effects(middle), within=1e6)
    refuted = expected != "holds"
    assert row.verdict == ("not within N tokens" if refuted else "holds")
    assert row.after_holm == row.verdict
    assert (row.p_holm is None) == refuted
    assert row.rules_1 == (expected, expected)
    assert ("trained on 1,000 tokens; the claim is about 1,000,000 tokens" in row.reasons) == refuted
    assert "not within 1,000,000 tokens" in verdict_words(row) or not refuted
    assert verdict([part], effects(middle), within=1000).verdict == expected  # long enough
    unknown = effects(middle)
    for one in unknown:
        one.observed["o"][2]["tokens"] = None
    assert verdict([part], unknown, within=1000).verdict == row.verdict
    assert claim(part, within=1e6).fingerprint == claim(part).fingerprint


def test_which_numbers_say_what_they_are_without_an_effect():
    assert (At(Rows("Observer", "orbit_share")).null(), X.null()) == (None, None)
    assert (EFFECT.null(), Change(Rows("Observer", "x")).null()) == (0.0, 0.0)
    assert At(Rows("Sparsity", "rho_gradient")).null() == 0.0
    assert (Mean((EFFECT, EFFECT)).null(), Mean((EFFECT, X)).null()) == (0.0, None)
    largest, smallest = Largest((EFFECT, EFFECT)), Smallest((EFFECT, X))  # biased by selection
    for selected in (largest, smallest, Difference(X, Mean((X, largest))), LogRatio(X, smallest)):
        assert selected.null() is None
    words = Rows("TowerPreference", "preference")
    assert AgreementOfPairs(words).null() == 0.0
    assert AgreementOfPairs(words, of_pair="size").null() is None


@pytest.mark.parametrize("bound", [0.0, 0.1, 0.19])
def test_seeds_needed_is_the_first_number_whose_interval_decides(bound):
    values = [0.1, 0.2, 0.3, 0.35]
    n, spread, mean = len(values), np.std(values, ddof=1), np.mean(values)
    upper = spread * math.sqrt((n - 1) / stats.chi2.ppf(0.2, n - 1))

    def half(k):
        return stats.t.ppf(0.975, k - 1) * upper / math.sqrt(k)

    needed = seeds_needed(mean_over_seeds(values), bound)
    assert needed == next(k for k in range(n + 1, 10_000) if abs(mean - bound) > half(k))
    assert math.isinf(seeds_needed(mean_over_seeds(values, [0.2] * n), bound))
    assert seeds_needed(mean_over_seeds(values), mean - 1e-6) == MOST_SEEDS + 1


def test_an_undecided_number_says_how_precise_it_is():
    part = Part(EFFECT, Above(0.1))
    (said, *_) = verdict([part], effects(0.09)).reasons
    half = stats.t.ppf(0.975, 4) * np.std(SPREAD, ddof=1) / math.sqrt(5)
    needed = seeds_needed(mean_over_seeds((0.09 + SPREAD).tolist()), 0.1)
    assert (
        f"half-width {half:.3g}, the smallest difference that matters 0.1; {needed} seeds would decide"
        in said
    )
    number = At(Rows("Observer", "x", error="x_error"))
    (said, *_) = verdict([Part(number, Above(0.1))], runs([0.08, 0.1, 0.12, 0.07, 0.13], 0.5)).reasons
    assert said.endswith("no number of seeds decides: the texts alone do not")


def test_rows_with_a_stage_or_words_are_those_of_one_curve():
    one = run(2, {"x": {0: 0.0, 10: 0.2, 20: 0.8}})
    one.observed["o"][2]["training_stage"] = pd.array([None, 1, 1], dtype="Int64")
    assert X.of([one]).value == 0.8


@pytest.mark.parametrize("within", [0, -5.0, math.nan, math.inf, "1e6"])
def test_amounts_of_tokens_are_finite_and_above_0(within):
    with pytest.raises((TypeError, ValueError), match="claim 'claim': within"):
        claim(Part(X, Above(0)), within=within)


@pytest.mark.parametrize(("loss", "expected"), [(0.1, "holds"), (0.4, "void"), (None, "void")])
def test_a_claim_about_a_model_that_did_not_learn_is_void(loss, expected):
    tested = {} if loss is None else {"test_loss": loss}
    found = [replace(each, tested=tested) for each in effects(0.5)]
    condition = C.Condition("the loss is below 0.3", C.Tested("test_loss"), Below(0.3))
    part = Part(EFFECT, Above(0.1))
    row = verdict([part], found, learned=(condition,))
    assert row.claim.fingerprint == claim(part).fingerprint
    assert (row.verdict, row.after_holm, row.rules_1[0]) == (expected, expected, "holds")
    assert ("it is not known whether the model learned" in " ".join(row.reasons)) == (loss is None)


def test_a_direction_with_another_explanation_is_told():
    row = verdict([Part(EFFECT, Above(0.1))], effects(0.5), forced="it starts at its maximum")
    assert verdict_words(row).startswith("holds with another explanation")
    assert row.reasons[0] == "the direction has another explanation: it starts at its maximum"


@pytest.mark.parametrize(
    ("own", "answer", "others"),
    [((), "holds", "1 holds, 1 undecided"), (("as published",), "undecided", "2 holds")],
)
def test_the_publications_own_measure_answers_a_question(own, answer, others):
    variants = {"quick": 0.1, "loss, as published": 0.5, "slow": 0.2}
    stated = [claim(Part(EFFECT, Above(x)), name=v[:4], question="q", variant=v) for v, x in variants.items()]
    (question,) = questions_of(judge(C.Study("s2000_s", "", "", tuple(stated), own=own), effects(0.5)))
    assert (question.answer(), question.others()) == (answer, others)
    assert [question.told(row).endswith(" (primary)") for row in question.rows] == [not own, bool(own), False]

"""The claims of the sparsity study on runs in which the truth is known."""

import math
from dataclasses import replace

import pytest

from lmdyn.claims import STUDIES, At, Layer, NotMeasured, Rows, SeedPair
from lmdyn.claims.judge import judge
from lmdyn.claims.studies.sparsity_numbers import LogRatio, OtherSites, SinceReduction, Tokens
from tests.helpers.observed_runs import FakeRun
from tests.helpers.sparsity_observations import BANDS, curve, observations

STUDY = STUDIES["saphra2019_sparsity"]


def runs(**truth):
    said = {STUDY.name: {claim.name: claim.fingerprint for claim in STUDY.claims}}
    return [
        FakeRun(f"lm_{s}", SeedPair(s, s), observed=observations(0.004 * (s - 4), **truth), registered=said)
        for s in (2, 3, 4, 5, 6)
    ]


def verdicts(*names, **truth):
    """Of all claims, or of those that are named."""
    study = replace(STUDY, claims=tuple(c for c in STUDY.claims if c.name in names)) if names else STUDY
    return {row.claim.name: row for row in judge(study, runs(**truth))}


GRADIENT = ("gradient", "rnn_b", "target")


@pytest.fixture(scope="module")
def as_published():
    """A model in which everything is as the publication says, where it does not contradict itself."""
    rho = {
        GRADIENT: curve(0.0, 0.6),
        (*GRADIENT, "closed"): curve(0.5, 0.5),
        (*GRADIENT, "closed_no_top20"): curve(0.5, 0.5),
        (*GRADIENT, "closed_matched"): curve(0.5, 0.5),
        ("activation", "rnn_a", "input"): curve(0.0, 0.3),
        ("activation", "embedding", "input"): curve(0.0, 0.6),
        ("activation", "rnn_b", "input"): curve(0.0, 0.5),
    }
    chi = {
        "10-99": curve(0.0816, 0.088), "100-999": curve(0.0816, 0.092), "1000+": curve(0.0816, 0.1),
        "closed_300-999": curve(0.0816, 0.095), "closed_1000-2999": curve(0.0816, 0.095),
        "closed_matched": curve(0.0816, 0.095),
    }  # fmt: skip
    rates = [20, 20, 20, 20, 5, 5]
    return verdicts(rho=rho, chi=chi, per_step=1e6, rates=rates)


@pytest.mark.slow
def test_what_is_as_published_holds(as_published):
    not_holding = {name: row.verdict for name, row in as_published.items() if row.verdict != "holds"}
    assert not_holding == {
        **dict.fromkeys(("target_activation_dispersed", "target_activation_dispersed_no_top20",
                         "target_activation_dispersed_count100"), "fails"),  # the abstract, against figure 3a
        "attention_becomes_sparse": "not measured",
        **{claim.name: "not measured" for claim in STUDY.claims if claim.name.startswith("fork_")},
    }  # fmt: skip
    assert not any(row.exploratory for row in as_published.values() if row.verdict != "not measured")
    missing, *_, line = as_published["attention_becomes_sparse"].reasons
    assert "no rows of 'attention_entropy'" in missing
    assert "attention_sites: auto" in line
    assert as_published["target_gradient_strong"].floor.mean == pytest.approx(0, abs=1e-3)
    assert as_published["chi_rises_from_untrained"].floor.mean == pytest.approx(
        math.log(0.0885 / 0.0816), abs=1e-6
    )


@pytest.mark.slow
def test_a_model_in_which_nothing_changes():
    found = verdicts(rho={}, chi=dict.fromkeys(BANDS, curve(0.0816, 0.0816)))
    for name, row in found.items():
        if name.startswith(("closed_first", "input_embedding_surpasses_late")):
            assert row.verdict == "void", name
            assert "227 million tokens" in row.reasons[0]
        elif name.startswith(("target_activation_uncorrelated", "input_gradients_uncorrelated", "l1_")):
            assert row.verdict == "holds", name
        elif name in ("input_first_reduction", "attention_becomes_sparse") or name.startswith("fork_"):
            assert row.verdict == "not measured", name
        else:
            assert row.verdict == "fails", name
    assert "never reduced" in found["input_first_reduction"].reasons[0]


def test_the_way_from_uniform_to_gaussian_is_a_rise_and_no_structure():
    """What the review found of the rise 0.0817 to 0.0894: variants of one question decide differently."""
    found = verdicts("chi_rises_from_untrained", "chi_beyond_gaussian")  # χ goes from 0.0816 to 0.0885
    assert found["chi_rises_from_untrained"].verdict == "holds"
    assert found["chi_beyond_gaussian"].verdict == "fails"
    assert found["chi_rises_from_untrained"].claim.question == found["chi_beyond_gaussian"].claim.question


def test_what_voids():
    names = ("target_gradient_strong", "closed_stabilise_open_rise", "function_words_in_bands")
    unlearned = verdicts(*names, loss=5.95)
    assert [row.verdict for row in unlearned.values()] == ["void"] * 3
    few = verdicts(*names, words=50)
    assert few["target_gradient_strong"].verdict == "void"
    assert "at least 100 words" in few["target_gradient_strong"].reasons[0]
    assert few["closed_stabilise_open_rise"].verdict == "fails"  # 30 are enough for a class


def test_another_corpus_without_loss_says_what_measures_it():
    only = [FakeRun(r.name, r.seeds, observed={"sparsity": r.observed["sparsity"]}) for r in runs()[:1]]
    rows_ = judge(STUDY, only)
    assert {row.verdict for row in rows_} == {"not measured"}
    assert "LearningCurves" in rows_["target_gradient_strong"].reasons[0]
    assert "observers.yaml" in rows_["target_gradient_strong"].reasons[-1]


def test_claims_say_what_they_must():
    assert len({claim.fingerprint for claim in STUDY.claims}) >= len(STUDY.claims) - 1
    for claim in STUDY.claims:
        assert claim.matters, claim.name
        assert claim.question, claim.name
        assert claim.variant, claim.name
        assert claim.measured_by, claim.name
    questions = {}
    for claim in STUDY.claims:
        questions.setdefault(claim.question, []).append(claim.variant)
    assert all(len(set(variants)) == len(variants) for variants in questions.values())


# ------------------------------------------------------------------------------------------ its numbers

RHO = Rows(
    "Sparsity",
    "rho_gradient",
    Layer("last"),
    (("role", "target"), ("pos_class", "")),
    error="rho_gradient_error",
)


def one(**truth):
    return [FakeRun(observed=observations(0.0, **truth))]


def test_the_largest_elsewhere():
    rho = {
        GRADIENT: curve(0, 0.9),
        ("activation", "rnn_b", "target"): curve(0.8, -0.4),
        ("gradient", "logits", "target"): curve(0, 0.3),
    }
    run = one(rho=rho)
    assert OtherSites(RHO, ("rho_activation",)).of(run).value == pytest.approx(0.4)
    assert OtherSites(RHO, ("rho_activation",)).of(run).error == pytest.approx(0.01)
    assert OtherSites(RHO, ("rho_activation",), step="first").of(run).value == pytest.approx(0.8)
    assert OtherSites(RHO).of(run).value == pytest.approx(0.3)
    assert OtherSites(RHO, but=False).of(run).value == pytest.approx(0.9)


def test_log_ratios_and_their_errors():
    groups = (("role", "target"), ("pos_class", "1000+"))
    chi = Rows("Sparsity", "chi_gradient_types", "rnn_b", groups, error="chi_gradient_types_error")
    run = one(chi={"1000+": curve(0.08, 0.1)})
    ratio = LogRatio(At(chi), At(chi, 0)).of(run)
    assert ratio.value == pytest.approx(math.log(1.25))
    assert ratio.error == pytest.approx(math.hypot(1e-5 / 0.1, 1e-5 / 0.08))
    reference = At(Rows("Sparsity", "chi_gaussian", "rnn_b"))
    assert LogRatio(At(chi), reference, exact=True).of(run).error == pytest.approx(1e-4)
    assert LogRatio(At(chi), reference).of(run).error is None
    assert math.isnan(LogRatio(At(RHO, 0), At(chi)).of(run).value)


def test_since_the_first_reduction():
    rates = [1, 20, 20, 5, 5, 1]  # a warmup is no reduction
    run = one(rho={GRADIENT: curve(0, 0.4)}, rates=rates)
    assert SinceReduction(RHO).of(run).value == pytest.approx(0.4 * 0.75)  # since step 250, the last before
    for never in ([20] * 6, [5, *[20] * 5], ()):
        with pytest.raises(NotMeasured, match="never reduced"):
            SinceReduction(RHO).of(one(rates=never))


def test_tokens_seen():
    assert Tokens(RHO).of(one(per_step=7)).value == 7000

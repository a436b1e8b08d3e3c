"""Verdicts over runs whose numbers are known."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lmdyn import claims as C
from lmdyn.analysis.statistics.multiplicity import holm
from lmdyn.claims import Above, At, Part, Rows
from lmdyn.claims.among_seeds import AmongSeeds
from lmdyn.claims.judge import judge
from tests.helpers.observed_runs import FakeRun, rows

X = At(Rows("Observer", "x"))


def claim(*parts, name="claim", **about):
    return C.Claim(name, "", "", parts, **{"floor": "there is none", **about})


def run(seed, values, errors=None, *, order=None, name=None, **about):
    """One run, observed at step 100, with each quantity's value."""
    tables = [rows(q, v if isinstance(v, dict) else {100: v}) for q, v in values.items()]
    tables += [rows(f"{q}_error", {100: e}) for q, e in (errors or {}).items()]
    observed = {"o": ("my.Observer", {}, pd.concat(tables))}
    return FakeRun(name or f"run_{seed}_{order}", C.SeedPair(seed, order), observed=observed, **about)


def runs(values, errors=None):
    return [run(s, {"x": v}, None if errors is None else {"x": errors}) for s, v in enumerate(values, 2)]


def verdict(parts, observed, **about):
    (row,) = judge(C.Study("s2000_s", "", "", (claim(*parts, **about),)), observed)
    return row


def test_from_five_seeds_it_is_students_interval():
    values = [0.3, 0.1, 0.25, 0.4, 0.2]
    oracle = stats.ttest_1samp(values, 0.0)
    row = verdict([Part(X, Above(0))], runs(values))
    (part,) = row.parts
    assert row.verdict == "holds"
    assert part.interval == pytest.approx(tuple(oracle.confidence_interval(0.95)))
    assert part.interval == part.seeds_interval
    assert part.p_holds == pytest.approx(oracle.pvalue / 2)
    assert row.p == pytest.approx(oracle.pvalue)
    assert (part.mean, part.range, part.n) == (pytest.approx(0.25), (0.1, 0.4), 5)
    assert part.of_this_text
    assert part.text_interval is None
    assert verdict([Part(X, Above(0.5))], runs(values)).verdict == "fails"
    assert verdict([Part(X, C.Below(0))], runs(values)).verdict == "fails"
    assert verdict([Part(X, Above(0.2))], runs(values)).verdict == "undecided"
    assert verdict([Part(X, C.Within(0, 0.5))], runs(values)).verdict == "holds"
    assert verdict([Part(X, C.Within(-0.1, 0.2))], runs(values)).verdict == "undecided"
    assert verdict([Part(X, C.Within(-0.1, 0.1))], runs(values)).verdict == "fails"
    undecided = verdict([Part(X, Above(0.2))], runs(values))
    assert "is partly in ≥ 0.2" in undecided.reasons[0]


def test_another_text_is_added_and_does_not_shrink():
    errors = 0.2
    number = At(Rows("Observer", "x", error="x_error"))
    row = verdict([Part(number, Above(0))], runs([0.3, 0.1, 0.25, 0.4, 0.2], errors))
    (part,) = row.parts
    assert row.verdict == "undecided"  # without it, it holds: see above
    assert not row.of_this_text
    assert part.text_interval == pytest.approx((0.25 - 1.959964 * 0.2, 0.25 + 1.959964 * 0.2), abs=1e-6)
    assert part.seeds_interval[0] > 0
    assert part.interval[0] < part.text_interval[0]


def test_texts_of_their_own_vary_with_the_seeds():
    """The spread over seeds has that of texts in it; their errors are not added again."""
    values, number = [0.3, 0.1, 0.25, 0.4, 0.2], At(Rows("Observer", "x", error="x_error"))
    own = [
        run(s, {"x": v}, {"x": 0.2}, condition={"data.corpus.grammar_seed": s})
        for s, v in enumerate(values, 2)
    ]
    row = verdict([Part(number, Above(0))], own)
    assert row.verdict == "holds"
    assert not row.of_this_text
    assert row.parts[0].interval == pytest.approx(
        tuple(stats.ttest_1samp(values, 0.0).confidence_interval(0.95))
    )
    hashed = [
        replace(each, observed={"o": ("my.Observer", {"sentences": f"{i:032x}"}, each.observed["o"][2])})
        for i, each in enumerate(own)
    ]
    assert verdict([Part(number, Above(0))], hashed).verdict == "holds"
    with pytest.raises(ValueError, match="several conditions"):  # the control: one text
        verdict([Part(number, Above(0))], [replace(each, condition={}) for each in hashed])
    four = verdict([Part(number, Above(0))], own[:4])
    assert (four.verdict, four.p) == ("undecided", None)
    assert "4 texts, each with a seed of its own" in " ".join(four.reasons)
    shared = [*own[:4], replace(own[4], condition={"data.corpus.grammar_seed": 2})]
    with pytest.raises(ValueError, match="several conditions"):  # four texts
        verdict([Part(number, Above(0))], shared)
    two = [run(s, {"x": 0.2}, {"x": 0.2}, condition={"data.corpus.grammar_seed": s - 10}) for s in (12, 13)]
    with pytest.raises(ValueError, match="several conditions"):  # two texts with several seeds
        verdict([Part(number, Above(0))], [*own, *two])


def test_seeds_of_one_text_tell_the_variance_of_texts_and_are_not_judged():
    """Simulated: texts of variance 4, seeds of variance 1; the judged interval is that without the other seeds."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        texts = rng.normal(0, 2, 8)
        values = texts + rng.normal(0, 1, 8)
        own = [run(s, {"x": v}, condition={"data.grammar_seed": s}) for s, v in enumerate(values, 2)]
        same = [
            run(s, {"x": texts[3] + rng.normal()}, condition={"data.grammar_seed": 5}) for s in range(20, 28)
        ]
        (part,) = verdict([Part(X, Above(0))], [*own, *same]).parts
        assert part.interval == verdict([Part(X, Above(0))], own).parts[0].interval
        found.append(part.of_texts)
    assert np.mean(found, 0) == pytest.approx([4, 1], rel=0.12)
    assert verdict([Part(X, Above(0))], own).parts[0].of_texts is None


def test_three_and_four_seeds_need_each_ones_own_interval():
    """A wide error over texts of one seed, though the interval of the mean is on one side."""
    number = At(Rows("Observer", "x", error="x_error"))
    close = [run(s, {"x": 1.0 + s / 100}, {"x": 0.1}) for s in (2, 3, 4)]
    assert verdict([Part(number, Above(0))], close).verdict == "holds"
    wide = [*close[:2], run(4, {"x": 1.04}, {"x": 0.6})]
    row = verdict([Part(number, Above(0))], wide)
    assert row.verdict == "undecided"
    # all on one side, and scattered: the range says so and the interval does not
    scattered = verdict([Part(X, Above(0))], runs([0.1, 0.9, 2.0]))
    assert scattered.verdict == "undecided"
    assert verdict([Part(X, Above(0))], runs([0.1, 0.9, 2.0, 1.0, 1.1])).verdict == "holds"


@pytest.mark.parametrize("n", [1, 2])
def test_below_three_nothing_is_decided(n):
    row = verdict([Part(X, Above(0))], runs([1.0, 1.0][:n]))
    assert row.verdict == "undecided"
    assert row.p is None
    assert f"{n} seed" in row.reasons[0]
    assert row.parts[0].mean == 1.0
    assert (row.parts[0].interval is None) == (n == 1)


def test_equal_shares_have_a_width():
    """Three networks without chaos do not say that there is none."""
    part = Part(At(Rows("Observer", "ended_share")), Above(0.05))

    def of(n, value=0.0, name="ended_share"):
        return [run(s, {name: value}) for s in range(2, 2 + n)]

    row = verdict([part], of(3))
    assert row.verdict == "undecided"
    assert row.parts[0].interval == pytest.approx((0.0, 1 - 0.025 ** (1 / 3)))
    assert verdict([part], of(40)).verdict == "undecided"  # 0.95^40 = 0.13
    assert verdict([part], of(75)).verdict == "fails"  # 0.95^75 = 0.02
    half = [Part(At(Rows("Observer", "ended_share")), C.Below(0.5))]
    assert verdict(half, of(5)).verdict == "undecided"
    assert verdict(half, of(6)).verdict == "holds"  # 2^-6 = 0.016
    apart = C.Difference(At(Rows("Observer", "ended_share")), At(Rows("Observer", "a_share")))
    paired = [run(s, {"ended_share": 1.0, "a_share": 1.0}) for s in (2, 3, 4, 5, 6)]
    rest = 1 - 0.025**0.2
    assert verdict([Part(apart, C.Below(0.9))], paired).parts[0].interval == pytest.approx((-rest, rest))
    mixed = [run(s, {"ended_share": v}) for s, v in zip((2, 3, 4), (0.0, 0.1, 0.6), strict=True)]
    assert verdict([part], mixed).parts[0].interval[0] == 0.0  # a share ends there
    percent = [run(s, {"ended_share": 38.5}) for s in (2, 3, 4)]
    # whatever it is, it is no share
    assert verdict([part], percent).parts[0].interval == (-math.inf, math.inf)
    logit = Part(At(Rows("Observer", "ended_share")), C.Below(0.99), scale="logit")
    high = verdict([logit], of(3, 0.5)).parts[0].interval[1]
    assert high == pytest.approx(0.5 + 0.5 * (1 - 0.025 ** (1 / 3)))


@pytest.mark.parametrize("end", [0.0, 1.0])
def test_shares_that_are_mostly_at_one_end_are_judged_by_bounds(end):
    """An exception widens the interval, rounding does not; the control: fewer than half at an end."""

    def interval(values):
        part = Part(At(Rows("Observer", "ended_share")), Above(0.5))
        shares = [run(s, {"ended_share": abs(end - v)}) for s, v in enumerate(values, start=2)]
        return verdict([part], shares).parts[0].interval

    def width(values):
        low, high = interval(values)
        return high - low

    assert width([0.0] * 9 + [0.25]) > width([0.0] * 10) == pytest.approx(1 - 0.025**0.1)
    for rounded in ([1e-17] * 10, [0.0] * 9 + [2.3e-16], [0.0] * 9 + [-2.3e-16]):
        assert width(rounded) == pytest.approx(width([0.0] * 10))
    assert width([0.0] * 4 + [0.01] * 6) < 0.01


def test_a_range_without_an_end_bounds_nothing(monkeypatch):
    monkeypatch.setattr(Rows, "between", lambda self: (0.0, math.inf))
    runs = [run(s, {"ended_share": 0.0}) for s in range(2, 8)]
    (part,) = verdict([Part(At(Rows("Observer", "ended_share")), Above(0.05))], runs).parts
    assert (part.interval, part.verdict) == ((0.0, 0.0), "fails")  # the sign test of six equal seeds


@pytest.mark.parametrize("name", ["f1", "rho_gradient"])
def test_a_declared_range_bounds_equal_seeds(name):
    """F1 and correlations are bounded too: their observers declare it."""
    observer = {"f1": "EdgeProbe", "rho_gradient": "Sparsity"}[name]
    low, high = Rows(observer, name).between()
    assert (low, high) == {"f1": (0, 1), "rho_gradient": (-1, 1)}[name]
    observed = {"o": (f"lmdyn.callbacks.{observer}", {}, rows(name, {100: 0.75}))}
    seeds = [FakeRun(f"run_{s}", C.SeedPair(s, s), observed=observed) for s in range(2, 8)]
    rest = 1 - 0.025 ** (1 / 6)
    (part,) = verdict([Part(At(Rows(observer, name)), Above(0.5))], seeds).parts
    assert part.interval == pytest.approx((0.75 - (0.75 - low) * rest, 0.75 + (high - 0.75) * rest))
    assert part.verdict == "undecided"
    assert Rows("LearningCurves", "loss").between() is None


def test_equal_seeds_of_any_number_are_judged_by_the_sign_test():
    """Five equal seeds are undecided, six decide; the control differs by a millionth."""
    for n in (3, 4, 5):
        row = verdict([Part(X, Above(0.0))], runs([0.5] * n))
        assert row.verdict == "undecided"
        assert row.p == pytest.approx(2 * 2.0**-n)
        assert row.reasons[0] == f"the same in all of {n} seeds: 6 or more decide, by the sign test"
    six = verdict([Part(X, Above(0.0))], runs([0.5] * 6))
    assert (six.verdict, six.p, six.parts[0].interval) == ("holds", 2 / 64, (0.5, 0.5))
    assert verdict([Part(X, C.Below(0.4))], runs([0.5] * 6)).verdict == "fails"
    assert verdict([Part(X, Above(0.0))], runs([0.5, 0.5, 0.5, 0.5, 0.500001])).verdict == "holds"
    text = At(Rows("Observer", "x", error="x_error"))
    assert verdict([Part(text, Above(0.0))], runs([0.5] * 5, 0.01)).verdict == "undecided"
    assert verdict([Part(text, Above(0.0))], runs([0.5] * 6, 0.4)).verdict == "undecided"


def test_differences_are_paired_by_seed():
    base = np.array([0.0, 5.0, -3.0, 9.0, 2.0])  # what a seed's runs have in common
    noise = np.array([0.02, -0.01, 0.03, 0.0, -0.02])
    both = []
    for s, (b, e) in enumerate(zip(base, noise, strict=True), 2):
        both += [
            run(s, {"x": b + 0.1 + e}, condition={"data.k": 4}, name=f"a_{s}"),
            run(s, {"x": b}, condition={"data.k": 2}, name=f"b_{s}"),
        ]
    a, b = (At(Rows("Observer", "x", run=(("k", k),))) for k in (4, 2))
    row = verdict([Part(C.Difference(a, b), Above(0))], both)
    assert row.verdict == "holds"
    oracle = stats.ttest_rel(base + 0.1 + noise, base)
    assert row.p == pytest.approx(oracle.pvalue)
    assert stats.ttest_ind(base + 0.1 + noise, base).pvalue > 0.5  # the control: unpaired, nothing is seen
    assert set(row.runs) == {r.name for r in both}


def test_runs_of_several_conditions_are_refused():
    observed = [run(2, {"x": 1.0}, condition={"data.k": 4}), run(3, {"x": 1.0}, condition={"data.k": 5})]
    with pytest.raises(ValueError, match=r"several conditions have .*: data.k: 4 in run_2_None, 5 in run_3"):
        verdict([Part(X, Above(0))], observed)
    settings = [run(2, {"x": 1.0}), run(3, {"x": 1.0})]
    for one, tokens, probe_set in zip(settings, (5, 6), "ab", strict=True):
        about = {"max_tokens": tokens, "probe_set": probe_set}
        one.observed["o"] = ("my.Observer", about, one.observed["o"][2])
    with pytest.raises(ValueError, match=r"max_tokens: 5 in o of run_2"):
        verdict([Part(X, Above(0))], settings)


def test_a_run_that_is_not_finished_is_left_out():
    curve = {0: 0.0, 100: 0.5, 1000: 1.0}
    observed = [run(s, {"x": {step: v + s / 100 for step, v in curve.items()}}) for s in range(2, 7)]
    assert verdict([Part(X, Above(0.9))], observed).verdict == "holds"
    killed = [*observed, run(7, {"x": {0: 0.0, 100: 0.5}})]
    row = verdict([Part(X, Above(0.9))], killed)
    assert (row.verdict, row.parts[0].n) == ("holds", 5)
    assert (
        row.reasons[0] == "seed 7: observed until step 100, other seeds until 1000: the run is not finished"
    )
    nearly = [*observed, run(7, {"x": {0: 0.0, 950: 1.0}})]  # the control
    assert verdict([Part(X, Above(0.9))], nearly).parts[0].n == 6


def test_a_tagger_without_a_seed_of_order_is_with_its_language_model():
    models = [run(s, {"x": 1.0 + s / 50}, order=s) for s in range(2, 7)]
    taggers = [FakeRun(f"tagger_{s}", C.SeedPair(s), tested={"accuracy": 0.9}) for s in range(2, 7)]
    accurate = C.Condition("the tagger is above chance", C.Tested("accuracy"), Above(0.5))
    row = verdict([Part(X, Above(0))], [*models, *taggers], void_unless=(accurate,))
    assert (row.verdict, len(row.runs)) == ("holds", 10)
    assert verdict([Part(X, Above(0))], models, void_unless=(accurate,)).verdict == "not measured"


def test_void_not_measured_and_which_line_would_measure_it():
    accurate = C.Condition("the tagger is above chance", C.Tested("accuracy"), Above(0.5))
    good = [run(s, {"x": 1.0 + s / 9}, tested={"accuracy": 0.9}) for s in (2, 3, 4, 5, 6)]
    assert verdict([Part(X, Above(0))], good, void_unless=(accurate,)).verdict == "holds"
    good[2].tested = {"accuracy": 0.4}
    row = verdict([Part(X, Above(0))], good, void_unless=(accurate,))
    assert (row.verdict, row.after_holm) == ("void", "void")
    assert row.reasons == ("seed 4: required: the tagger is above chance; 0.4 is not ≥ 0.5",)
    assert row.p is None
    # NaN is no number
    row = verdict([Part(X, Above(0))], [*good[:2], run(4, {"x": math.nan})])
    assert row.verdict == "void"
    # nor is infinity, of either sign, nor does it stop what else is judged
    infinite = [*good[:2], run(4, {"x": math.inf}), run(5, {"x": -math.inf})]
    told = ("seed 4: a part is infinite", "seed 5: a part is infinite")
    assert verdict([Part(X, Above(0))], infinite).reasons == told
    crossed = [
        run(i, {"x": 1.0 + i / 9 if i == j else math.inf}, order=j) for i in (2, 3, 4) for j in (2, 3, 4)
    ]
    assert verdict([Part(X, Above(0))], crossed, floor=X).verdict == "holds"
    with pytest.raises(ValueError, match=r"claim 'claim': scale 'fisher' requires .* -1.0 to 1.0, got 2.0"):
        verdict([Part(X, Above(0), scale="fisher")], runs([0.1, 0.2, 2.0]))
    # nothing there: the line; some there: judged by those, and said
    other = At(Rows("Interdependence", "rho"))
    row = verdict([Part(other, Above(0))], good, measured_by="lmdyn analyze RUN --config configs/x.yaml")
    assert row.verdict == "not measured"
    assert "Interdependence" in row.reasons[0]
    assert row.reasons[-1] == "measured by: lmdyn analyze RUN --config configs/x.yaml"
    assert "Interdependence" in verdict([Part(other, Above(0))], good).reasons[-1]
    assert verdict([Part(other, Above(0))], []).verdict == "not measured"
    some = [*runs([1.0, 1.1, 1.2, 1.3, 1.4]), FakeRun("empty", C.SeedPair(9, None))]
    row = verdict([Part(X, Above(0))], some)
    assert (row.verdict, row.parts[0].n) == ("holds", 5)
    assert "seed 9: no run has observations of Observer" in row.reasons[0]


def test_a_claim_that_its_floor_bears_too():
    observed = [run(s, {"x": 1.0 + s / 100, "y": 0.5 + s / 100, "z": 0.3 * s - 1}) for s in range(2, 7)]
    x, y, z = (At(Rows("Observer", q)) for q in "xyz")
    assert verdict([Part(x, Above(0))], observed, floor=y).floor_too
    assert not verdict([Part(x, Above(0))], observed, floor=z).floor_too  # partly in the region
    assert not verdict([Part(x, Above(0.9))], observed, floor=y).floor_too
    assert not verdict([Part(x, C.Below(0))], observed, floor=y).floor_too
    assert not verdict([Part(x, Above(0))], observed).floor_too
    # whose is it?
    assert not verdict([Part(x, Above(0)), Part(x, Above(0.1))], observed, floor=y).floor_too


def test_all_and_any():
    """Five seeds: x is far above 0; y is above 0 at a two-sided p of 0.03, z is not."""
    good = np.array([1.0, 1.1, 0.9, 1.2, 0.8])
    y = np.array([0.1, 0.35, 0.25, 0.02, 0.4])
    assert 0.025 < (p := stats.ttest_1samp(y, 0).pvalue) < 0.05
    z = y - 0.2
    observed = [
        run(s, {"x": a, "y": b, "z": c}) for s, (a, b, c) in enumerate(zip(good, y, z, strict=True), 2)
    ]
    px, py, pz = (Part(At(Rows("Observer", q)), Above(0), label=q) for q in "xyz")
    assert verdict([px, py], observed).verdict == "holds"  # each at its level
    assert verdict([px, py], observed).p == pytest.approx(p)
    assert verdict([px, pz], observed).verdict == "undecided"
    below = [Part(part.number, C.Below(0), label=part.label) for part in (px, py, pz)]
    assert verdict([below[1]], observed).verdict == "fails"
    both = verdict(below[1:], observed)
    assert both.verdict == "undecided"  # one of two fails it at half the level: p doubled
    assert both.p == pytest.approx(2 * p)
    assert verdict([py], observed, combine="any").verdict == "holds"
    either = verdict([py, pz], observed, combine="any")
    assert either.verdict == "undecided"
    assert either.parts[0].interval[0] < 0 < verdict([py], observed).parts[0].interval[0]  # simultaneous
    assert verdict([px, pz], observed, combine="any").verdict == "holds"
    assert verdict([below[0], below[1]], observed, combine="any").verdict == "fails"


def test_holm_over_all_that_were_tested():
    values = {
        q: np.array([0.1, 0.35, 0.25, 0.02, 0.4]) + shift
        for q, shift in zip("abc", (0, 2, -0.2), strict=True)
    }
    observed = [run(s, {q: v[i] for q, v in values.items()}) for i, s in enumerate(range(2, 7))]
    claims = [claim(Part(At(Rows("Observer", q)), Above(0)), name=q) for q in "abc"]
    claims.append(claim(Part(At(Rows("Nobody", "x")), Above(0)), name="missing"))
    judged = judge(C.Study("s2000_s", "", "", tuple(claims)), observed)
    assert [r.verdict for r in judged] == ["holds", "holds", "undecided", "not measured"]
    assert [r.after_holm for r in judged] == ["undecided", "holds", "undecided", "not measured"]
    tested = [r.p for r in judged if r.p is not None]
    assert [r.p_holm for r in judged][:3] == holm(tested)
    assert len(tested) == 3  # the undecided one too
    assert judged["a"].p_holm == pytest.approx(2 * judged["a"].p)


def test_exploratory():
    one = claim(Part(X, Above(0)))
    study = C.Study("s2000_s", "", "", (one,), inspected=(1,))
    known = {"s2000_s": {"claim": one.fingerprint}}
    said = [run(s, {"x": 1.0 + s / 9}, registered=known) for s in range(2, 7)]
    assert judge(study, said)["claim"].exploratory == ()
    said[1].registered = {"s2000_s": {"claim": "another"}}
    said[2].registered = {"other": {"claim": one.fingerprint}}
    assert judge(study, said)["claim"].exploratory == (
        "not registered before the runs: run_4_None",
        "changed after registration: run_3_None",
    )


def test_runs_that_were_seen_do_not_count_where_there_are_enough_others():
    one = claim(Part(X, Above(0)))
    known = {"s2000_s": {"claim": one.fingerprint}}
    runs = [run(s, {"x": 1.0 + s / 9}, registered=known) for s in range(1, 8)]
    study = C.Study("s2000_s", "", "", (one,), inspected=(1,))
    row = judge(study, runs)["claim"]
    assert (row.parts[0].n, row.exploratory) == (6, ())
    assert row.reasons == ("left out: runs of seed 1 were inspected before the claims were stated",)
    assert row.parts == judge(study, runs[1:])["claim"].parts
    changed = replace(one, inspected=(2, 3, 4))  # seen before it was changed
    later = C.Study("s2000_s", "", "", (changed,), inspected=(1,))
    row = judge(later, runs)["claim"]
    assert (row.parts[0].n, row.exploratory) == (3, ())
    assert row.reasons[:2] == (
        "left out: runs of seed 1 were inspected before the claims were stated",
        "left out: runs of seeds 2, 3, 4 were inspected before the claim was stated in this form",
    )
    few = judge(later, runs[:-1])["claim"]  # two new ones decide nothing: all are looked at, and it is said
    assert (few.parts[0].n, len(few.exploratory)) == (6, 2)
    assert one.fingerprint == replace(one, inspected=(2,)).fingerprint


@dataclass(frozen=True)
class MeanPair(AmongSeeds):
    """The mean product of two seeds' numbers."""

    number: At = X

    def read(self, runs):
        """One number a seed."""
        return self.number.of(runs).value

    def table(self, found):
        """All of them."""
        return np.array(found)

    def statistic(self, table, kept):
        """The mean over pairs."""
        products = np.outer(table[kept], table[kept])
        return float(products[np.triu_indices(len(kept), 1)].mean())


def test_numbers_of_several_seeds_at_once_are_of_those_that_count():
    """Seeds that were seen would pull the pseudo-values of the others."""
    one = claim(Part(MeanPair(), Above(0.5)))
    known = {"s2000_s": {"claim": one.fingerprint}}
    new = [run(s, {"x": 1.0 + s / 99}, registered=known) for s in range(4, 9)]
    seen = [run(s, {"x": -9.0}, registered=known) for s in (1, 2, 3)]
    study = C.Study("s2000_s", "", "", (one,), inspected=(1, 2, 3))
    alone, among = (judge(study, runs)["claim"] for runs in (new, [*seen, *new]))
    assert alone.verdict == among.verdict == "holds"
    assert alone.parts == among.parts


def test_a_longer_run_that_was_seen_makes_no_new_one_unfinished():
    one = claim(Part(X, Above(0)))
    known = {"s2000_s": {"claim": one.fingerprint}}
    study = C.Study("s2000_s", "", "", (one,), inspected=(1, 2, 3))
    new = [run(s, {"x": -1.0 - s / 99}, registered=known) for s in range(4, 10)]
    seen = [run(s, {"x": {1000: 1.0 + s / 99}}, registered=known) for s in (1, 2, 3)]
    row = judge(study, [*seen, *new])["claim"]
    assert (row.verdict, row.parts[0].n, row.exploratory) == ("fails", 6, ())
    few = judge(study, [*seen, *new[:2]])["claim"]  # all count, and the new ones are not finished
    assert (few.parts[0].n, len(few.exploratory)) == (3, 1)


def test_a_run_of_an_unknown_seed_may_be_one_that_was_seen():
    study = C.Study("s2000_s", "", "", (), inspected=(1,), inspected_in=((("data", "GrammarCorpus"),),))
    asked = [(None, {}), (None, {"data": "GrammarCorpus"}), (None, {"data": "MyText"}), (1, {}), (2, {})]
    assert [study.was_inspected(*one) for one in asked] == [True, True, False, True, False]
    assert not C.Study("s2000_s", "", "", (), inspected=()).was_inspected(None, {})
    # the seed decides
    assert C.Study("s2000_s", "", "", (), inspected=(1,)).was_inspected(1, {"data": "mine"})


def test_a_time_that_was_not_reached():
    level = Part(C.Reaches(Rows("Observer", "x"), level=0.5), Above(1))
    late = {0: 0.0, 10: 0.1, 100: 0.2, 1000: 0.3}
    early = {0: 0.0, 1: 0.2, 2: 0.6, 3: 0.7}
    reached = {0: 0.0, 100: 0.2, 150: 0.6}
    five = [run(s, {"x": reached}) for s in range(2, 7)]
    row = verdict([level], five)
    assert row.verdict == "holds"
    (part,) = row.parts
    assert part.censored
    # whatever it is between both
    assert part.interval[0] < math.log10(101) < math.log10(150) < part.interval[1]
    never = [run(s, {"x": late}) for s in range(2, 7)]
    row = verdict([level], never)
    assert row.verdict == "undecided"
    assert row.parts[0].interval == (-math.inf, math.inf)
    assert "7 or more decide" in row.reasons[0]
    row = verdict([level], [run(s, {"x": late}) for s in range(2, 9)])
    assert row.verdict == "holds"
    assert row.parts[0].interval == (pytest.approx(math.log10(1001)), math.inf)
    # between updates 1 and 2 it is exact, and equal in all seeds
    assert verdict([level], [run(s, {"x": early}) for s in range(2, 7)]).verdict == "undecided"
    assert verdict([level], [run(s, {"x": early}) for s in range(2, 8)]).verdict == "fails"


def test_scales():
    values = [0.9, 0.95, 0.97, 0.93, 0.99]
    (part,) = verdict([Part(X, Above(0.9), scale="fisher")], runs(values)).parts
    low, high = stats.ttest_1samp(np.arctanh(values), 0).confidence_interval(0.95)
    assert part.interval == pytest.approx((np.tanh(low), np.tanh(high)))
    assert part.mean == pytest.approx(np.tanh(np.arctanh(values).mean()))
    (part,) = verdict([Part(X, Above(0.9), scale="logit")], runs(values)).parts
    low, high = stats.ttest_1samp(np.log(values) - np.log1p(-np.array(values)), 0).confidence_interval(0.95)
    assert part.interval == pytest.approx((1 / (1 + np.exp(-low)), 1 / (1 + np.exp(-high))))
    (part,) = verdict([Part(X, Above(0.9), scale="fisher")], runs([*values[:4], 1.0])).parts
    assert part.scale == "plain"  # a correlation of 1 has no z


def test_a_crossed_design_gives_components_and_its_diagonal_the_verdict():
    inits, orders = np.array([0.5, -0.2, 0.1]), np.array([0.01, 0.02, -0.03])
    observed = [
        run(i + 2, {"x": a + b}, order=j + 2) for i, a in enumerate(inits) for j, b in enumerate(orders)
    ]
    row = verdict([Part(X, Above(-10))], observed)
    (part,) = row.parts
    assert row.seeds == tuple(C.SeedPair(s, s) for s in (2, 3, 4))
    assert part.n == 3
    assert len(part.estimates) == 9
    assert part.components.rows == pytest.approx(inits.var(ddof=1))
    assert part.components.columns == pytest.approx(orders.var(ddof=1))
    assert part.components.rest == pytest.approx(0, abs=1e-15)
    assert verdict([Part(X, Above(-10))], observed[:-1]).parts[0].components is None
    (more,) = verdict(
        [Part(X, Above(-10))], [*observed, run(5, {"x": 9.0}, order=5), run(6, {"x": 8.0}, order=6)]
    ).parts
    assert more.n == 5  # seeds of their own decide with the diagonal, and are not of the crossed ones
    assert more.components == part.components


def test_the_floor_and_the_published_number():
    observed = [run(s, {"x": 1.0 + s / 9, "floor": 0.1 * s}) for s in range(2, 7)]
    part = Part(X, Above(0))
    floor, published = At(Rows("Observer", "floor")), C.published_correlation(0.5, 28)
    row = verdict([part], observed, floor=floor, published=published)
    assert row.floor.mean == pytest.approx(0.4)
    assert row.floor.interval[0] < 0.4 < row.floor.interval[1]
    assert row.claim.published.interval()[0] == pytest.approx(0.156, abs=1e-3)
    row = verdict([part], observed, floor=At(Rows("Observer", "none")))
    assert row.verdict == "holds"
    assert row.reasons == ("the floor is not measured: o of run_2_None holds no rows of 'none'",)

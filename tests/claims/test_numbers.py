"""The numbers of a run, from rows whose values are known."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from lmdyn import claims as C
from lmdyn.claims import At, Rows
from lmdyn.claims.numbers import Estimate
from tests.helpers.observed_runs import FakeRun, rows

FIXTURE = Path(__file__).parents[1] / "fixtures" / "v0_1" / "lstm_run"
CURVE = {0: 0.1, 1: 0.2, 10: 0.5, 100: 0.4}


def run(*tables, settings=None, **about):
    return FakeRun(observed={"folder": ("my.lab.Observer", settings or {}, pd.concat(tables))}, **about)


def of(number, *runs):
    return number.of(runs or [run(rows("x", CURVE, "h1"))])


X = Rows("Observer", "x", "h1")


def test_at_a_step():
    assert of(At(X)).value == 0.4
    assert of(At(X, "first")).value == 0.1
    assert of(At(X, 10)).value == 0.5
    assert of(At(X, 0.08)).value == 0.5  # a fraction of 100 updates: step 8, nearest is 10
    assert of(At(X, 1.0)).value == 0.4
    with pytest.raises(C.NotMeasured, match="did not observe step 7"):
        of(At(X, 7))
    with pytest.raises(C.NotMeasured, match="observed no step near 50"):
        of(At(X, 0.5))
    with pytest.raises(ValueError, match="expected a fraction ≤ 1, or"):
        At(X, 7.0)


def test_change_difference_mean_largest_smallest():
    assert of(C.Change(X)).value == pytest.approx(0.3)
    assert of(C.Change(X, since=10)).value == pytest.approx(-0.1)
    low, high = At(X, 0), At(X, 10)
    assert of(C.Difference(high, low)).value == pytest.approx(0.4)
    assert of(C.Mean((low, high))).value == pytest.approx(0.3)
    assert of(C.Largest((low, high))).value == 0.5
    assert of(C.Smallest((low, high))).value == 0.1
    with pytest.raises(C.NotMeasured, match="only one step"):
        of(C.Change(X), run(rows("x", {0: 1.0}, "h1")))
    with pytest.raises(ValueError, match="one or more"):
        C.Mean(())


def test_errors_over_texts_add():
    tables = [rows("x", CURVE, "h1"), rows("x_error", dict.fromkeys(CURVE, 0.03), "h1")]
    number = At(Rows("Observer", "x", "h1", error="x_error", df=9))
    found = of(number, run(*tables))
    assert (found.error, found.df) == (pytest.approx(0.03), 9)
    difference = of(C.Difference(number, At(Rows("Observer", "x", "h1", error="x_error"), 0)), run(*tables))
    assert difference.error == pytest.approx(0.03 * math.sqrt(2))
    assert difference.df == pytest.approx(4 * 9)  # Satterthwaite: (2 v)^2 / (v^2 / 9)
    assert of(C.Mean((number, number)), run(*tables)).error == pytest.approx(0.03 / math.sqrt(2))
    assert of(C.Difference(number, At(X)), run(*tables)).error is None  # the control: one is unknown
    ends = [rows("x_low", {s: v - 0.1 for s, v in CURVE.items()}, "h1"), rows("x_high", CURVE, "h1")]
    found = of(At(Rows("Observer", "x", "h1", error=("x_low", "x_high"))), run(tables[0], *ends))
    assert found.error == pytest.approx(0.1 / 2 / 1.96, rel=1e-4)
    assert of(number).error is None  # an older run has the value alone


def test_a_time_lies_between_two_observations():
    assert of(C.Reaches(X, level=0.3)) == Estimate((math.log10(2) + 1) / 2, low=math.log10(2), high=1.0)
    assert of(C.Reaches(X, level=0.45, stays=True)) == Estimate(
        math.log10(101), low=math.log10(101), high=math.inf
    )
    assert of(C.Reaches(X, level=0.9)).high == math.inf
    later = of(C.Reaches(X, level=0.4, since=1))
    assert (later.low, later.high) == (0.0, math.log10(9))
    assert of(C.Reaches(X, level=0.05)) == Estimate(0.0, low=-math.inf, high=0.0)
    assert of(C.Reaches(X, share_of_last=1.0)) == of(C.Reaches(X, level=0.4))
    assert of(C.Reaches(X, level=0.15, falling=True)).high == 0.0
    first = of(C.Reaches(X, level=0.2))
    assert first == Estimate(0.0)
    assert not first.censored
    assert math.isnan(of(C.Reaches(X, level=0.3), run(rows("x", {0: math.nan}, "h1"))).value)
    with pytest.raises(ValueError, match="exactly one of the options `level`"):
        C.Reaches(X, level=1.0, share_of_last=0.5)


def test_bounds_go_through_sums():
    late, never = C.Reaches(X, level=0.3), C.Reaches(X, level=0.9)
    found = of(C.Difference(never, late))
    assert (found.low, found.high) == (pytest.approx(math.log10(101) - 1), math.inf)
    both = of(C.Difference(never, never))
    assert (both.low, both.high) == (-math.inf, math.inf)
    assert of(C.Mean((late, never))).high == math.inf
    assert of(C.Smallest((late, never))) == of(late)


def test_what_is_not_named_is_missing():
    tables = [
        rows("rho", CURVE, "h1", role="target", pos=None),
        rows("rho", {0: 9.0}, "h1", role="target", pos="open"),
        rows("rho", {0: 8.0}, "h1", role="input", pos=""),
    ]
    target = Rows("Observer", "rho", "h1", where=(("role", "target"),))
    assert of(At(target, 0), run(*tables)).value == 0.1
    opened = Rows("Observer", "rho", "h1", where=(("role", "target"), ("pos", "open")))
    assert of(At(opened, 0), run(*tables)).value == 9.0
    whole = Rows("Observer", "rho", "h1", where=(("role", "input"), ("pos", "")))
    assert of(At(whole, 0), run(*tables)).value == 8.0  # an empty text and none are one
    assert of(At(replace(whole, where=(("role", "target"), ("pos", ""))), 0), run(*tables)).value == 0.1
    with pytest.raises(ValueError, match=r"several rows of 'rho' per step.*role: 'target', 'input'"):
        of(At(Rows("Observer", "rho", "h1")), run(*tables))
    with pytest.raises(C.NotMeasured, match=r"no rows of 'rho' at site 'h2'.*there are site \['h1'\]"):
        of(At(Rows("Observer", "rho", "h2")), run(*tables))
    with pytest.raises(C.NotMeasured, match="no column 'tag'"):
        of(At(Rows("Observer", "rho", "h1", where=(("tag", 1),))), run(*tables))


def test_hidden_layers_of_any_model():
    names = ["embedding", "block_00", "block_01", "norm", "logits"]
    tables = [rows("x", {0: float(i)}, site) for i, site in enumerate(names)]
    value = {
        which: of(At(Rows("Observer", "x", C.Layer(which))), run(*tables)).value
        for which in ("first", "last")
    }
    assert value == {"first": 1.0, "last": 2.0}
    sites = {"embedding": "e", "top": "a", "base": "b"}  # settings have an order that rows need not have
    tables = [rows("x", {0: 1.0}, "base"), rows("x", {0: 2.0}, "top")]
    assert (
        of(At(Rows("Observer", "x", C.Layer("last"))), run(*tables, settings={"sites": sites})).value == 1.0
    )
    shared = [rows("x", {0: float(i)}, f"block@{i}") for i in range(12)]
    one_site = run(*shared, settings={"sites": {"block": "b"}})
    assert of(At(Rows("Observer", "x", C.Layer("last"))), one_site).value == 11
    with pytest.raises(C.NotMeasured, match="no hidden layer"):
        of(At(Rows("Observer", "x", C.Layer("last"))), run(rows("x", {0: 1.0}, "embedding")))


def test_which_observer():
    tables = {"published": rows("x", {0: 1.0}), "released": rows("x", {0: 2.0})}
    observed = {name: ("my.Observer", {"variant": name, "pair": {"n": 3}}, t) for name, t in tables.items()}
    both = FakeRun(observed=observed)
    assert of(At(Rows("Observer", "x", name="released")), both).value == 2.0
    assert of(At(Rows("Observer", "x", settings=(("variant", "published"),))), both).value == 1.0
    with pytest.raises(ValueError, match="several observers Observer: published, released; give `name`"):
        of(At(Rows("Observer", "x")), both)
    with pytest.raises(ValueError, match="several observers"):
        of(At(Rows("Observer", "x", settings=(("pair.n", 3),))), both)
    own_name = {**observed, "observer": ("my.Observer", {"variant": "own"}, rows("x", {0: 3.0}))}
    assert of(At(Rows("Observer", "x")), FakeRun(observed=own_name)).value == 3.0
    with pytest.raises(
        C.NotMeasured, match=r"Observer \(variant: 'other'\); observers of the runs: run: Observer"
    ):
        of(At(Rows("Observer", "x", settings=(("variant", "other"),))), both)


def test_observers_that_share_quantities_out_are_told_by_what_they_hold():
    tables = {"own": rows("x", CURVE, "h1"), "other": rows("y", {0: 7.0}, "h1")}
    one = FakeRun(observed={name: ("my.lab.Observer", {}, table) for name, table in tables.items()})
    assert of(At(X), one).value == 0.4
    assert of(At(Rows("Observer", "y", "h1"), 0), one).value == 7.0


def test_a_run_of_one_of_several_conditions():
    def asked(values):
        return At(Rows("Observer", "x", "h1", run=(("width", C.OneOf(values)),)))

    wide = run(rows("x", CURVE, "h1"), condition={"model.width": 96})
    assert of(asked((64, 96)), wide).value == 0.4
    with pytest.raises(C.NotMeasured, match="no run has observations"):
        of(asked((64, 128)), wide)


def test_which_run_of_a_seed():
    runs = [
        FakeRun(f"{'un' * (not known)}familiar_{k}", condition={"data.familiar": known, "data.length": k},
                observed={"o": ("Observer", {"side": "out"}, rows("x", {0: float(k + known)}))})
        for known in (True, False) for k in (2, 4)
    ]  # fmt: skip
    number = C.Difference(
        At(Rows("Observer", "x", run=(("familiar", True), ("data.length", 4)))),
        At(Rows("Observer", "x", run=(("familiar", False), ("length", 2), ("side", "out")))),
    )
    assert of(number, *runs).value == 3.0
    with pytest.raises(ValueError, match=r"runs of one seed.*length: 2 in familiar_2, 4 in familiar_4"):
        of(At(Rows("Observer", "x", run=(("familiar", True),))), *runs)
    with pytest.raises(C.NotMeasured, match="length: 8"):
        of(At(Rows("Observer", "x", run=(("length", 8),))), *runs)
    runs[0].condition |= {"model.length": 9}
    with pytest.raises(ValueError, match=r"could be data\.length or model\.length"):
        of(At(Rows("Observer", "x", run=(("length", 2),))), *runs)


def test_a_test():
    tagger = FakeRun("tagger", tested={"test_accuracy": 0.9}, condition={"data.layers": '["upos"]'})
    assert of(C.Tested("test_accuracy"), tagger).value == 0.9
    assert C.Tested("test_accuracy").reads() == {"test/test_accuracy"}
    assert of(C.Tested("test_accuracy", run=(("layers", '["upos"]'),)), tagger).value == 0.9
    with pytest.raises(C.NotMeasured, match=r"test\.json"):
        of(C.Tested("test_loss"), tagger)
    with pytest.raises(ValueError, match="several runs have"):
        of(C.Tested("test_accuracy"), tagger, tagger)


def test_a_folder_of_version_0_1(tmp_path):
    folder = C.RunFolder(shutil.copytree(FIXTURE, tmp_path / "lstm_run_3"))
    assert folder.seeds == C.SeedPair(1, None)
    assert folder.observers()["sparsity"] == "lmdyn.callbacks.Sparsity"
    assert folder.condition["data.n_nouns"] == 30
    assert "trainer.logger" not in folder.condition
    assert not any("seed" in name.rpartition(".")[2].split("_")[:1] for name in folder.condition)
    assert folder.registered == {}
    assert folder.tested == {}
    rho = At(Rows("Sparsity", "rho_gradient", "h1", where=(("role", "target"),)))
    assert -1 <= rho.of([folder]).value <= 1
    last = Rows("Sparsity", "rho_gradient", C.Layer("last"), where=(("role", "target"),))
    second = Rows("Sparsity", "rho_gradient", "h2", where=(("role", "target"),))
    assert At(last).of([folder]).value == At(second).of([folder]).value
    assert folder.settings("learning_curves")["labels"] == "aligned"
    curves = Rows("LearningCurves", "loss", settings=(("labels", "aligned"),))
    assert At(curves).of([folder]).value > 0
    with pytest.raises(C.NotMeasured, match="no run has observations of Interdependence"):
        At(Rows("Interdependence", "x")).of([folder])


def test_seeds_of_published_models(tmp_path):
    """Their observations have no configuration; the names of the models tell."""
    for command, seed in (
        (["lmdyn", "analyze", "EleutherAI/pythia-70m-seed3", "--revisions", "step*"], 3),
        (["lmdyn", "analyze", "google/multiberts-seed_0-step_{}"], 0),
        (["lmdyn", "analyze", "allenai/OLMo-2-0425-1B"], None),
    ):
        content = {"sessions": [{"command": command}], "claims": {}}
        (tmp_path / "provenance.json").write_text(json.dumps(content))
        assert C.RunFolder(tmp_path).seeds == C.SeedPair(seed)
    (tmp_path / "config.yaml").write_text("seed_everything: 7\n")  # a run of ours, whatever it is called
    assert C.RunFolder(tmp_path).seeds == C.SeedPair(7)

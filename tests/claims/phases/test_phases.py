import numpy as np
import pandas as pd
import pytest

from lmdyn.claims.phases.phases import order_of_phases, phases_of, read_curves
from lmdyn.cli.__main__ import main
from lmdyn.runs.store import ObservationStore
from tests.helpers.runs_with_curves import STEPS, run_with

X = np.log10(STEPS)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Five seeds: ``early`` bends near 30, ``late`` ten times later, with a delay that a seed's curves share."""
    runs = []
    for seed in range(5):
        generator = np.random.default_rng(seed)
        delay = 0.3 * generator.standard_normal()

        def noise(generator=generator):
            return 0.01 * generator.standard_normal(len(X))

        curves = {
            "early": np.maximum(0, X - 1.2 - delay) + noise(),
            "late": np.maximum(0, X - 2.2 - delay) + noise(),
            "smooth": 1 / (1 + np.exp(-2 * (X - 1.7))) + noise(),
        }
        runs.append(run_with(tmp_path_factory.mktemp("run") / f"seed_{seed}", curves))
    return runs


@pytest.mark.slow
def test_change_points_of_a_run(seeds):
    found = phases_of(read_curves(seeds[:1]), resamplings=39).set_index("curve")
    assert set(found.index) == {"curves/score/early", "curves/score/late", "curves/score/smooth"}
    assert found.loc["curves/score/smooth", "phase"] == "smooth"
    early = found.loc[["curves/score/early"]].iloc[0]
    assert early["phase"] == "change"
    assert early["low"] <= early["at"] <= early["high"]
    assert early["slope_before"] == pytest.approx(0, abs=0.1)
    assert early["slope_after"] > 0.5
    assert found["why"].isna().all()


@pytest.mark.slow
def test_order_over_seeds_is_paired(seeds):
    """The seeds' delay of 0.3 decades is in both places, and not in the difference."""
    positions = order_of_phases(
        phases_of(read_curves(seeds, ["curves/*/early", "curves/*/late"]), resamplings=39)
    )
    assert [p.curve for p in positions] == ["curves/score/early", "curves/score/late"]
    early, late = positions
    assert (early.runs, early.all_runs) == (5, 5)
    assert early.before is None
    low, high = late.before.interval()
    assert low < 1 < high
    assert high - low < 0.35
    wide = late.place.interval()
    assert wide[1] - wide[0] > high - low


@pytest.mark.parametrize("other", ["smooth", "not tested"])
def test_a_curve_without_a_change_in_some_runs_has_no_place(other):
    rows = [("a", "x", "change", 1, 10.0), ("b", "x", other, None, None)]
    rows += [("a", "y", "change", 1, 5.0), ("b", "y", "change", 1, 6.0)]
    rows += [(run, "z", "not tested", None, None) for run in "ab"]
    y, x = order_of_phases(pd.DataFrame(rows, columns=["run", "curve", "phase", "number", "at"]))
    assert (y.curve, y.runs, y.all_runs) == ("y", 2, 2)
    assert y.place.mean == pytest.approx(np.log10([5, 6]).mean())
    assert (x.curve, x.place, x.runs, x.all_runs) == ("x", None, 1, 2)


def test_too_few_observations_are_said(tmp_path, capsys):
    run = run_with(tmp_path / "run", {"h": [1.0, 2.0, 3.0]}, steps=[1, 10, 100])
    main(["phases", str(run)])
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 not tested: expected at least 8 observations per decade" in printed


def test_two_curves_of_one_name_are_refused(tmp_path):
    run = tmp_path / "run"
    store = ObservationStore(run / "observations" / "curves", "nobody.Curves", {})
    for step in map(int, STEPS[:3]):
        rows = {"step": step, "tokens": step, "quantity": "score", "site": ["x", ""], "group": ["", "x"]}
        store.write(step, pd.DataFrame({**rows, "value": 1.0}))
    with pytest.raises(ValueError, match=r"two curves of .* have the name 'curves/score/x'"):
        read_curves([run])


def test_each_difference_is_from_the_curve_above():
    at = {"x": (10, 20), "y": (100, 400), "z": (1000, 16_000)}
    rows = [(run, name, "change", 1, float(at[name][i])) for i, run in enumerate("ab") for name in at]
    found = order_of_phases(pd.DataFrame(rows, columns=["run", "curve", "phase", "number", "at"]))
    assert [p.before and p.before.mean for p in found] == [
        None, pytest.approx(1 + np.log10(2) / 2), pytest.approx(1 + np.log10(4) / 2),
    ]  # fmt: skip


def test_mistakes_are_refused(seeds, monkeypatch, tmp_path):
    for arguments in ("--select losses/*", "--select curves/score/early --most 9", "--level 0"):
        with pytest.raises(SystemExit, match=r"1|2"):
            main(["phases", str(seeds[0]), *arguments.split()])
    monkeypatch.setattr("lmdyn.claims.phases.phases.MOST_CURVES", 2)
    for given, said in (
        (([tmp_path],), r"contains no run: expected config.yaml and observations/"),
        ((seeds[:1], ["losses/*"]), r"fits 'losses/\*': expected names such as OBSERVER/QUANTITY/SITE"),
        ((seeds[:1],), "3 curves, but without --select lmdyn tests at most 2"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            read_curves(*given)

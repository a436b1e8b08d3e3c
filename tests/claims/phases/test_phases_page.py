import re

import numpy as np
import pandas as pd
import pytest

from lmdyn.claims.phases.phases import read_curves
from lmdyn.claims.phases.seed_map import TooFewSeedsError, _table, map_of
from lmdyn.cli.__main__ import main
from lmdyn.cli.report import write_report
from tests.helpers.runs_with_curves import run_with

STEPS = np.unique(np.round(10 ** np.linspace(0, 2.2, 24)).astype(int))


def curves_of_seeds(seeds, steps=STEPS, *, fork=False):
    """By seed, curves that bend in the middle, and ones that are smooth; of a fork, every other bends the other way."""
    x = np.log10(steps)
    found = {}
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        sign = -1 if fork and seed % 2 else 1
        found[f"seed_{seed}"] = {
            "bend": sign * np.where(x > x[-1] / 2, 1.0, 0.0) + 0.02 * generator.standard_normal(len(x)),
            "smooth": 0.3 * x + 0.02 * generator.standard_normal(len(x)),
            "short": np.where(np.arange(len(x)) % 6, np.nan, x),
        }
    return found


def as_series(curves, steps=STEPS):
    return {
        run: {name: pd.Series(values, index=steps).dropna() for name, values in of.items()}
        for run, of in curves.items()
    }


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three")
    return [run_with(folder / run, curves, STEPS) for run, curves in curves_of_seeds(3).items()]


def text_of(path):
    return " ".join(re.sub(r"<[^>]+>", " ", path.read_text(encoding="utf-8").partition("<main>")[2]).split())


def test_the_page_holds_all_curves_and_names_what_was_not_tested(three, tmp_path):
    main(["phases", *map(str, three), "--resamplings", "39", "--page", str(tmp_path)])
    written = text_of(tmp_path / "phases.html")
    for curve in (
        "curves/score/bend 3 of 3 runs",
        "run: curves/score/smooth.",
        "curves/score/short (seed_0)",
    ):
        assert curve in written
    assert "training map" not in written
    assert set(pd.read_parquet(tmp_path / "phases.parquet")["phase"]) == {"change", "smooth", "not tested"}
    assert (tmp_path / "phases_curves_1.svg").stat().st_size > 1000
    raw = (tmp_path / "phases.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=['\"]?(https?:)?//", raw)


def test_a_report_and_the_page_link_to_each_other(three, tmp_path):
    write_report(three[:1], tmp_path)
    command = ["phases", str(three[0]), "--select", "*/bend", "--resamplings", "39", "--page", str(tmp_path)]
    for again in (lambda: main(command), lambda: main(command), lambda: write_report(three[:1], tmp_path)):
        again()
        assert (tmp_path / "index.html").read_text(encoding="utf-8").count("<a href='phases.html'>") == 1
    assert "href='index.html'" in (tmp_path / "phases.html").read_text(encoding="utf-8")


def test_a_map_of_few_seeds_is_void(three, tmp_path):
    arguments = ["--select", "*/bend", "--resamplings", "39", "--page", str(tmp_path), "--map"]
    with pytest.raises(SystemExit) as stopped:
        main(["phases", *map(str, three), *arguments])
    assert stopped.value.code == 3
    written = text_of(tmp_path / "phases.html")
    assert "at least 20 different seeds, got 3" in written
    assert not list(tmp_path.glob("training_map*"))


@pytest.mark.slow
def test_runs_of_one_seed_count_once(tmp_path, caplog):
    curves = curves_of_seeds(21)
    runs = [run_with(tmp_path / run, {"bend": of["bend"]}, STEPS) for run, of in curves.items()]
    for run in runs:
        (run / "config.yaml").write_text("seed_everything: 1\nmodel: {class_path: a.B}\n", encoding="utf-8")
    kept = read_curves(runs)
    assert list(kept) == ["seed_0"]
    assert "leaves out 20 runs, since other runs have the same seeds" in caplog.text
    with pytest.raises(TooFewSeedsError, match="of at least 20 different seeds, got 1"):
        map_of(kept)
    (runs[1] / "config.yaml").write_text("seed_everything: 1\nmodel: {class_path: a.C}\n", encoding="utf-8")
    assert list(read_curves(runs)) == ["seed_0", "seed_1"]
    assert "the runs differ in more than their seeds (2 conditions)" in caplog.text


def test_what_a_map_cannot_hold_is_refused_or_named(monkeypatch):
    curves = as_series(curves_of_seeds(20))
    with pytest.raises(ValueError, match=r"at least 8 steps .* all curves, got 4: .*; short has the fewest"):
        map_of(curves)
    some = {run: {"bend": of["bend"], "smooth": 0 * of["smooth"] + 1} for run, of in curves.items()}
    some["seed_0"]["short"] = curves["seed_0"]["short"]
    found = map_of(some, most=2, rotations=19)
    assert found.measures == ("bend",)
    assert found.left == ("not in all runs: short", "constant: smooth")
    assert found.values.shape == (20, len(STEPS), 1)
    assert found.values[3, :, 0] == pytest.approx(curves["seed_3"]["bend"].to_numpy())
    monkeypatch.setattr("lmdyn.claims.phases.seed_map.MOST_MEASURES", 1)
    with pytest.raises(ValueError, match=r"1 to 1 curves .* got 3: choose other curves"):
        map_of(curves)


@pytest.mark.slow
def test_pieces_of_a_smooth_course_are_told_as_such():
    curves = {run: {"smooth": of["smooth"]} for run, of in as_series(curves_of_seeds(20)).items()}
    found = map_of(curves, most=3, rotations=19)
    assert found.found.at_most
    assert found.smooth.states == 3  # as many as of curves without phases
    assert found.against_smooth.interval()[0] < 0  # which are as likely
    assert len(found.found.routes()) == 1


@pytest.mark.slow
def test_a_fork_is_on_the_map(tmp_path, capsys):
    steps = STEPS[:14]
    forked = curves_of_seeds(20, steps, fork=True)
    runs = [run_with(tmp_path / run, {"bend": of["bend"]}, steps) for run, of in forked.items()]
    page = tmp_path / "page"
    quick = ["--resamplings", "19", "--most", "1"]
    main(["phases", *map(str, runs), *quick, "--page", str(page), "--map", "--states", "3"])
    assert "2 or 3 (10 and 10 seeds)" in capsys.readouterr().out
    assert "in 2 orders" in text_of(page / "phases.html")
    assert sorted(path.stem for path in page.glob("*map*.png")) == ["training_map_map", "training_map_paths"]
    paths = pd.read_parquet(page / "training_map.parquet")
    assert list(paths.columns) == ["run", "step", "state"]
    last = paths[paths["step"] == steps[-1]].set_index("run")["state"]
    assert last["seed_0"] != last["seed_1"]
    assert last["seed_0"] == last["seed_18"]


def test_a_page_of_runs_without_finite_values(tmp_path):
    run = run_with(tmp_path / "diverged", {"x": np.full(len(STEPS), np.nan)}, STEPS)
    main(["phases", str(run), "--page", str(tmp_path / "page")])
    assert "0 curves of single runs" in text_of(tmp_path / "page" / "phases.html")


def test_a_measure_that_moves_in_few_seeds_is_left_out_and_named():
    """Four of five folds might have only its constant, of which no model is fitted."""
    curves = curves_of_seeds(20)
    for run, of in curves.items():
        of["short"] = of["smooth"]
        of["rare"] = np.arange(len(STEPS)) * float(run == "seed_3") + 2.0
    measures, _, values, left = _table(as_series(curves))
    assert measures == ["bend", "smooth", "short"]
    assert values.shape[0] == 20
    assert "changes in at most a fifth of the runs: rare" in left

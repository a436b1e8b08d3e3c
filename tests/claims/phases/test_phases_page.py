import re

import numpy as np
import pandas as pd
import pytest

from lmdyn.claims.phases.phases import phases_of, read_curves
from lmdyn.claims.phases.seed_map import TooFewSeedsError, _table, map_of
from lmdyn.claims.phases.stacked_curves import order_to_draw, stacked_curves
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


def test_curves_stand_above_each_other_on_one_axis(three):
    curves = read_curves(three)
    phases = phases_of(curves, resamplings=39)
    assert order_to_draw(phases) == ["curves/score/bend", "curves/score/smooth", "curves/score/short"]
    (figure,) = stacked_curves(curves, phases).values()
    bend, smooth, short = figure.axes
    assert bend.get_xlim() == smooth.get_xlim() == short.get_xlim()
    assert [axes.get_title("left") for axes in figure.axes] == order_to_draw(phases)
    # three thin lines, their mean, change points
    places = [line.get_xdata()[0] for line in bend.lines if list(line.get_ydata()) == [0, 1]]
    changes = phases[(phases["phase"] == "change") & (phases["number"] == 1)]
    assert places[0] == pytest.approx(10 ** np.log10(changes["at"].to_numpy(dtype=float)).mean())
    expected = np.mean([of["curves/score/bend"].to_numpy() for of in curves.values()], axis=0)
    assert bend.lines[3].get_ydata() == pytest.approx(expected)
    assert len(set(changes["at"])) == 1
    assert len(bend.patches) == len(smooth.patches) == 0  # three runs that agree exactly have no interval


def test_the_intervals_of_one_run_are_its_own(three):
    curves = read_curves(three[:1], ["curves/*/bend"])
    phases = phases_of(curves, resamplings=39)
    (axes,) = stacked_curves(curves, phases)["curves_1"].axes
    first = phases.iloc[0]
    box = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert (box.x0, box.x1) == pytest.approx((first["low"], first["high"]))


def test_curves_beyond_the_number_drawn_are_named(three, tmp_path, monkeypatch):
    monkeypatch.setattr("lmdyn.claims.phases.stacked_curves.MOST_DRAWN", 1)
    monkeypatch.setattr("lmdyn.claims.phases.page.MOST_DRAWN", 1)
    main(["phases", str(three[0]), "--resamplings", "39", "--page", str(tmp_path)])
    written = text_of(tmp_path / "phases.html")
    assert "2 curves are not drawn curves/score/smooth, curves/score/short" in written


def test_a_report_and_the_page_link_to_each_other(three, tmp_path):
    write_report(three[:1], tmp_path)
    assert "phases.html" not in (tmp_path / "index.html").read_text(encoding="utf-8")
    command = ["phases", str(three[0]), "--select", "*/bend", "--resamplings", "39", "--page", str(tmp_path)]
    main(command)
    report = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert report.count("<a href='phases.html'>") == 1
    assert "href='index.html'" in (tmp_path / "phases.html").read_text(encoding="utf-8")
    main(command)
    assert (tmp_path / "index.html").read_text(encoding="utf-8") == report
    write_report(three[:1], tmp_path)
    again = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert again.count("<a href='phases.html'>") == 1
    assert 'href="#phases"' in again


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
    assert "20 runs of a seed that another run has are left out" in caplog.text
    with pytest.raises(TooFewSeedsError, match="of at least 20 different seeds, got 1"):
        map_of(kept)
    (runs[1] / "config.yaml").write_text("seed_everything: 1\nmodel: {class_path: a.C}\n", encoding="utf-8")
    assert list(read_curves(runs)) == ["seed_0", "seed_1"]
    assert "the runs differ in more than their seeds (2 conditions)" in caplog.text


def test_what_a_map_cannot_hold_is_refused_or_named(monkeypatch):
    curves = as_series(curves_of_seeds(20))
    with pytest.raises(ValueError, match="at least 8 steps at which all runs have all curves, got 4: short"):
        map_of(curves)
    some = {
        run: {
            name: 0 * curve + 1 if name == "smooth" else curve
            for name, curve in of.items()
            if name != "short" or run == "seed_0"
        }
        for run, of in curves.items()
    }
    found = map_of(some, most=2, rotations=19)
    assert found.measures == ("bend",)
    assert found.left == ("not in all runs: short", "constant: smooth")
    assert found.values.shape == (20, len(STEPS), 1)
    assert found.values[3, :, 0] == pytest.approx(curves["seed_3"]["bend"].to_numpy())
    monkeypatch.setattr("lmdyn.claims.phases.seed_map.MOST_MEASURES", 1)
    with pytest.raises(ValueError, match=r"1 to 1 curves .* got 3: choose with --select"):
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
    assert {path.name for path in page.glob("*map*.png")} == {
        f"training_map_{name}.png" for name in ("map", "paths")
    }
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
    assert "constant in all but a fifth of the runs or fewer: rare" in left

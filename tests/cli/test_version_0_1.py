"""A run of version 0.1, as it lies on a user's disk: it is reported, replayed and resumed by today's code."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from lmdyn.cli.__main__ import main

pytestmark = pytest.mark.slow

FIXTURE = Path(__file__).parents[1] / "fixtures" / "v0_1" / "lstm_run"
OBSERVERS = ("learning_curves", "similarity", "sparsity")


@pytest.fixture
def run(tmp_path, monkeypatch):
    shutil.copytree(FIXTURE, tmp_path / "lstm_run")
    monkeypatch.chdir(tmp_path)
    return Path("lstm_run")


def observed(run):
    """Every observation, by observer and step."""
    return {
        (name, path.name): pd.read_parquet(path)
        for name in OBSERVERS
        for path in sorted((run / "observations" / name).iterdir())
    }


def as_then(after, before):
    """What was observed then of what is observed today: observers gain quantities, and Sparsity samples of words."""
    groups = ["quantity", *({"pos_class"} & set(before))]
    then = pd.MultiIndex.from_frame(before[groups].astype(object))
    found = after[pd.MultiIndex.from_frame(after[groups].astype(object)).isin(then)].reset_index(drop=True)
    same = {name: before[name].dtype for name in before if before[name].dtype == "category"}
    return found.astype(dict.fromkeys(same, "str")), before.astype(dict.fromkeys(same, "str"))


def times(run):
    return {path: path.stat().st_mtime_ns for path in (run / "observations").rglob("*.parquet")}


def test_report(run):
    main(["report", str(run)])
    page = (run / "report" / "index.html").read_text()
    for name in OBSERVERS:
        assert f">{name.replace('_', ' ').capitalize()}</h2>" in page
    assert len(list((run / "report").glob("*.png"))) >= 4  # drawn by the classes, not only listed


def test_analyze_skips_what_is_there(run):
    before = times(run)
    assert len(before) == 9
    main(["analyze", str(run)])
    assert times(run) == before


def test_analyze_makes_a_missing_step_as_it_was(run):
    before = observed(run)
    for name in OBSERVERS:
        (run / "observations" / name / "000000020.parquet").unlink()
    kept = times(run)
    main(["analyze", str(run), "--logger", "none"])
    assert {path: at for path, at in times(run).items() if path in kept} == kept
    after = observed(run)
    assert after.keys() == before.keys()
    for key, table in before.items():
        found, then = as_then(after[key], table)
        # another machine's float32, of which a correlation of 0.005 over few words is off by 4e-5
        ill = then["quantity"].str.startswith("rho_").to_numpy()
        pd.testing.assert_frame_equal(found[~ill], then[~ill], rtol=1e-3, atol=1e-5)
        pd.testing.assert_frame_equal(found[ill], then[ill], rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("without_report")
def test_fit_resumes(run):
    before = observed(run)
    main(["fit", "--config", "lstm_run/config.yaml", "--ckpt_path", "last"])
    after = observed(run)
    assert after.keys() == before.keys()
    for key, table in before.items():  # the last steps are trained and observed again
        pd.testing.assert_frame_equal(*as_then(after[key], table), rtol=1e-2, atol=1e-3)


def test_settings_are_still_compared(run, tmp_path):
    config = tmp_path / "other.yaml"
    config.write_text("trainer: {callbacks: [{class_path: LearningCurves, init_args: {bands: [7]}}]}")
    with pytest.raises(SystemExit):
        main(["analyze", str(run), "--config", str(config)])

"""``lmdyn claims``: terminal, summary, table, page, from runs and from their records alike."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from lmdyn.claims import STUDIES, Above, At, Claim, OneOf, Part, Rows, Tested, records
from lmdyn.claims.profiles import find_runs
from lmdyn.claims.records import write_records
from lmdyn.claims.verdicts import lists
from lmdyn.claims.verdicts.show import judge_profiles
from lmdyn.claims.verdicts.tables import questions_of, verdict_table
from lmdyn.cli.__main__ import main
from lmdyn.runs import provenance
from lmdyn.runs.observed_run import condition_of
from tests.helpers.studied_runs import NAME, STUDY, make_run, rho

ROOT = Path(__file__).parents[3]
OWN = ROOT / "examples" / "own_study.py"
VERDICTS = {
    "rises_h2": "holds", "rises_h1": "fails", "strong": "holds", "both": "holds", "early": "undecided",
    "voided": "void", "attention": "not measured",
}  # fmt: skip


@pytest.fixture
def study(monkeypatch):
    for module in (lists, records):
        monkeypatch.setattr(module, "STUDIES", {NAME: STUDY})
    monkeypatch.setattr(provenance, "_studies", lambda: {NAME: STUDY})
    return STUDY


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Five runs, which no test changes."""
    folder = tmp_path_factory.mktemp("runs") / "organism"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "_studies", lambda: {NAME: STUDY})
        for seed in range(2, 7):
            make_run(folder / f"lm_{seed}", seed)
    return folder


@pytest.fixture
def runs(tmp_path, made, study):
    return shutil.copytree(made, tmp_path / "runs" / "organism")


def refused(capsys, *args):
    with pytest.raises(SystemExit, match=r"[12]"):
        main(["claims", *map(str, args)])
    return capsys.readouterr().err


@pytest.mark.slow
def test_terminal_summary_table_and_page_say_the_same(runs, tmp_path, capsys):
    target, out = tmp_path / "results" / f"{NAME}.md", tmp_path / "report"
    main(["claims", NAME, str(runs), "--markdown", str(target), "--out", str(out)])
    table = pd.read_csv(target.with_suffix(".csv"))
    whole = table[table["verdict"].notna()].set_index("claim")
    assert whole["verdict"].to_dict() == VERDICTS
    judged = judge_profiles(STUDY, [runs])
    for row in (row for row in judged[0].judgement if row.parts):
        told = table.loc[table["claim"] == row.claim.name, ["mean", "low", "high"]].to_numpy()
        assert told == pytest.approx(np.array([[part.mean, *part.interval] for part in row.parts]), rel=1e-5)
        if row.floor is not None:
            assert whole.loc[row.claim.name, "floor"] == pytest.approx(row.floor.mean, rel=1e-5)
        assert row.claim.fingerprint.startswith(whole.loc[row.claim.name, "fingerprint"])
    printed, page = capsys.readouterr().out, (out / "claims.html").read_text(encoding="utf-8")
    summary = target.read_text(encoding="utf-8")
    for question in questions_of(judged[0].judgement):
        if question.measured:
            assert question.title in printed
            assert question.title in page
            (row,) = (line for line in summary.splitlines() if line.startswith(f"| {question.title} | "))
            assert f" | {question.answer()} | " in row
    assert len(list(out.glob("*.svg"))) == page.count("<img alt=") == 4
    assert not re.search(r"(src|href)=['\"]?(https?:)?//", page)


def test_records_give_the_table_that_runs_give(runs, tmp_path, study):
    out = tmp_path / "docs" / "records" / NAME / "organism"
    main(["records", str(runs), "--out", str(out)])
    of_runs, of_records = (verdict_table(judge_profiles(STUDY, [folder])) for folder in (runs, out))
    pd.testing.assert_frame_equal(of_runs, of_records)


def test_some_claims_are_shown_and_all_are_corrected_for(runs, tmp_path, capsys):
    targets = [tmp_path / "all.md", tmp_path / "some.md"]
    main(["claims", NAME, str(runs), "--markdown", str(targets[0])])
    main(["claims", NAME, str(runs), "--only", "strong", "rises_*", "--markdown", str(targets[1])])
    every, some = (pd.read_csv(target.with_suffix(".csv")) for target in targets)
    names = ["rises_h2", "rises_h1", "strong"]
    assert some["claim"].tolist() == names
    pd.testing.assert_frame_equal(
        some, every[every["claim"].isin(names)].reset_index(drop=True), check_dtype=False
    )
    assert "did you mean 'strong'?" in refused(capsys, NAME, runs, "--only", "stronk")


@pytest.mark.parametrize("name", ["saphra2019_sparsity", "saphra2019_svcca", "saphra2020_di"])
def test_our_runs_of_seed_1_are_inspected(name):
    """As configured today; a run on other text or of another model is not one of them."""
    paths = [f"{name}/{p}/lm.yaml" for p in ("organism", "wikitext2", "english", "scaffold")]
    found = [path for path in ("quickstart.yaml", *paths) if (ROOT / "configs" / path).is_file()]
    assert len(found) >= 2
    for path in found:
        config = yaml.safe_load((ROOT / "configs" / path).read_text(encoding="utf-8"))
        condition = condition_of({**config, "seed_everything": 1})
        assert STUDIES[name].was_inspected(1, condition), path
        assert not STUDIES[name].was_inspected(1, {**condition, "model": "MyLSTM"})
        assert not STUDIES[name].was_inspected(1, {**condition, "data": "MyText"})


def test_what_other_runs_of_the_page_measure_is_not_missing(runs, tmp_path, study):
    long = Claim("long", "it is so", "5", (Part(At(rho(run=(("length", 8),))), Above(0)),), floor="none")
    for seed in (2, 3, 4):
        make_run(tmp_path / "runs" / "larger" / f"lm_{seed}", seed, length=8)
    judged = judge_profiles(replace(STUDY, claims=(*STUDY.claims, long)), [runs.parent])
    table = verdict_table(judged)
    assert set(table["runs"]) == {"organism", "larger"}
    assert table.loc[table["claim"].eq("long"), ["runs", "verdict"]].to_numpy().tolist() == [
        ["larger", "holds"]
    ]
    with pytest.raises(ValueError, match=r"data.length: .* Give the runs of one condition"):
        judge_profiles(STUDY, [*sorted(runs.iterdir())[2:], *sorted((runs.parent / "larger").iterdir())[:2]])


def test_mistakes_are_a_line(runs, tmp_path, capsys):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.yaml").write_text("{}")
    write_records(find_runs([runs]), tmp_path / "other", study="roe1999_syntax")
    for args, error in [
        (["doe2001_wrod", runs], f"did you mean '{NAME}'?"),
        ([runs], "(the study comes first: lmdyn claims STUDY RUN …)"),
        ([NAME, tmp_path / "absent"], "is not a folder: expected a run, a folder of runs, or records"),
        ([NAME, tmp_path / "other"], "records for the claims of roe1999_syntax"),
        ([NAME, "--markdown", tmp_path / "m.md"], "require runs: `lmdyn claims STUDY RUN …`"),
        ([NAME, runs, "--markdwn", "x"], "did you mean '--markdown'?"),
        ([NAME, runs, "--confidence", "95"], "--confidence"),
    ]:
        assert error in refused(capsys, *args)


def test_what_can_be_answered_comes_first_and_a_yaml_measures_the_others(
    runs, tmp_path, study, capsys, monkeypatch
):
    """Settings of an observer are its arguments; what selects a run, and tests, are comments."""
    wanted = Rows(
        "Interdependence", "di", settings=(("backend", "shapley"),), run=(("length", OneOf((8, 9))),)
    )
    heads = Claim("heads", "it is so", "5", (Part(At(wanted), Above(0)),), floor="none")
    tested = Claim("tested", "it is so", "5", (Part(Tested("test_f1"), Above(0)),), floor="none")
    monkeypatch.setattr(lists, "STUDIES", {NAME: replace(STUDY, claims=(*STUDY.claims, heads, tested))})
    main(["claims", NAME, str(runs), "--write", str(tmp_path / "more.yaml")])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith("the observations answer 6 of 9 claims")
    table = [" ".join(line.split()) for line in lines]
    assert "Sparsity 7 6 Sparsity/entropy" in table
    assert "Interdependence 1 0 Interdependence (backend: 'shapley', length: OneOf(values=(8, 9)))" in table
    assert "test 3 2 lmdyn test: test/test_f1" in table
    text = (tmp_path / "more.yaml").read_text()
    assert "# Interdependence, length: 8\n# lmdyn test: test/test_f1\n" in text
    every = {"schedule": {"per_decade": 4}}
    sparsity, shapley = yaml.safe_load(text)["trainer"]["callbacks"]
    assert sparsity == {"class_path": "Sparsity", "init_args": every}
    named = {"backend": "shapley", "name": "interdependence_backend_shapley"}
    assert shapley == {"class_path": "Interdependence", "init_args": every | named}
    assert "attention" not in text
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.yaml").write_text("{}")
    main(["claims", NAME, str(tmp_path / "bare")])
    said = capsys.readouterr().out
    assert "the observations answer 0 of 9 claims" in said
    assert "verdict" not in said  # no table without a row


def test_a_study_of_ones_own(runs, tmp_path, monkeypatch, capsys):
    main(["claims"])
    assert re.search(rf"{NAME} +7 +Doe 2001: A study of words", capsys.readouterr().out)
    main(["claims", str(OWN)])
    assert "gradients_follow_frequency" in capsys.readouterr().out
    main(["claims", str(OWN), str(runs)])
    assert re.search(r"LearningCurves +\d +0 +LearningCurves", capsys.readouterr().out)
    (tmp_path / "empty.py").write_text("STUDIES = 3")
    assert "defines no study: add STUDY = lmdyn.claims.Study(…)" in refused(
        capsys, tmp_path / "empty.py", runs
    )
    assert "expected a Python file" in refused(capsys, tmp_path / "nowhere.py", runs)
    assert "me2026_words" not in STUDIES
    monkeypatch.setenv("LMDYN_STUDIES", str(OWN))
    assert STUDIES["me2026_words"].claims[0].name == "gradients_follow_frequency"
    assert len(STUDIES) == len(list(STUDIES))

"""``lmdyn claims``: tables in the terminal, Markdown, page and figures, from runs and from their records alike."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from lmdyn.callbacks.observing.store import ObservationStore
from lmdyn.claims import STUDIES, Above, At, Claim, Part
from lmdyn.claims.runs import condition_of
from lmdyn.cli.__main__ import main
from lmdyn.cli.studies import provenance, records
from lmdyn.cli.studies.records import write_records
from lmdyn.cli.studies.run_folders import find_runs
from lmdyn.cli.verdicts import lists
from lmdyn.cli.verdicts.page import draw_figures
from lmdyn.cli.verdicts.show import judge_profiles
from tests.helpers.studied_runs import NAME, STUDY, make_run, rho

CONFIGS = Path(__file__).parents[3] / "configs"


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


def refused(*args):
    with pytest.raises(SystemExit, match="1"):
        main(["claims", *map(str, args)])


def test_the_table_of_runs_of_ones_own(runs, capsys):
    main(["claims", NAME, str(runs)])
    printed = capsys.readouterr().out
    assert f"{NAME}: organism, 5 runs of seeds 2, 3, 4, 5, 6:" in printed
    assert "1 is void, 1 is not measured" in printed
    rows = {line.split("  ")[0]: line for line in printed.splitlines()}
    assert "holds (of this text)" in rows["last layer"]
    assert "fails (of this text)" in rows["first layer"]
    assert re.search(r"0\.\d+ \[0\.\d+, 0\.\d+\] +≥ 0\.1 +0\.\d+ \[.*\] +holds +holds", rows["strong"])
    assert "exploratory" not in printed
    assert "Does ρ rise?: The choice decides: it holds with last layer; fails with first layer." in printed
    assert "voided: seed 2: the tagger is perfect: 0.52 is not ≥ 0.99" in printed
    assert "not measured: attention\n  measured by: lmdyn analyze RUN --config attention.yaml" in printed


def test_a_single_run_of_a_seen_seed(tmp_path, study, capsys):
    run = make_run(tmp_path / "version_0", 1)
    main(["claims", NAME, str(run)])
    printed = capsys.readouterr().out
    assert (
        f"{NAME}: 1 run of seed 1: 0 hold, 0 fail, 5 are undecided, 1 is void, 1 is not measured." in printed
    )
    assert "undecided: 1 seed" in re.sub(r" +", " ", printed)
    assert "rises_h2, rises_h1, strong, both, early: 1 seed: 3 or more decide" in printed
    assert (
        "exploratory: rises_h2, rises_h1, strong, both, early, voided: seed 1 is that of runs that were seen"
        in printed
    )


def test_costs_are_told_where_they_are_known(runs, tmp_path, capsys):
    each = {"fit": {"cpu_hours": 1.25, "killed": 1}, "analyze": {"cpu_hours": 0.5, "killed": 0}}
    costs = {"cpu_hours": 1.75, "peak_memory_mb": 1536, "disk_mb": 2048, "commands": each}
    cost = "cost 1.75 CPU hours (fit 1.25, analyze 0.50), 1.5 GB of memory in the largest process, 2.0 GB on disk; with"
    target = tmp_path / "m.md"
    some = [str(run) for run in sorted(runs.iterdir())]
    (runs / "costs.json").write_text(json.dumps(costs))
    for given, known in ((some, True), (some[1:], False)):  # all runs of the folder, or some
        main(["claims", NAME, *given, "--only", "strong"])
        assert (f"The runs {cost} 1 killed process." in capsys.readouterr().out) == known
    out = tmp_path / "docs" / "records" / NAME / "organism"
    main(["records", str(runs), "--out", str(out)])
    main(["claims", NAME, str(out), "--only", "strong"])
    assert "CPU hours" not in capsys.readouterr().out
    shutil.copy(runs / "costs.json", out)
    main(["claims", NAME, str(out), "--only", "strong", "--markdown", str(target)])
    assert f"\n- {cost} 1 killed process\n" in target.read_text()
    (runs / "costs.json").write_text("{")  # no reason to fail
    main(["claims", NAME, str(runs), "--only", "strong"])


def test_some_claims_only(runs, tmp_path, capsys):
    main(["claims", NAME, str(runs)])
    rows = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    target = tmp_path / "m.md"
    main(["claims", NAME, str(runs), "--only", "strong", "rises_*", "--markdown", str(target)])
    printed = capsys.readouterr().out
    assert (
        f"{NAME}: organism, 5 runs of seeds 2, 3, 4, 5, 6: 3 of 7 claims are shown: 2 hold, 1 fails, "
        in printed
    )
    for name in ("strong", "last layer", "first layer"):
        assert rows[name] in printed.splitlines()  # the same, corrected for all
    assert "voided" not in printed
    assert "voided" not in target.read_text()
    refused(NAME, runs, "--only", "stronk")
    assert f"{NAME} has no claim 'stronk', did you mean 'strong'?" in capsys.readouterr().err


def test_a_seed_is_seen_only_of_what_was_seen(tmp_path, study, monkeypatch, capsys):
    """A user's own model with seed 1 is no run of ours."""
    seen = replace(study, seen_in=((("model", "LSTMLanguageModel"), ("data.length", 4)),))
    monkeypatch.setattr(lists, "STUDIES", {NAME: seen})
    for name, length, told in (("ours", 4, True), ("own", 6, False)):
        main(["claims", NAME, str(make_run(tmp_path / name, 1, length=length)), "--only", "strong"])
        assert ("seed 1 is that of runs that were seen" in capsys.readouterr().out) == told, name
    assert seen.was_seen(1, {})  # of no known condition
    assert not seen.was_seen(2, {})
    assert study.was_seen(1, {"data": "mine"})  # without cases the seed decides


@pytest.mark.parametrize("name", ["saphra2019_sparsity", "saphra2019_svcca", "saphra2020_di"])
def test_our_runs_of_seed_1_are_seen(name):
    """As configured today; a run on other text or of another model is not one of them."""
    found = []
    for path in (
        "quickstart.yaml",
        *(f"{name}/{p}/lm.yaml" for p in ("organism", "wikitext2", "english", "scaffold")),
    ):
        if (CONFIGS / path).is_file():
            config = yaml.safe_load((CONFIGS / path).read_text(encoding="utf-8"))
            condition = condition_of({**config, "seed_everything": 1})
            assert STUDIES[name].was_seen(1, condition), path
            assert not STUDIES[name].was_seen(1, {**condition, "model": "MyLSTM"})
            assert not STUDIES[name].was_seen(1, {**condition, "data": "MyText"})
            found.append(path)
    assert len(found) >= 2
    other = {"model": "LSTMLanguageModel", "data": "TextCorpus", "data.train": "mine/train.txt"}
    assert not STUDIES[name].was_seen(1, other)


def test_what_was_not_said_before_is_exploratory(runs, capsys):
    (runs / "lm_4" / "provenance.json").unlink()
    main(["claims", NAME, str(runs)])
    printed = capsys.readouterr().out
    assert re.search(r"holds \(of this text\), +", printed)
    assert "not said before it was measured in lm_4" in printed


def test_records_give_the_text_that_runs_give(runs, tmp_path, monkeypatch, capsys):
    out = tmp_path / "docs" / "records" / NAME / "organism"
    main(["records", str(runs), "--out", str(out)])
    monkeypatch.chdir(tmp_path)
    texts = []
    for given in ("runs/organism", f"docs/records/{NAME}/organism", f"docs/records/{NAME}"):
        target = tmp_path / "docs" / "results" / f"{NAME}.md"
        main(["claims", NAME, given, "--markdown", str(target)])
        texts.append(target.read_text())
        assert f"`lmdyn claims {NAME} {given} --markdown …`" in texts[-1]
    without = [re.sub(r"Written by.*", "", text) for text in texts]
    assert without[0] == without[1] == without[2]
    assert without[1] != without[1].replace("**holds**", "**fails**")  # the control: there are verdicts in it


def test_markdown_says_all_that_is_known(runs, tmp_path):
    target = tmp_path / "results" / f"{NAME}.md"
    main(["claims", NAME, str(runs), "--markdown", str(target)])
    text = target.read_text()
    for part in (
        "# A study of words\n\nDoe 2001. Written by",
        "## organism\n",
        "### Does ρ rise?\n\nρ of the gradient \\| rises (figure 3a).\n",
        "| variant | number | other seeds and texts | other seeds, this text | these models, other texts or words |",
        "*Of all variants:* The choice decides: it holds with last layer; fails with first layer.",
        "  - smallest difference that matters: 0.05, half of what is printed",
        "  - published: 0.4 \\[0.314, 0.479], of n = 400",
        "  - no floor: a change has none",
        "- *last layer*: the one below the output\n",
        "  - judged only where: the tagger is above chance (≥ 0.2)",
        "  - seeds of ρ: 2: 0.",
        "**holds** (of this text)",
        "  - parts, of which each is to hold: last holds, first holds",
        "All of: rho gradient at h2 (role target), at the last observation; rho gradient at h1 (role target)",
        "### Not measured\n\n| claim |",
        "; measured by: lmdyn analyze RUN --config attention.yaml, with a \\`name\\` of its own",
        "log₁₀ of the updates until rho gradient at h2 (role target) reaches 0.2",
    ):
        assert part.replace("_", "\\_") in text or part in text, part
    for line in text.splitlines():
        if line.startswith("| "):
            assert len(re.findall(r"(?<!\\)\|", line)) in (10, 4), line
    assert "_notes" not in text
    (target.parent / f"{NAME}_notes.md").write_text("ours")
    main(["claims", NAME, str(runs), "--markdown", str(target)])
    assert f"[{NAME}_notes.md]({NAME}_notes.md)" in target.read_text()


def test_two_profiles_stand_one_after_the_other(runs, tmp_path, capsys):
    for seed in (2, 3, 4):
        make_run(tmp_path / "runs" / "larger" / f"lm_{seed}", seed, length=8)
    main(["claims", NAME, str(runs), str(runs.parent / "larger"), "--markdown", str(tmp_path / "m.md")])
    text = (tmp_path / "m.md").read_text()
    assert text.index("## organism") < text.index("## larger")
    assert "| runs | claims |" in text
    assert "of them in" not in text  # what is not measured is so in both
    refused(NAME, *(runs.parent / "larger" / f"lm_{i}" for i in (2, 3)), *(runs / f"lm_{i}" for i in (4, 5)))
    error = capsys.readouterr().err
    assert "data.length: " in error
    assert re.search(
        rf"separately, give the folders instead of their runs: lmdyn claims {NAME} \S+ \S+", error
    )


def test_what_other_runs_of_the_page_measure_is_not_missing(runs, tmp_path, monkeypatch, capsys):
    long = Claim("long", "it is so", "5", (Part(At(rho(run=(("length", 8),))), Above(0)),), floor="none")
    with_long = replace(STUDY, claims=(*STUDY.claims, long, replace(long, name="long_too", says="… too")))
    monkeypatch.setattr(lists, "STUDIES", {NAME: with_long})
    for seed in (2, 3, 4):
        make_run(tmp_path / "runs" / "larger" / f"lm_{seed}", seed, length=8)
    given = [str(runs), str(runs.parent / "larger")]
    main(["claims", NAME, *given, "--markdown", str(tmp_path / "both.md"), "--out", str(tmp_path / "report")])
    text, page = (tmp_path / "both.md").read_text(), (tmp_path / "report" / "claims.html").read_text()
    assert "3 are not measured (2 of them in larger)" in text
    assert "3 are not measured (2 of them in larger)" in page
    assert "3 are not measured (2 of them in larger)" in capsys.readouterr().out.replace("\n", " ")
    assert "length: 8" not in text.replace("\\", "")
    main(["claims", NAME, given[0], "--markdown", str(tmp_path / "one.md")])
    text = (tmp_path / "one.md").read_text().replace("\\", "")  # the control
    assert text.count("(length: 8)") == 1
    assert "| long_too | … too (5) | as above |" in text


@pytest.mark.slow
def test_the_page_holds_tables_and_figures(runs, tmp_path):
    main(
        ["claims", NAME, str(runs), "--out", str(tmp_path / "report"), "--figures", str(tmp_path / "figures")]
    )
    text = (tmp_path / "report" / "claims.html").read_text()
    assert "<nav>" not in text  # there is no report
    assert text.count("<img alt=") == 4  # rises, strong, both, early
    assert "ρ of the gradient | rises" in text
    assert "<strong>Of all variants:</strong> The choice decides" in text
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {f"{NAME}_organism_{name}.png" for name in ("rises_h2", "strong", "both", "early")}
    assert len(list((tmp_path / "report").glob("*.svg"))) == 4


@pytest.mark.slow
def test_figures_are_drawn_of_records_too(runs, tmp_path, study):
    write_records(find_runs([runs]), tmp_path / "organism")
    judged = judge_profiles(study, [tmp_path / "organism"])
    drawn = draw_figures(judged, tmp_path / "figures")
    assert set(drawn) == {("organism", name) for name in ("rises_h2", "strong", "both", "early")}


def test_lists_without_runs(study, capsys):
    main(["claims"])
    assert re.search(rf"{NAME} +7 +Doe 2001: A study of words", capsys.readouterr().out)
    main(["claims", NAME])
    printed = capsys.readouterr().out
    assert "change of rho gradient at h2" in printed
    assert "≥ 0.05" in printed
    assert "0.4 [0.314, 0.479]" in printed


def test_mistakes_are_a_line(runs, tmp_path, capsys):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.yaml").write_text("{}")
    write_records(find_runs([runs]), tmp_path / "other", study="roe1999_syntax")
    for args, error in [
        (
            ["doe2001_wrod", runs],
            f"unknown study 'doe2001_wrod', did you mean '{NAME}'? studies: {NAME}",
        ),
        ([runs], "(the study comes first: lmdyn claims STUDY RUN …)"),
        ([NAME, tmp_path / "absent"], "is not a folder: expected a run, a folder of runs, or records"),
        (
            [NAME, tmp_path / "bare"],
            "bare: no observations: make them with `lmdyn analyze RUN --config OBSERVERS.yaml`",
        ),
        ([NAME, tmp_path / "other"], "other contains records for the claims of roe1999_syntax, which lack"),
        ([NAME, "--markdown", tmp_path / "m.md"], "require runs: `lmdyn claims STUDY RUN …`"),
    ]:
        refused(*args)
        assert error in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["claims", NAME, str(runs), "--markdwn", "x"])
    assert "did you mean '--markdown'?" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["claims", NAME, str(runs), "--confidence", "95"])


@pytest.mark.parametrize(
    "content", ['{"claims": []}', '{"claims": {"doe2001_word": 3}}', '{"claims": {}, "sessions": [3]}']
)
def test_a_provenance_of_another_shape_is_named(runs, tmp_path, capsys, content):
    run = next(path for path in sorted(runs.iterdir()) if path.is_dir())
    (run / "provenance.json").write_text(content)
    refused(NAME, runs, "--markdown", tmp_path / "m.md")
    assert f"{run.name}/provenance.json is not a run's provenance: expected" in capsys.readouterr().err


def test_observers_of_other_settings_are_refused(runs, capsys):
    store = ObservationStore(runs / "lm_3" / "observations" / "sparsity")
    tables = {step: pd.read_parquet(store.path(step)) for step in store.steps()}
    for step in tables:
        store.path(step).unlink()
    other = ObservationStore(store.folder, "lmdyn.callbacks.Sparsity", {"labels": "next"})
    for step, table in tables.items():
        other.write(step, table)
    refused(NAME, runs)
    assert "labels: 'aligned' in sparsity of lm_2, 'next' in sparsity of lm_3" in capsys.readouterr().err


def test_the_numbers_do_not_depend_on_last_digits(runs, tmp_path):
    """The Markdown in docs/results is written anew on other machines."""
    main(["claims", NAME, str(runs), "--markdown", str(tmp_path / "a.md")])
    for path in Path(runs).glob("lm_*/observations/sparsity/*.parquet"):
        table = pd.read_parquet(path)
        step = int(table["step"].iloc[0])
        store = ObservationStore(path.parent, "lmdyn.callbacks.Sparsity", {"labels": "aligned"})
        store.write(step, table.assign(value=table["value"] * (1 + 1e-12)))
    main(["claims", NAME, str(runs), "--markdown", str(tmp_path / "b.md")])
    assert (tmp_path / "a.md").read_text() == (tmp_path / "b.md").read_text()


def test_a_run_whose_training_has_not_ended(runs, tmp_path, capsys):
    path = runs / "lm_4" / "provenance.json"
    content = json.loads(path.read_text())
    content["sessions"] = [
        {"command": ["lmdyn", "fit"], "began": "2026-01-01"},
        {"command": ["lmdyn", "fit"], "began": "2026-01-02", "ended": "2026-01-03"},
        {"command": ["lmdyn", "analyze"], "began": "2026-01-04"},
    ]
    path.write_text(json.dumps(content))
    main(["claims", NAME, str(runs)])
    told = " ".join(capsys.readouterr().out.split())
    assert "Training has not ended of lm_2, lm_3, lm_5, lm_6: what is said of its end is" in told
    del content["sessions"][1]["ended"]
    path.write_text(json.dumps(content))
    main(["claims", NAME, str(runs), "--markdown", str(tmp_path / "m.md")])
    assert "not ended of lm_2, lm_3, lm_4, lm_5, lm_6: what" in " ".join(capsys.readouterr().out.split())
    assert "lm\\_4, lm\\_5, lm\\_6: what is said of its end" in (tmp_path / "m.md").read_text()


OWN = Path(__file__).parents[3] / "examples" / "own_study.py"


def test_a_study_of_ones_own(runs, tmp_path, monkeypatch, capsys):
    main(["claims", str(OWN)])
    assert "gradients_follow_frequency" in capsys.readouterr().out
    main(["claims", str(OWN), str(runs)])
    printed = capsys.readouterr().out
    assert "me2026_words: organism, 5 runs of seeds 2, 3, 4, 5, 6: 0 hold" in printed
    assert "no run has observations of LearningCurves" in printed
    (tmp_path / "empty.py").write_text("STUDIES = 3")
    refused(tmp_path / "empty.py", runs)
    assert "does not define STUDY = lmdyn.claims.Study(…)" in capsys.readouterr().err
    refused(tmp_path / "nowhere.py", runs)
    assert "expected a Python file" in capsys.readouterr().err
    assert "me2026_words" not in STUDIES
    monkeypatch.setenv("LMDYN_STUDIES", str(OWN))
    assert STUDIES["me2026_words"].claims[0].name == "gradients_follow_frequency"
    assert len(STUDIES) == len(list(STUDIES))

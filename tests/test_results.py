"""docs/results is written from docs/records by a command, and by nobody's hand: it is written anew and compared."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from lmdyn.claims import STUDIES
from lmdyn.claims.verdicts.show import judge_profiles
from lmdyn.claims.verdicts.verdict_page import write_summary
from lmdyn.runs import provenance
from lmdyn.runs.store import ObservationStore
from tests.helpers.studied_runs import NAME, STUDY, make_run

ROOT = Path(__file__).parents[1]
RECORDED = sorted(path.name for path in (ROOT / "docs" / "records").glob("*") if path.is_dir())
MOST_MB = 5.0  # of a study, all profiles


def written_anew(study, given, target):
    """What the command writes of runs or records: the summary, and the table of all claims."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_summary(study, judge_profiles(study, [given]), [given], target)
    return target.read_text(encoding="utf-8"), pd.read_csv(target.with_suffix(".csv"))


@pytest.mark.parametrize(  # the smallest in the fast tier
    "name",
    [
        name if name == "geiping2025_loops" else pytest.param(name, marks=pytest.mark.slow)
        for name in RECORDED
    ],
)
def test_results_are_what_the_records_give(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    there = Path("docs") / "results" / f"{name}.md"
    notes = f"{name}_notes.md"
    shutil.copy(there.with_name(notes), tmp_path / notes)
    text, table = written_anew(STUDIES[name], Path("docs") / "records" / name, tmp_path / there.name)
    again = f"lmdyn claims {name} docs/records/{name} --markdown docs/results/{name}.md"
    assert text == there.read_text(encoding="utf-8"), again
    pd.testing.assert_frame_equal(table, pd.read_csv(there.with_suffix(".csv")), rtol=1e-5, obj=again)


@pytest.mark.parametrize("name", RECORDED)
def test_records_are_small_and_of_no_machine(name):
    files = [path for path in (ROOT / "docs" / "records" / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_MB * 1e6
    for path in files:
        if path.suffix == ".json":
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.…])/(home|root|tmp|work|Users)/", text), path


def test_the_table_follows_the_observations(tmp_path, monkeypatch):
    """The control: other observations give another table, and last digits do not."""
    monkeypatch.setattr(provenance, "_studies", lambda: {NAME: STUDY})
    for seed in (2, 3, 4):
        make_run(tmp_path / "runs" / f"lm_{seed}", seed)
    text, table = written_anew(STUDY, tmp_path / "runs", tmp_path / "a.md")
    folder = tmp_path / "runs" / "lm_2" / "observations" / "sparsity"
    store = ObservationStore(folder, "lmdyn.callbacks.Sparsity", {"labels": "aligned"})
    for factor, same in ((1 + 1e-12, True), (0.5, False)):
        for path in sorted(folder.glob("*.parquet")):
            rows = pd.read_parquet(path)
            store.write(int(rows["step"].iloc[0]), rows.assign(value=rows["value"] * factor))
        changed, other = written_anew(STUDY, tmp_path / "runs", tmp_path / "b.md")
        assert (changed == text.replace("a.csv", "b.csv")) == same
        assert other.equals(table) == same


def test_the_list_of_changed_verdicts_is_that_of_the_tables():
    files = sorted((ROOT / "docs" / "results").glob("*.csv"))
    table = pd.concat([pd.read_csv(file) for file in files]).dropna(subset=["verdict"])
    pairs = [table.groupby([f"{of}_rules_1", of]).size() for of in ("verdict", "after_holm")]
    changed = sorted({pair for counts in pairs for pair in counts.index if pair[0] != pair[1]})
    rows = [
        f"| {old} | {new} | " + " | ".join(str(counts.get((old, new), 0)) for counts in pairs) + " |"
        for old, new in changed
    ]
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    between = text.partition("<!-- changed verdicts -->\n")[2].partition("\n<!-- /changed verdicts -->")[0]
    assert between.splitlines()[2:] == rows, "\n".join(rows)


def test_numbers_of_the_readme_are_those_of_results():
    said = re.search(r"\n## Results\n(.*?)\n## ", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    found = re.findall(r"([−\d.]+)\s\[([−\d.]+),\s([−\d.]+)\]", said[1])
    assert len(found) == 3
    every = pd.concat(pd.read_csv(ROOT / f"docs/results/{name}.csv") for name in RECORDED)
    for words in found:
        numbers = [float(word.replace("−", "-")) for word in words]
        near = (every[["mean", "low", "high"]] - numbers).abs().max(axis=1) <= 0.0051
        assert near.any(), words

"""docs/results is written from docs/records by a command, and by nobody's hand: it is written anew and compared."""

import re
import shutil
from functools import cache
from pathlib import Path

import pytest

from lmdyn.claims import STUDIES
from lmdyn.cli.__main__ import main
from lmdyn.cli.studies import provenance, records
from lmdyn.cli.verdicts import lists, page
from lmdyn.cli.verdicts.markdown import write_markdown
from lmdyn.cli.verdicts.page import draw_figures, figure_files
from lmdyn.cli.verdicts.show import judge_profiles
from tests.helpers.studied_runs import NAME, STUDY, make_run

ROOT = Path(__file__).parents[1]
RECORDED = sorted(path.name for path in (ROOT / "docs" / "records").glob("*") if path.is_dir())
MOST_MB = 3.0


@cache
def judged_here(name):
    """The claims of the records that are in the repository, for both tests of them."""
    return judge_profiles(STUDIES[name], [Path("docs") / "records" / name])


def written_anew(study, root, tmp_path):
    """What the command writes, run in ``root``: the text, and the figures that it shows."""
    given = Path("docs") / "records" / study.name
    judged = judged_here(study.name) if root == ROOT else judge_profiles(study, [given])
    target = tmp_path / "docs" / "results" / f"{study.name}.md"
    target.parent.mkdir(parents=True)
    notes = f"{study.name}_notes.md"
    if (root / "docs" / "results" / notes).exists():
        shutil.copy(root / "docs" / "results" / notes, target.parent)
    figures = figure_files(judged, tmp_path / "docs" / "images" / "claims")
    write_markdown(study, judged, [given], target, figures)
    return judged, target.read_text(encoding="utf-8"), {path.name for path in figures.values()}


def check(study, root, tmp_path):
    """The file in docs/results is what the records give; its figures are there; records are small and of no machine."""
    _, text, figures = written_anew(study, root, tmp_path)
    there = (root / "docs" / "results" / f"{study.name}.md").read_text(encoding="utf-8")
    again = (
        f"lmdyn claims {study.name} docs/records/{study.name} --markdown docs/results/{study.name}.md "
        "--figures docs/images/claims"
    )
    assert text == there, f"written by hand, or of other records: {again}"
    images = root / "docs" / "images" / "claims"
    assert {path.name for path in images.glob(f"{study.name}_*.png")} == figures, again
    files = [path for path in (root / "docs" / "records" / study.name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_MB * 1e6
    for path in files:
        if path.suffix == ".json":
            assert not re.search(
                r"(?<![\w.…])/(home|root|tmp|work|Users)/", path.read_text(encoding="utf-8")
            ), path


def summary_of(section):
    """Runs; claims that hold, fail, are undecided; after Holm; CPU hours, GB of memory: as a page says them."""
    claims = re.search(
        r"^\S+, (\d+) runs of .*?: (\d+) holds?, (\d+) fails?, (\d+) (?:is|are) undecided.*?"
        r"; after Holm (\d+) holds?, (\d+) fails?\.",
        section, re.M,
    )  # fmt: skip
    cost = re.search(r"^- cost ([\d.]+) CPU hours .*?([\d.]+) GB of memory", section, re.M)
    cost = cost or re.search(r"sessions of ([\d.]+) CPU hours; at most ([\d.]+) GB of memory", section)
    runs, *counts = claims.groups()
    return [runs, *cost.groups(), " / ".join(counts[:3]), " / ".join(counts[3:])]


def test_the_table_of_commands_says_what_the_pages_say():
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if "snakemake --profile" in line]
    given = {re.search(r"configs/(\S+?)`", row[0])[1]: row[1:] for row in rows}
    expected = {}
    for name in RECORDED:
        page = (ROOT / "docs" / "results" / f"{name}.md").read_text(encoding="utf-8")
        for section in re.split(r"^## ", page, flags=re.M)[1:]:
            expected[f"{name}/{section.split()[0].replace(chr(92), '')}"] = summary_of(section)
    assert given == expected


@pytest.mark.parametrize(  # the smallest in the fast tier
    "name",
    [
        name if name == "geiping2025_loops" else pytest.param(name, marks=pytest.mark.slow)
        for name in RECORDED
    ],
)
def test_results_are_what_the_records_give(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    check(STUDIES[name], ROOT, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_figures_of_results_are_drawn_from_records(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    judged, _, figures = written_anew(STUDIES[name], ROOT, tmp_path)
    drawn = draw_figures(judged, tmp_path / "figures")
    assert {path.name for path in drawn.values()} == figures
    assert all(path.stat().st_size > 5000 for path in drawn.values())


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A checkout with runs, records and results of a small study."""
    for module in (lists, records):
        monkeypatch.setattr(module, "STUDIES", {NAME: STUDY})
    monkeypatch.setattr(provenance, "_studies", lambda: {NAME: STUDY})
    root = tmp_path / "repository"
    for seed in (2, 3, 4):
        make_run(root / "runs" / f"lm_{seed}", seed)
    monkeypatch.chdir(root)
    main(["records", "runs", "--out", f"docs/records/{NAME}/organism"])
    (root / "docs" / "results").mkdir()
    (root / "docs" / "results" / f"{NAME}_notes.md").write_text("ours")
    monkeypatch.setattr(page, "_save", lambda figure, path: path.write_bytes(b"a picture"))
    main(
        [
            "claims",
            NAME,
            f"docs/records/{NAME}",
            "--markdown",
            f"docs/results/{NAME}.md",
            "--figures",
            "docs/images/claims",
        ]
    )
    return root


def test_what_was_changed_by_hand_is_found(repository, tmp_path):
    """The control, on records and results that the test writes."""
    check(STUDY, repository, tmp_path / "a")
    page = repository / "docs" / "results" / f"{NAME}.md"
    text = page.read_text()
    assert "(../images/claims/doe2001_word_organism_strong.png)" in text
    page.write_text(text.replace("**fails**", "**holds**"))
    with pytest.raises(
        AssertionError, match="written by hand, or of other records: lmdyn claims doe2001_word"
    ):
        check(STUDY, repository, tmp_path / "b")
    page.write_text(text)
    (repository / "docs" / "images" / "claims" / f"{NAME}_organism_old.png").write_bytes(b"")
    with pytest.raises(AssertionError, match="--figures"):
        check(STUDY, repository, tmp_path / "c")

"""Each observer has a page of one form; what it quotes of results and benchmarks stands there; its settings build."""

import csv
import importlib.util
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml

import lmdyn.callbacks
from lmdyn.callbacks import Observer
from lmdyn.callbacks.observing.run import snake_case
from lmdyn.claims import STUDIES
from lmdyn.cli.building import build_observers

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OBSERVERS = sorted(
    name
    for name in lmdyn.callbacks.__all__
    if isinstance(cls := getattr(lmdyn.callbacks, name), type)
    and issubclass(cls, Observer)
    and not getattr(cls, "__abstractmethods__", None)
)


@cache
def page(name: str) -> str:
    return (DOCS / "observers" / f"{snake_case(name)}.md").read_text(encoding="utf-8")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def tables(text: str, marker: str) -> list[tuple[str, list[list[str]]]]:
    """What a marker says, and the rows of the table below it, but for its head."""
    found = re.findall(rf"<!-- {marker}: (.+?) -->\n((?:\|.*\n)+)", text)
    return [(said, [cells(line) for line in block.splitlines()[2:]]) for said, block in found]


@cache
def results(study: str) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Of each group of runs and claim, the rows of the study's table, by column.

    Further numbers of a claim ("…") are of the variant above them, and may be of one name in several.
    """
    claims = {claim.name: claim for claim in STUDIES[study].claims}
    questions = Counter(claim.question or claim.name for claim in claims.values())
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    before = ""
    with (DOCS / "results" / f"{study}.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            claim = claims[row["claim"]]
            question = claim.question or claim.name
            name = (claim.variant or claim.name) if questions[question] > 1 else claim.name
            first = (row["runs"], claim.name) != before
            before = (row["runs"], claim.name)
            label = row["part"] if len(claim.parts) > 1 else ""
            told = (f"{name}: {label}" if label else name) if first else f"… {label}"
            found.setdefault((row["runs"], f"{question} *{told}*"), []).append(row)
    return found


def numbers(text: str) -> list[str]:
    return re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text.replace("−", "-").replace("\\", ""))


def is_rounded(quoted: str, *full: str) -> bool:
    """Whether the quoted numbers are these, rounded to the digits that they have."""
    found, known = numbers(quoted), [number for number in full if number]
    if "…" in quoted:  # a range of censored numbers, before their interval
        found, known = found[2:], known[1:]
    if len(found) == 1:  # a floor that is equal in all seeds
        known = known[:1]
    if len(found) != len(known):
        return False
    digits = [len(number.partition(".")[2]) for number in found]
    return all(
        abs(float(q) - float(k)) <= 0.501 * 10.0**-d for q, k, d in zip(found, known, digits, strict=True)
    )


def is_quoted(cells: list[str], row: dict[str, str]) -> bool:
    """Whether a row of a page, after its claim, says what a row of the table does."""
    number, region, floor, verdict, holm = (cell.replace("*", "") for cell in cells)
    said = (
        verdict.startswith(row["verdict"])
        and ("exploratory" in verdict) == bool(row["exploratory"])
        and holm in (row["after_holm"], "–" if not row["p"] else row["after_holm"])
    )
    return (
        said
        and region.replace("−", "-") == row["true_where"].replace("−", "-")
        and is_rounded(number, row["mean"], row["low"], row["high"])
        and is_rounded(floor, row["floor"], row["floor_low"], row["floor_high"])
    )


def not_in_results(text: str) -> list[list[str]]:
    """Quoted rows that are not in the results of the study that the marker names."""
    wrong = []
    for said, rows in tables(text, "from"):
        study, group = said.split(", ")
        known = results(study)
        wrong += [
            row
            for row in rows
            if not any(is_quoted(row[1:], k) for k in known.get((group, row[0].replace("\\", "")), []))
        ]
    return wrong


def test_index_and_readme_lead_to_the_pages():
    for path, folder in ((DOCS / "observers.md", "observers/"), (ROOT / "README.md", "docs/observers/")):
        rows = re.findall(r"^\| \[`(\w+)`\]\((\S+)\) \|", path.read_text(encoding="utf-8"), re.M)
        assert sorted(rows) == [(name, f"{folder}{snake_case(name)}.md") for name in OBSERVERS]


@pytest.mark.parametrize("name", OBSERVERS)
def test_quoted_verdicts_are_those_of_the_results(name):
    assert not not_in_results(page(name))


def test_a_changed_number_is_found():
    """The control: one digit, and one verdict."""
    text = page("Sparsity")
    for before, after in (("0.276 ", "0.277 "), ("**fails** (of this text)", "**holds** (of this text)")):
        assert before in text
        assert len(not_in_results(text.replace(before, after, 1))) == 1


@pytest.mark.parametrize("name", OBSERVERS)
def test_quoted_costs_are_those_of_the_benchmarks(name):
    ((file, rows),) = tables(page(name), "cost")
    benchmarks = [cells(line) for line in (ROOT / file).read_text().splitlines() if "|" in line]
    assert rows
    assert all(row[0] == f"`{name}`" and row in benchmarks for row in rows)


def settings_by_base() -> dict[str, list[dict]]:
    """What pages show in ``callbacks+``, by the configuration that it is added to."""
    found: dict[str, list[dict]] = {}
    for name in OBSERVERS:
        ((base, settings),) = re.findall(
            r"<!-- settings: (\S+) -->\n```yaml\n(.*?)```", page(name), re.DOTALL
        )
        (shown,) = yaml.safe_load(settings)["trainer"]["callbacks+"]
        assert shown["class_path"].endswith(name)
        found.setdefault(base, []).append(shown)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("base", settings_by_base())
def test_the_settings_of_pages_build(base, tmp_path):
    shown, overlay = settings_by_base()[base], tmp_path / "overlay.yaml"
    overlay.write_text(yaml.safe_dump({"trainer": {"callbacks+": shown}}), encoding="utf-8")
    observers = build_observers(["--config", str(ROOT / base), "--config", str(overlay)])
    for observer, settings in zip(observers, shown, strict=True):
        assert type(observer).__name__ == settings["class_path"].rpartition(".")[2]


@cache
def script(name: str):
    spec = importlib.util.spec_from_file_location(name, DOCS / "observers" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_drawn_from_the_records(tmp_path, monkeypatch):
    module = script("pictures")
    assert set(module.PICTURES) == {snake_case(name) for name in OBSERVERS}
    small = [path for path in module.IMAGES.glob("*.png") if path.stat().st_size <= 60_000]
    assert {path.stem for path in small} == set(module.PICTURES)
    monkeypatch.setattr(module, "IMAGES", tmp_path)
    monkeypatch.setattr(module, "PICTURES", {"downstream": module.PICTURES["downstream"]})
    module.main()
    assert [path.name for path in tmp_path.iterdir()] == ["downstream.png"]


@pytest.mark.parametrize("name", OBSERVERS)
def test_tables_are_those_of_the_class(name):
    """If not: ``python docs/observers/tables.py``."""
    shown = page(name)
    assert f"<!-- recorded: {name} -->" in shown
    assert script("tables").fresh(shown) == shown
    quantity = getattr(lmdyn.callbacks, name).recorded[0]
    assert quantity.meaning.replace("|", "\\|") in shown

"""README and the pages for users hold what they say: their commands, examples, links."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import textwrap
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest
import torch

from lmdyn.callbacks import ObservationStore
from lmdyn.cli.__main__ import main
from lmdyn.cli.report import write_report

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    path: path.read_text(encoding="utf-8")
    for path in (
        ROOT / "README.md",
        *(p for p in sorted((ROOT / "docs").rglob("*.md")) if "results" not in str(p)),
    )
}


def code_block(after: str) -> str:
    """The block that stands below a marker; where several pages have it, it is the same."""
    block = rf"<!-- {re.escape(after)} -->\s*```\w*\n(.*?)```"
    found = {match for text in PAGES.values() for match in re.findall(block, text, re.DOTALL)}
    assert len(found) == 1, f"expected one code block below <!-- {after} -->, found {len(found)}"
    return found.pop()


def example_region(name: str) -> str:
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    regions = re.findall(r"^ *# \[readme\]\n(.*?)^ *# \[end\]\n", text, re.DOTALL | re.M)
    return "".join(textwrap.dedent(region) for region in regions)


def without_blank_lines(code: str) -> list[str]:
    return [line for line in code.splitlines() if line.strip()]


@pytest.mark.parametrize("name", ["hugging_face", "nanogpt", "trainer", "own_observer", "block_norms"])
def test_code_block_is_the_tested_example(name):
    assert without_blank_lines(code_block(f"example: {name}")) == without_blank_lines(example_region(name))


def run_example(name: str, folder: Path, text: object) -> Path:
    """Train it for three steps; its run's observations."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    undrawn = mock.patch("lmdyn.callbacks.observing.loggers.LiveFigures.finish")
    with nullcontext() if name == "nanogpt" else undrawn:  # figures take longer than all else
        example.main(str(folder), max_steps=3, text=text)
    (found,) = folder.rglob("observations")
    return found


@pytest.mark.filterwarnings(
    "ignore:.*litlogger.*", "ignore:.*litmodels.*", "ignore:.*does not have many workers.*"
)
@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
@pytest.mark.parametrize("name", ["hugging_face", "nanogpt", "trainer"])
@pytest.mark.slow
def test_example_runs(name, tmp_path):
    text = "the cat sat on the mat and the dog did not\n" * 40
    found = run_example(name, tmp_path, text.encode() if name == "nanogpt" else text)
    curves = pd.read_parquet(found / "learning_curves")
    assert sorted(curves["step"].unique()) == [0, 1, 2, 3]
    early = 1 if name == "trainer" else 3  # the sentence is soon known
    (accuracy,) = curves.query(f"step == {early} and quantity == 'accuracy' and by == ''")["value"]
    assert 0 < accuracy < 1  # not the 1.0 of a model that is asked for the word it reads
    labels = "aligned" if name == "nanogpt" else "next"
    assert ObservationStore(found / "learning_curves").about()["settings"]["labels"] == labels
    if name == "trainer":
        return
    sparsity = pd.read_parquet(found / "sparsity")
    assert {"embedding", "block_00", "block_01", "norm", "logits"} == set(sparsity["site"]) - {""}
    # samples can be too small
    of_all = sparsity.query("quantity == 'rho_gradient' and pos_class == ''")["value"]
    assert of_all.size
    assert of_all.notna().all()


@pytest.mark.parametrize("name", ["measures", "streaming", "interdependence"])
def test_an_example_of_measures_runs(name, capsys):
    exec(code_block(f"example: {name}"), {})
    printed = capsys.readouterr().out
    assert printed
    assert "nan" not in printed
    assert name == "interdependence" or all(
        0 < float(number) < 1 for number in re.findall(r"tensor\(([\d.]+)", printed)
    )


def test_numbers_are_read_as_the_guide_says(tmp_path, monkeypatch, capsys):
    """By pandas, polars and DuckDB, from two runs as version 0.1 left them; all give the same numbers."""
    given = ROOT / "tests/fixtures/v0_1/lstm_run/observations"
    for version in ("version_0", "version_1"):
        shutil.copytree(given, tmp_path / "runs/quickstart" / version / "observations")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for part in ("pandas", "wide", "filters", "runs", "polars", "duckdb"):
        if part in ("polars", "duckdb"):
            pytest.importorskip(part)
        exec(code_block(f"example: numbers_{part}"), names)
    assert (tmp_path / "nouns.png").stat().st_size > 1000
    assert names["nouns"]["step"].tolist() == [0, 20, 46]
    assert {"NOUN", "VERB"} < set(names["losses"].columns)
    assert names["loss"].std(axis=1).tolist() == [0, 0, 0]  # one run and its copy
    for found in (names["frame"].to_pandas(), names["table"]):  # of polars, of DuckDB
        assert found["value"].tolist() == names["nouns"]["value"].tolist() * 2
    capsys.readouterr()


def test_the_conventions_have_our_numbers(monkeypatch):
    """Those of lmdyn's functions, on the inputs of the script that made the table."""
    from lmdyn.analysis import cca, effective_dimension, linear_cka, pwcca, svcca

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("other_libraries", ROOT / "benchmarks/other_libraries.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    x, y = script.related(2000, 64)
    page = PAGES[ROOT / "docs/measures/conventions.md"]
    for name, value in {
        "cca": cca(x, y),
        "svcca": svcca(x, y),
        "pwcca": pwcca(x, y),
        "linear_cka": linear_cka(x, y),
        "linear_cka(debiased=True)": linear_cka(x, y, debiased=True),
        "effective_dimension": effective_dimension(x),
    }.items():
        (row,) = re.findall(rf"^\|[^|]*\| \*\*lmdyn\*\* `{re.escape(name)}` \| ([\d.]+) \|", page, re.M)
        assert row == f"{float(value):.4f}", name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_named_files_exist(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", PAGES[page])
    named = re.findall(r"\b(?:configs|examples|docs|lmdyn|tests|benchmarks)/[\w./-]+\w", PAGES[page])
    missing = [path for path in links if not (page.parent / path).exists()]
    made = r"docs/_build|docs/reports/"
    missing += [path for path in named if not (ROOT / path).exists() and not re.match(made, path)]
    assert not missing


@pytest.mark.slow
def test_what_claims_print_of_the_quickstart(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with (
        mock.patch("lmdyn.cli.report.write_report"),
        mock.patch("lmdyn.callbacks.observing.recording.publish"),
    ):
        main(["fit", "--config", str(ROOT / "configs/quickstart.yaml")])  # figures take longer than all else
    capsys.readouterr()
    main(shlex.split(code_block("command: claims").strip().removeprefix("python -m lmdyn.cli ")))
    number = r"[−-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
    told = [" ".join(text.split()) for text in (capsys.readouterr().out, code_block("output: claims"))]
    assert re.sub(number, "#", told[0]) == re.sub(number, "#", told[1])
    values = [[float(n.replace("−", "-")) for n in re.findall(number, text)] for text in told]
    # the page was written on a CPU without AVX-512; where there is, rounding moves the ends of an interval by 0.08
    same_machine = torch.backends.cpu.get_cpu_capability() == "AVX2"
    assert values[0] == pytest.approx(values[1], abs=0.03 if same_machine else 0.1)
    (run,) = (tmp_path / "runs" / "quickstart").glob("version_*")
    page = write_report([run], tmp_path / "report")
    assert page.stat().st_size < 6_000_000  # 2.1 MB; one sends it to a colleague


def test_the_array_script_is_a_script_and_runs(tmp_path, monkeypatch):
    """By bash, with SLURM's variables set by hand and a `python` that tells what it was asked for."""
    script = tmp_path / "replay.sh"
    script.write_text(code_block("script: array"))
    assert script.read_text().startswith("#!/bin/bash\n#SBATCH ")
    subprocess.run(["bash", "-n", script], check=True)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text('python() { echo "$SLURM_ARRAY_TASK_ID $*"; }\n')
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_PROCID", "SLURM_NTASKS")
    task = dict(zip(names, "3401", strict=True))
    done = subprocess.run(
        ["bash", script], cwd=tmp_path, env={**os.environ, **task}, check=True, capture_output=True, text=True
    )
    words = shlex.split(done.stdout)
    assert words[:4] == ["3", "-m", "lmdyn.cli", "analyze"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_observers.yaml").touch()
    with mock.patch("lmdyn.cli.analyze.analyze") as analyze:
        main(words[3:])
    assert analyze.call_count == 1

"""The README holds what it says: its commands, its example, its links."""

import importlib.util
import re
import textwrap
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "own_module.py"


def code_block(after: str) -> str:
    match = re.search(rf"<!-- {re.escape(after)} -->\s*```\w*\n(.*?)```", README, re.DOTALL)
    assert match, f"no code block below <!-- {after} -->"
    return match[1]


def example_region() -> str:
    regions = re.findall(
        r"^ *# \[readme\]\n(.*?)^ *# \[end\]\n", EXAMPLE.read_text(encoding="utf-8"), re.DOTALL | re.M
    )
    return "".join(textwrap.dedent(region) for region in regions)


def without_blank_lines(code: str) -> list[str]:
    return [line for line in code.splitlines() if line.strip()]


def test_code_block_is_the_tested_example():
    block = without_blank_lines(code_block("example: own_module"))
    assert block == without_blank_lines(example_region())
    assert len(block) < 20


@pytest.mark.filterwarnings("ignore:.*litlogger.*")
def test_example_runs(tmp_path):
    spec = importlib.util.spec_from_file_location("own_module", EXAMPLE)
    assert spec
    assert spec.loader
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(str(tmp_path), max_steps=3, text=b"the cat sat on the mat, the dog did not. " * 60)

    (run,) = (tmp_path / "lightning_logs").iterdir()
    curves = pd.read_parquet(run / "observations" / "learning_curves")
    assert sorted(curves["step"].unique()) == [0, 1, 2, 3]
    sparsity = pd.read_parquet(run / "observations" / "sparsity")
    assert {"block1", "block2", "attention1"} <= set(sparsity["site"])
    assert sparsity.loc[sparsity["quantity"].eq("chi_gradient"), "value"].notna().all()


def test_interdependence_example_runs(capsys):
    exec(code_block("example: interdependence"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("torch.Size([2, 100])")
    assert "nan" not in printed


def test_ci_runs_the_command_for_tests():
    command = code_block("command: tests").strip()
    assert "\n" not in command
    assert "pytest" in command
    assert "-c constraints.txt" in command
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "<!-- command: tests -->" in script  # extracts the command from the README, and runs it


def test_quickstart_is_one_command():
    command = code_block("command: quickstart").strip()
    assert "\n" not in command
    assert "-c constraints.txt" in command
    assert command.endswith("python -m lmdyn.cli fit --config configs/quickstart.yaml")


def test_links_and_named_files_exist():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    named = re.findall(r"\b(?:configs|examples|docs|lmdyn|tests|benchmarks)/[\w./-]+\w", README)
    assert links
    missing = [path for path in {*links, *named} if not (ROOT / path).exists()]
    assert not missing


def test_table_of_observers_is_complete():
    import lmdyn.callbacks
    from lmdyn.callbacks import Observer, StreamingObserver

    exported = [getattr(lmdyn.callbacks, name) for name in lmdyn.callbacks.__all__]
    observers = {
        c.__name__
        for c in exported
        if isinstance(c, type) and issubclass(c, Observer) and c not in (Observer, StreamingObserver)
    }
    in_table = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert observers == in_table

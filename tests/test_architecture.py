"""Four rooms and one direction: the import contracts of pyproject.toml hold."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

from lmdyn.analysis.words.sparsity import concentration

ROOT = Path(__file__).parents[1]


def lint_imports(folder: Path) -> "subprocess.CompletedProcess[str]":
    code = "from importlinter.cli import lint_imports_command; lint_imports_command(prog_name='lint-imports')"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False
    )


def test_import_contracts_hold():
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 kept, 0 broken" in result.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("analysis/sparsity.py", "import lightning"),
        ("callbacks/sparsity.py", "from lmdyn.models import LSTMLanguageModel"),
        ("models/lstm.py", "import lmdyn.callbacks"),
    ],
)
def test_import_contracts_can_break(file, line, tmp_path):
    """The control: one import against the direction is found."""
    for path in (ROOT / "lmdyn").rglob("*.py"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    with (tmp_path / "lmdyn" / file).open("a", encoding="utf-8") as broken:
        broken.write(f"\n\n{line}\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "1 broken" in result.stdout


def test_annotations_of_the_mathematics_are_checked_here():
    with pytest.raises(TypeCheckError):
        concentration(torch.ones(3, dtype=torch.int64))  # annotated as Float

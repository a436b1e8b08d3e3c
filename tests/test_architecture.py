"""Rooms and one direction: the import contracts of pyproject.toml hold, and no two files import each other."""

import ast
import graphlib
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError, jaxtyped

from lmdyn.analysis.words.concentration import concentration

ROOT = Path(__file__).parents[1]


def lint_imports(folder: Path) -> "subprocess.CompletedProcess[str]":
    code = "from importlinter.cli import lint_imports_command; lint_imports_command(prog_name='lint-imports')"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False
    )


def test_import_contracts_hold():
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


BREAKS = [  # each of another contract
    ("analysis/words/sparsity.py", "import lightning"),
    ("callbacks/words/sparsity.py", "from lmdyn.models import LSTMLanguageModel"),
    ("callbacks/words/sparsity.py", "import lmdyn.callbacks.similarity.similarity"),
    ("runs/store.py", "import lmdyn.callbacks.observing.run"),
    ("cli/fit.py", "import lmdyn.claims.claim"),
    ("analysis/words/sparsity.py", "import lmdyn.analysis.similarity.cca"),
    ("datamodules/corpora/corpus.py", "import lmdyn.datamodules.grammar.tree"),
]


def test_import_contracts_can_break(tmp_path):
    """The control: of each contract that one import against the direction breaks."""
    for path in (ROOT / "lmdyn").rglob("*.py"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for file, line in BREAKS:
        with (tmp_path / "lmdyn" / file).open("a", encoding="utf-8") as broken:
            broken.write(f"\n\n{line}\n")
    result = lint_imports(tmp_path)
    assert f" {len(BREAKS)} broken" in result.stdout, result.stdout + result.stderr


def imports(root: Path) -> dict[str, set[str]]:
    """Which files of lmdyn import which, wherever the statement stands: in functions and for types too."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (root / "lmdyn").rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found[name] = names & (files.keys() - {name})
    return found


def test_no_circle_between_files(tmp_path):
    graphlib.TopologicalSorter(imports(ROOT)).prepare()
    for file, line in (("one.py", "def f():\n    import lmdyn.two\n"), ("two.py", "from lmdyn import one\n")):
        (tmp_path / "lmdyn").mkdir(exist_ok=True)
        (tmp_path / "lmdyn" / file).write_text(line)
    with pytest.raises(graphlib.CycleError):  # the control
        graphlib.TopologicalSorter(imports(tmp_path)).prepare()


def test_rooms_are_small():
    """About a dozen files a room."""
    for folder in {path.parent for path in (ROOT / "lmdyn").rglob("*.py")}:
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= 18, f"{folder} has {len(files)} files"


def test_annotations_of_the_mathematics_are_checked_here():
    with pytest.raises(TypeCheckError):
        concentration(torch.ones(3, dtype=torch.int64))  # annotated as Float


def test_what_is_returned_is_checked_against_the_arguments():
    def half(x: Float[torch.Tensor, "n d"], keep: bool) -> Float[torch.Tensor, "d"]:
        return x[0] if keep else x[0, 1:]

    checked = jaxtyped(typechecker=beartype)(half)
    assert checked(torch.ones(3, 2), True).tolist() == [1, 1]
    with pytest.raises(TypeCheckError, match="return value"):
        checked(torch.ones(3, 2), False)
    with pytest.raises(TypeCheckError, match="parameters"):
        checked(torch.ones(3), True)


@pytest.mark.parametrize("package", ["analysis", "callbacks", "datamodules", "models"])
def test_the_reference_of_the_site_has_all_public_names(package):
    listed = re.findall(r"^   (\w+)$", (ROOT / f"docs/reference/{package}.rst").read_text(), re.M)
    assert sorted(listed) == sorted(importlib.import_module(f"lmdyn.{package}").__all__)

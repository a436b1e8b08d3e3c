"""What an import loads, and what it costs: the mathematics next to torch, the command line next to a plain one."""

import os
import resource
import subprocess
import sys

import pytest

LARGE = {"sklearn", "hmmlearn", "pandas", "transformers", "matplotlib", "lightning"}
LARGE_OF_SCIPY = {
    f"scipy.{name}" for name in ("interpolate", "linalg", "optimize", "sparse", "special", "stats")
}

PLAIN = """
import lightning as L
from lightning.pytorch.cli import LightningCLI

LightningCLI(
    L.LightningModule,
    L.LightningDataModule,
    subclass_mode_model=True,
    subclass_mode_data=True,
    auto_configure_optimizers=False,
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("also", [None, "pandas"])
def test_analysis_loads_large_packages_only_when_they_are_used(also):
    code = f"import sys, lmdyn.analysis{', ' + also if also else ''}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "lmdyn.analysis.words.surprisal" in modules
    found = {name.split(".")[0] for name in modules} & LARGE | modules & LARGE_OF_SCIPY
    assert found == ({also} if also else set())


def cpu_seconds(*words: str, times: int = 3) -> float:
    """The least of several runs, user and system; on a machine slower than that of the goals, a second is longer."""
    found = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, *words],
            check=True,
            capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


@pytest.mark.slow
def test_analysis_adds_little_to_the_import_of_torch():
    torch, ours = cpu_seconds("-c", "import torch"), cpu_seconds("-c", "import lmdyn.analysis")
    assert ours <= torch + max(1.0, torch / 2.8), (
        f"import torch {torch:.2f} s, import lmdyn.analysis {ours:.2f} s"
    )


@pytest.mark.slow
def test_help_of_fit_takes_hardly_longer_than_a_plain_command_line(tmp_path):
    (tmp_path / "plain.py").write_text(PLAIN)
    plain = cpu_seconds(str(tmp_path / "plain.py"), "fit", "--help")
    ours = cpu_seconds("-m", "lmdyn.cli", "fit", "--help")
    assert ours <= plain + max(1.0, plain / 11.2), (
        f"a plain LightningCLI's fit --help {plain:.2f} s, ours {ours:.2f} s"
    )

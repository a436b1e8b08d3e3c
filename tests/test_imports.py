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


def cpu_seconds(*words: str) -> float:
    """User and system; on a machine slower than that of the goals, a second is longer."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *words], check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def assert_hardly_longer(ours: tuple[str, ...], plain: tuple[str, ...], of_plain: float) -> None:
    """By the least of up to three runs of each; the second and third only where the first was disturbed."""
    found: list[tuple[float, float]] = []
    for _ in range(3):
        found.append((cpu_seconds(*plain), cpu_seconds(*ours)))
        least, our_least = map(min, zip(*found, strict=True))
        if our_least <= least + max(1.0, of_plain * least):
            return
    raise AssertionError(f"{plain} {least:.2f} s, {ours} {our_least:.2f} s")


@pytest.mark.slow
def test_analysis_adds_little_to_the_import_of_torch():
    assert_hardly_longer(("-c", "import lmdyn.analysis"), ("-c", "import torch"), 1 / 2.8)


@pytest.mark.slow
def test_help_of_fit_takes_hardly_longer_than_a_plain_command_line(tmp_path):
    (tmp_path / "plain.py").write_text(PLAIN)
    plain = (str(tmp_path / "plain.py"), "fit", "--help")
    assert_hardly_longer(("-m", "lmdyn.cli", "fit", "--help"), plain, 1 / 11.2)

"""What an import of the mathematics loads."""

import subprocess
import sys

import pytest

LARGE = {"sklearn", "hmmlearn", "pandas", "transformers", "matplotlib", "lightning"}
LARGE_OF_SCIPY = {
    f"scipy.{name}" for name in ("interpolate", "linalg", "optimize", "sparse", "special", "stats")
}


@pytest.mark.slow
@pytest.mark.parametrize("also", [None, "pandas"])
def test_analysis_loads_large_packages_only_when_they_are_used(also):
    code = f"import sys, lmdyn.analysis{', ' + also if also else ''}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "lmdyn.analysis.words.surprisal" in modules
    found = {name.split(".")[0] for name in modules} & LARGE | modules & LARGE_OF_SCIPY
    assert found == ({also} if also else set())

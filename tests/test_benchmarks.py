"""The benchmarks run, with sizes so small that their numbers mean nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(p for p in FOLDER.glob("*.py") if p.name != "common.py")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=[p.stem for p in SCRIPTS])
def test_runs_and_prints_a_table(script, tmp_path):
    if script.stem == "memory" and not Path("/proc/self/status").exists():
        pytest.skip("memory is read from /proc")
    command = [sys.executable, str(script), "--smoke"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # small work only waits for its threads
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "| --- |" in done.stdout, done.stdout


def test_each_benchmark_is_in_the_readme():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [p.name for p in SCRIPTS if f"benchmarks/{p.name}" not in text] == []

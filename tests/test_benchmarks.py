"""The benchmarks run, with sizes so small that their numbers mean nothing."""

import json
import os
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(p for p in FOLDER.glob("*.py") if p.name not in ("common.py", "gpu_kit.py", "tables.py"))
IN_KIT = {
    "pretraining", "observers_device", "long_term", "dynamics", "two_tower", "sweep_precision", "token_learning"
}  # fmt: skip
ALONE = [p for p in SCRIPTS if p.stem not in IN_KIT]


@pytest.mark.slow
@pytest.mark.parametrize("script", ALONE, ids=[p.stem for p in ALONE])
def test_runs_and_prints_a_table(script, tmp_path, interpreter):
    if script.stem == "memory" and not Path("/proc/self/status").exists():
        pytest.skip("memory is read from /proc")
    command = [interpreter.executable, str(script), "--smoke"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "| --- |" in done.stdout, done.stdout


def kit(python: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """benchmarks/gpu.sh with tiny sizes."""
    command = ["bash", str(FOLDER / "gpu.sh"), "--smoke", "--out", str(out), *arguments]
    env = {**os.environ, "PYTHON": str(python)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
def test_the_kit_for_a_gpu(tmp_path, interpreter):
    """All steps, each with its table; run again it has nothing to do, and a step that failed is tried again."""
    done = kit(interpreter.executable, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    steps = {step["name"]: step for step in found["steps"]}
    assert set(steps) == IN_KIT | {"tests"}
    assert {step["status"] for step in steps.values()} == {"done"}
    assert all(steps[name]["tables"] and all(steps[name]["tables"]) for name in IN_KIT)
    assert found["about"]["sizes"] == "tiny"
    page = (tmp_path / "results.md").read_text()
    assert all(f"## {name}" in page for name in steps)
    steps["sweep_precision"]["status"] = "failed: exit status 1"
    (tmp_path / "results.json").write_text(json.dumps(found))
    again = kit(interpreter.executable, tmp_path)
    assert again.returncode == 0
    assert again.stdout.count("done before") == len(steps) - 1
    assert "sweep_precision: done, " in again.stdout

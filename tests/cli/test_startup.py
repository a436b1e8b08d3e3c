"""Help is instant: it imports nothing heavy. Judged by what is imported, not by the clock."""

import subprocess
import sys

import pytest

CODE = """
import sys
from lmdyn.cli.__main__ import main
try:
    main({args!r})
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"torch", "lightning", "transformers", "numpy", "pandas", "matplotlib", "sklearn", "pyarrow"}}
print("imported:", sorted(heavy & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    "args", ["--help", "analyze --help", "report --help", "prepare --help", "inspect --help"]
)
def test_help_imports_nothing_heavy(args):
    command = [sys.executable, "-c", CODE.format(args=args.split())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported: []"
    assert "usage: lmdyn" in done.stdout + done.stderr

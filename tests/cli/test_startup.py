"""Help is instant: it imports nothing heavy. Judged by what is imported, not by the clock."""

import subprocess
import sys

import pytest

from lmdyn.cli.__main__ import main

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
    "args",
    [
        ["--help"],
        ["analyze", "--help"],
        ["report", "--help"],
        ["prepare", "--help"],
        ["inspect", "--help"],
        ["claims", "--help"],
        ["records", "--help"],
    ],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(args):
    command = [sys.executable, "-c", CODE.format(args=args)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported: []"
    assert "usage: lmdyn" in done.stdout + done.stderr


def test_an_unknown_command_gets_the_nearest(capsys):
    with pytest.raises(SystemExit, match="1"):
        main(["analize", "runs/x"])
    with pytest.raises(SystemExit, match="1"):
        main(["nonsense"])
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    first, second = errors
    assert "unknown command 'analize', did you mean 'analyze'? commands are fit, validate," in first
    assert "unknown command 'nonsense': commands are fit" in second

"""Commands in forks of an interpreter that has imported everything are as commands of their own."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("code", "status"),
    [("import sys; sys.exit(3)", 3), ("raise SystemExit('why')", 1), ("1 / 0", 1),
     ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
)  # fmt: skip
def test_its_status_is_the_commands(interpreter, code, status):
    plain, forked = (
        subprocess.run([e, "-c", code], capture_output=True, text=True)
        for e in (sys.executable, interpreter.executable)
    )
    assert forked.returncode == plain.returncode == status
    assert forked.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]

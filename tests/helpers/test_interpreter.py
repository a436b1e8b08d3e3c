"""Commands in forks of an interpreter that has imported everything are as commands of their own."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SAYS = """
import os, sys
print(sys.argv[1:], os.environ["WHO"], os.getcwd(), sys.stdin.read())
print("no", file=sys.stderr)
"""


def test_a_command_is_its_own(interpreter, tmp_path):
    begun = {
        "cwd": tmp_path,
        "env": {**os.environ, "WHO": "me"},
        "input": "in",
        "capture_output": True,
        "text": True,
    }
    script = tmp_path / "script.py"
    script.write_text(SAYS)
    # the last one by an interpreter of its own
    for words in (["-c", SAYS], [script], ["-W", "error", script]):
        asked = [*words, "a", "b c"]
        plain, forked = (
            subprocess.run([e, *asked], **begun) for e in (sys.executable, interpreter.executable)
        )
        assert (forked.returncode, forked.stdout, forked.stderr) == (0, plain.stdout, plain.stderr)
        assert forked.stdout == f"['a', 'b c'] me {tmp_path} in\n"


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

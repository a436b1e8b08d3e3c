"""Commands in forks of an interpreter that has imported everything are as commands of their own."""

import os
import signal
import subprocess
import sys
import time

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


def test_signals_reach_the_command(interpreter, tmp_path):
    code = (
        "import atexit, pathlib, time\natexit.register(pathlib.Path('ended').touch)\npathlib.Path('begun').touch()\n"
        "time.sleep(60)"
    )
    command = subprocess.Popen(
        [interpreter.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "begun").exists():
        assert command.poll() is None
        time.sleep(0.02)
    command.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in command.communicate(timeout=30)[1]
    assert command.returncode
    assert (tmp_path / "ended").exists()


def test_a_command_of_lmdyn_pays_no_imports(interpreter, tmp_path):
    began = time.process_time(), os.times()
    done = subprocess.run(
        [interpreter.executable, "-m", "lmdyn.cli", "fit", "--config", "nothing.yaml"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode
    assert "nothing.yaml" in done.stderr
    # of the executable; the fork is the server's
    assert os.times().children_user - began[1].children_user < 1

"""Work in several processes: the answers of one, whatever becomes of the others, of which none is left."""

import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from lmdyn.cli.__main__ import main
from lmdyn.cli.drawing.side_by_side import made_side_by_side

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")


def where(i, folder, processes):
    """Which process does this; all of them wait for so many."""
    (folder / str(os.getpid())).touch()
    end = time.monotonic() + 20
    while len(list(folder.iterdir())) < processes and time.monotonic() < end:
        time.sleep(0.01)
    return i, os.getpid()


@pytest.mark.parametrize("processes", [2, 3])
def test_answers_are_in_order_and_of_several_processes(tmp_path, processes):
    answers = made_side_by_side([partial(where, i, tmp_path, processes) for i in range(8)], processes)
    assert [i for i, _ in answers] == list(range(8))
    assert len({process for _, process in answers}) == processes
    assert os.getpid() in {process for _, process in answers}
    assert {process for _, process in made_side_by_side([partial(where, 0, tmp_path, 1)] * 3, 1)} == {
        os.getpid()
    }


@pytest.mark.parametrize("how", ["raises", "is killed", "cannot be sent"])
def test_what_fails_there_is_made_here(how):
    here = os.getpid()

    def work():
        if os.getpid() != here:
            if how == "raises":
                raise OSError("no memory")
            if how == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            return lambda: None
        return "made here"

    assert made_side_by_side([work, work], 2) == ["made here", "made here"]


def test_an_error_is_raised_as_without_processes():
    def work():
        raise ValueError("remove it")

    with pytest.raises(ValueError, match="remove it"):
        made_side_by_side([work, work], 2)


def test_forks_end_with_a_process_that_is_killed(tmp_path):
    def working():
        (tmp_path / str(os.getpid())).touch()
        time.sleep(60)

    command = os.fork()
    if command == 0:
        made_side_by_side([working, working], 2)
    try:
        end = time.monotonic() + 20
        while len(forks := [int(path.name) for path in tmp_path.iterdir()]) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(forks) == 2
    finally:
        os.kill(command, signal.SIGKILL)
        os.waitpid(command, 0)
    while any(is_there(fork) for fork in forks) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(is_there(fork) for fork in forks)


def test_ctrl_c_in_a_report_ends_in_one_line(tmp_path, monkeypatch):
    """A terminal signals the report and its forks at once; none of them shows a traceback."""

    def working():
        (tmp_path / str(os.getpid())).touch()
        time.sleep(60)

    monkeypatch.setattr(
        "lmdyn.cli.report.write_report", lambda *_, **__: made_side_by_side([working, working], 2)
    )
    errors = tmp_path.parent / f"{tmp_path.name}.stderr"
    command = os.fork()
    if command == 0:
        code = 99
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
            sys.stderr = os.fdopen(2, "w", buffering=1)
            main(["report", "run"])
        except SystemExit as stop:
            code = stop.code
        finally:
            os._exit(code)
    try:
        end = time.monotonic() + 20
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(list(tmp_path.iterdir())) == 2
        os.killpg(command, signal.SIGINT)
        done = 0, 0
        while done == (0, 0) and time.monotonic() < end:
            done = os.waitpid(command, os.WNOHANG)
            time.sleep(0.01)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(command, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(done[1]) == 130
    assert errors.read_text() == "stopped by Ctrl-C\n"


def is_there(process):
    """Whether it runs: one that ended may be waiting to be buried."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False

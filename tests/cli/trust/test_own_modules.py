"""Modules in the working directory: after the installed ones, not at all for a received run."""

import subprocess
import sys
from pathlib import Path

import pytest

from lmdyn.cli.trust.own_modules import find_modules


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    return tmp_path


def test_the_folder_comes_last(here):
    before = list(sys.path)
    find_modules(["inspect", "my_model.Net"])
    assert sys.path == [*before, str(here)]
    find_modules(["inspect", "my_model.Net"])
    assert sys.path == [*before, str(here)]


@pytest.mark.parametrize("word", ["--untrusted", "--untr"])
def test_not_for_a_received_run(here, word):
    before = list(sys.path)
    find_modules(["report", ".", word])
    assert sys.path == before


@pytest.mark.parametrize("entry", ["", ".", "whole"])
def test_a_folder_that_comes_first_is_refused(here, entry):
    """As with ``python -m lmdyn.cli``, or ``PYTHONPATH=.``."""
    sys.path.insert(0, str(here) if entry == "whole" else entry)
    with pytest.raises(ValueError, match=r"Run `lmdyn report …`, or `python -P -m lmdyn\.cli report …`"):
        find_modules(["report", ".", "--untrusted"])
    find_modules(["report", "."])  # the control: one's own


@pytest.mark.slow
def test_python_itself_puts_the_folder_first(here):
    """Before any code of lmdyn: refused, and ``-P`` is the remedy. ``colorsys`` stands for a package imported later."""
    Path("colorsys.py").write_text("raise SystemExit('imported')")

    def ended(*flags):
        command = [sys.executable, *flags, "-m", "lmdyn.cli", "report", "nothing", "--untrusted"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    said = ended().stderr
    assert "must not come first on Python's path" in said
    assert "Traceback" not in said
    assert "must not come first" not in ended("-P").stderr

"""Files are there whole or not at all; leftovers of ended processes are known and go."""

import os
import subprocess
import sys

import pytest

from lmdyn.runs.atomic_files import remove_unfinished, unfinished_path, write_file


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"

    def breaks(unfinished):
        unfinished.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_file(path, breaks)
    assert list(tmp_path.iterdir()) == []
    assert write_file(path, lambda p: p.write_text("1"))
    assert not write_file(path, lambda p: p.write_text("2"), first_wins=True)
    assert path.read_text() == "1"
    assert write_file(path, lambda p: p.write_text("3"))
    assert path.read_text() == "3"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_file_systems_without_links_or_sync(tmp_path, monkeypatch):
    def unknown(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("lmdyn.runs.atomic_files.os.link", unknown)
    monkeypatch.setattr("lmdyn.runs.atomic_files.os.fsync", unknown)
    path = tmp_path / "a.txt"
    assert write_file(path, lambda p: p.write_text("1"), first_wins=True)
    assert not write_file(path, lambda p: p.write_text("2"), first_wins=True)
    assert path.read_text() == "1"
    assert len(list(tmp_path.iterdir())) == 1


def test_leftovers_of_the_dead_go(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    living = unfinished_path(tmp_path / "a")
    dead = tmp_path / living.name.replace(f"-{os.getpid()}.", f"-{ended.pid}.")
    far, old = tmp_path / ".a.elsewhere-1.0.tmp", tmp_path / ".a.elsewhere-2.0.tmp"
    for path in (dead, living, far, old):
        path.touch()
    os.utime(old, (0, 0))
    remove_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living, far])

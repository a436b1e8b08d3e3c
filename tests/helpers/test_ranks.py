"""Ranks that fail or hang: the test ends soon, and says what each was doing."""

import os
import time

import pytest

from tests.helpers.ranks import run_ranks


def rank_main(folder):
    rank = int(os.environ["RANK"])
    if folder.name == "fails" and rank == 1:
        raise ValueError("this rank fails")
    if folder.name != "ends":
        waits_for_ever()


def waits_for_ever():
    time.sleep(600)


@pytest.mark.parametrize(
    ("name", "timeout", "said"),
    [
        (
            "fails",
            300,
            ["process 1: exit code 1", "this rank fails", "process 0: ended late", "in waits_for_ever"],
        ),
        ("hangs", 3, ["process 0: ended late", "process 1: ended late", "in waits_for_ever"]),
        ("ends", 300, []),
    ],
)
@pytest.mark.slow
def test_ends_with_the_stacks_of_each(name, timeout, said, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.helpers.ranks.GRACE", 2.0)
    folder = tmp_path / name
    folder.mkdir()
    start = time.monotonic()
    if not said:
        run_ranks(__file__, folder, tmp_path / "cache", timeout)
        return
    with pytest.raises(AssertionError) as failed:
        run_ranks(__file__, folder, tmp_path / "cache", timeout)
    assert time.monotonic() - start < 120
    for text in said:
        assert text in str(failed.value)

"""Jobs that share a machine's cards: one card each, let go however they end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lmdyn.cli.studies.cards import take_cards, visible_cards

JOB = "import os, sys, time; print(os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True); time.sleep(float(sys.argv[1]))"


def job(folder: Path, n: int, seconds: float, cards: str | None = "4,7") -> subprocess.Popen[str]:
    """A command that asks for cards, says which it has, and takes its time."""
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | {
        "TMPDIR": str(folder)
    }
    if cards is not None:
        environment["CUDA_VISIBLE_DEVICES"] = cards
    command = [
        sys.executable,
        "-m",
        "lmdyn.cli.studies.cards",
        str(n),
        sys.executable,
        "-c",
        JOB,
        str(seconds),
    ]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def said(job: subprocess.Popen[str]) -> str:
    assert job.stdout is not None
    return job.stdout.readline().strip()


def test_each_job_has_a_card_of_its_own(tmp_path):
    with job(tmp_path, 1, 60) as first, job(tmp_path, 1, 60) as second:
        assert {said(first), said(second)} == {"4", "7"}
        with job(tmp_path, 1, 0) as third:
            time.sleep(1)
            assert third.poll() is None  # it waits
            first.send_signal(signal.SIGKILL)
            assert said(third) in ("4", "7")
        second.kill()
    with job(tmp_path, 2, 0) as both:
        assert said(both) == "4,7"
    assert both.returncode == 0


def test_without_cards_or_where_none_are_asked_for(tmp_path):
    for n, cards, expected in ((1, "", ""), (0, "4,7", "4,7")):
        with job(tmp_path, n, 0, cards) as made:
            assert said(made) == expected
        assert made.returncode == 0


def test_more_cards_than_there_are(tmp_path):
    with pytest.raises(ValueError, match=r"expected at most 2 cards \(0, 1\), got 3: request fewer"):
        take_cards(3, ["0", "1"], tmp_path)


def test_cards_of_the_machine(monkeypatch, tmp_path):
    """As nvidia-smi lists them, where no scheduler says which are ours."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: x)'\necho 'GPU 1: NVIDIA H100 (UUID: y)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert visible_cards({}) == ["0", "1"]
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert visible_cards({}) == []

"""Accounts of processes, of killed ones too."""

import json
import signal
import subprocess
import sys

import pytest

from lmdyn.cli.studies.costs import main, total_costs

WORK = """
import sys, time
from pathlib import Path
from lmdyn.cli.studies import costs
costs._EVERY_S = 0.1
costs.account(Path(sys.argv[1]), ["fit", "--config", "x"])
block = bytearray(300 * 2**20)
end = time.process_time() + 1
while time.process_time() < end: pass
sys.stdout.write("done\\n"); sys.stdout.flush()
time.sleep(float(sys.argv[2]))
"""


def test_the_total_counts_what_was_killed(tmp_path, monkeypatch):
    ended = [sys.executable, "-c", WORK, str(tmp_path / "costs"), "0"]
    subprocess.run(ended, check=True, stdout=subprocess.DEVNULL)
    killed = subprocess.Popen([*ended[:-1], "60"], stdout=subprocess.PIPE, text=True)
    assert killed.stdout.readline() == "done\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm" / "step=1.ckpt").write_bytes(bytes(3 * 2**20))
    monkeypatch.setattr(sys, "argv", ["costs", str(tmp_path)])
    main()
    total = json.loads((tmp_path / "costs.json").read_text())
    fit = total["commands"]["fit"]
    assert (fit["processes"], fit["killed"]) == (2, 1)
    assert 1.5 / 3600 < total["cpu_hours"] < 30 / 3600
    assert 300 < total["peak_memory_mb"] < 2000
    assert total["checkpoints_mb"] == 3 == total["disk_mb"]
    assert total["machines"] == 1


def test_no_account(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="has no recorded costs: expected the folder of a profile's runs"
    ):
        total_costs(tmp_path)

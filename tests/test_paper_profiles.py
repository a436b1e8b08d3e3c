"""Full-size profiles from the first job to claims, by their one command: made tiny, on a stand-in of the hub."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers.hub import Hub
from tests.helpers.published import publish_albert, publish_glue, publish_wikipedia, raw_articles
from tests.helpers.tiny import tiny_configs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.realdata,
    pytest.mark.skipif("LMDYN_DATA" not in os.environ, reason="LMDYN_DATA is not set"),
]

ROOT = Path(__file__).parents[1]


@pytest.fixture
def hub(tmp_path):
    with Hub(tmp_path / "hub").serve() as served:
        yield served


@pytest.fixture
def documents():
    return raw_articles()


def chain(hub, folder, profile):
    """The profile's command, in a folder that has the tiny configurations."""
    tiny_configs(ROOT / "configs", folder)
    done = subprocess.run(
        [str(Path(sys.executable).with_name("snakemake")), "--profile", f"configs/{profile}", "--cores", "2"],
        env={**os.environ, **hub.environment(folder / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=folder, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    logs = {path.name: path.read_text() for path in (folder / "runs").rglob("logs/*.log")}
    assert done.returncode == 0, done.stderr[-2000:] + "\n".join(
        f"{name}: {log[-1500:]}" for name, log in logs.items() if "rror" in log
    )


@pytest.mark.skipif(
    shutil.which("snakemake", path=Path(sys.executable).parent) is None, reason="no snakemake"
)
def test_transient_chaos(hub, documents, tmp_path):
    publish_albert(hub, "albert/albert-large-v2", documents)
    publish_wikipedia(hub, documents)
    publish_glue(hub, Path(os.environ["LMDYN_DATA"], "glue"))
    chain(hub, tmp_path, "inoue2022_chaos/paper")
    runs = tmp_path / "runs" / "inoue2022_chaos" / "paper"
    observed = {path.name for path in (runs / "pretrained" / "observations").iterdir()}
    assert observed == {"encoder_dynamics", "encoder_dynamics_stsb", "depth_performance", "handwriting"}
    rows = pd.read_parquet(runs / "pretrained" / "observations" / "encoder_dynamics")
    assert rows.loc[rows["quantity"] == "orbit_share", "value"].sum() == pytest.approx(1)
    assert (runs / "report" / "index.html").exists()

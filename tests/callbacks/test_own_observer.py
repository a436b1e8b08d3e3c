"""The observer of a user's own that the guide shows: its numbers, two ranks, live and in replay."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from lmdyn.callbacks import ObservedBatch
from lmdyn.cli.__main__ import main
from tests.helpers.small_runs import AT, configuration

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def own(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module("own_observer")
    sys.modules.pop("own_observer")


def batch(p, hits):
    """Tokens whose likeliest of three words has probability ``p``, and is the label or not."""
    rest = (1 - p) / 2
    logits = torch.tensor([p, rest, rest]).log().expand(1, len(hits), 3)
    labels = torch.tensor([[0 if hit else 1 for hit in hits]])
    zero = torch.zeros(1, dtype=torch.int64)
    return ObservedBatch({"input_ids": labels, "labels": labels}, logits, zero, zero)


def test_its_numbers(own):
    sums = own.BinSums(10)
    sums.update(batch(0.85, [True, True, False, False]))  # 0.35 too confident
    sums.update(batch(0.55, [True]))  # 0.45 too little
    found = sums.table().set_index("quantity")["value"]
    assert found["confidence"] == pytest.approx((4 * 0.85 + 0.55) / 5, rel=1e-6)
    assert found["accuracy"] == 3 / 5
    assert found["calibration_error"] == pytest.approx((4 * 0.35 + 0.45) / 5, rel=1e-6)


OWN = [("own_observer.Calibration", "calibration"), ("block_norms.BlockNorms", "block_norms")]


@pytest.mark.slow
@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("class_path", "name"), OWN)
def test_in_a_run_live_and_replayed(tmp_path, monkeypatch, class_path, name):
    monkeypatch.setenv("LMDYN_CACHE", str(tmp_path / "cache"))
    path = configuration(tmp_path, "run")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["trainer"]["callbacks"].append({"class_path": class_path, "init_args": {"schedule": AT}})
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    main(["fit", "--config", str(path)])
    folder = tmp_path / "run" / "observations" / name
    live = pd.read_parquet(folder)
    assert live["step"].unique().tolist() == [0, 4]
    assert live["value"].ge(0).all()
    shutil.rmtree(folder)
    main(["analyze", str(tmp_path / "run")])
    pd.testing.assert_frame_equal(pd.read_parquet(folder), live)
    page = (tmp_path / "run" / "report" / "index.html").read_text(encoding="utf-8")
    assert name in page

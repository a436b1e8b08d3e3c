"""How many of lmdyn's functions lie between Lightning's hook and what they do, counted by a profiler."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import lmdyn
from lmdyn.callbacks import Geometry, LearningCurves, Steps
from lmdyn.runs import atomic_files
from tests.helpers.modules import Own, quiet_trainer

ROOM = str(Path(lmdyn.__file__).parent)
MOST = 12


def ours(frame):
    """Names of lmdyn's functions on the stack, from the outermost."""
    names = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(ROOM) and not frame.f_code.co_name.startswith("<"):
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names[::-1]


@pytest.fixture(scope="module")
def stacks(tmp_path_factory):
    """The longest stacks at which a file is written and at which a batch is read."""
    found = {"write": [], "update": []}
    codes = {
        atomic_files.write_file.__code__: "write",
        LearningCurves.update.__code__: "update",
        Geometry.update.__code__: "update",
    }

    def profile(frame, event, _):
        kind = codes.get(frame.f_code) if event == "call" else None
        if kind and len(stack := ours(frame)) > len(found[kind]):
            found[kind] = stack

    ids = torch.arange(48).reshape(6, 8) % 20
    loader = torch.utils.data.DataLoader([{"input_ids": row, "labels": row} for row in ids], batch_size=2)
    how = {"schedule": Steps(at=(0, 2)), "labels": "aligned", "log_figures": False}
    both = LearningCurves(**how), Geometry(**how)
    trainer = quiet_trainer(tmp_path_factory.mktemp("stack"), *both, max_steps=2, enable_checkpointing=False)
    sys.setprofile(profile)
    try:
        trainer.fit(Own(nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))), loader, loader)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("kind", ["write", "update"])
def test_few_functions_lie_between(stacks, kind):
    stack = stacks[kind]
    assert stack[0].startswith("Observer.on_")
    assert 3 < len(stack) <= MOST, stack

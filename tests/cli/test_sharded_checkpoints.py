"""Checkpoints that ranks write together, which are folders: a run goes on from them and is replayed."""

import contextlib
import io
import pickle
import shutil
from pathlib import PosixPath
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch.distributed.checkpoint.filesystem import FileSystemReader

from lmdyn.callbacks import ScheduledCheckpoint
from lmdyn.cli.__main__ import main
from lmdyn.cli.fit import LmdynCLI
from lmdyn.runs.checkpoint_files import read_checkpoint
from lmdyn.runs.sharded_checkpoints import about_sharded, is_sharded_checkpoint, read_sharded
from tests.cli.tiny_run import tiny_run
from tests.helpers.ranks import TORCHRUN, run_ranks
from tests.helpers.small_runs import says

# two ranks write them
pytestmark = pytest.mark.slow


def configuration(folder, version, steps):
    about = {"schedule": {"every": 3, "last": False}}
    curves = {**about, "layers": [], "bands": [3], "frequency": "probe", "log_figures": False}
    callbacks = [
        {"class_path": "ScheduledCheckpoint", "init_args": about},
        {"class_path": "ScheduledCheckpoint", "init_args": {**about, "weights_only": False}},
        {"class_path": "LearningCurves", "init_args": curves},
    ]
    sizes = {"data_parallel_size": 2, "tensor_parallel_size": 1, "process_group_backend": "gloo"}
    strategy = {"class_path": "lightning.pytorch.strategies.ModelParallelStrategy", "init_args": sizes}
    trainer = {"devices": 2, "max_steps": steps, "max_epochs": -1, "strategy": strategy}
    content = {"seed_everything": 3, **tiny_run(folder, *callbacks, version=version, **trainer)}
    tests = "tests.callbacks.observing.test_sharded"
    content["model"] = {"class_path": f"{tests}.Sharded"}
    content["data"] = {"class_path": f"{tests}.Data", "init_args": {"batches": 4}}
    path = folder / f"{version}-{steps}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def rank_main(folder):
    with mock.patch("lmdyn.cli.report.write_report"):
        main(["fit", "--config", str(folder / "whole-6.yaml")])
        main(["fit", "--config", str(folder / "run-3.yaml")])
        main(["fit", "--config", str(folder / "run-6.yaml"), "--ckpt_path", "last"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    for version, steps in (("whole", 6), ("run", 3), ("run", 6)):
        configuration(folder, version, steps)
    run_ranks(__file__, folder, folder / "cache", timeout=240, **TORCHRUN)
    return folder


def test_a_run_goes_on_from_a_sharded_checkpoint(runs):
    """Its weights are those of the run that was left alone, bit by bit; they are read without torchrun."""
    for step in (3, 6):
        whole, run = (
            read_checkpoint(runs / name / "checkpoints" / f"step={step:09d}.ckpt")["state_dict"]
            for name in ("whole", "run")
        )
        assert whole.keys() == run.keys()
        assert len(whole) == 7
        assert all(torch.equal(whole[name], run[name]) for name in whole)
    assert is_sharded_checkpoint(runs / "run" / "resume" / "step=000000006.ckpt")
    tables = [pd.read_parquet(runs / name / "observations" / "learning_curves") for name in ("whole", "run")]
    pd.testing.assert_frame_equal(*tables)
    assert tables[0]["step"].unique().tolist() == [0, 3, 6]


def test_it_is_replayed_by_one_process(runs, tmp_path):
    shutil.copytree(runs / "run", tmp_path / "run")
    live = pd.read_parquet(tmp_path / "run" / "observations" / "learning_curves")
    shutil.rmtree(tmp_path / "run" / "observations")
    main(["analyze", str(tmp_path / "run")])
    replayed = pd.read_parquet(tmp_path / "run" / "observations" / "learning_curves")
    keys = [name for name in live if name != "value"]
    pd.testing.assert_frame_equal(replayed[keys], live[keys])
    np.testing.assert_allclose(replayed["value"], live["value"], rtol=1e-6, atol=1e-7)


def test_ranks_of_the_whole_module_cannot_go_on_from_it(runs, tmp_path, capsys):
    config = yaml.safe_load((runs / "run-6.yaml").read_text(encoding="utf-8"))
    config["trainer"] |= {"strategy": "auto", "devices": 1}
    path = tmp_path / "one.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    checkpoint = runs / "run" / "resume" / "step=000000003.ckpt"
    for command in ("fit", "validate"):
        said = says([command, "--config", str(path), "--trainer.logger.init_args.version", "one",
                     "--ckpt_path", str(checkpoint)], capsys)  # fmt: skip
        assert "is a sharded checkpoint, but the strategy Single" in said
    weights = runs / "run" / "checkpoints" / "step=000000003.ckpt"
    said = says(["fit", "--config", str(path), "--ckpt_path", str(weights)], capsys)
    assert "contains weights but no resume state" in said
    said = says(["fork", str(runs / "run"), "--step", "3", "--out", str(tmp_path / "fork")], capsys)
    assert "is a sharded checkpoint, but a fork requires a single file" in said


@pytest.fixture
def checkpoint(runs, tmp_path):
    name = "step=000000003.ckpt"
    return shutil.copytree(runs / "run" / "resume" / name, tmp_path / name)


def rewrite_index(checkpoint, content):
    """Put another index in its place, and take the seal away: of Lightning's alone, or of somebody who means harm."""
    (checkpoint / ".metadata").write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    (checkpoint / "seal.json").unlink()


class Opener:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w').close()",)


def test_an_index_runs_no_code(checkpoint, tmp_path):
    found = FileSystemReader(checkpoint).read_metadata()
    found.planner_data = Opener(tmp_path / "ran")
    rewrite_index(checkpoint, found)
    for read in (about_sharded, read_sharded):
        with pytest.raises(ValueError, match=r"the index contains builtins\.exec, which no index requires"):
            read(checkpoint)
    assert not (tmp_path / "ran").exists()
    FileSystemReader(checkpoint).read_metadata()  # torch runs it
    assert (tmp_path / "ran").exists()


def test_an_index_changes_no_class(checkpoint):
    """Pickle's BUILD sets attributes of whatever is on its stack: here it would be those of a class."""
    index = b"\x80\x02cpathlib\nPosixPath\nN}X\x0b\x00\x00\x00__truediv__cpathlib\nPosixPath\ns\x86b."
    rewrite_index(checkpoint, index)
    before = PosixPath.__truediv__
    with pytest.raises(ValueError, match="changes objects outside the index"):
        read_sharded(checkpoint)
    assert PosixPath.__truediv__ is before


def test_parts_of_another_step_are_refused(runs, checkpoint):
    part = "__1_0.distcp"
    shutil.copy(runs / "run" / "resume" / "step=000000006.ckpt" / part, checkpoint / part)
    for read in (about_sharded, read_sharded):
        with pytest.raises(ValueError, match=r"__1_0\.distcp in the folder differs from what was written"):
            read(checkpoint)


def test_parts_that_lie_over_each_other_are_refused(checkpoint):
    """Their sum is right, and a place between them would stay as the memory was."""
    found = FileSystemReader(checkpoint).read_metadata()
    chunks = found.state_dict_metadata["state_dict.net.0.weight"].chunks
    assert len(chunks) == 2
    _, second = sorted(chunks, key=lambda chunk: chunk.offsets)
    second.offsets = torch.Size((second.offsets[0] - 1, 0))
    rewrite_index(checkpoint, found)
    with pytest.raises(ValueError, match="the parts of a tensor overlap or leave gaps"):
        read_sharded(checkpoint)


def test_weights_by_two_names_are_refused(checkpoint):
    found = FileSystemReader(checkpoint).read_metadata()
    kinds = found.state_dict_metadata
    kinds["model.net.0.weight"] = kinds["state_dict.net.0.weight"]
    rewrite_index(checkpoint, found)
    with pytest.raises(ValueError, match="weights of both ModelParallelStrategy and FSDPStrategy"):
        read_sharded(checkpoint)


def test_half_a_folder_is_passed_over_by_last(runs, tmp_path, caplog):
    """A folder is replaced by another name; one that somebody has half removed does not stop the run."""
    this = SimpleNamespace(_full_savers=[ScheduledCheckpoint(weights_only=False)])
    names = [f"step={step:09d}.ckpt" for step in (3, 6)]
    for name in names:
        shutil.copytree(runs / "run" / "resume" / name, tmp_path / "resume" / name)
    assert [p.name for p in LmdynCLI._full_checkpoints(this, tmp_path)] == names
    (tmp_path / "resume" / names[1] / ".metadata").unlink()
    assert [p.name for p in LmdynCLI._full_checkpoints(this, tmp_path)] == names[:1]
    assert f"{names[1]}: the folder has no complete checkpoint" in caplog.text


def test_a_damaged_first_checkpoint_does_not_stop_the_others(runs, tmp_path, capsys):
    shutil.copytree(runs / "run", tmp_path / "run")
    first = tmp_path / "run" / "checkpoints" / "step=000000000.ckpt"
    (first / "meta.pt").write_bytes(b"")
    shutil.rmtree(tmp_path / "run" / "observations")
    assert "1 of 3 checkpoints could not be observed" in says(["analyze", str(tmp_path / "run")], capsys)
    found = pd.read_parquet(tmp_path / "run" / "observations" / "learning_curves")
    assert found["step"].unique().tolist() == [3, 6]


def test_settings_of_an_optimizer_run_no_code(checkpoint, tmp_path):
    stored = io.BytesIO()
    torch.save(Opener(tmp_path / "ran"), stored)
    found = FileSystemReader(checkpoint).read_metadata()
    where = next(w for index, w in found.storage_data.items() if index.fqn == "optimizer_0.param_groups.0.lr")
    where.relative_path, where.offset, where.length = "other.distcp", 0, len(stored.getvalue())
    (checkpoint / "other.distcp").write_bytes(stored.getvalue())
    rewrite_index(checkpoint, found)
    with pytest.raises(ValueError, match=r"(?s)sharded.*Unsupported global: GLOBAL exec was not"):
        about_sharded(checkpoint)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", [".metadata", "meta.pt", "__0_0.distcp", "__1_0.distcp"])
@pytest.mark.parametrize("damage", ["cut", "empty", "bit"])
def test_damaged_files_are_refused(checkpoint, name, damage):
    before = read_checkpoint(checkpoint)["state_dict"]
    content = bytearray((checkpoint / name).read_bytes())
    if damage == "bit":
        content[len(content) // 2] ^= 64
    (checkpoint / name).write_bytes(
        {"cut": content[: len(content) // 2], "empty": b"", "bit": content}[damage]
    )
    found = None
    with contextlib.suppress(ValueError):
        found = read_checkpoint(checkpoint)
    if found is not None:  # damage to what is not read: padding, or the optimizer's tensors
        assert damage == "bit"
        assert all(torch.equal(found["state_dict"][k], v) for k, v in before.items())

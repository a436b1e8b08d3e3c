"""Damaged files of a run: one message that names the file, or what is right; never a traceback or a wrong number.

Each file that a command reads is emptied, cut, overwritten, of another type, or has one bit flipped.
"""

import random
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lmdyn.callbacks import LearningCurves, ScheduledCheckpoint
from lmdyn.cli.__main__ import main
from lmdyn.runs.store import ObservationStore
from tests.helpers import small_runs as S


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of four updates, with a test's numbers."""
    folder = tmp_path_factory.mktemp("damaged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmdyn.cli.report.write_report", lambda *_: None)
        patch.setenv("LMDYN_CACHE", str(folder / "cache"))
        config = str(S.configuration(folder, "run"))
        main(["fit", "--config", config])
        last = str(folder / "run" / "checkpoints" / "step=000000004.ckpt")
        main(["test", "--config", config, "--ckpt_path", last])
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


DAMAGES = {
    "empty": lambda content, rng: b"",
    "cut": lambda content, rng: content[: rng.randrange(1, len(content))],
    "overwritten": lambda content, rng: rng.randbytes(len(content)),
    "of another type": lambda content, rng: b"[1, 2]\n",
    "not UTF-8": lambda content, rng: b"\xff\xfe" + content,
}
FILES = {
    "config.yaml": ("report", "analyze"),
    "tokenizer/tokenizer.json": ("analyze",),
    "tokenizer/tokenizer_config.json": ("analyze",),
    "tokenizer/token_counts.parquet": ("analyze",),
    "test.json": ("report",),
    "provenance.json": ("report", "analyze"),
    "hparams.yaml": ("report",),
    "observations/learning_curves/000000000.parquet": ("report", "analyze"),
    "observations/learning_curves/000000004.parquet": ("report", "analyze"),
    "checkpoints/step=000000004.ckpt": ("analyze",),
}


def commands(run, out):
    """Reports are written of tables alone; ``analyze`` makes what is missing."""
    return {
        "report": ["report", str(run), "--out", str(out)],
        "analyze": ["analyze", str(run), "--only", "learning_curves"],
    }


@pytest.fixture
def without_pictures(monkeypatch):
    monkeypatch.setattr("lmdyn.cli.pages.observer_section.draw_parts", lambda *_: iter(()))


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("name", "command"), [(n, c) for n, given in FILES.items() for c in given])
def test_a_damaged_file_is_named(name, command, damage, run, trained, tmp_path, capsys):
    rng = random.Random(f"{name} {damage}")
    file = run / name
    changed = DAMAGES[damage](file.read_bytes(), rng)
    file.write_bytes(changed)
    said = S.says(commands(run, tmp_path / "report")[command], capsys)
    if not said and command == "analyze":  # what is there is what was there, else who reads it is told
        said = S.says(commands(run, tmp_path / "report")["report"], capsys)
        if not said:
            there, before = (pd.read_parquet(r / "observations" / "learning_curves") for r in (run, trained))
            pd.testing.assert_frame_equal(there, before)
    elif not said and name.startswith("observations"):
        there, before = (
            ObservationStore(r / "observations" / "learning_curves").read() for r in (run, trained)
        )
        pd.testing.assert_frame_equal(there, before)
    if said:
        assert Path(name).name in said or Path(name).parent.name in said, said


# ---------------------------------------------------------------- one bit


def flip(path: Path, content: bytes) -> None:
    """Flip the highest bit of an exponent in the middle of some content of a file."""
    whole = bytearray(path.read_bytes())
    at = whole.index(content)
    whole[at + len(content) // 8 * 4 + 3] ^= 0x40
    path.write_bytes(whole)


@pytest.mark.slow
def test_a_flipped_bit_of_an_observation_is_not_believed(tmp_path):
    values = np.random.default_rng(0).random(500)
    store = ObservationStore(tmp_path / "a", "my.Observer")
    store.write(3, pd.DataFrame({"step": 3, "quantity": "loss", "site": "", "value": values}))
    before = store.read()
    content = bytearray(store.path(3).read_bytes())
    refused = 0
    for at in range(0, len(content), 5):
        content[at] ^= 0x40
        store.path(3).write_bytes(content)
        content[at] ^= 0x40
        try:
            read = store.read()
        except ValueError as error:
            refused += store.path(3).name in str(error)
        else:  # of statistics, say
            pd.testing.assert_frame_equal(read, before, check_dtype=False)
    assert refused > len(content) / 10


@pytest.mark.parametrize("kind", [pytest.param("resume", marks=pytest.mark.slow), "checkpoints"])
def test_a_flipped_bit_of_a_weight_is_not_believed(kind, run, tmp_path, capsys):
    path = run / kind / "step=000000004.ckpt"
    state = torch.load(path, weights_only=True)["state_dict"]
    flip(path, max(state.values(), key=torch.numel).numpy().tobytes())
    flipped = torch.load(path, weights_only=True)["state_dict"]
    assert not all(torch.equal(flipped[k], state[k]) for k in state)  # torch itself says nothing
    if kind == "resume":
        config = S.configuration(tmp_path, "run")
        words = ["fit", "--config", str(config), "--ckpt_path", "last", "--trainer.max_steps", "6"]
    else:
        words = ["analyze", str(run), "--out", str(tmp_path / "out")]
    said = S.says(words, capsys)
    assert path.name in said
    assert "differs from what was written" in said


def test_a_checkpoint_without_checksums_is_read(tmp_path):
    from lmdyn.runs.checkpoint_files import read_checkpoint

    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"state_dict": {"w": torch.arange(3.0)}}, tmp_path / "a.ckpt")
    finally:
        torch.serialization.set_crc32_options(before)
    assert torch.equal(read_checkpoint(tmp_path / "a.ckpt")["state_dict"]["w"], torch.arange(3.0))


# ---------------------------------------------------------------- what goes on


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_a_run_that_was_stopped_before_its_first_full_checkpoint_begins_again(
    run, trained, tmp_path, capsys, warnings_of
):
    shutil.rmtree(run / "resume")
    (run / "observations" / "learning_curves" / "000000004.parquet").unlink()
    words = ["fit", "--config", str(S.configuration(tmp_path, "run")), "--ckpt_path", "last"]
    said = S.says([*words, "--data.init_args.seed", "5"], capsys)
    assert "cannot restart with other settings (data.seed: " in said
    assert S.says(words, capsys) == ""
    assert any("stopped before its first full checkpoint: the run restarts" in w for w in warnings_of)
    S.assert_same_weights(*map(S.weights_of, (trained, run)))
    S.assert_same_observations(*map(S.observations_of, (trained, run)))


@pytest.mark.slow
def test_another_optimizer_is_refused(run, tmp_path, capsys):
    words = ["fit", "--config", str(S.configuration(tmp_path, "run")), "--trainer.max_steps", "6"]
    copied = shutil.copy(run / "resume" / "step=000000004.ckpt", tmp_path / "copied.ckpt")
    for change, checkpoint, message in (
        ("optimizer.init_args.lr=0.1", "last", "model.optimizer.lr: 0.5 before, 0.1 now"),
        ("optimizer.init_args.lr=0.1", str(copied), "model.optimizer.lr: 0.5 before, 0.1 now"),
        ("optimizer=torch.optim.Adam", "last", "model.optimizer: 'SGD' before, 'Adam' now"),
        ("dropout=0.5", "last", "in the checkpoint, 0.5 in the configuration"),
    ):
        said = S.says([*words, "--ckpt_path", checkpoint, f"--model.init_args.{change}"], capsys)
        assert message in said
        assert ("lmdyn fork" in said) == ("optimizer" in change)


# ---------------------------------------------------------------- observations and names


def test_a_long_name_and_folders_elsewhere(tmp_path):
    with pytest.raises(ValueError, match="has 300 bytes: expected at most"):
        LearningCurves(name="x" * 300)
    for folder in ("../../x", str(tmp_path / "x")):
        with pytest.raises(ValueError, match="expected a subfolder of the run"):
            ScheduledCheckpoint(folder=folder)

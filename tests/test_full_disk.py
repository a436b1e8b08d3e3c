"""A disk that is full, a quota, a folder that may only be read: one message, nothing lost, and going on works.

On a small file system in memory, where the tests may mount one (as root); else they are skipped.
"""

import os
import subprocess

import lightning as L
import pytest
import yaml

from lmdyn.cli.__main__ import main
from tests.helpers import small_runs as S

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path):
    """A disk of a few megabytes; ``remount(options)`` changes it."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options, *words):
        done = subprocess.run(
            ["mount", *words, "-o", options, "tmpfs", folder], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")

    mount("size=3m", "-t", "tmpfs")
    yield folder, lambda options: subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)
    subprocess.run(["umount", folder], check=True)


class Fills(L.Callback):
    """Takes all that is left of the disk, once, before the third update."""

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        full = trainer.log_dir + "/../full"
        if trainer.global_step == 2 and not os.path.exists(full):  # noqa: PTH110
            with open(full, "wb", buffering=0) as file:  # noqa: PTH123
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass


def with_filler(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["trainer"]["callbacks"].insert(0, {"class_path": f"{__name__}.Fills"})
    for callback in content["trainer"]["callbacks"][1:]:
        callback["init_args"]["schedule"] = {"every": 1}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


@pytest.mark.usefixtures("without_report")
def test_a_disk_that_fills_up_while_training(disk, tmp_path, capsys):
    folder, remount = disk
    words = ["fit", "--config", with_filler(S.configuration(folder, "run"))]
    said = S.says(words, capsys)
    assert str(folder / "run") in said
    assert "cannot be written" in said
    assert "free disk space" in said
    weights = S.weights_of(folder / "run")  # those that are there are whole
    assert "step=000000001.ckpt" in weights
    assert "step=000000004.ckpt" not in weights
    remount("size=20m")
    main([*words, "--ckpt_path", "last"])
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "full").touch()
    main(["fit", "--config", with_filler(S.configuration(tmp_path / "whole", "run"))])
    runs = tmp_path / "whole" / "run", folder / "run"
    S.assert_same_weights(*map(S.weights_of, runs))
    S.assert_same_observations(*map(S.observations_of, runs))
    assert not [p for p in (folder / "run").rglob("*") if p.name.startswith(".")]


def test_a_folder_that_may_only_be_read(disk, tmp_path, capsys):
    folder, remount = disk
    config = str(S.configuration(folder, "run"))
    main(["fit", "--config", config])  # with its report
    remount("ro")
    run = folder / "run"
    try:
        said = S.says(["fit", "--config", config, "--ckpt_path", "last", "--trainer.max_steps", "6"], capsys)
        assert f"{run} cannot be written (Read-only file system)" in said
        for command in ("analyze", "report"):
            said = S.says([command, str(run)], capsys)
            assert "cannot be written (Read-only file system)" in said
            assert "choose another folder with --out" in said
        main(["analyze", str(run), "--out", str(tmp_path / "out")])
        main(["report", str(run), "--out", str(tmp_path / "report")])
    finally:
        remount("rw")
    assert (tmp_path / "report" / "index.html").is_file()
    S.assert_same_observations(*map(S.observations_of, (run, tmp_path / "out")))

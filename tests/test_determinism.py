"""An organism of each kind, prepared and trained in two fresh processes, gives the same files, byte for byte."""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest

from lmdyn.cli.__main__ import main
from tests import test_configs as S

pytestmark = pytest.mark.slow


def kind(path: Path) -> tuple[str, ...]:
    """What decides which code makes a run: its model, data and observers."""
    observed = {part: S.document(path).get("trainer", {}).get(part) for part in ("callbacks", "callbacks+")}
    classes = sorted({*re.findall(r"'class_path': '(\w+)'", str(observed))} - {"ScheduledCheckpoint"})
    return str(S.base_document(path)["model"]["class_path"]), S.data_class(path), *classes


# whose classes overlays/similarity.yaml has, too
FOUND = [
    path for path in S.CONFIGS
    if not path.name.startswith("observers") and path.stem not in ("quickstart", "sparsity")
    and S.data_class(path) in S.SMALL_DATA and not S.real_text(path) and not S.from_the_hub(path)
]  # fmt: skip
ORGANISMS = list({kind(path): path for path in reversed(FOUND)}.values())  # the first of each kind


def train_all(folder: Path, order: int) -> None:
    """What the fresh process does: prepares and trains each organism in a folder and with a cache of its own.

    What loggers get is compared in no file, and is left out; a report is drawn of a run that has been observed.
    """
    publish = mock.patch("lmdyn.callbacks.observing.recording.publish")
    report = mock.patch("lmdyn.cli.report.write_report")
    for path in ORGANISMS[::order]:
        here = folder / S.name(path)
        here.mkdir(parents=True)
        os.chdir(here)
        os.environ["LMDYN_CACHE"] = str(here / "cache")
        arguments = [*S.small_files_of(path, here), *S.small_arguments(path), *S.own_vocabulary(path)]
        main(["prepare", *arguments, "--tokenizer", "tokenizer"])
        with publish, nullcontext() if path.stem == "similarity" else report:
            cli = S.LmdynCLI(["fit", *arguments, "--trainer.max_steps=10", "--trainer.log_every_n_steps=1"])
        S.check_run(cli, S.live(path), steps=10)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two folders with the files of all organisms; the second process takes them in reverse order."""
    folder = tmp_path_factory.mktemp("trained")
    processes = []
    for number, settings in (
        (1, {"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}),
        (-1, {"PYTHONHASHSEED": "2", "RAYON_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "true"}),
    ):
        environment = {**os.environ, "PYTHONPATH": str(S.ROOT), "OMP_NUM_THREADS": "1", **settings}
        command = [sys.executable, __file__, str(folder / str(number)), str(number)]
        with (folder / f"{number}.log").open("w", encoding="utf-8") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait(timeout=1800) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for number, code in zip((1, -1), codes, strict=True):
        assert code == 0, (folder / f"{number}.log").read_text(encoding="utf-8")[-4000:]
    return folder / "1", folder / "-1"


WHEN = re.compile(rb"<td>\d{4}-\d\d-\d\d, [^<]*</td>")
"""The cell of a report that says when a run was trained, and how long that took."""


def files(folder: Path) -> dict[str, bytes]:
    """All files but TensorBoard's events: their names and records hold the time, the host and the process."""
    return {
        str(path.relative_to(folder)): WHEN.sub(b"", path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not path.name.startswith("events.out.tfevents.")
        and path.name != "provenance.json"  # which says when
    }


@pytest.mark.parametrize("path", ORGANISMS, ids=S.name)
def test_two_processes_write_the_same_files(trained, path):
    one, two = (files(folder / S.name(path)) for folder in trained)
    assert one.keys() == two.keys()
    assert [file for file in one if one[file] != two[file]] == []
    # checkpoints; configuration; tokenizer; encoded text; counts
    suffixes = {Path(file).suffix for file in one}
    assert {".ckpt", ".yaml", ".json", ".bin", ".parquet"} <= suffixes


if __name__ == "__main__":
    train_all(Path(sys.argv[1]), int(sys.argv[2]))

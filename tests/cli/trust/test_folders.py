"""What a folder may contain: no pipes, no devices; of a received one, no links that leave it."""

import os
from pathlib import Path

import pytest

from lmdyn.claims.profiles import find_runs
from lmdyn.cli.inspecting.inspected_model import find_subject
from lmdyn.cli.report import write_report
from lmdyn.cli.trust.folders import check_folder
from lmdyn.runs.checkpoint_files import read_checkpoint
from lmdyn.runs.store import ObservationStore
from lmdyn.runs.yaml_files import read_yaml


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run" / "observations" / "curves").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("seed_everything: 1")
    return tmp_path / "run"


PLACES = ["config.yaml", "observations/curves/000000001.parquet", "checkpoints/step=1.ckpt"]


def put(kind, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("place", PLACES)
def test_what_does_not_end_is_refused(run, kind, place):
    put(kind, run / place)
    for read in (
        lambda: write_report([run], run / "report"),
        lambda: find_runs([run]),
        lambda: find_subject(str(run)),
    ):
        with pytest.raises(ValueError, match="neither a file nor a folder"):
            read()


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_also_where_it_is_named_by_itself(tmp_path, kind):
    path = tmp_path / "000000001.parquet"
    put(kind, path)
    for read in (read_yaml, read_checkpoint, lambda path: ObservationStore(path.parent).read()):
        with pytest.raises(ValueError, match="not a file"):
            read(path)


def test_links_that_leave_are_refused_of_a_received_run_only(run, tmp_path):
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "run2").mkdir()  # its name begins like the folder's
    for target in (tmp_path / "secret", tmp_path / "run2", "../secret", "/nowhere"):
        (run / "link").symlink_to(target)
        check_folder(run)
        with pytest.raises(ValueError, match="--untrusted follows no such link"):
            check_folder(run, received=True)
        (run / "link").unlink()


def test_links_that_stay_and_loops_are_followed_to_an_end(run, monkeypatch):
    (run / "link").symlink_to("config.yaml")
    (run / "observations" / "up").symlink_to(run)
    check_folder(run, received=True)
    monkeypatch.chdir(run)
    check_folder(Path(), received=True)
    (run / "self").symlink_to("self")
    with pytest.raises(OSError, match="symbolic links"):
        check_folder(run)


def test_a_name_that_is_no_folder_is_not_checked(tmp_path):
    check_folder(tmp_path / "organisation" / "model", received=True)

"""A bounded cache: what was downloaded goes, but no file that was there before or that another revision shares."""

import pytest

from lmdyn.cli.command_parser import run_command
from lmdyn.cli.commands import analyze
from lmdyn.cli.replay.downloads import Downloads
from lmdyn.runs.hub_checkpoints import HubCheckpoints

NAME = "org/lm"


class Cache:
    """A cache as the hub's library lays it out, and the fetching into it."""

    def __init__(self, folder):
        self.folder = folder
        self.repository = folder / "models--org--lm"

    def fetch(self, name, revision):
        assert name == NAME
        snapshot = self.repository / "snapshots" / f"commit-{revision}"
        for file, blob in (("config.json", "shared"), ("model.safetensors", f"weights-{revision}")):
            path = self.repository / "blobs" / blob
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(blob)
            (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
            if not (snapshot / file).is_symlink():
                (snapshot / file).symlink_to(f"../../blobs/{blob}")
        reference = self.repository / "refs" / revision
        reference.parent.mkdir(exist_ok=True)
        reference.write_text(f"commit-{revision}")
        return snapshot

    def cached(self, name, revision):
        snapshot = self.repository / "snapshots" / f"commit-{revision}"
        return snapshot if (snapshot / "model.safetensors").exists() else None

    def blobs(self):
        return sorted(p.name for p in self.repository.glob("blobs/*"))

    def downloads(self, n=6):
        paths = HubCheckpoints(NAME, ",".join(f"step{i}" for i in range(n)), self.fetch, lambda name: [])
        return Downloads(paths, self.cached, self.folder)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path)


def test_equal_weights_of_two_revisions_are_one_file(cache):
    downloads = cache.downloads()
    first, second = downloads[1], downloads[2]
    (second / "model.safetensors").unlink()
    (second / "model.safetensors").symlink_to("../../blobs/weights-step1")
    downloads.done(1)
    assert not first.exists()
    assert (second / "model.safetensors").read_text() == "weights-step1"
    downloads.close()
    assert cache.blobs() == []


def test_how_much_to_keep(capsys):
    with pytest.raises(SystemExit):
        run_command("analyze", analyze, ["org/lm", "--keep", "20GB"])
    assert "invalid whole number value: '20GB'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="--keep applies only to models of the hub"):
        run_command("analyze", analyze, ["runs/x", "--keep", "3"])

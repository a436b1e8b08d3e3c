"""Where a run comes from, and which claims were made before anything of them was observed."""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

import lmdyn
from lmdyn.cli.__main__ import main
from lmdyn.runs import provenance
from lmdyn.runs.provenance import begin_session, end_session, read_provenance
from lmdyn.runs.store import ObservationStore
from tests.cli.tiny_run import tiny_run


@dataclass(frozen=True)
class Said:
    name: str
    fingerprint: str
    observer: str

    def reads(self):
        return frozenset({f"{self.observer}/chi"})


CLAIMS = (Said("rises", "a1", "Sparsity"), Said("converges", "b1", "Similarity"))


@pytest.fixture
def studies(monkeypatch):
    found = {"one": SimpleNamespace(claims=CLAIMS)}
    monkeypatch.setattr(provenance, "_studies", lambda: found)
    return found


def observe(run, cls, step=0):
    table = pd.DataFrame({"step": step, "quantity": ["chi"], "site": [""], "value": [0.5]})
    ObservationStore(run / "observations" / cls.lower(), f"lmdyn.callbacks.{cls}", {}).write(step, table)


def test_a_session_says_command_versions_machine_and_cost(tmp_path, studies):
    number = begin_session(tmp_path / "run", ["lmdyn", "fit"], "cpu")
    (session,) = read_provenance(tmp_path / "run")["sessions"]
    assert session["command"] == ["lmdyn", "fit"]
    assert {"python", "torch", "lightning"} <= session["versions"].keys()
    assert {"commit", "dirty"} <= session.keys()
    assert session["device"] == "cpu"
    assert session["registered"] == {"one": 2}
    assert "ended" not in session  # a killed one has no end
    end_session(tmp_path / "run", number, step=7)
    (session,) = read_provenance(tmp_path / "run")["sessions"]
    assert session["ended"] >= session["began"]
    assert session["step"] == 7
    assert session["peak_memory_mb"] > 50
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["provenance.json"]  # nothing is left beside it


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_a_commit_is_that_of_a_checkout_and_dirty_where_the_package_differs_from_it(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    nothing = {"commit": None, "dirty": None}
    assert provenance._commit.__defaults__ == (Path(lmdyn.__file__).parent,)
    assert provenance._commit(package) == nothing  # no repository

    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    assert provenance._commit(package) == nothing  # a repository that lmdyn is only installed in
    git("add", "package")
    git("commit", "-q", "-m", "one")
    head = git("rev-parse", "HEAD")
    (tmp_path / "notes.txt").write_text("no resume state of lmdyn")
    assert provenance._commit(package) == {"commit": head, "dirty": False}
    (package / "__init__.py").write_text("changed = True")
    assert provenance._commit(package) == {"commit": head, "dirty": True}


def test_claims_are_registered_while_nothing_of_them_was_observed_and_never_replaced(tmp_path, studies):
    observe(tmp_path, "Similarity")
    begin_session(tmp_path, ["lmdyn", "fit"], "cpu")
    assert read_provenance(tmp_path)["claims"] == {"one": {"rises": "a1"}}
    said = ("rises", "a2", "Sparsity"), ("converges", "b2", "Similarity"), ("new", "c", "Probe")
    changed = [Said(*words) for words in said]
    studies["one"] = SimpleNamespace(claims=changed)
    begin_session(tmp_path, ["lmdyn", "fit"], "cpu")
    content = read_provenance(tmp_path)
    assert content["claims"] == {"one": {"rises": "a1", "new": "c"}}
    assert [s["registered"] for s in content["sessions"]] == [{"one": 1}, {"one": 2}]


def test_a_tested_run_registers_no_claim_about_its_test(tmp_path, studies):
    studies["one"] = SimpleNamespace(claims=(Said("learned", "t", "test"),))
    begin_session(tmp_path / "new", ["lmdyn", "fit"], "cpu")
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "test.json").write_text("{}")
    begin_session(tmp_path / "seen", ["lmdyn", "fit"], "cpu")
    assert read_provenance(tmp_path / "new")["claims"] == {"one": {"learned": "t"}}
    assert read_provenance(tmp_path / "seen")["claims"] == {}


def test_a_replay_into_another_folder_inherits_what_the_run_had_said(tmp_path, studies):
    run, out = tmp_path / "run", tmp_path / "out"
    begin_session(run, ["lmdyn", "fit"], "cpu")
    observe(run, "Sparsity")
    studies["one"] = SimpleNamespace(claims=(*CLAIMS[1:], Said("rises", "a2", "Sparsity")))
    begin_session(out, ["lmdyn", "analyze"], "cpu", of=run)
    assert read_provenance(out)["claims"] == {"one": {"rises": "a1", "converges": "b1"}}
    bare = tmp_path / "bare"  # a run of before there was provenance: what it has seen is not said before
    observe(bare, "Sparsity")
    begin_session(tmp_path / "other", ["lmdyn", "analyze"], "cpu", of=bare)
    assert read_provenance(tmp_path / "other")["claims"] == {"one": {"converges": "b1"}}


def test_no_run_fails_for_it(tmp_path, studies, caplog, monkeypatch):
    observe(tmp_path / "odd", "Sparsity")
    (tmp_path / "odd" / "observations" / "sparsity" / "000000000.parquet").write_bytes(b"cut")
    assert begin_session(tmp_path / "odd", ["lmdyn"], "cpu") == 0  # the session is noted, no claim is
    assert read_provenance(tmp_path / "odd")["claims"] == {}
    assert "lmdyn registered no claims" in caplog.text
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "provenance.json").write_text('{"sessions": [')
    assert begin_session(tmp_path / "cut", ["lmdyn"], "cpu") is None
    assert "could not write" in caplog.text
    assert (tmp_path / "cut" / "provenance.json").read_text() == '{"sessions": ['
    (tmp_path / "file").write_text("")
    assert begin_session(tmp_path / "file", ["lmdyn"], "cpu") is None
    end_session(tmp_path / "file", 0)
    monkeypatch.setenv("PATH", str(tmp_path))  # a machine without git
    begin_session(tmp_path / "plain", ["lmdyn"], "cpu")
    assert read_provenance(tmp_path / "plain")["sessions"][0]["commit"] is None


@pytest.mark.parametrize("text", ["[]", '{"sessions": {}, "claims": {}}', "{"])
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / "provenance.json").write_text(text)
    with pytest.raises(ValueError, match=r"provenance\.json"):
        read_provenance(tmp_path)


def test_workers_that_write_at_once_lose_nothing(tmp_path, studies):
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: begin_session(tmp_path, ["lmdyn", "analyze"], "cpu"), range(24)))
    assert sorted(numbers) == list(range(24))
    assert len(read_provenance(tmp_path)["sessions"]) == 24


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_fit_and_analyze_write_it(tmp_path, studies):
    curves = {"class_path": "LearningCurves", "init_args": {"log_figures": False}}
    config = tiny_run(tmp_path, {"class_path": "ScheduledCheckpoint"}, curves, max_steps=2)
    path, run = tmp_path / "in.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(config))
    studies["one"] = SimpleNamespace(claims=(*CLAIMS, Said("learns", "l1", "LearningCurves")))
    main(["fit", "--config", str(path)])
    content = json.loads((run / "provenance.json").read_text())
    assert content["sessions"][0]["command"] == ["lmdyn", "fit", "--config", str(path)]
    assert content["sessions"][0]["step"] == 2
    assert content["claims"]["one"] == {"rises": "a1", "converges": "b1", "learns": "l1"}
    shutil.rmtree(run / "observations")
    for _ in range(2):  # nothing is left to observe for the second
        main(["analyze", str(run)])
    assert len(read_provenance(run)["sessions"]) == 2
    assert read_provenance(run)["sessions"][1]["command"] == ["lmdyn", "analyze", str(run)]
    main(["analyze", str(run), "--out", str(tmp_path / "out")])
    assert read_provenance(tmp_path / "out")["claims"] == content["claims"]

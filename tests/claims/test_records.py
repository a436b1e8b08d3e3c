"""Records: small files that hold what claims need of runs, equal for equal runs, and nothing of the machine."""

import json
import shutil
import socket
import sys
from threading import Thread

import numpy as np
import pandas as pd
import pytest
import yaml

from lmdyn.callbacks.observing.observer import Observer
from lmdyn.claims import Above, At, Claim, Part, Rows, Study, records
from lmdyn.claims.profiles import find_profiles, find_runs
from lmdyn.claims.recorded import RecordsFolder
from lmdyn.claims.records import study_reads, without_machine, write_records
from lmdyn.cli.__main__ import main
from lmdyn.runs.folder_lock import FolderLock
from lmdyn.runs.observed_run import NotMeasured, RunFolder, SeedPair
from lmdyn.runs.provenance import begin_session, write_json
from lmdyn.runs.store import ObservationStore, public_name


class Worded(Observer):
    """Has rows by word, of which records keep those of the last step."""

    def measure(self, module, step):
        raise NotImplementedError

    @staticmethod
    def is_scalar(observations):
        return observations["word"].isna()

    @staticmethod
    def record_rows(observations, settings):
        last = observations["step"].eq(observations["step"].max())
        return observations[last | observations["word"].isna()]


def make_run(folder, seed=2, order=None, steps=(0, 10, 20), length=4, groups=True):
    """A run's folder, without a training."""
    random = np.random.default_rng(seed)
    data = {"length": length, "path": f"/home/anna/text/{length}/train.txt"}
    config = {
        "seed_everything": seed,
        "model": {"class_path": "lmdyn.models.LSTMLanguageModel", "init_args": {"hidden_size": 8}},
        "data": {"class_path": "lmdyn.datamodules.BPTTCorpus",
                 "init_args": data | ({} if order is None else {"order_seed": order})},
        "trainer": {"max_epochs": 1},
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    settings = {
        "sites": {"e": "embedding", "h1": "lstm.layers.0"},
        "labels": "aligned",
        "path": "/tmp/x/y.txt",
    }
    curves = ObservationStore(folder / "observations" / "sparsity", "lmdyn.callbacks.Sparsity", settings)
    worded = ObservationStore(folder / "observations" / "worded", public_name(Worded), {"n": seed})
    for step in steps:
        table = pd.DataFrame({"step": step, "tokens": pd.array([step * 70] * 4, dtype="Int64"),
                              "quantity": ["rho_gradient", "rho_gradient", "chi_gradient", "chi_gradient"],
                              "site": ["h1", "e", "h1", "h1"], "role": ["target"] * 4,
                              "word": [None, None, "a", "b"], "value": random.normal(size=4)})  # fmt: skip
        if groups:
            table["bin"] = pd.array([1, None, 2, 3], dtype="Int64")
            table = table[["step", "tokens", "quantity", "site", "role", "word", "bin", "value"]]
        curves.write(step, table)
        words = pd.DataFrame({"step": step, "quantity": "share", "site": "", "word": [None, "a", "b"],
                              "value": random.normal(size=3)})  # fmt: skip
        worded.write(step, words)
    begin_session(folder, ["lmdyn", "fit", "--config", str(folder / "in.yaml")], "cpu")
    write_json(
        folder / "test.json", {"test_accuracy": 0.5 + seed / 100, "checkpoint": str(folder / "last.ckpt")}
    )
    return folder


@pytest.fixture
def runs(tmp_path):
    for seed in (2, 3, 4):
        make_run(tmp_path / "runs" / f"small_{seed}", seed, length=4)
    make_run(tmp_path / "runs" / "large_2", 2, length=8, groups=False, order=7)
    (tmp_path / "runs" / "logs").mkdir()
    return tmp_path / "runs"


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_values_of_32_bits_are_kept_as_they_are():
    values = pd.Series([0.0, -0.5, 2.0**32 + 1, sys.float_info.max, np.inf, np.nan, -1e-300], dtype=float)
    kept = records._rounded(values)
    pd.testing.assert_series_equal(kept[:6], values[:6], check_exact=True)
    pd.testing.assert_series_equal(kept, records._rounded(kept), check_exact=True)
    np.testing.assert_allclose(kept, values, rtol=2.0**-32)


def test_what_was_written_is_read_back(runs, tmp_path):
    out = tmp_path / "records" / "none" / "organism"
    recorded = {run.name: run for run in write_records(find_runs([runs]), out)}
    assert sorted(files(out)) == ["runs.json", "sparsity.parquet", "worded.parquet"]
    assert list(recorded) == ["large_2", "small_2", "small_3", "small_4"]
    for name, run in recorded.items():
        folder = RunFolder(runs / name)
        assert run.seeds == folder.seeds
        assert run.condition == folder.condition
        assert run.tested == folder.tested
        assert run.registered == folder.registered
        assert run.observers() == folder.observers()
        there = folder.read("sparsity")
        kept = there[there["word"].isna() | there["word"].eq("")].reset_index(drop=True)
        read = run.read("sparsity")  # the scalars, in 32 bits; texts are Python's
        pd.testing.assert_frame_equal(read.astype(kept.dtypes), kept, rtol=2.0**-32)
        assert not read["value"].eq(kept["value"]).all()
        own = run.read("sparsity", quantities=["chi_gradient"])
        assert own.empty
        words = run.read("worded")
        assert words["word"].notna().sum() == 2  # what record_rows says: of the last step
        assert run.settings("sparsity")["sites"] == {"e": "embedding", "h1": "lstm.layers.0"}
        assert run.settings("worded")["n"] == folder.seeds.init
    assert recorded["large_2"].seeds == SeedPair(2, 7)
    assert recorded["large_2"].condition["data.length"] == 8
    with pytest.raises(NotMeasured, match="no similarity observations, only sparsity, worded"):
        recorded["small_2"].read("similarity")


def test_rows_that_a_claim_reads_are_kept_though_they_are_no_scalars(runs, tmp_path):
    out = tmp_path / "records"
    (run, *_) = write_records(find_runs([runs]), out, reads=["Sparsity/chi_gradient", "Other/rho_gradient"])
    assert run.read("sparsity")["word"].eq("a").sum() == 3


def test_equal_runs_give_equal_bytes(runs, tmp_path):
    write_records(find_runs([runs]), tmp_path / "one")
    write_records(list(reversed(find_runs([runs]))), tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two")
    write_records(find_runs([tmp_path / "one"]), tmp_path / "three")  # records of records
    assert files(tmp_path / "one") == files(tmp_path / "three")
    write_records(find_runs([runs]), tmp_path / "one")
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_nothing_of_the_machine_is_kept(runs, tmp_path):
    write_records(find_runs([runs]), tmp_path / "out")
    text = (tmp_path / "out" / "runs.json").read_text()
    for private in ("/home", "anna", "/tmp", str(tmp_path), f'"{socket.gethostname()}"', '"host"'):
        assert private not in text
    assert '"…/in.yaml"' in text  # the control: what is left of it
    public = ["https://host/a/b", "configs/a/b.yaml", "NN/NNS", "/"]
    private = ["--config=~/a/b.yaml", "C:\\Users\\anna\\x.txt"]
    assert without_machine([*private, *public]) == ["--config=…/b.yaml", "…/x.txt", *public]
    assert b"/tmp" not in b"".join(files(tmp_path / "out").values())


def test_runs_are_added_to_records_whose_folders_are_gone(runs, tmp_path):
    out = tmp_path / "out"
    write_records(find_runs([runs]), out)
    before = files(out)
    shutil.rmtree(runs / "small_3")
    shutil.rmtree(runs / "small_4")
    with pytest.raises(ValueError, match=r"also contains small_3, small_4, which .*: use --keep"):
        write_records(find_runs([runs]), out)
    assert files(out) == before
    write_records(find_runs([runs]), out, others="keep")
    assert files(out) == before
    (out / "costs.json").write_text("{}")  # of the chain: it stays
    assert len(write_records(find_runs([runs]), out, others="drop")) == 2
    assert (out / "costs.json").exists()
    assert len(RecordsFolder(out).runs) == 2


def test_two_processes_keep_each_others_runs(runs, tmp_path):
    out = tmp_path / "out"
    found = find_runs([runs])
    write_records(found[:1], out)
    lock = FolderLock(out)  # of another process, which adds a run meanwhile
    lock.acquire()
    thread = Thread(target=write_records, args=(found[1:2], out), kwargs={"others": "keep"})
    thread.start()
    records._replace(found[2:3], out, None, frozenset(), "keep", 3.0)
    lock.release()
    thread.join()
    assert [run.name for run in RecordsFolder(out).runs] == [run.name for run in found[:3]]
    assert not list(tmp_path.glob(".*"))
    # one that was killed between the files: what it held is not known
    (out / "runs.json").unlink()
    with pytest.raises(ValueError, match=r"incomplete records: runs\.json is missing"):
        write_records(found[:1], out, others="keep")
    assert len(write_records(found[:1], out)) == 1


def test_what_is_no_records_folder_is_left_alone(runs, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.md").write_text("mine")
    shutil.copytree(runs / "small_2" / "observations" / "sparsity", tmp_path / "tables")
    for folder, others in (("notes", "refuse"), ("tables", "refuse"), ("tables", "keep"), ("tables", "drop")):
        there = sorted((tmp_path / folder).iterdir())
        with pytest.raises(ValueError, match="is not a file of `lmdyn records`"):
            write_records(find_runs([runs]), tmp_path / folder, others=others)
        assert sorted((tmp_path / folder).iterdir()) == there
    with pytest.raises(ValueError, match=r"MB, but --most allows 0\.001 MB \(largest: runs\.json"):
        write_records(find_runs([runs]), tmp_path / "out", most_mb=0.001)
    assert not (tmp_path / "out").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_records_that_were_damaged_say_so(runs, tmp_path):
    out = tmp_path / "out"
    write_records(find_runs([runs]), out)
    whole = files(out)
    (out / "worded.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"incomplete records: worded\.parquet is missing"):
        list(RecordsFolder(out).runs)
    (out / "worded.parquet").write_bytes(whole["sparsity.parquet"])
    with pytest.raises(ValueError, match=r"differs from the file that runs\.json describes"):
        list(RecordsFolder(out).runs)
    (out / "worded.parquet").write_bytes(whole["worded.parquet"])
    content = json.loads(whole["runs.json"])
    (out / "runs.json").write_text(json.dumps({**content, "version": 2}))
    with pytest.raises(ValueError, match="version 2, but this lmdyn reads 1"):
        list(RecordsFolder(out).runs)
    (out / "runs.json").write_text("[]")
    with pytest.raises(ValueError, match="cannot be read"):
        list(RecordsFolder(out).runs)
    (out / "runs.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"incomplete records: runs\.json is missing"):
        find_profiles([out])
    with pytest.raises(FileNotFoundError, match=r"runs\.json is missing: expected a folder written by"):
        RecordsFolder(out).content  # noqa: B018


def test_runs_and_profiles_are_found(runs, tmp_path):
    (profile,) = find_profiles([runs])
    assert (profile.name, len(profile.runs)) == ("runs", 4)
    (single,) = find_profiles([runs / "small_2", runs / "small_3", runs / "small_2"])
    assert (single.name, [run.name for run in single.runs]) == ("", ["small_2", "small_3"])
    names = ["more/version_0", "other/version_0"]
    assert [run.name for run in find_runs([make_run(tmp_path / name) for name in names])] == names
    write_records(find_runs([runs]), tmp_path / "records" / "study" / "organism", study="study")
    write_records(find_runs([runs]), tmp_path / "records" / "study" / "wikitext2")
    profiles = find_profiles([tmp_path / "records" / "study"])
    found = [(p.name, p.study, len(p.runs)) for p in profiles]
    assert found == [("organism", "study", 4), ("wikitext2", None, 4)]
    for given, said in (
        ([tmp_path / "absent"], "is not a folder: expected a run"),
        ([runs / "logs"], r"contains no run"),
        (
            [runs, tmp_path / "records" / "study" / "organism"],
            "two of the given runs or records are called 'large_2'",
        ),
    ):
        with pytest.raises((FileNotFoundError, ValueError), match=said):
            find_runs(given)


def test_the_command_knows_the_study_by_the_folder(runs, tmp_path, monkeypatch, capsys):
    rho = At(Rows("Sparsity", "chi_gradient", "h1", where=(("word", "a"),)))
    floor = At(Rows("Sparsity", "rho_gradient", "h1"), "first")
    claim = Claim("chi", "it is so", "figure 1", (Part(rho, Above(0.1)),), floor=floor)
    study = Study("doe2001_word", "A title", "Doe 2001", (claim,))
    assert study_reads(study) == {"Sparsity/chi_gradient", "Sparsity/rho_gradient"}
    monkeypatch.setattr(records, "STUDIES", {"doe2001_word": study})
    out = tmp_path / "docs" / "doe2001_word" / "organism"
    main(["records", str(runs), "--out", str(out)])
    assert RecordsFolder(out).study == "doe2001_word"
    capsys.readouterr()
    main(["records", str(runs), "--out", str(tmp_path / "plain")])
    assert "has no study's name: to keep" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="1"):
        main(["records", str(runs), "--out", str(tmp_path / "other"), "--study", "doe2001_wrd"])
    assert "did you mean 'doe2001_word'?" in capsys.readouterr().err
    (tmp_path / "empty" / "run").mkdir(parents=True)
    (tmp_path / "empty" / "run" / "config.yaml").write_text("{}")
    with pytest.raises(SystemExit, match="1"):
        main(["records", str(tmp_path / "empty"), "--out", str(tmp_path / "other")])
    assert "the given runs have neither observations nor test.json: run" in capsys.readouterr().err

"""``--untrusted``: of a run that somebody else has made nothing is imported but what an exact list names."""

import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from lmdyn.analysis.inspection.forward import dotted, limit_imports
from lmdyn.cli.__main__ import main

FIXTURE = Path(__file__).parents[2] / "fixtures" / "v0_1" / "lstm_run"
EVIL = "from pathlib import Path\nfrom lmdyn.callbacks import LearningCurves\nPath({marker!r}).touch()\n" \
       "class Curves(LearningCurves):\n    pass\ndef forward(module, batch):\n    pass\n"  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run, and a module beside where the command is given, which leaves a mark when it is imported."""
    shutil.copytree(FIXTURE, tmp_path / "lstm_run")
    (tmp_path / "evil_module.py").write_text(EVIL.format(marker=str(tmp_path / "imported")))
    monkeypatch.chdir(tmp_path)
    # after the installed ones: main refuses it before them
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "evil_module", raising=False)
    return Path("lstm_run")


def change(run, alter):
    config = yaml.safe_load((run / "config.yaml").read_text())
    alter(config)
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def observer_of(config):
    callbacks = config["trainer"]["callbacks"]
    return next(c["init_args"] for c in callbacks if c["class_path"].endswith("LearningCurves"))


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    assert ended.value.code
    return capsys.readouterr().err


def test_a_run_that_names_what_it_may_is_observed_as_without(run):
    path = run / "observations" / "learning_curves" / "000000020.parquet"
    path.unlink()
    shutil.copytree(run, "trusted")
    main(["analyze", str(run), "--untrusted", "--only", "learning_curves"])
    main(["analyze", "trusted", "--only", "learning_curves", "--logger", "none"])
    there = "observations/learning_curves/000000020.parquet"
    pd.testing.assert_frame_equal(pd.read_parquet(run / there), pd.read_parquet(Path("trusted", there)))
    main(["analyze", str(run), "--untrusted", "--only", "learning_curves", "--status"])


CALLBACK = {"class_path": "evil_module.Curves"}


@pytest.mark.parametrize(
    ("place", "alter"),
    [
        ("trainer.callbacks.0.class_path", lambda c: c["trainer"].update(callbacks=[CALLBACK])),
        ("trainer.callbacks", lambda c: c["trainer"].update(callbacks="evil_module.Curves")),
        ("trainer.logger.class_path", lambda c: c["trainer"].update(logger=CALLBACK)),
        ("model.class_path", lambda c: c.update(model=CALLBACK)),
        ("init_args.forward", lambda c: observer_of(c).update(forward="evil_module.forward")),
        ("init_args.probe", lambda c: observer_of(c).update(probe={"class_path": "os.system"})),
        ("class_path", lambda c: c["trainer"]["callbacks"].append({"class_path": "LambdaCallback"})),
        ("spaCy", lambda c: c["trainer"]["callbacks"].append({"class_path": "lmdyn.datamodules.SpacyTagger"})),
    ],
)  # fmt: skip
@pytest.mark.parametrize("more", [[], ["--status"]], ids=["analyze", "status"])
def test_what_else_it_names_is_refused_and_not_imported(run, capsys, place, alter, more):
    change(run, alter)
    said = refused(capsys, "analyze", str(run), "--untrusted", *more)
    assert "which --untrusted does not import" in said
    assert place in said or place == "spaCy"
    assert not Path("imported").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["got.evil-module.forward", "evil_module.forward ", " evil_module.forward", "evil_module.forward\n",
             "got.inner.evil_module.forward"],
)  # fmt: skip
def test_no_spelling_of_a_path_is_imported(run, capsys, path):
    """What is no identifier to a pattern is one to Python's importer; the check is at the import itself."""
    Path("got/inner").mkdir(parents=True)
    for copy in ("got/evil-module.py", "got/inner/evil_module.py"):
        shutil.copy("evil_module.py", copy)
    change(run, lambda c: observer_of(c).update(forward=path))
    only = ["--only", "learning_curves", "--logger", "none", "--out", "found"]
    said = refused(capsys, "analyze", str(run), "--untrusted", *only)
    assert "--untrusted does not import" in said or "for an untrusted run" in said
    assert not Path("imported").exists()
    if path.endswith("module.forward") and path[0] != " ":  # the control: Python imports it
        shutil.rmtree("found", ignore_errors=True)
        refused(capsys, "analyze", str(run), *only)  # the function returns no logits
        assert Path("imported").exists()


@pytest.mark.parametrize("entry", ["callbacks", "model", "logger"])
def test_no_spelling_of_a_class_is_imported(run, capsys, entry):
    odd = {"class_path": "evil_module.Curves "}
    added = {"callbacks": lambda c: c["trainer"]["callbacks"].append(odd), "model": lambda c: c.update(model=odd),
             "logger": lambda c: c["trainer"].update(logger=odd)}  # fmt: skip
    change(run, added[entry])
    refused(capsys, "analyze", str(run), "--untrusted", "--out", "found")
    assert not Path("imported").exists()


def test_a_logger_that_the_user_names_is_imported(run, capsys):
    said = refused(
        capsys, "analyze", str(run), "--untrusted", "--logger", "evil_module.Curves", "--out", "found"
    )
    assert "unknown logger 'evil_module.Curves'" in said  # it is no logger, which only its import tells
    assert Path("imported").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"class_path": "evil_module.Curves"},
        {"class_path": "lmdyn.datamodules.GrammarCorpus", "init_args": {"cache_dir": "evil_module.forward"}},
    ],
)
def test_nor_by_a_file_that_it_names(run, capsys, settings):
    """jsonargparse reads settings of an object from a file, where its path is given."""
    Path("data.txt").write_text(yaml.safe_dump(settings))
    change(run, lambda c: c.update(data=str(Path("data.txt").resolve())))
    assert "evil_module" in refused(capsys, "analyze", str(run), "--untrusted")
    assert not Path("imported").exists()


def test_a_configuration_of_nothing_is_refused(run, capsys):
    change(run, lambda c: c.update(model="probe.txt"))
    assert "not the configuration of a run" in refused(capsys, "analyze", str(run))


OWN = {"trainer": {"callbacks": [{**CALLBACK, "init_args": {"name": "mine"}}]}}


def test_what_the_user_names_is_imported(run):
    Path("own.yaml").write_text(yaml.safe_dump(OWN))
    main(["analyze", str(run), "--untrusted", "--config", "own.yaml", "--logger", "none", "--out", "found"])
    assert Path("imported").exists()
    assert len(list(Path("found/observations/mine").glob("*.parquet"))) == 2


def test_imports_are_limited_for_the_command_only(run):
    main(["analyze", str(run), "--untrusted", "--only", "learning_curves", "--status"])
    assert dotted("math.sqrt")(4.0) == 2.0
    assert limit_imports(None) is None


@pytest.mark.slow
def test_a_report_imports_nothing_that_a_configuration_names(run, monkeypatch):
    monkeypatch.setattr("lmdyn.cli.pages.observer_section.draw_parts", lambda *_: iter(()))  # of lmdyn's own
    Path("own.yaml").write_text(yaml.safe_dump(OWN))
    main(["analyze", str(run), "--config", "own.yaml", "--only", "mine", "--logger", "none"])
    change(run, lambda c: c["trainer"]["callbacks"].append({"class_path": "evil_module.Curves"}))
    sys.modules.pop("evil_module")
    Path("imported").unlink()
    main(["report", str(run), "--untrusted"])
    assert not Path("imported").exists()
    page = (run / "report" / "index.html").read_text()
    assert "the observer evil_module.Curves is not an observer of lmdyn" in page
    assert ">Sparsity</h2>" in page
    main(["report", str(run)])
    assert Path("imported").exists()

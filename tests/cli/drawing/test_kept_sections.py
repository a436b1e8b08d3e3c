"""Sections of a report that are kept: never one of what is no longer so; what is kept may be anything or nothing."""

import json
import os
import shutil
import time
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure

import lmdyn.callbacks
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.store import ObservationStore
from lmdyn.cli.drawing import kept_sections
from lmdyn.cli.report import write_report

DRAWN = []
"""By which classes something was drawn."""


class Alone(Observer):
    """Draws what it recorded."""

    def measure(self, module, step):
        raise NotImplementedError

    @classmethod
    def figures(cls, observations, settings):
        DRAWN.append(cls.__name__)
        figure = Figure((1, 1))
        figure.text(0, 0, f"{observations['value'].sum():.3f}")
        return {"sum": figure}

    @staticmethod
    def tables(observations, settings):
        return {"values of h1/h2": observations[["step", "value"]]}


class Beside(Alone):
    """And what another one did."""

    @staticmethod
    def figures_beside(observations, others):
        figure = Figure((1, 1))
        figure.text(0, 0, f"{others['Alone']['value'].sum():.3f}" if "Alone" in others else "nobody")
        return {"beside": figure}


class Failing(Alone):
    """Has a bug."""

    @staticmethod
    def tables(observations, settings):
        raise KeyError("a bug")


@pytest.fixture(autouse=True)
def _of_lmdyn(monkeypatch):
    """Observers of lmdyn's, and few observations are many."""
    for cls in (Alone, Beside, Failing):
        monkeypatch.setattr(lmdyn.callbacks, cls.__name__, cls, raising=False)
        monkeypatch.setattr(cls, "__module__", "lmdyn.callbacks.some_room")
    monkeypatch.setattr(kept_sections, "LEAST", 3)
    monkeypatch.setattr("lmdyn.callbacks.training.atomic_files._to_disk", lambda path: None)
    DRAWN.clear()


def observed(run, cls, *steps, value=1.0):
    store = ObservationStore(run / "observations" / cls.__name__.lower(), f"lmdyn.callbacks.{cls.__name__}")
    for step in steps:
        store.write(
            step, pd.DataFrame({"step": [step], "quantity": ["loss"], "site": [""], "value": [value]})
        )
    return store


@pytest.fixture
def run(tmp_path):
    for cls in (Alone, Beside):
        observed(tmp_path / "run", cls, 0, 1, 2)
    return tmp_path / "run"


def report(run, **options):
    """What was drawn, and all files of the report."""
    DRAWN.clear()
    folder = write_report([run], run / "report", **options).parent
    return list(DRAWN), {path.name: path.read_bytes() for path in folder.iterdir()}


def kept(run):
    return run / ".cache" / "report" / "alone.json"


def test_nothing_is_drawn_where_nothing_is_new(run):
    drawn, files = report(run)
    assert drawn == ["Alone", "Beside"]
    assert {"alone_sum.png", "alone_sum.svg", "alone_values of h1_h2.csv", "beside_beside.png"} < files.keys()
    assert report(run) == ([], files)
    shutil.rmtree(run / ".cache")
    assert report(run) == (drawn, files)
    assert sorted(path.name for path in kept(run).parent.iterdir()) == ["alone.json", "beside.json"]


def test_two_processes_make_the_same_report(run, monkeypatch, tmp_path):
    _, files = report(run)
    shutil.rmtree(run / ".cache")
    shutil.rmtree(run / "report")
    figures = Alone.__dict__["figures"].__func__

    def met(cls, observations, settings):
        """Draw when the other process draws, too: on a busy machine one may be done before the other begins."""
        (tmp_path / f"{os.getpid()}.here").touch()
        end = time.monotonic() + 60
        while len([*tmp_path.glob("*.here")]) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        return figures(cls, observations, settings)

    monkeypatch.setattr(Alone, "figures", classmethod(met))
    drawn, again = report(run, processes=2)
    monkeypatch.setattr(Alone, "figures", classmethod(figures))
    assert len(drawn) == 1  # in this process, and one in the other
    assert again == files
    assert report(run) == ([], files)


def new_observation(run):
    observed(run, Alone, 3)


def other_content_of_equal_size_and_time(run):
    path = ObservationStore(run / "observations" / "alone").path(1)
    before = path.stat()
    observed(run, Alone, 1, value=5.0)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def observation_gone(run):
    observed(run, Alone, 3, value=2.0)
    report(run)
    ObservationStore(run / "observations" / "alone").path(1).unlink()


@pytest.mark.parametrize("change", [new_observation, other_content_of_equal_size_and_time, observation_gone])
def test_what_was_drawn_of_other_observations_is_drawn_again(run, change):
    _, before = report(run)
    change(run)
    drawn, files = report(run)
    assert drawn == ["Alone", "Beside"]  # which has a figure of what the other one recorded
    assert files["alone_sum.png"] != before["alone_sum.png"]
    assert files["beside_beside.png"] != before["beside_beside.png"]
    shutil.rmtree(run / ".cache")
    assert report(run) == (drawn, files)


def test_what_has_nothing_new_is_kept_beside_what_has(run):
    report(run)
    observed(run, Beside, 3)
    assert report(run)[0] == ["Beside"]


@pytest.mark.parametrize("name", ["alone_sum.png", "alone_sum.svg", "alone_values of h1_h2.csv"])
@pytest.mark.parametrize("altered", [True, False])
def test_files_that_the_page_links_to_are_made_again(run, name, altered):
    _, files = report(run)
    path = run / "report" / name
    path.write_bytes(files[name][:-1] + b"?") if altered else path.unlink()
    assert report(run) == (["Alone"], files)


@pytest.mark.parametrize("what", ["settings", "version", "code"])
def test_what_was_drawn_with_something_else_is_drawn_again(run, what, monkeypatch, tmp_path):
    report(run)
    if what == "settings":
        monkeypatch.setitem(mpl.rcParams, "font.size", 7)
    elif what == "version":
        monkeypatch.setattr(kept_sections, "version", lambda package: f"{package} 99")
    else:
        monkeypatch.setattr(lmdyn, "__file__", str(copied(tmp_path)))
    drawn, files = report(run)
    assert drawn == ["Alone", "Beside"]
    assert report(run) == ([], files)


def copied(folder):
    """The place of lmdyn's code, with a change."""
    shutil.copytree(
        Path(lmdyn.__file__).parent, folder / "lmdyn", ignore=shutil.ignore_patterns("__pycache__")
    )
    with (folder / "lmdyn" / "callbacks" / "words" / "sparsity_figures.py").open("a") as file:
        file.write("# a comment")
    return folder / "lmdyn" / "__init__.py"


def test_what_it_is_drawn_with_may_be_unknown(run, monkeypatch, tmp_path):
    monkeypatch.setattr(lmdyn, "__file__", str(tmp_path / "nowhere" / "__init__.py"))
    assert report(run)[0] == report(run)[0] == ["Alone", "Beside"]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "no text", "another's", "other", "a folder"])
def test_what_is_kept_is_not_believed_when_damaged(run, damage):
    _, files = report(run)
    path = kept(run)
    content = path.read_bytes()
    place = content.index(b"Draws what it recorded")
    checksum, _, body = content.partition(b"\n")
    if damage == "a folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes({
            "flipped": content[:place] + b"d" + content[place + 1 :], "cut": content[:-9], "empty": b"",
            "no text": b"\xff\xfe", "another's": path.with_name("beside.json").read_bytes(),
            "other": kept_sections._hash(b"[1]").encode() + b"\n[1]",
        }[damage])  # fmt: skip
    assert report(run) == (["Alone"], files)
    assert checksum.decode() == kept_sections._hash(body)
    if damage != "a folder":  # which cannot be replaced: drawn each time
        assert report(run) == ([], files)


def test_what_cannot_be_kept_is_drawn_each_time(run, monkeypatch):
    def refused(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(kept_sections, "write_file", refused)
    drawn, files = report(run)
    assert report(run) == (drawn, files)
    assert not kept(run).exists()


def test_of_somebody_elses_run_nothing_is_believed_or_kept(run):
    _, files = report(run)
    body = json.loads(kept(run).read_bytes().partition(b"\n")[2])
    forged = json.dumps({**body, "html": "forged", "files": {}}).encode()
    kept(run).write_bytes(kept_sections._hash(forged).encode() + b"\n" + forged)
    assert b"forged" in report(run)[1]["index.html"]  # there is only one's own word for it
    assert report(run, untrusted=True) == (["Alone", "Beside"], files)
    shutil.rmtree(run / ".cache")
    report(run, untrusted=True)
    assert not (run / ".cache").exists()


def test_what_failed_and_what_is_the_users_is_not_kept(run, monkeypatch, survived):
    observed(run, Failing, 0, 1, 2)
    monkeypatch.setattr(Beside, "__module__", "my_lab.observers")  # its code may be anywhere
    report(run)
    assert report(run)[0] == ["Beside", "Failing"]
    assert len(survived) == 2
    survived.clear()


def test_few_observations_are_not_kept_and_of_none_nothing_is_left(run):
    observed(run, Alone, 3)
    report(run)
    shutil.rmtree(run / "observations" / "alone")
    report(run)
    assert [path.name for path in kept(run).parent.iterdir()] == ["beside.json"]
    ObservationStore(run / "observations" / "beside").path(0).unlink()
    assert report(run)[0] == report(run)[0] == ["Beside"]

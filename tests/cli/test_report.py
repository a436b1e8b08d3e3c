"""The report: tables, what stands beside other observers, several runs together, configurations, and whom it trusts."""

import base64
import hashlib
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pyarrow.compute as pc
import pytest
import yaml
from matplotlib.figure import Figure

from lmdyn.callbacks.observing.observer import Observer
from lmdyn.cli import report
from lmdyn.cli.__main__ import main
from lmdyn.cli.pages import html_parts as web
from lmdyn.cli.report import write_report
from lmdyn.runs.store import ObservationStore

CALLS = []
WEB = ("vendor/uPlot.iife.min.js", "chart.js")


class Tabled(Observer):
    """Has tables of its own, of one run."""

    def measure(self, module, step):
        raise NotImplementedError

    @staticmethod
    def figures(observations, settings):
        return {"plain": Figure(), "of h1/h2": Figure()}

    @staticmethod
    def tables(observations, settings):
        CALLS.append(("tables", observations, settings))
        numbers = pd.DataFrame({"name": ["<a>", None], "share": [1 / 3, float("nan")], "count": [12345, 2]})
        matrix = pd.DataFrame([[1.0, 0.5], [0.5, 1.0]], index=["x", "y"], columns=["x", "y"])
        return {"some_numbers": numbers, "matrix": matrix}


class TabledTogether(Tabled):
    """The same, of several runs together."""

    several_runs = True


class Wide(Observer):
    """Rows by token, which are no scalars."""

    def measure(self, module, step):
        raise NotImplementedError

    @staticmethod
    def is_scalar(observations):
        return observations["token"].isna()


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch):
    """Files in place of pictures, which take seconds."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: path.write_bytes(b"a picture"))
    CALLS.clear()


def make(run, *observers, value=1.0, k=1, step=5):
    """A run that was looked at by these, under their class names."""
    for cls in observers:
        store = ObservationStore(
            run / "observations" / cls.__name__.lower(), f"{__name__}.{cls.__name__}", {"k": k}
        )
        rows = [("loss", "", None, value), ("share", "", "the", 2 * value), ("share", "", "cat", 3 * value)]
        table = pd.DataFrame(rows, columns=["quantity", "site", "token", "value"])
        store.write(step, table.assign(step=step))
    return run


def called(name):
    return [call[1:] for call in CALLS if call[0] == name]


def rows_of(page, caption):
    """The rows of the table with this caption, as lists of cells."""
    table = page[: page.index(f"<figcaption>{caption} (")].rpartition("<table>")[2]
    return [row.split("</tr>")[0] for row in table.split("<tr>")[1:]]


# ------------------------------------------------------------------------------------------ tables


def test_tables_of_a_run(tmp_path):
    run = make(tmp_path / "run", Tabled)
    page = write_report([run], tmp_path / "out").read_text()
    assert "<td>&lt;a&gt;</td>" in rows_of(page, "some numbers")[1]
    assert "href='tabled_some_numbers.csv'" in page
    numbers = pd.read_csv(tmp_path / "out" / "tabled_some_numbers.csv")
    assert numbers["share"][0] == 1 / 3
    assert pd.read_csv(tmp_path / "out" / "tabled_matrix.csv", index_col=0).loc["x", "y"] == 0.5
    ((observations, settings),) = called("tables")
    assert (len(observations), settings) == (3, {"k": 1})
    assert "run" not in observations


# ------------------------------------------------------------------------------------------ several runs


def test_several_runs_together(tmp_path):
    runs = [make(tmp_path / name, TabledTogether, Wide, value=i) for i, name in ((1.0, "a"), (10.0, "b"))]
    runs.append(make(tmp_path / "c", Wide, value=100.0))  # of no concern to what the others have together
    page = write_report(runs, tmp_path / "out").read_text()
    ((observations, _),) = called("tables")  # once
    assert observations["run"].unique().tolist() == [str(run) for run in runs[:2]]
    assert len(observations) == 6
    files = {path.name for path in (tmp_path / "out").glob("*.csv")}
    assert files == {f"tabledtogether_{name}.csv" for name in ("some_numbers", "matrix")}
    assert (tmp_path / "out" / "tabledtogether_plain.png").exists()
    assert page.count(">Tabledtogether, all runs</h2>") == 1


@pytest.mark.parametrize("cls", [Tabled, TabledTogether])
def test_of_different_settings_no_means_are_made(tmp_path, cls):
    runs = [make(tmp_path / f"lm_{k}", cls, k=k) for k in (1, 2)]
    for seed, run in enumerate(runs):
        classes = {"model": {"class_path": "my.LSTM"}, "data": {"class_path": "my.Text"}}
        (run / "config.yaml").write_text(yaml.safe_dump({"seed_everything": seed, **classes}))
    page = write_report(runs, tmp_path / "out").read_text()
    assert page.count("different settings</strong>: k: 1, 2.") == 1
    charts = re.findall("data-chart='(.*?)'", page)
    assert charts
    assert not any("mean of 2" in chart for chart in charts)


def test_a_mean_counts_the_runs_that_have_the_number(tmp_path):
    values = (1.0, 3.0, float("nan"))
    runs = [make(tmp_path / f"lm_{k}", Tabled, value=value) for k, value in enumerate(values)]
    for seed, run in enumerate(runs):
        classes = {"model": {"class_path": "my.LSTM"}, "data": {"class_path": "my.Text"}}
        (run / "config.yaml").write_text(yaml.safe_dump({"seed_everything": min(seed, 1), **classes}))
    page = write_report(runs, tmp_path / "out").read_text()
    assert "The next numbers are means of 2 runs (2 seeds). Loss is 2 at step 5." in page


def test_halves_of_characters_in_files_cost_no_page(tmp_path):
    run = make(tmp_path / "run", Tabled)
    (run / "config.yaml").write_text(
        'model: {class_path: "\\ud800"}\ntrainer: {callbacks: [my.Observer, 3]}\n'
    )
    (run / "test.json").write_text('{"\\udcff": 1.0}')
    assert "LSTM" not in write_report([run], tmp_path / "out").read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------ configurations


def configured(folder, class_path="lmdyn.models.Towers", **arguments):
    folder.mkdir(exist_ok=True)
    config = {"model": {"class_path": class_path, "init_args": arguments}, "seed_everything": 1}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return folder


def optimizer(name, **arguments):
    return {"class_path": f"torch.optim.{name}", "init_args": arguments}


def test_the_report_has_configurations_of_several_runs(tmp_path):
    for name, layers in (("a", 2), ("b", 12)):
        adam = optimizer("Adam", lr=layers / 4, eps=1e-8)
        configured(make(tmp_path / name, Tabled), layers=layers, bias=True, optimizer=adam)
    page = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out").read_text()
    assert len(rows_of(page, "conditions of the runs")) == 3
    table = pd.read_csv(tmp_path / "out" / "configurations.csv")
    assert table[["model.layers", "model.optimizer.lr"]].to_numpy().tolist() == [[2, 0.5], [12, 3.0]]
    # of one run there is nothing to tell, nor where nobody has a configuration
    alone = write_report([tmp_path / "a"], tmp_path / "alone").read_text()
    assert "<h2>configurations</h2>" not in alone
    for name in "ab":
        (tmp_path / name / "config.yaml").unlink()
    assert report._configurations({tmp_path / name: name for name in "ab"}, tmp_path) == ""


# ------------------------------------------------------------------------------------------ names are texts


class Page(HTMLParser):
    """Tags, attributes and identifiers of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


ODD = [
    "<script>alert(1)<",
    "x' onmouseover='alert(1)",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1);",
    "a#b%41",
]


@pytest.mark.parametrize("together", [False, True])
def test_names_of_runs_and_folders_are_texts(tmp_path, together):
    runs = []
    for name in ODD:
        runs.append(make(tmp_path / name, TabledTogether if together else Tabled, Wide))
        (runs[-1] / "observations" / "wide").rename(runs[-1] / "observations" / name)
        (runs[-1] / "test.json").write_text('{"test_<b>": 0.5}')
    text = write_report(runs, tmp_path / "out").read_text()
    page = Page(text)
    plain = Page(write_report([make(tmp_path / "plain", Tabled, Wide)], tmp_path / "plain_out").read_text())
    assert set(page.tags) <= {*plain.tags, "h1", "h2", "section"}
    assert {name for name, _ in page.attributes} <= {name for name, _ in plain.attributes}
    targets = [value for name, value in page.attributes if name == "href"]
    assert not any(":" in target for target in targets)
    anchors = {value for name, value in page.attributes if name == "id"}
    for target in map(unquote, targets):  # as a browser does
        assert target[1:] in anchors if target.startswith("#") else (tmp_path / "out" / target).is_file()
    assert set(ODD) <= set(page.text)
    # nothing lifts what the page's policy forbids: it runs the package's own scripts only, known by their hashes
    (policy,) = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    own = [(Path(web.__file__).parent / "web" / name).read_bytes() for name in WEB]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(one).digest()).decode()}'" for one in own]
    assert policy.split("; ")[-1] == " ".join(["script-src", *hashes])
    assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style")


# ------------------------------------------------------------------------------------------ whom it trusts


THEIRS = """
import pathlib
import pandas as pd
from lmdyn.callbacks import LearningCurves
pathlib.Path(__file__).with_name("imported").touch()
class Theirs(LearningCurves):
    "An observer of somebody's."
    figures = staticmethod(lambda observations, settings: {})
    tables = staticmethod(lambda observations, settings: {"their_table": pd.DataFrame({"n": [1]})})
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A run observed by a class that is not imported, and the mark that its import leaves."""
    mark = tmp_path / "imported"
    (tmp_path / "nobodys.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    store = ObservationStore(run / "observations" / "theirs", "nobodys.Theirs", {})
    sites = [f"h{i}" for i in range(1200)]
    store.write(5, pd.DataFrame({"step": 5, "quantity": "loss", "site": sites, "value": 0.5}))
    yield run, mark
    sys.modules.pop("nobodys", None)


def config(path, *callbacks, plus=""):
    path.write_text(yaml.safe_dump({"trainer": {f"callbacks{plus}": [{"class_path": c} for c in callbacks]}}))
    return path


def test_an_observer_that_nobody_names_is_not_imported_and_its_numbers_are_shown(theirs, tmp_path):
    run, mark = theirs
    make(run, Tabled)  # is drawn all the same
    near = ("nobodys_neighbour.Theirs", "nobodys.Other", "lmdyn.callbacks.Sparsity", "Theirs")
    config(run / "config.yaml", *near)
    main(["report", str(run)])
    page = (run / "report" / "index.html").read_text()
    assert not mark.exists()
    assert "Without figures: the observer nobodys.Theirs is not an observer of lmdyn" in page
    assert "the first 1,000 of 1,200 numbers" in page
    assert "<td>loss · h999</td><td class='n'>0.5</td><td class='n'>0.5</td>" in page
    assert rows_of(page, "some numbers")


@pytest.mark.parametrize("how", ["run", "command"])
def test_an_observer_that_the_user_names_is_drawn(theirs, tmp_path, how):
    run, mark = theirs
    named = ("lmdyn.callbacks.ScheduledCheckpoint", "nobodys.Theirs")
    if how == "run":
        config(run / "config.yaml", *named)
        main(["report", str(run)])
    else:
        main(["report", str(run), "--config", str(config(tmp_path / "mine.yaml", *named, plus="+"))])
    assert mark.exists()
    page = (run / "report" / "index.html").read_text()
    assert "An observer of somebody's." in page.replace("&#39;", "'")
    assert rows_of(page, "their table")


@pytest.mark.parametrize("name", ["os.system", "lmdyn.callbacks.Steps", "lmdyn.callbacks.Here", "", "x"])
def test_what_is_no_observer_is_not_called(tmp_path, name):
    run = tmp_path / "run"
    ObservationStore(run / "observations" / "theirs", name, {}).write(
        5, pd.DataFrame({"step": 5, "quantity": ["loss"], "site": [""], "value": [0.5]})
    )
    config(run / "config.yaml", name)
    assert f"Without figures: the observer {name}" in write_report([run], tmp_path / "out").read_text()


class Breaking(Tabled):
    """Fails wherever it can."""

    @staticmethod
    def figures(observations, settings):
        raise RuntimeError("a bug <in> drawing")

    @staticmethod
    def is_scalar(observations):
        raise KeyError("a bug in choosing")


def test_an_observer_that_fails_costs_its_own_part_only(tmp_path, survived):
    run = tmp_path / "run"
    make(run, Breaking, Tabled)
    (run / "config.yaml").write_text("trainer: [unclosed")
    page = write_report([run], tmp_path / "out").read_text()
    assert "Without figures of breaking: RuntimeError: a bug &lt;in&gt; drawing" in page
    assert "Without numbers of breaking: KeyError" in page
    assert "Without chart of breaking: KeyError" in page
    assert len(rows_of(page, "some numbers")) > 0  # its tables, and the other observer
    assert page.count("of h1/h2") or page.count("of h1")
    assert "config.yaml:1: cannot be read as yaml" in page
    assert len(survived) == 3
    survived.clear()


def test_importing_the_users_observer_may_fail_in_any_way(theirs, tmp_path, caplog):
    run, _ = theirs
    for body in ("raise RuntimeError('boom')", "import sys; sys.exit(7)", "def ("):
        (tmp_path / "nobodys.py").write_text(body)
        config(run / "config.yaml", "nobodys.Theirs")
        assert "Without figures" in write_report([run], tmp_path / "out").read_text()
        sys.modules.pop("nobodys", None)
    assert len([r for r in caplog.records if "nobodys.Theirs cannot be imported" in r.getMessage()]) >= 3


# ------------------------------------------------------------------------------------------ very many observations


class Lined(Wide):
    """Draws what it is given, and reads only a part of it."""

    figure_rows = pc.field("token").is_null()

    @staticmethod
    def figures(observations, settings):
        CALLS.append(("figures", observations, settings))
        return {"loss": Figure()}


@pytest.fixture
def many(tmp_path, monkeypatch):
    """A run of 150 observations by one observer and of 3 by another, of which reports draw 20."""
    monkeypatch.setattr(report, "MOST_STEPS", 20)
    monkeypatch.setattr("lmdyn.runs.atomic_files._to_disk", lambda path: None)
    for step in range(150):
        make(tmp_path / "run", Lined, value=1 / (1 + step), step=step)
    for step in (0, 77, 140):
        make(tmp_path / "run", Wide, step=step)
    return tmp_path / "run"


@pytest.mark.slow
def test_as_many_observations_are_drawn_as_there_is_room_for(many, tmp_path):
    page = write_report([many], tmp_path / "out").read_text()
    ((drawn, _),) = called("figures")
    steps = drawn["step"].tolist()
    assert (len(steps), steps[0], steps[-1]) == (20, 0, 149)
    assert drawn["token"].isna().all()
    assert f"<p>The figures show {len(steps)} of 150 observations, evenly spread; " in page
    CALLS.clear()
    main(["report", str(many), "--all", "--out", str(tmp_path / "all")])
    ((drawn, _),) = called("figures")
    assert drawn["step"].tolist() == list(range(150))
    assert "The figures show" not in (tmp_path / "all" / "index.html").read_text()

"""The report in a headless Chromium: what is drawn, chosen and read; and that nothing is loaded."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import yaml

from lmdyn.callbacks.observing.drawing.words import value_words
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.cli.report import write_report
from lmdyn.runs.schema import Quantity
from lmdyn.runs.store import ObservationStore

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WITHOUT = "no Chromium: none of chromium, chromium-browser and google-chrome is in PATH"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=WITHOUT)]

STEPS = [0, 1, 10, 100, 1000]
TAGS = ["NOUN", "VERB", "ADJ", "ADV", "DET", "ADP", "PRON", "AUX", "PART", "NUM", "INTJ"]
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"


class Words(Observer):
    """Records losses by tag, and norms of layers."""

    recorded = (
        Quantity("loss", "Mean loss.", unit="nats", low=0.0, better="lower"),
        Quantity("norm", "Mean norm."),
    )

    def measure(self, module, step):
        raise NotImplementedError

    @staticmethod
    def is_scalar(observations):
        return observations["word"].isna()


def loss_at(step, seed, i=0):
    return 8.0 - np.log10(step + 1) + 0.1 * seed + 0.01 * i


COLUMNS = ["quantity", "site", "upos", "word", "value"]


def report_of(folder, rows_by_step, columns=COLUMNS, seed=None, size=8):
    """A run that was observed."""
    store = ObservationStore(folder / "observations" / "words", f"{__name__}.Words", {})
    for step, rows in rows_by_step.items():
        tokens = 50 * step + 10 * seed if seed else None
        store.write(step, pd.DataFrame(rows, columns=columns).assign(step=step, tokens=tokens))
    if seed:
        model = {"class_path": "my.LSTM", "init_args": {"size": size}}
        config = {"seed_everything": seed, "model": model, "data": {"class_path": "my.Text"}}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def observe(run, seed, size=8):
    found = {}
    for step in STEPS:
        rows = [("loss", None, None, None, loss_at(step, seed)), ("loss_error", None, None, None, 0.25)]
        tags = enumerate([*TAGS, HOSTILE], 1)
        rows += [("loss", None, tag, None, loss_at(step, seed, i)) for i, tag in tags]
        rows += [("norm", site, None, None, k + 0.001 * step) for k, site in enumerate(("h1", "h2"))]
        found[step] = [*rows, *(("hit", None, None, f"word{i}", 1.0) for i in range(50))]
    return report_of(run, found, COLUMNS, seed, size)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Of one run, and of four: three seeds and another size."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [observe(folder / f"lm_{seed}", seed) for seed in (1, 2, 3)] + [observe(folder / "wide", 1, 16)]
    return {"one": write_report(runs[:1], folder / "one"), "four": write_report(runs, folder / "four")}


@pytest.fixture(scope="module")
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra dev)")
    with sync.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser, reports):
    """Opens a report; at the end nothing was said in the console and nothing but the page was asked for."""
    said, asked, contexts = [], [], []

    def opened(name):
        context = browser.new_context()
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(reports[name].as_uri())
        page.locator("[data-chart] canvas").first.wait_for()
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        return page

    yield opened
    hacked = [page.evaluate("window.hacked") for context in contexts for page in context.pages]
    for context in contexts:
        context.close()
    assert said == []
    assert {url for url in asked if not url.startswith(("data:", "blob:"))} <= {
        path.as_uri() for path in reports.values()
    }
    assert hacked == [None] * len(hacked)


def chart(page):
    return page.locator("[data-chart]").first


def names(page):
    """Names of the lines that are drawn."""
    shown = ".u-legend .u-series:not(.u-off):not(.along):not(:first-child) .u-label"
    return chart(page).locator(shown).all_inner_texts()


def choose(page, name, value):
    chart(page).locator(f"select[name='{name}']").select_option(value)


LINES = """(root) => root.chart.lines.filter((line) => !line.hidden).flatMap((line) => line.values.flatMap((value, i) =>
    value === null ? [] : [{ run: line.run, step: line.steps[i], tokens: line.tokens?.[i], value,
    low: line.band?.low[i], high: line.band?.high[i], ...Object.fromEntries(line.of) }]))"""


def drawn(page):
    """A table of the lines that are drawn."""
    return pd.DataFrame(chart(page).evaluate(LINES))


def test_levels_are_chosen_whatever_they_are_called(visit):
    page = visit("one")
    shown = names(page)
    assert len(shown) == 8  # of 12
    assert set(shown) < {"over everything", *(value_words("upos", tag) for tag in (*TAGS, HOSTILE))}
    choose(page, "of_upos", f"={HOSTILE}")
    assert set(drawn(page)["upos"]) == {HOSTILE}
    assert str(Path.cwd()) not in page.content()


def test_several_runs_are_overlaid_with_their_spread(visit):
    page = visit("four")
    choose(page, "of_upos", "=")
    assert names(page) == ["lm, mean of 3 runs", "wide"]
    table = drawn(page)
    mean = table[table["run"].eq("lm, mean of 3 runs")]
    half = scipy.stats.t.ppf(0.975, 2) * 0.1 / 3**0.5  # seeds are 0.1 apart
    for column, sign in (("value", 0), ("low", -1), ("high", 1)):
        assert mean[column].to_numpy() == pytest.approx(
            [loss_at(s, 2) + sign * half for s in STEPS], rel=1e-4
        )
    choose(page, "runs", "each")
    assert names(page) == ["lm_1", "lm_2", "lm_3", "wide"]
    choose(page, "runs", "=lm_2")
    assert set(drawn(page)["run"]) == {"lm_2"}
    assert page.locator("[data-chart]").count() == 5  # and one of each run


@pytest.mark.parametrize("values", [[1.0, 1.0], [1e308, -1e308], [1.7e308, 1.7e308], [5e-324, 0.0]])
def test_numbers_at_the_ends_of_what_there_is_are_drawn(visit, reports, tmp_path, values):
    rows = {}
    for step, value in zip((0, 10**9), values, strict=True):
        numbers = {"moving": step, "constructor": value, "constructor_error": 1e-16}
        rows[step] = [(quantity, None, None, number) for quantity, number in numbers.items()]
    report_of(tmp_path, rows, ["quantity", "site", "word", "value"])
    reports["ends"] = write_report([tmp_path], tmp_path / "out")
    page = visit("ends")
    choose(page, "quantity", "constructor")
    assert drawn(page)["value"].tolist() == pytest.approx(values, rel=1e-5)


def test_runs_without_a_common_step_have_no_mean(visit, reports, tmp_path):
    runs = []
    for seed, steps in ((1, (0, 1)), (2, (0, 1)), (3, (5, 6))):
        norms = {step: [("norm", None, None, step + seed)] if seed < 3 else [] for step in steps}
        rows = {step: [("loss", None, None, 1.0 + seed), *norm] for step, norm in norms.items()}
        runs.append(report_of(tmp_path / f"lm_{seed}", rows, ["quantity", "site", "word", "value"], seed))
    reports["apart"] = write_report(runs, tmp_path / "out")
    page = visit("apart")
    choose(page, "quantity", "loss")
    assert set(drawn(page)["run"]) == {"lm_1", "lm_2", "lm_3"}
    choose(page, "quantity", "norm")
    table = drawn(page)
    assert set(table["run"]) == {"lm, mean of 3 runs, here of 2"}
    assert (table["value"].tolist(), table["tokens"].tolist()) == ([1.5, 2.5], [15, 65])
    assert (table["low"].tolist(), table["high"].tolist()) == ([1, 2], [2, 3])  # between the two runs


@pytest.mark.parametrize("column", ["__proto__", 'x"]\\'])
def test_columns_of_any_name_tell_lines_apart(visit, reports, tmp_path, column):
    rows = {step: [("loss", None, None, level, step + i) for i, level in enumerate("abc")] for step in (0, 1)}
    report_of(tmp_path, rows, ["quantity", "site", "word", column, "value"])
    reports["column"] = write_report([tmp_path], tmp_path / "out")
    page = visit("column")
    assert names(page) == ["a", "b", "c"]
    page.evaluate(
        """() => { const select = document.querySelectorAll('[data-chart] select')[0];
        select.value = '=b'; select.dispatchEvent(new Event('change')) }"""
    )
    assert drawn(page)["value"].tolist() == [1.0, 2.0]

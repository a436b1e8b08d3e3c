"""The report in a headless Chromium: what is drawn, chosen, read and downloaded; and that nothing is loaded."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

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


def observe(run, seed, size=8):
    store = ObservationStore(run / "observations" / "words", f"{__name__}.Words", {})
    for step in STEPS:
        rows = [("loss", None, None, None, loss_at(step, seed)), ("loss_error", None, None, None, 0.25)]
        rows += [
            ("loss", None, tag, None, loss_at(step, seed, i)) for i, tag in enumerate([*TAGS, HOSTILE], 1)
        ]
        rows += [("norm", site, None, None, k + 0.001 * step) for k, site in enumerate(("h1", "h2"))]
        rows += [("hit", None, None, f"word{i}", 1.0) for i in range(50)]
        table = pd.DataFrame(rows, columns=["quantity", "site", "upos", "word", "value"])
        store.write(step, table.assign(step=step, tokens=50 * step))
    config = {
        "seed_everything": seed,
        "model": {"class_path": "my.LSTM", "init_args": {"size": size}},
        "data": {"class_path": "my.Text"},
    }
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


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

    def opened(name, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(reports[name].as_uri())
        page.locator("[data-chart] canvas").first.wait_for()
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
    return chart(page).locator(".legend button[aria-pressed=true] span").all_inner_texts()


def places(page):
    """Where the values of the horizontal axis are drawn, from 0 to 1."""
    code = "({drawn}) => drawn.data[0].map((x) => drawn.valToPos(x, 'x') / drawn.over.clientWidth)"
    return page.evaluate(f"({code})(document.querySelector('[data-chart]').chart)")


def choose(page, name, value):
    chart(page).locator(f"select[name='{name}']").select_option(value)


def read_csv(page):
    with page.expect_download() as waiting:
        chart(page).get_by_role("button", name="CSV").click()
    return pd.read_csv(waiting.value.path())


def test_the_top_says_what_was_trained_and_what_was_found(visit):
    page = visit("one")
    facts = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts(), strict=True))
    said = {"model": "LSTM (size 8)", "data": "Text", "updates": "1,000", "tokens": "50,000", "seed": "1"}
    assert facts == said
    row = page.locator("table").first.locator("tr").nth(1).locator("td").all_inner_texts()
    assert row[-4:] == ["8.1", f"{loss_at(1000, 1):.4g}", "± 0.25", "lower"]
    assert str(Path.cwd()) not in page.content()


def test_pointing_reads_the_values_of_the_nearest_step(visit):
    page = visit("one")
    box = chart(page).locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 5, box["y"] + box["height"] / 2)
    assert chart(page).get_by_role("status").inner_text() == "step 1,000"
    low, value, high = (f"{loss_at(1000, 1) + d:.4g}" for d in (-0.25, 0, 0.25))
    assert chart(page).locator(".legend b").inner_text() == f"{value} [{low}, {high}]"
    page.mouse.move(5, 5)
    assert chart(page).locator(".legend b").inner_text() == ""


def test_the_legend_shows_and_hides_lines(visit):
    page = visit("one")
    choose(page, "quantity", "norm")
    assert names(page) == ["h1", "h2"]
    button = chart(page).locator(".legend button", has_text="h1")
    button.click()
    assert names(page) == ["h2"]
    button.press("Enter")
    assert names(page) == ["h1", "h2"]
    choose(page, "quantity", "loss")
    choose(page, "of_upos", "*")
    assert names(page) == TAGS[:8]  # of 12
    choose(page, "of_upos", f"={HOSTILE}")
    assert set(read_csv(page)["upos"]) == {HOSTILE}


def test_axes_are_switched(visit):
    page = visit("one")
    choose(page, "scale", "log")
    zero, one, *larger = places(page)  # step 0 is shown
    assert zero == pytest.approx(0)
    assert np.diff([one, *larger]) == pytest.approx([larger[1] - larger[0]] * 3, rel=0.15)
    choose(page, "scale", "linear")
    assert places(page) == pytest.approx([0, 0.001, 0.01, 0.1, 1])
    choose(page, "x", "tokens")
    assert page.evaluate("document.querySelector('[data-chart]').chart.drawn.data[0]") == [
        50 * s for s in STEPS
    ]


def test_a_table_of_what_is_drawn(visit):
    table = read_csv(visit("one"))
    assert table["step"].tolist() == STEPS
    assert table["tokens"].tolist() == [50 * step for step in STEPS]
    assert table["value"].to_numpy() == pytest.approx([loss_at(step, 1) for step in STEPS], rel=1e-5)
    assert (table["high"] - table["low"]).to_numpy() == pytest.approx([0.5] * 5)


def test_several_runs_are_overlaid_with_their_spread(visit):
    page = visit("four")
    assert names(page) == ["lm, mean of 3", "wide"]
    table = read_csv(page)
    mean = table[table["run"].eq("lm, mean of 3")]
    for column, seed in (("value", 2), ("low", 1), ("high", 3)):
        assert mean[column].to_numpy() == pytest.approx([loss_at(step, seed) for step in STEPS], rel=1e-5)
    choose(page, "runs", "each")
    assert names(page) == ["lm_1", "lm_2", "lm_3", "wide"]
    choose(page, "runs", "=lm_2")
    assert set(read_csv(page)["run"]) == {"lm_2"}
    assert page.locator("[data-chart]").count() == 5  # and one of each run


def test_dark_and_light(visit):
    page = visit("one", scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    colour = "document.querySelector('[data-chart]').chart.lines[0].colour"
    dark = page.evaluate(background), page.evaluate(colour)
    page.get_by_role("button", name="Show in light colours").click()
    light = page.evaluate(background), page.evaluate(colour)
    assert light[0] == "rgb(255, 255, 255)" != dark[0]
    assert light[1] != dark[1]
    page.reload()
    assert page.evaluate(background) == light[0]  # it is remembered
    page.emulate_media(media="print")
    assert page.locator("nav.sections").is_hidden()


@pytest.mark.parametrize("name", ["one", "four"])
@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_wider_than_the_window_and_links_lead_to_sections(visit, name, width):
    page = visit(name, width)
    choose(page, "of_upos", "*")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    links = page.locator("nav.sections a")
    assert links.first.is_visible() == (width == 1280)
    if width == 400:
        page.locator("nav.sections summary").click()
    links.last.click()
    assert page.evaluate("document.querySelector(':target').textContent") == "configuration"


def report_of(folder, rows_by_step, columns, seed=None):
    store = ObservationStore(folder / "observations" / "words", f"{__name__}.Words", {})
    for step, rows in rows_by_step.items():
        table = pd.DataFrame(rows, columns=columns)
        store.write(step, table.assign(step=step, tokens=10 * seed if seed else None))
    if seed:
        config = {"seed_everything": seed, "model": {"class_path": "my.LSTM"}}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.mark.parametrize("values", [[1.0, 1.0], [1e308, -1e308], [1.7e308, 1.7e308], [5e-324, 0.0]])
def test_numbers_at_the_ends_of_what_there_is_are_drawn(visit, reports, tmp_path, values):
    rows = {
        step: [
            ("moving", None, None, step),
            ("constructor", None, None, v),
            ("constructor_error", None, None, 1e-16),
        ]
        for step, v in zip((0, 10**9), values, strict=True)
    }
    report_of(tmp_path, rows, ["quantity", "site", "word", "value"])
    reports["ends"] = write_report([tmp_path], tmp_path / "out")
    page = visit("ends")
    choose(page, "quantity", "constructor")
    assert read_csv(page)["value"].tolist() == pytest.approx(values, rel=1e-5)


def test_runs_without_a_common_step_have_no_mean(visit, reports, tmp_path):
    runs = []
    for seed, steps in ((1, (0, 1)), (2, (0, 1)), (3, (5, 6))):
        rows = {
            step: [
                ("loss", None, None, 1.0 + seed),
                *([("norm", None, None, step + seed)] if seed < 3 else []),
            ]
            for step in steps
        }
        runs.append(report_of(tmp_path / f"lm_{seed}", rows, ["quantity", "site", "word", "value"], seed))
    reports["apart"] = write_report(runs, tmp_path / "out")
    page = visit("apart")
    choose(page, "quantity", "loss")
    assert set(read_csv(page)["run"]) == {"lm_1", "lm_2", "lm_3"}
    choose(page, "quantity", "norm")
    table = read_csv(page)
    assert set(table["run"]) == {"lm, mean of 3, here of 2"}
    assert (table["value"].tolist(), table["tokens"].tolist()) == ([1.5, 2.5], [15, 15])


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
    assert read_csv(page)["value"].tolist() == [1.0, 2.0]

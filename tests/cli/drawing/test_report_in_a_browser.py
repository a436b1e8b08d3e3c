"""The report in a headless Chromium: what is drawn, chosen, read and downloaded; and that nothing is loaded."""

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import yaml

from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.schema import Quantity
from lmdyn.callbacks.observing.store import ObservationStore
from lmdyn.cli.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="no Chromium: none of chromium, chromium-browser and google-chrome is in PATH",
    ),
]

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
    return {
        "one": write_report(runs[:1], folder / "one"),
        "four": write_report(runs, folder / "four"),
    }


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
        page.locator("[data-chart] .plot svg path.line").first.wait_for()
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


def lines(page):
    return chart(page).locator("path.line")


def choose(page, name, value):
    chart(page).locator(f"select[name='{name}']").select_option(value)


def downloaded(page, kind):
    with page.expect_download() as waiting:
        chart(page).get_by_role("button", name=f"as {kind}").click()
    return Path(waiting.value.path()), waiting.value.suggested_filename


def read_csv(page):
    return pd.read_csv(downloaded(page, "CSV")[0])


def test_the_top_says_what_was_trained_and_what_was_found(visit):
    page = visit("one")
    assert page.locator("h1").all_inner_texts() == ["lm_1"]
    facts = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts(), strict=True))
    assert facts["model"] == "LSTM (size 8)"
    assert (facts["data"], facts["updates"], facts["tokens"], facts["seed"]) == (
        "Text",
        "1,000",
        "50,000",
        "1",
    )
    row = page.locator("table").first.locator("tr").nth(1).locator("td").all_inner_texts()
    assert row[:2] == ["words", "loss (nats)"]
    assert row[-4:] == ["8.1", f"{loss_at(1000, 1):.4g}", "± 0.25", "lower"]
    assert str(Path.cwd()) not in page.content()
    assert "/lm_1" not in page.content().replace("observations/", "")


def test_pointing_reads_the_values_of_the_nearest_step(visit):
    page = visit("one")
    box = chart(page).locator(".plot svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 30, box["y"] + box["height"] / 2)
    tip = chart(page).locator(".tip").inner_text()
    assert "step 1,000, 50k tokens" in tip
    low, value, high = (f"{loss_at(1000, 1) + d:.4g}" for d in (-0.25, 0, 0.25))
    assert f"{value} [{low}, {high}]" in tip
    page.mouse.move(5, 5)
    assert chart(page).locator(".tip").is_hidden()


def test_keys_read_values_too(visit):
    page = visit("one")
    plot = chart(page).locator(".plot")
    assert "loss (nats), lower is better" in plot.get_attribute("aria-label")
    plot.focus()
    for pressed, step in (("ArrowRight", "0"), ("ArrowRight", "1"), ("End", "1,000"), ("ArrowLeft", "100")):
        plot.press(pressed)
        assert chart(page).get_by_role("status").inner_text().startswith(f"step {step},")
    unnamed = (
        "[...document.querySelectorAll('button, select')].filter(e => !(e.textContent.trim() || e.ariaLabel))"
    )
    assert page.evaluate(f"{unnamed}.length") == 0


def test_the_legend_shows_and_hides_lines(visit):
    page = visit("one")
    choose(page, "quantity", "norm")
    assert lines(page).count() == 2
    button = chart(page).locator(".legend button", has_text="h1")
    button.click()
    assert [line.get_attribute("data-name") for line in lines(page).all()] == ["h2"]
    assert button.get_attribute("aria-pressed") == "false"
    button.press("Enter")
    assert lines(page).count() == 2
    colours = {line.get_attribute("stroke") for line in lines(page).all()}
    assert len(colours) == 2


def test_axes_are_switched(visit):
    page = visit("one")

    def places():
        ends = re.findall(r"[ML]([\d.]+) ", lines(page).first.get_attribute("d"))
        x = np.array(ends, dtype=float)
        return ((x - x[0]) / (x[-1] - x[0])).round(2).tolist()

    def labels():
        return chart(page).locator("svg text").all_text_contents()

    choose(page, "scale", "log")
    assert places()[1:4] == pytest.approx([0.4 / 3.4, 1.4 / 3.4, 2.4 / 3.4], abs=0.01)  # step 0 is shown
    assert {"0", "1", "10", "100", "1k", "training step (updates)"} <= set(labels())
    choose(page, "scale", "linear")
    assert places()[1:4] == [0.0, 0.01, 0.1]
    choose(page, "x", "tokens")
    assert {"0", "10k", "50k", "tokens"} <= set(labels())
    assert "training step (updates)" not in labels()


def test_many_lines_become_panels_or_a_choice(visit):
    page = visit("one")
    choose(page, "of_upos", "*")
    panels = chart(page).locator("g[data-panel]")
    assert [panel.get_attribute("data-panel") for panel in panels.all()] == [*TAGS, HOSTILE]
    assert [panel.locator("path.line").count() for panel in panels.all()] == [1] * 12
    choose(page, "panels", "")
    assert panels.count() == 1
    assert lines(page).count() == 8
    assert "8 of 12 lines are shown" in chart(page).locator(".note").inner_text()
    chart(page).locator(".legend button", has_text="INTJ").click()
    names = [line.get_attribute("data-name") for line in lines(page).all()]
    assert len(names) == 8
    assert "INTJ" in names
    drawn = [
        (line.get_attribute("stroke"), line.get_attribute("stroke-dasharray")) for line in lines(page).all()
    ]
    assert len(set(drawn)) == 8
    choose(page, "of_upos", "=VERB")
    assert lines(page).count() == 1


def test_downloads(visit):
    page = visit("one")
    path, name = downloaded(page, "CSV")
    assert name == "words_loss.csv"
    table = pd.read_csv(path)
    assert table["step"].tolist() == STEPS
    assert table["tokens"].tolist() == [50 * step for step in STEPS]
    assert table["value"].to_numpy() == pytest.approx([loss_at(step, 1) for step in STEPS], rel=1e-5)
    assert (table["high"] - table["low"]).to_numpy() == pytest.approx([0.5] * 5)
    path, name = downloaded(page, "SVG")
    root = ElementTree.parse(path).getroot()
    assert (root.tag, name) == ("{http://www.w3.org/2000/svg}svg", "words_loss.svg")
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert "loss (nats), lower is better ↓" in texts
    path, name = downloaded(page, "PNG")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(path.read_bytes()[16:20]) == 1800
    choose(page, "of_upos", f"={HOSTILE}")
    assert set(read_csv(page)["upos"]) == {HOSTILE}


def test_several_runs_are_overlaid_with_their_spread(visit):
    page = visit("four")
    assert [line.get_attribute("data-name") for line in lines(page).all()] == ["lm, mean of 3", "wide"]
    assert chart(page).locator("path.band").count() == 2  # of the seeds, and of the one run's recorded error
    table = read_csv(page)
    mean = table[table["run"].eq("lm, mean of 3")]
    assert mean["value"].to_numpy() == pytest.approx([loss_at(step, 2) for step in STEPS], rel=1e-5)
    assert mean["low"].to_numpy() == pytest.approx([loss_at(step, 1) for step in STEPS], rel=1e-5)
    assert mean["high"].to_numpy() == pytest.approx([loss_at(step, 3) for step in STEPS], rel=1e-5)
    choose(page, "runs", "single")
    assert [line.get_attribute("data-name") for line in lines(page).all()] == ["lm_1", "lm_2", "lm_3", "wide"]
    choose(page, "panels", "run")
    assert chart(page).locator("g[data-panel]").count() == 4
    choose(page, "runs", "=lm_2")
    assert set(read_csv(page)["run"]) == {"lm_2"}
    assert page.locator("[data-chart]").count() == 5  # and one of each run


def test_dark_and_light(visit):
    page = visit("one", scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(23, 27, 33)"
    dark = lines(page).first.get_attribute("stroke")
    page.get_by_role("button", name="Show in light colours").click()
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    assert lines(page).first.get_attribute("stroke") != dark
    page.reload()
    lines(page).first.wait_for()
    assert page.evaluate(background) == "rgb(255, 255, 255)"  # it is remembered
    page.emulate_media(media="print")
    assert page.locator("nav.sections").is_hidden()


@pytest.mark.parametrize("name", ["one", "four"])
@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_wider_than_the_window(visit, name, width):
    page = visit(name, width)
    if width == 1280:
        choose(page, "of_upos", "*")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    links = page.locator("nav.sections a")
    assert links.first.is_visible() == (width == 1280)
    if width == 400:
        page.locator("nav.sections summary").click()
    links.last.click()
    assert page.evaluate("document.querySelector(':target').textContent") == "configuration"
    assert links.first.is_visible() == (width == 1280)


@pytest.mark.parametrize(
    ("values", "error"),
    [([1.0, 1.0], 1e-16), ([1e308, -1e308], None), ([1.7e308, 1.7e308], None), ([5e-324, 0.0], None)],
)
def test_numbers_at_the_ends_of_what_there_is_are_drawn(visit, reports, tmp_path, values, error):
    store = ObservationStore(tmp_path / "observations" / "words", f"{__name__}.Words", {})
    for step, value in zip((0, 10**9), values, strict=True):
        rows = [("moving", None, None, step), ("constructor", None, None, value)]
        rows += [("constructor_error", None, None, error)] if error else []
        table = pd.DataFrame(rows, columns=["quantity", "site", "word", "value"])
        store.write(step, table.assign(step=step, tokens=None))
    reports["ends"] = write_report([tmp_path], tmp_path / "out")
    page = visit("ends")
    choose(page, "quantity", "constructor")
    assert "NaN" not in lines(page).first.get_attribute("d")
    assert read_csv(page)["value"].tolist() == pytest.approx(values, rel=1e-5)


def test_runs_without_a_common_step_have_no_mean(visit, reports, tmp_path):
    runs = []
    for seed, steps in ((1, (0, 1)), (2, (0, 1)), (3, (5, 6))):
        runs.append(tmp_path / f"lm_{seed}")
        store = ObservationStore(runs[-1] / "observations" / "words", f"{__name__}.Words", {})
        for step in steps:
            rows = [
                ("loss", None, None, 1.0 + seed),
                *([("norm", None, None, step + seed)] if seed < 3 else []),
            ]
            table = pd.DataFrame(rows, columns=["quantity", "site", "word", "value"])
            store.write(step, table.assign(step=step, tokens=10 * seed))
        (runs[-1] / "config.yaml").write_text(
            yaml.safe_dump({"seed_everything": seed, "model": {"class_path": "my.LSTM"}})
        )
    reports["apart"] = write_report(runs, tmp_path / "out")
    page = visit("apart")
    choose(page, "quantity", "loss")
    assert set(read_csv(page)["run"]) == {"lm_1", "lm_2", "lm_3"}
    choose(page, "quantity", "norm")
    table = read_csv(page)
    assert set(table["run"]) == {"lm, mean of 3, here of 2"}
    assert (table["value"].tolist(), table["tokens"].tolist()) == ([1.5, 2.5], [15, 15])


@pytest.mark.parametrize("column", ["run", "__proto__", "of", "a=b", 'x"]\\'])
def test_columns_of_any_name_tell_lines_apart(visit, reports, tmp_path, column):
    store = ObservationStore(tmp_path / "observations" / "words", f"{__name__}.Words", {})
    for step in (0, 1):
        rows = [("loss", None, None, level, step + i) for i, level in enumerate("abc")]
        table = pd.DataFrame(rows, columns=["quantity", "site", "word", column, "value"])
        store.write(step, table.assign(step=step, tokens=None))
    reports["column"] = write_report([tmp_path], tmp_path / "out")
    page = visit("column")
    names = page.evaluate("document.querySelector('[data-chart]').chart.shown.names")
    assert names == ["a", "b", "c"]
    page.evaluate(
        """() => { const select = document.querySelectorAll('[data-chart] select')[0];
        select.value = '=b'; select.dispatchEvent(new Event('change')) }"""
    )
    assert read_csv(page)["value"].tolist() == [1.0, 2.0]

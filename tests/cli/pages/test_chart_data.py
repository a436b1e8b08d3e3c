"""The data of a report's charts, its final numbers and its top: bounded, said what is left out, texts escaped."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
import yaml

from lmdyn.cli.pages.chart_data import chart_data
from lmdyn.cli.pages.final_numbers import final_numbers
from lmdyn.cli.pages.html_parts import page, part
from lmdyn.cli.pages.linked_pages import CLAIMS_PAGE, linked, renew, write_verdicts
from lmdyn.cli.pages.observer_section import DrawnSection
from lmdyn.cli.pages.overview import conditions, known_facts, run_names
from lmdyn.runs.schema import Quantity

# ------------------------------------------------------------------------------------------ charts


def table(steps=3, heads=2):
    """A loss over everything, and an entropy by site and head."""
    rows = [(step, "loss", "", pd.NA, 1.0 / (step + 1)) for step in range(steps)]
    groups = [(site, head) for site in "ab" for head in range(heads)]
    rows += [(s, "entropy", site, h, h + 0.123456789 * s) for s in range(steps) for site, h in groups]
    found = pd.DataFrame(rows, columns=["step", "quantity", "site", "head", "value"])
    return found.assign(tokens=10 * found["step"]).astype({"head": "Int64", "tokens": "Int64"})


def in_a_page(data):
    """The text of the script element that holds it."""
    (text,) = re.findall("<script [^>]*>(.*)</script>", part("data", "place", data), re.DOTALL)
    return text


def back(data):
    """A table of what a chart holds."""
    rows = []
    for code, values in zip(data["lines"], data["values"], strict=True):
        groups = {column: data["levels"][i][code[i]] for i, column in enumerate(data["columns"])}
        points = zip(data["steps"], values, strict=True)
        rows += [{"step": step, **groups, "value": value} for step, value in points if value is not None]
    return pd.DataFrame(rows)


def test_a_chart_holds_what_the_table_holds():
    rows = table()
    data = json.loads(in_a_page(chart_data("attention", rows)))
    assert (data["columns"], data["numeric"]) == (["quantity", "site", "head"], ["head"])
    assert (data["steps"], data["tokens"], data["left"]) == ([0, 1, 2], [0, 10, 20], "")
    expected = rows.drop(columns="tokens").assign(head=rows["head"].astype("string").fillna(""))
    keys = ["step", "quantity", "site", "head"]
    found, expected = (
        one.astype(dict.fromkeys(keys, str)).sort_values(keys) for one in (back(data), expected)
    )
    assert found[keys].to_numpy().tolist() == expected[keys].to_numpy().tolist()
    np.testing.assert_allclose(found["value"], expected["value"], rtol=1e-5)


def test_a_chart_is_bounded_and_says_what_it_lacks():
    rows = table(steps=250, heads=30)
    data = chart_data("attention", rows, most=5000)
    assert len(data["lines"]) * len(data["steps"]) <= 5000
    assert [data["levels"][0][code[0]] for code in data["lines"]].count("loss") == 1  # the coarsest stay
    assert data["left"].startswith("The chart contains 20 of 61 curves")
    assert chart_data("attention", rows)["left"] == ""  # the control


def test_what_is_no_number_is_no_point():
    rows = table().assign(value=[math.nan, math.inf, 1.0, *range(12)])
    assert chart_data("attention", rows)["values"][0] == [None, None, 1.0]


def test_the_declaration_is_that_of_the_closest_name():
    ends = [Quantity("cca_<k>", "Of k.", unit="share"), Quantity("cca_low", "Lower end.", better="higher")]
    rows = pd.DataFrame({"step": 0, "quantity": ["cca_low", "cca_30"], "site": "", "value": [0.1, 0.5]})
    found = chart_data("similarity", rows, ends)["quantities"]
    assert [found[name]["meaning"] for name in ("cca_30", "cca_low")] == ["Of k.", "Lower end."]
    better = {one.label: one.better for one in final_numbers(rows, ends)}
    assert better == {"CCA low": "higher", "CCA 30 (share)": ""}


@pytest.mark.parametrize("text", ["</script>", "<!--", "]]>", "\u2028", "&lt;"])
def test_no_text_ends_the_script_that_it_is_in(text):
    written = in_a_page({"level": text})
    assert not set("<>&\u2028") & set(written)
    assert json.loads(written) == {"level": text}


# ------------------------------------------------------------------------------------------ the top


def final(**values):
    rows = [(s, q, site, g, v) for s, of in enumerate(values["steps"]) for q, site, g, v in of]
    return pd.DataFrame(rows, columns=["step", "quantity", "site", "upos", "value"])


def test_final_numbers_have_their_intervals_and_directions():
    last = [
        ("chance", "", "", 0.5), ("loss", "", "NOUN", 9.0), ("loss", "", "", 4.0), ("loss_low", "", "", 3.0),
        ("loss_high", "", "", 6.0), ("norm", "embedding", "", 1.0), ("norm", "h2", "", 2.0),
        ("norm", "logits", "", 3.0), ("norm_error", "h2", "", 0.5), ("learning_rate", "", "", 0.1),
    ]  # fmt: skip
    first = [("chance", "", "", 0.5), ("loss", "", "", 8.0)]
    loss = Quantity("loss", "Mean loss.", unit="nats", better="lower")
    found = final_numbers(final(steps=[first, last]), [loss])
    assert [(one.label, one.of, one.first, one.last) for one in found] == [
        ("loss (nats)", "", 8.0, 4.0), ("chance", "", 0.5, 0.5), ("norm", "layer 2", None, 2.0),
    ]  # fmt: skip
    assert [(one.spread, one.better) for one in found] == [("[3, 6]", "lower"), ("", ""), ("± 0.5", "")]


def test_a_first_observation_without_rows_has_no_numbers():
    """As one without a reference: the last value is not shown as the first; of a single observation, it is."""
    loss = Quantity("loss", "Mean loss.", unit="nats", better="lower")
    rows = final(steps=[[("loss", "", "", 4.0)]]).assign(step=9)
    assert [(one.first, one.last) for one in final_numbers(rows, [loss], first_step=3)] == [(None, 4.0)]
    assert [(one.first, one.last) for one in final_numbers(rows, [loss], first_step=9)] == [(4.0, 4.0)]


def run(folder, seed, **arguments):
    folder.mkdir(parents=True)
    sgd = {"class_path": "torch.optim.SGD", "init_args": {"lr": 2}}
    model = {"class_path": "my.LSTM", "init_args": {**arguments, "optimizer": sgd}}
    config = {"seed_everything": seed, "model": model, "data": {"class_path": "my.Text"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_what_was_trained_on_what(tmp_path):
    path = run(tmp_path / "small" / "version_3", 5, size=8)
    session = {"began": "2026-01-02T00:00:00+00:00", "ended": "2026-01-02T00:03:00+00:00", "device": "cpu"}
    provenance = {"sessions": [{**session, "parameters": 12345}], "claims": {}}
    (path / "provenance.json").write_text(json.dumps(provenance))
    assert run_names([path]) == {path: "small/version_3"}
    assert known_facts(path, [DrawnSection(7, 1400), DrawnSection(5)]) == {
        "model": "LSTM (size 8)", "optimizer": "SGD (lr 2)", "data": "Text", "parameters": "12,345", "updates": "7",
        "tokens": "1,400", "seed": "5", "computed": "2026-01-02, 3 min, cpu",
    }  # fmt: skip


def test_steps_of_checkpoints_that_count_words_say_so(tmp_path):
    assert known_facts(tmp_path, [DrawnSection(7), DrawnSection(10**7, unit="words")]) == {
        "words": "10,000,000"
    }
    rows = pd.DataFrame(
        {"step": [1, 9], "words_seen": [1, 9], "quantity": "loss", "site": "", "value": [8.0, 4.0]}
    )
    found = chart_data("curves", rows)
    assert (found["unit"], found["words_seen"], found["tokens"]) == ("words", [1, 9], None)
    unknown = rows.assign(words_seen=pd.array([None, 9], dtype="Int64"))
    assert chart_data("curves", unknown)["unit"] == "updates"
    later = chart_data("curves", rows.assign(words_seen=[30, 270]))
    assert (later["unit"], later["words_seen"]) == ("updates", [30, 270])


@pytest.mark.parametrize("content", ["{[", "[" * 100_000])
@pytest.mark.parametrize("name", ["config.yaml", "provenance.json", "run.json"])
def test_of_damaged_files_nothing_is_known(tmp_path, name, content):
    path = run(tmp_path / "run", 5)
    (path / name).write_text(content)
    facts = known_facts(path, [])
    assert ("model" in facts) == (name != "config.yaml")


def test_runs_that_differ_in_seeds_only_are_of_one_condition(tmp_path):
    runs = {f"lm_{seed}": run(tmp_path / f"lm_{seed}", seed, size=8) for seed in (1, 2)}
    runs |= {"wide": run(tmp_path / "wide", 1, size=16), "unknown": tmp_path}
    assert list(conditions(runs).values()) == ["lm, mean of 2 runs", "lm, mean of 2 runs", "wide", "unknown"]
    alike = {name: run(tmp_path / name, i, size=8) for i, name in enumerate(("version_0", "version_1"))}
    assert set(conditions(alike).values()) == {"mean of 2 runs"}
    again = {name: run(tmp_path / "again" / name, 7, size=9) for name in ("lm_1", "lm_2")}
    assert set(conditions(again).values()) == {"lm, mean of 2 runs (1 seed)"}


# ------------------------------------------------------------------------------------------ verdicts


CLAIM = {"name": "rises", "says": "ρ <b>rises</b>", "verdict": "holds", "after_holm": ""}


def test_verdicts_come_into_a_report_written_before_or_after(tmp_path):
    (tmp_path / "index.html").write_text(page("a report", ["<p>top</p>", linked(tmp_path, CLAIMS_PAGE)]))
    before = (tmp_path / "index.html").read_text()
    assert "<section id='claims'>" not in before
    (tmp_path / "claims.html").write_text("…")
    for tally in ("1 holds", "1 fails"):  # judged twice
        write_verdicts(tmp_path, "A study", [{"heading": "runs", "tally": tally, "claims": [CLAIM]}])
        renew(tmp_path, CLAIMS_PAGE)
        text = (tmp_path / "index.html").read_text()
        assert text.count("<section id='claims'>") == 1
        assert f"<strong>runs</strong>: {tally}." in text
        assert "<td>rises</td><td>ρ &lt;b&gt;rises&lt;/b&gt;</td><td>holds</td>" in text
        assert text == page("a report", ["<p>top</p>", linked(tmp_path, CLAIMS_PAGE)])


@pytest.mark.parametrize("content", [None, "{[", "[]", '{"title": "t", "profiles": [{}]}', "[" * 100_000])
def test_without_verdicts_there_is_a_link(tmp_path, content):
    (tmp_path / "claims.html").write_text("…")
    if content is not None:
        (tmp_path / "claims.json").write_text(content)
    assert "<a href='claims.html'>" in linked(tmp_path, CLAIMS_PAGE)

"""Damaged files: each reader reads what they say or names the place; ``LMDYN_MUTANTS=2000`` is the whole campaign."""

import json
import logging
import re
import time

import datasets
import pytest
from transformers.utils import logging as transformers_logging

from tests.helpers import mutants as engine
from tests.helpers.mutants import KEEPING, TEXT, Reader, campaign, mutants, naive_lines, number_of_mutants
from tests.helpers.mutated_files import annotated_text, saved_models, tasks_and_facts, texts

WRITTEN = {**annotated_text.READERS, **tasks_and_facts.READERS, **texts.READERS}
SAVED = (
    "tokenizer, words", "tokenizer, pieces", "tokenizer, unigram", "tokenizer, settings", "checkpoint, weights",
    "checkpoint, configuration",
)  # fmt: skip

# what libraries warn of is theirs to warn of; that a file is read rightly, or refused, is the test
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    made = saved_models.readers(tmp_path_factory.mktemp("made"))
    assert tuple(made) == SAVED
    return {**WRITTEN, **made}


@pytest.fixture(autouse=True)
def _quiet():
    """Thousands of warnings and progress bars of libraries say nothing."""
    shown = datasets.utils.logging.get_verbosity(), transformers_logging.get_verbosity()
    logging.disable(logging.CRITICAL)
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()
    logging.disable(logging.NOTSET)
    datasets.utils.logging.set_verbosity(shown[0])
    transformers_logging.set_verbosity(shown[1])


@pytest.mark.parametrize("name", [*WRITTEN, *SAVED])
def test_damaged_files(name, table, tmp_path, record_property):
    number = number_of_mutants()
    found = campaign(name, table[name], tmp_path, number)
    for key in ("accepted", "refused"):
        record_property(key, getattr(found, key))
    assert not found.wrong, "\n".join([f"{len(found.wrong)} of {number} mutants:", *found.wrong[:20]])
    assert found.accepted + found.refused == number
    assert found.refused
    assert found.accepted


LINES = b"one\ntwo\nthree\n"


def reader_of(read, keeping=KEEPING, kinds=TEXT):
    return Reader("x.txt", LINES, read, naive_lines, kinds, keeping=keeping)


def lines_of(folder):
    """A right reader, to break."""
    path = folder / "x.txt"
    try:
        return naive_lines(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}:1: {error}") from None


def test_a_right_reader_passes(tmp_path):
    found = campaign("lines", reader_of(lines_of), tmp_path, 100)
    assert not found.wrong
    assert found.accepted + found.refused == 100


def without_short_lines(folder):
    return [line for line in lines_of(folder) if len(line) != 2]


def raw(folder):
    return naive_lines((folder / "x.txt").read_bytes())


def without_place(folder):
    try:
        return raw(folder)
    except ValueError:
        raise ValueError("cannot be read") from None


def at_line_feeds(folder):
    lines = lines_of(folder)
    return ["\r".join(lines)] if b"\n" not in (folder / "x.txt").read_bytes() else lines


def strict(folder):
    lines = lines_of(folder)
    if (folder / "x.txt").read_bytes()[-1:] != b"\n":
        raise ValueError(f"{folder / 'x.txt'}:3: no end of line")
    return lines


def slow(folder):
    if folder.name == "3":
        time.sleep(5)
    return lines_of(folder)


@pytest.mark.parametrize(
    ("read", "finding"),
    [
        (without_short_lines, "read as"),
        (raw, "an error that is not the reader's own: UnicodeDecodeError"),
        (without_place, "a refusal without its place: ValueError: cannot be read"),
        (at_line_feeds, r"\(CR\): read as"),
        (strict, r"\(no end\): refused, though it says the same"),
        (slow, "lines 3 .*: takes more than"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_kind_of_failure_is_found(read, finding, tmp_path, monkeypatch):
    """The controls: readers with one fault each."""
    monkeypatch.setattr(engine, "SECONDS", 0.5)
    found = campaign("lines", reader_of(read), tmp_path, 300 if read is not slow else 5)
    assert found.wrong
    assert any(re.search(finding, wrong) for wrong in found.wrong), found.wrong


def test_a_reading_of_nothing_is_found(tmp_path):
    entries = Reader(
        "x.json", b'{"a": 1}', lambda folder: 1, lambda content: json.loads(content)["a"], ("truncate",)
    )
    found = campaign("nothing", entries, tmp_path, 20)
    assert len(found.wrong) == 20
    assert all("accepted, though there is nothing to read" in wrong for wrong in found.wrong)


def test_mutants_are_a_function_of_name_and_number(table):
    reader = table["CoNLL-U"]
    whole = list(mutants("CoNLL-U", reader.valid, reader.kinds, 200))
    assert list(mutants("CoNLL-U", reader.valid, reader.kinds, 50)) == whole[:50]
    assert list(mutants("other", reader.valid, reader.kinds, 200)) != whole
    changed = sum(content != reader.valid for _, content in whole)
    assert changed > 180
    assert {kind for kind, _ in whole} == set(reader.kinds)

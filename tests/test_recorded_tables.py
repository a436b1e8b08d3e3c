"""The tables of the site that say what an observer records: each quantity, from the class."""

import importlib
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import directives

from lmdyn.callbacks import Observer, TokenLearning


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "docs" / "_ext")
    module = importlib.import_module("recorded")
    directives.register_directive("recorded", module.Recorded)
    return module


def rows(table):
    return [[entry.astext() for entry in row.findall(nodes.entry)] for row in table.findall(nodes.row)]


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("name", ["TokenLearning", "lmdyn.callbacks.words.token_learning.TokenLearning"])
def test_each_quantity_has_a_row(name):
    logged, stored = publish_doctree(f".. recorded:: {name}").findall(nodes.table)
    assert logged.next_node(nodes.title).astext() == "Logged, each under token_learning/"
    head, first, second = rows(logged)
    assert head == ["tag", "meaning", "unit", "range", "better"]
    meaning = TokenLearning.recorded[0].meaning
    assert first == ["reconstruction\n\nreconstruction/<by>/<group>", meaning, "share", "0 to 1", "higher"]
    assert second[0] == "prediction\n\nprediction/<by>/<group>"
    assert rows(stored)[0] == ["quantity", "meaning", "unit", "range"]  # nothing is better
    assert [row[0] for row in rows(stored)[1:]] == ["words", "masked_words"]


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("name", ["Nobody", "Run", "Observer"])
def test_others_are_refused(name):
    settings = {"report_level": 5, "halt_level": 5}
    message = publish_doctree(f".. recorded:: {name}", settings_overrides=settings).astext()
    assert f"expected an observer that declares what it records, got '{name}'" in message


def test_a_docstring_that_refers_to_them_has_them(recorded):
    for cls, i in ((TokenLearning, 1), (Observer, None)):
        lines = ["First.", "Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.", "Last."][
            :: 1 if i else 2
        ]
        recorded.in_docstring(None, "class", "name", cls, None, lines)
        assert (f".. recorded:: {cls.__module__}.{cls.__qualname__}" in lines) == (i is not None)
        assert lines[0] == "First."
        assert lines[-1] == "Last."
    assert recorded.is_shown_as_table(None, "class", "recorded", TokenLearning.recorded, False, None)
    assert recorded.is_shown_as_table(None, "class", "recorded", (), False, None) is None

"""Tables of what an observer records, made from its class: a directive for pages, and in place of a line of docstrings.

In Markdown::

    ```{recorded} Sparsity
    ```
"""

import importlib
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive

import lmdyn.callbacks
from lmdyn.callbacks import Observer, Quantity
from lmdyn.callbacks.observing.run import snake_case

_LINE = re.compile(r"^( *)Logged tags: see :attr:`.*`\.$")


class Recorded(Directive):
    """The quantities that an observer logs, with their tags, and those that it only stores.

    The argument is the name of a class of ``lmdyn.callbacks``, or the dotted path of one.
    """

    required_arguments = 1
    has_content: ClassVar[bool] = False

    def run(self) -> list[nodes.Node]:
        """The two tables."""
        name = self.arguments[0]
        module, _, cls = name.rpartition(".")
        found: Any = getattr(importlib.import_module(module or lmdyn.callbacks.__name__), cls, None)
        if not (isinstance(found, type) and issubclass(found, Observer) and found.recorded):
            raise self.error(f"recorded: expected an observer that declares what it records, got {name!r}")
        prefix = f"{snake_case(cls)}/"
        tags = [
            ([t.removeprefix(prefix) for t in q.tags_of(prefix[:-1])], q) for q in found.recorded if q.tags
        ]
        stored = [([q.name], q) for q in found.recorded if not q.tags]
        tables = [_table(f"Logged, each under {prefix}", "tag", tags)]
        return [*tables, _table("Stored, not logged", "quantity", stored)] if stored else tables


def _table(title: str, first: str, rows: Sequence[tuple[Sequence[str], Quantity]]) -> nodes.table:
    """A table with a row for each quantity; a column that would be empty is left out."""
    columns = {
        "meaning": (36, [q.meaning for _, q in rows]),
        "unit": (12, [q.unit for _, q in rows]),
        "range": (11, [q.bounds for _, q in rows]),
        "better": (10, [q.better or "" for _, q in rows]),
    }
    columns = {name: column for name, column in columns.items() if any(column[1])}
    widths = [38, *(width for width, _ in columns.values())]
    group = nodes.tgroup(cols=len(widths))
    group += [nodes.colspec(colwidth=width) for width in widths]
    head, body = nodes.thead(), nodes.tbody()
    head += _row([[_text(name)] for name in (first, *columns)])
    for i, (names, _) in enumerate(rows):
        codes = [nodes.paragraph("", "", nodes.literal(text=name)) for name in names]
        body += _row([codes, *([_text(parts[i])] for _, parts in columns.values())])
    group += [head, body]
    return nodes.table("", nodes.title(text=title), group, classes=["recorded", "colwidths-given"])


def _row(cells: Sequence[list[nodes.Node]]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        row += nodes.entry("", *cell)
    return row


def _text(text: str) -> nodes.paragraph:
    return nodes.paragraph(text=text)


def in_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """The tables of an observer, where its docstring refers to them."""
    for i, line in enumerate(lines):
        if what == "class" and (found := _LINE.match(line)):
            lines[i : i + 1] = [f"{found[1]}.. recorded:: {obj.__module__}.{obj.__qualname__}", ""]
            return


def is_shown_as_table(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave the attribute out where the tables are."""
    return True if name == "recorded" and obj else None


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("recorded", Recorded)
    app.connect("autodoc-process-docstring", in_docstring, priority=300)  # before napoleon
    app.connect("autodoc-skip-member", is_shown_as_table)
    return {"parallel_read_safe": True}

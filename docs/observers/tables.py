"""Write the tables of what each observer records into its page: ``python docs/observers/tables.py``.

A page has a line ``<!-- recorded: Geometry -->``; what follows it, up to the next empty line after tables, is made from
``Geometry.recorded``. A test compares both.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import lmdyn.callbacks
from lmdyn.callbacks import Observer, Quantity
from lmdyn.callbacks.observing.run import snake_case
from lmdyn.runs.atomic_files import write_file

_PLACE = re.compile(r"<!-- recorded: (\w+) -->\n(.*?)<!-- end -->\n", re.DOTALL)


def table(first: str, rows: Sequence[tuple[Sequence[str], Quantity]]) -> str:
    """Return a table with a row for each quantity; a column that would be empty is left out."""
    columns = {
        first: ["<br>".join(f"`{name}`" for name in names) for names, _ in rows],
        "meaning": [q.meaning for _, q in rows],
        "unit": [q.unit for _, q in rows],
        "range": [q.bounds for _, q in rows],
        "better": [q.better or "" for _, q in rows],
    }
    columns = {name: column for name, column in columns.items() if any(column)}
    lines = [list(columns), ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def recorded(cls: type[Observer]) -> str:
    """Return the tables of the quantities that an observer logs, with their tags, and that it only stores."""
    prefix = snake_case(cls.__name__)
    tags = [([t.removeprefix(f"{prefix}/") for t in q.tags_of(prefix)], q) for q in cls.recorded if q.tags]
    stored = [([q.name], q) for q in cls.recorded if not q.tags]
    logged = f"The observer logs these quantities under tags that begin with `{prefix}/`:\n\n"
    further = "\nThe observer stores, but does not log, these further quantities:\n\n"
    return logged + table("tag", tags) + (further + table("quantity", stored) if stored else "")


def fresh(page: str) -> str:
    """Return a page with its tables as the classes are today."""

    def made(found: re.Match[str]) -> str:
        name = found[1]
        return f"<!-- recorded: {name} -->\n{recorded(getattr(lmdyn.callbacks, name))}<!-- end -->\n"

    return _PLACE.sub(made, page)


if __name__ == "__main__":
    for path in Path(__file__).parent.glob("*.md"):
        text = fresh(path.read_text(encoding="utf-8"))
        write_file(path, lambda p, text=text: p.write_text(text, encoding="utf-8"))

"""Pages and their parts by Jinja2 templates (``web/``): tables, figures. All texts are escaped."""

import base64
import gc
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib import rc_context
from matplotlib.figure import Figure

from lmdyn.callbacks.observing.figures import lay_out
from lmdyn.runs.atomic_files import write_file

_DPI = 150  # of a report's figures
_PNG = {"compress_level": 3}  # two thirds of the time of 6, for files larger by a tenth

_WEB = Path(__file__).with_name("web")


class Place(NamedTuple):
    """An entry in the list of a page's sections.

    Attributes:
        anchor: id of the linked element.
        title: text of the entry.
        inner: whether it belongs to the previous entry.
    """

    anchor: str
    title: str
    inner: bool = False


def page(title: str, sections: Iterable[str], contents: Iterable[Place] = ()) -> str:
    """Return a page from parts in HTML. Browsers load nothing for it, and run only its own scripts.

    Args:
        title: title, as text.
        sections: parts of the page, in order.
        contents: entries of the list at the side.
    """
    body = "".join(sections)
    charts = "data-chart=" in body
    scripts = [_web(name) for name in ("vendor/uPlot.iife.min.js", "chart.js") if charts]
    # of a script that is not among these hashes, nothing runs
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    styles = [_web("page.css"), *([_web("vendor/uPlot.min.css")] if charts else [])]
    about = {"title": title, "body": body, "contents": contents, "scripts": scripts, "styles": styles}
    sources = " ".join(f"'sha256-{one}'" for one in hashes)
    return _environment().get_template("page.html").render(about, sources=sources)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_WEB),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    made.filters |= {"cell": _text, "address": lambda name: quote(os.fsencode(name))}
    return made


def part(name: str, *args: Any, **values: Any) -> str:
    """Return a part of a page, by the name of its macro in ``web/parts.html``, which escapes all texts.

    Example:
        >>> part("paragraph", "a < b")
        '<p>a &lt; b</p>'
    """
    return str(getattr(_environment().get_template("parts.html").module, name)(*args, **values))


@cache
def _web(name: str) -> str:
    return (_WEB / name).read_text(encoding="utf-8")


@contextmanager
def many_objects() -> Iterator[None]:
    """Disable Python's repeated search for garbage among all imported objects in this context."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def file_beside(base: Path, name: str, suffix: str) -> Path:
    """Return ``<base>_<name>.<suffix>``; a slash in the name, as in a site, does not lead to another folder."""
    return base.with_name(f"{base.name}_{name}.{suffix}".replace("/", "_"))


def csv_table(table: pd.DataFrame, path: Path, name: str) -> str:
    """Write a table as CSV, and return it as part of the page; an index of names is its first column."""
    if not isinstance(table.index, pd.RangeIndex):
        table = table.reset_index(names=None if any(table.index.names) else "")
    write_file(path, partial(_without_formulas(table).to_csv, index=False), lasting=False)
    return part("csv", name.replace("_", " "), path, frame_table(table))


def _without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with an apostrophe before texts that a spreadsheet would take for formulas."""
    shown = table.set_axis([_no_formula(name) for name in table.columns], axis=1)
    for i, kind in enumerate(table.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            shown.isetitem(i, table.iloc[:, i].map(_no_formula).to_numpy())
    return shown


def _no_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def frame_table(table: pd.DataFrame) -> str:
    """Return a data frame as an HTML table, without its index."""
    return html_table([str(c) for c in table.columns], table.astype(object).to_numpy())


def html_table(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return an HTML table; columns of numbers are right-aligned, including their names."""
    cells = [list(row) for row in rows]
    numeric = [any(_is_number(row[i]) for row in cells) for i in range(len(head))]
    return part("table", head, cells, numeric)


def picture(figure: Figure, base: Path, name: str) -> str:
    """Write a figure as PNG and SVG, and return it as part of the page; the figure is cleared."""
    files = {kind: file_beside(base, name, kind) for kind in ("png", "svg")}
    with rc_context({"svg.hashsalt": name}):  # equal pictures give equal files: no random names, no date
        lay_out(figure, _DPI)
        for kind, file in files.items():
            how = {"metadata": {"Date": None}} if kind == "svg" else {"pil_kwargs": _PNG}
            save = partial(figure.savefig, format=kind, dpi=_DPI, **how)
            write_file(file, save, lasting=False)
        figure.clear()  # otherwise it stays in memory until garbage collection
    title = name.replace("_", " ")
    links = {kind.upper(): file for kind, file in files.items()}
    encoded = base64.b64encode(files["png"].read_bytes()).decode()
    return part("image", files["png"], title, encoded, links)


def _is_number(value: Any) -> bool:
    # a missing text is also NaN
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and value == value


def _text(value: Any) -> str:
    """Return a cell: integers unchanged, other numbers with four digits, missing values empty."""
    if value is None or value is pd.NA or value != value:
        return ""
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.4g}"
    return str(value)

"""Parts of an HTML page: tables, figures and animated images. All texts are escaped."""

import base64
import gc
import hashlib
import html
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from lmdyn.callbacks.observing.figures import lay_out, pixels
from lmdyn.callbacks.training.atomic_files import write_file

__all__ = [
    "CLAIMS_PAGE",
    "PHASES_PAGE",
    "REPORT_PAGE",
    "Place",
    "animation",
    "csv_table",
    "file_beside",
    "html_table",
    "links_between",
    "many_objects",
    "page",
    "picture",
    "renew_part",
]

REPORT_PAGE = "index.html"
CLAIMS_PAGE = "claims.html"
PHASES_PAGE = "phases.html"
_PAGES = {
    REPORT_PAGE: "Figures and tables",
    CLAIMS_PAGE: "Claims of the publication, with verdicts",
    PHASES_PAGE: "Phases of all curves on one axis",
}
_DPI = 150  # of a report's figures
_PNG = {"compress_level": 3}  # two thirds of the time of 6, for files larger by a tenth
_FRAME_MS = 500  # of an animated image

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
    names = ["page.js", *(["chart_rows.js", "chart.js"] if "data-chart=" in body else [])]
    scripts = [_web(name) for name in names]
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src {' '.join(map(_source, scripts))}"
    )
    links = "".join(
        f"<a href='#{_anchor(place)}' class='{'inner' if place.inner else ''}'>{html.escape(place.title)}</a>"
        for place in contents
    )
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title)}</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<style>{_web('page.css')}</style>{''.join(f'<script>{script}</script>' for script in scripts)}<body>"
        "<nav class='sections' aria-label='sections'><button type='button' class='theme' hidden>◐</button>"
        f"<details open><summary>Sections</summary>{links}</details></nav><main>{body}</main></body></html>"
    )


def _anchor(place: Place) -> str:
    return quote(place.anchor, errors="replace")


@cache
def _web(name: str) -> str:
    return (_WEB / name).read_text(encoding="utf-8")


def _source(script: str) -> str:
    """Return a script's hash in the form of the page's policy, so that no other script runs."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@contextmanager
def many_objects() -> Iterator[None]:
    """Disable Python's repeated search for garbage among all imported objects in this context."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def links_between(folder: Path, own: str = CLAIMS_PAGE) -> list[str]:
    """Return links to the other pages of a report; empty if there are none."""
    others = [name for name in _PAGES if name != own and (folder / name).is_file()]
    return (
        [f"<nav>{''.join(f'<a href={name!r}>{_PAGES[name]}</a>' for name in others)}</nav>"] if others else []
    )


def renew_part(folder: Path, begin: str, part: str, end: str) -> None:
    """Replace a part of a report that was written before it, between two comments; an earlier version gets links."""
    path = folder / REPORT_PAGE
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8")
    before, found, after = text.partition(begin)
    if found:
        renewed = f"{before}{begin}{part}{end}{after.partition(end)[2]}"
    else:
        links = "".join(links_between(folder, REPORT_PAGE))
        renewed = re.sub("<body>(<nav>.*?</nav>)?", lambda _: f"<body>{links}", text, count=1)
    if renewed != text:
        write_file(path, lambda unfinished: unfinished.write_text(renewed, encoding="utf-8"))


def file_beside(base: Path, name: str, suffix: str) -> Path:
    """Return ``<base>_<name>.<suffix>``; a slash in the name, as in a site, does not lead to another folder."""
    return base.with_name(f"{base.name}_{name}.{suffix}".replace("/", "_"))


def csv_table(table: pd.DataFrame, path: Path, name: str) -> str:
    """Write a table as CSV, and return it as part of the page; an index of names is its first column."""
    if not isinstance(table.index, pd.RangeIndex):
        table = table.reset_index(names=None if any(table.index.names) else "")
    table.to_csv(path, index=False)
    rows = html_table([str(c) for c in table.columns], table.astype(object).to_numpy())
    return f"<figure>{rows}<figcaption>{_title(name)} ({_link(path, 'CSV')})</figcaption></figure>"


def html_table(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return an HTML table; columns of numbers are right-aligned, including their names."""
    cells = [list(row) for row in rows]
    numeric = [any(_is_number(row[i]) for row in cells) for i in range(len(head))]
    kinds = [" class='n'" if number else "" for number in numeric]
    lines = [
        "".join(f"<{tag}{kind}>{text}</{tag}>" for kind, text in zip(kinds, texts, strict=True))
        for tag, texts in [
            ("th", [html.escape(name) for name in head]),
            *(("td", [_text(value) for value in row]) for row in cells),
        ]
    ]
    rows_of_it = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div class='scrolled'><table>{rows_of_it}</table></div>"


def picture(figure: Figure, base: Path, name: str) -> str:
    """Write a figure as PNG and SVG, and return it as part of the page; the figure is cleared."""
    files = {kind: file_beside(base, name, kind) for kind in ("png", "svg")}
    with rc_context({"svg.hashsalt": name}):  # equal pictures give equal files: no random names, no date
        lay_out(figure, _DPI)
        for kind, file in files.items():
            how = {"metadata": {"Date": None}} if kind == "svg" else {"pil_kwargs": _PNG}
            figure.savefig(file, dpi=_DPI, **how)
        figure.clear()  # otherwise it stays in memory until garbage collection
    links = ", ".join(_link(file, kind.upper()) for kind, file in files.items())
    return _image(files["png"], name, f" ({links})")


def animation(frames: Sequence[Figure], path: Path, name: str) -> str:
    """Write figures as the frames of an animated GIF, and return it as part of the page.

    Args:
        frames: figures, or states of one figure that are set on access, in order.
        path: path of the GIF.
        name: its name in the page.
    """
    first = frames[0]
    lay_out(first, first.get_dpi())
    pictures, figures = [], {}
    for figure in frames:
        if figure is not first:
            _lay_out_as(figure, first)
        pictures.append(Image.fromarray(pixels(figure)))
        figures[id(figure)] = figure
    for figure in figures.values():
        figure.clear()
    # one palette for all frames avoids flicker; the last frame has the most colours
    palette = pictures[-1].quantize(256)
    beginning, *others = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures)
    durations = [_FRAME_MS] * len(others) + [4 * _FRAME_MS]
    beginning.save(path, save_all=True, append_images=others, duration=durations, loop=0)
    return _image(path, name, f", {len(pictures)} observations ({_link(path, 'GIF')})")


def _lay_out_as(figure: Figure, first: Figure) -> None:
    """Give a frame the layout of the first if they have the same axes: nothing moves, and it is computed once."""
    if len(figure.axes) == len(first.axes):
        for own, other in zip(figure.axes, first.axes, strict=True):
            own.set_position(other.get_position(original=True), which="original")
        figure.set_layout_engine("none")


def _image(path: Path, name: str, about: str) -> str:
    encoded = base64.b64encode(path.read_bytes()).decode()
    return (
        f"<figure><img alt='{_title(name)}' src='data:image/{path.suffix[1:]};base64,{encoded}'>"
        f"<figcaption>{_title(name)}{about}</figcaption></figure>"
    )


def _title(name: str) -> str:
    return html.escape(name.replace("_", " "))


def _link(path: Path, text: str) -> str:
    """Return a link to a file next to the page, whose name might resemble an address (``javascript:…``)."""
    return f"<a href='{quote(os.fsencode(path.name))}'>{text}</a>"


def _is_number(value: Any) -> bool:
    # a missing text is also NaN
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and value == value


def _text(value: Any) -> str:
    """Return a cell: integers unchanged, other numbers with four digits, missing values empty."""
    if value is None or value is pd.NA or value != value:
        return ""
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.4g}"
    return html.escape(str(value))

"""Pages beside a report, and what the report says of them: verdicts of claims, a link to the phases."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import UndefinedError

from lmdyn.cli.pages.html_parts import html_table, part
from lmdyn.runs.atomic_files import write_file
from lmdyn.runs.provenance import write_json

REPORT_PAGE = "index.html"
CLAIMS_PAGE = "claims.html"
PHASES_PAGE = "phases.html"
_PAGES = {
    REPORT_PAGE: "Figures and tables",
    CLAIMS_PAGE: "Claims of the publication, with verdicts",
    PHASES_PAGE: "Phases of all curves on one axis",
}
_VERDICTS = "claims.json"


def links_between(folder: Path, own: str = CLAIMS_PAGE) -> list[str]:
    """Return links to the other pages of a report; empty if there are none."""
    others = {name: title for name, title in _PAGES.items() if name != own and (folder / name).is_file()}
    return [part("links", others)] if others else []


def linked(folder: Path, page: str) -> str:
    """Return what a report says of a page in its folder, between two comments; nothing if there is no such page."""
    begin, end = _comments(page)
    return f"{begin}{_said(folder, page)}{end}"


def renew(folder: Path, page: str) -> None:
    """Insert what is said of a page into a report that was written before."""
    begin, end = _comments(page)
    path = folder / REPORT_PAGE
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, found, after = text.partition(begin)
    renewed = f"{before}{linked(folder, page)}{after.partition(end)[2]}" if found else text
    if renewed != text:
        write_file(path, lambda unfinished: unfinished.write_text(renewed, encoding="utf-8"))


def write_verdicts(folder: Path, title: str, profiles: Sequence[Mapping[str, Any]]) -> None:
    """Write ``<folder>/claims.json``, next to the page of claims.

    Args:
        folder: folder of the page.
        title: title of the study.
        profiles: for each group of runs ``heading``, ``tally`` and ``claims``: name, statement, verdict, and the
            verdict after Holm's correction (empty if nothing was tested).
    """
    write_json(folder / _VERDICTS, {"title": title, "profiles": list(profiles)})


def _comments(page: str) -> tuple[str, str]:
    """Return the comments around it, which cannot occur in the escaped texts of a page."""
    name = Path(page).stem
    return f"<!--{name}-->", f"<!--/{name}-->"


def _said(folder: Path, page: str) -> str:
    if not (folder / page).is_file():
        return ""
    if page == PHASES_PAGE:
        return part("phases", page)
    try:
        content = json.loads((folder / _VERDICTS).read_text(encoding="utf-8"))
        profiles = [{**one, "table": _table(one["claims"])} for one in content["profiles"]]
        return part("claims", page, str(content["title"]), profiles)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UndefinedError):  # damaged
        return part("claims", page, "", [])


def _table(claims: Sequence[Mapping[str, Any]]) -> str:
    rows = [[str(claim[key]) for key in ("name", "says", "verdict", "after_holm")] for claim in claims]
    return html_table(["claim", "says", "verdict", "after Holm"], rows)

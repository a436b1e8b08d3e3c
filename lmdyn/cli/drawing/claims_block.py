"""The verdicts of claims at the top of a report: written with the page of claims, read if both are in one folder."""

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmdyn.callbacks.training.atomic_files import write_file
from lmdyn.cli.drawing.page import CLAIMS_PAGE, html_table, renew_part

__all__ = ["CLAIMS_ANCHOR", "claims_block", "renew_claims", "write_verdicts"]

CLAIMS_ANCHOR = "claims"
_FILE = "claims.json"
_BEGIN, _END = "<!--claims-->", "<!--/claims-->"  # cannot occur in the escaped texts of a page


def write_verdicts(folder: Path, title: str, profiles: Sequence[Mapping[str, Any]]) -> None:
    """Write ``<folder>/claims.json``, next to the page of claims.

    Args:
        folder: folder of the page.
        title: title of the study.
        profiles: for each group of runs ``heading``, ``tally`` and ``claims``: name, statement, verdict, and the
            verdict after Holm's correction (empty if nothing was tested).
    """
    content = json.dumps({"title": title, "profiles": list(profiles)}, indent=1, ensure_ascii=False)
    write_file(folder / _FILE, lambda unfinished: unfinished.write_text(content, encoding="utf-8"))


def claims_block(folder: Path) -> str:
    """Return the verdicts in a report's folder, as part of its page; if there are none, only a placeholder."""
    return f"{_BEGIN}{_verdicts(folder)}{_END}"


def renew_claims(folder: Path) -> None:
    """Insert the verdicts into a report that was written before them; one of an earlier version gets a link."""
    renew_part(folder, _BEGIN, _verdicts(folder), _END)


def _verdicts(folder: Path) -> str:
    if not (folder / CLAIMS_PAGE).is_file():
        return ""
    link = f"<a href='{CLAIMS_PAGE}'>Claims of the publication, with verdicts</a>"
    begin = f"<section id='{CLAIMS_ANCHOR}'><h2>claims</h2>"
    try:
        content = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        parts = [_profile(one) for one in content["profiles"]]
        title = html.escape(str(content["title"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # from an earlier version, or damaged
        return f"{begin}<p>{link}</p></section>"
    return f"{begin}<p>{title}. {link}</p>{''.join(parts)}</section>"


def _profile(one: Mapping[str, Any]) -> str:
    told = f"<p><strong>{html.escape(str(one['heading']))}</strong>: {html.escape(str(one['tally']))}.</p>"
    rows = [
        [str(claim["name"]), str(claim["says"]), str(claim["verdict"]), str(claim["after_holm"])]
        for claim in one["claims"]
    ]
    table = html_table(["claim", "says", "verdict", "after Holm"], rows)
    return f"{told}<details><summary>{len(rows)} claims</summary>{table}</details>"

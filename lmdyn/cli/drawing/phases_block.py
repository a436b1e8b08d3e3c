"""The link to the page of phases in a report: written with that page, read if both are in one folder."""

from pathlib import Path

from lmdyn.cli.drawing.page import PHASES_PAGE, renew_part

__all__ = ["PHASES_ANCHOR", "phases_block", "renew_phases"]

PHASES_ANCHOR = "phases"
_BEGIN, _END = "<!--phases-->", "<!--/phases-->"  # cannot occur in the escaped texts of a page


def phases_block(folder: Path) -> str:
    """Return the link of a report's page to that of the phases; if there is none, only a placeholder."""
    return f"{_BEGIN}{_link(folder)}{_END}"


def renew_phases(folder: Path) -> None:
    """Insert the link into a report that was written before; one of an earlier version gets it at the top."""
    renew_part(folder, _BEGIN, _link(folder), _END)


def _link(folder: Path) -> str:
    if not (folder / PHASES_PAGE).is_file():
        return ""
    return (
        f"<section id='{PHASES_ANCHOR}'><h2>phases</h2><p><a href='{PHASES_PAGE}'>All curves on one axis, with their "
        "change points</a></p></section>"
    )

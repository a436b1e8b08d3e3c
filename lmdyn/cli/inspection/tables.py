"""The page of ``lmdyn inspect``."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from torch import nn

from lmdyn.analysis.inspection.activations import resolve_sites
from lmdyn.analysis.inspection.sites import FoundSites
from lmdyn.cli.inspection.found import Inspection
from lmdyn.cli.inspection.measures import count_parameters

__all__ = ["print_page"]

_NOT_TRIED = "requirements met; not run here: it needs more than one pass"
_ALIKE = 6  # blocks that are listed individually


def print_page(found: Inspection) -> None:
    """Print the results to the standard output."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = 140
    grid = Table.grid(padding=(0, 2))
    for name, sentence in found.about.items():
        grid.add_row(name, sentence)
    console.print(grid)
    console.print()
    console.print(_sites_table(found.subject.module, found.sites))
    for sentence in found.sites.left_out:
        console.print(f"  {sentence}")
    console.print()
    console.print(_observers_table(found))


def _sites_table(module: nn.Module, sites: FoundSites) -> Table:
    table = Table(box=None, title="Sites", title_justify="left", padding=(0, 2), title_style="bold")
    for column in ("site", "path", "answers", "attention"):
        table.add_column(column, overflow="fold")
    for column in ("parameters", "share"):
        table.add_column(column, justify="right")
    total = count_parameters(module)
    modules = resolve_sites(module, sites.sites)
    counted: set[int] = set()
    rows: list[tuple[str, ...]] = []
    for name, path in sites.sites.items():
        parameters = {id(p): p.numel() for p in modules[name].parameters()}
        tied = bool(parameters) and parameters.keys() <= counted
        counted |= parameters.keys()
        size = sum(parameters.values())
        attention = sites.attention.get(name, "").removeprefix(f"{path}.")
        shape = str(tuple(sites.shapes.get(name, ())))
        rows.append(
            (name, path, shape, attention, f"{size:,}{' (tied)' if tied else ''}", _percent(size, total))
        )
    for row in _shortened(rows):
        table.add_row(*row)
    rest = total - sum(p.numel() for p in module.parameters() if id(p) in counted)
    if rest:
        table.add_row("(others)", "", "", "", f"{rest:,}", _percent(rest, total))
    return table


def _percent(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else ""


def _shortened(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Shorten runs of more than ``_ALIKE`` equal blocks to the first two and the last."""
    kept: list[tuple[str, ...]] = []
    run: list[tuple[str, ...]] = []

    def close() -> None:
        if len(run) > _ALIKE:
            kept.extend([*run[:2], ("…", f"{len(run) - 3} more alike", "", "", "", ""), run[-1]])
        else:
            kept.extend(run)
        run.clear()

    for row in rows:
        if run and row[2:] != run[-1][2:]:
            close()
        run.append(row)
    close()
    return kept


def _observers_table(found: Inspection) -> Table:
    table = Table(box=None, title="Observers", title_justify="left", padding=(0, 2), title_style="bold")
    for column in ("observer", "", "what it measures; or why it does not run, and the remedy"):
        table.add_column(column, overflow="fold")
    for asked in sorted(found.observers, key=lambda a: (bool(a.findings), not a.tried)):
        name = f"{asked.name} (configured)" if asked.configured else asked.name
        if not asked.findings:
            table.add_row(name, "runs", asked.measures + ("" if asked.tried else f" ({_NOT_TRIED})"))
        for i, why in enumerate(asked.why):
            table.add_row("" if i else name, "" if i else "no", why)
    return table

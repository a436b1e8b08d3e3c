"""The page of ``lmdyn inspect``."""

from itertools import groupby

from rich.console import Console
from rich.table import Table
from torch import nn

from lmdyn.analysis.inspection.activations import resolve_sites
from lmdyn.analysis.inspection.sites import FoundSites
from lmdyn.cli.inspecting.found import Inspection

__all__ = ["count_parameters", "print_page"]

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


def count_parameters(module: nn.Module) -> int:
    """Count all parameters; tied ones count once."""
    return sum(p.numel() for p in module.parameters())


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, title=title, title_justify="left", padding=(0, 2), title_style="bold")
    for column in columns:
        right = column in ("parameters", "share")
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    return table


def _sites_table(module: nn.Module, sites: FoundSites) -> Table:
    table = _table("Sites", "site", "path", "answers", "attention", "parameters", "share")
    total = count_parameters(module)
    modules = resolve_sites(module, sites.sites)
    counted: dict[int, int] = {}
    rows: list[tuple[str, ...]] = []
    for name, path in sites.sites.items():
        parameters = {id(p): p.numel() for p in modules[name].parameters()}
        tied = " (tied)" if parameters and parameters.keys() <= counted.keys() else ""
        counted |= parameters
        size = sum(parameters.values())
        attention = sites.attention.get(name, "").removeprefix(f"{path}.")
        shape = str(tuple(sites.shapes.get(name, ())))
        rows.append((name, path, shape, attention, f"{size:,}{tied}", _percent(size, total)))
    for _, alike in groupby(rows, key=lambda row: row[2:]):
        run = list(alike)
        if len(run) > _ALIKE:
            run[2:-1] = [("…", f"{len(run) - 3} more alike", "", "", "", "")]
        for row in run:
            table.add_row(*row)
    if rest := total - sum(counted.values()):
        table.add_row("(others)", "", "", "", f"{rest:,}", _percent(rest, total))
    return table


def _percent(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else ""


def _observers_table(found: Inspection) -> Table:
    table = _table("Observers", "observer", "", "what it measures; or why it does not run, and the remedy")
    for asked in sorted(found.observers, key=lambda a: (bool(a.findings), not a.tried)):
        name = f"{asked.name} (configured)" if asked.configured else asked.name
        if not asked.findings:
            table.add_row(name, "runs", asked.measures + ("" if asked.tried else f" ({_NOT_TRIED})"))
        for i, why in enumerate(asked.why):
            table.add_row("" if i else name, "" if i else "no", why)
    return table

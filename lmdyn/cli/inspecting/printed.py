"""Results of ``lmdyn inspect``, and their page."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.table import Table
from torch import nn

from lmdyn.analysis.inspection.activations import resolve_sites
from lmdyn.analysis.inspection.sites import FoundSites
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.requirements import Finding
from lmdyn.callbacks.observing.streaming_observer import StreamingObserver
from lmdyn.cli.inspecting.data import Data
from lmdyn.cli.inspecting.inspected_model import Subject

_NOT_TRIED = "requirements met; not run here, since the observer needs more than one pass"
_ALIKE = 6  # blocks that are listed individually


@dataclass(frozen=True)
class Asked:
    """An observer and its unmet requirements.

    Attributes:
        name: name of its class.
        observer: the instance, with defaults or as configured.
        findings: unmet requirements; empty if it runs.
        configured: whether the configuration contains it.
    """

    name: str
    observer: Observer
    findings: Sequence[Finding]
    configured: bool = False

    @property
    def tried(self) -> bool:
        """Whether it was called on a batch."""
        return isinstance(self.observer, StreamingObserver)

    @property
    def measures(self) -> str:
        """What it measures, according to its class."""
        return " ".join((inspect.getdoc(type(self.observer)) or "").partition("\n\n")[0].split())

    @property
    def why(self) -> list[str]:
        """Unmet requirements, one sentence each, those of the model first: other data would not resolve these."""
        return [f"{f.what}: {brief(str(f))}" for f in sorted(self.findings, key=lambda f: f.what == "data")]


@dataclass(frozen=True)
class Inspection:
    """The results.

    Attributes:
        subject: the model.
        data: the data shown to it.
        sites: its sites.
        about: what it is: sentence by name, one per line.
        observers: the configured ones first, then all others.
        forward: function that calls the model.
    """

    subject: Subject
    data: Data
    sites: FoundSites
    about: Mapping[str, str]
    observers: Sequence[Asked] = ()
    forward: str | None = None


def brief(text: str) -> str:
    """Shorten a sentence: cut long lists and the advice to declare a method in one's own class.

    Example:
        >>> brief("no module 'x'; there are: a, b, c, d, e, f, g, h, i; name one")
        "no module 'x'; there are: a, b, c, d, …; name one"
    """
    text = text.partition(", or add to your own ")[0]
    name = r"[\w.'@\[\]]+"

    def shortened(found: "re.Match[str]") -> str:
        return f"{found[1]}…{']' if found[0].endswith(']') else ''}"

    return re.sub(rf"((?:{name}, ){{4}})(?:{name}, ){{3,}}{name}", shortened, text)


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


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, title=title, title_justify="left", padding=(0, 2), title_style="bold")
    for column in columns:
        right = column == "parameters"
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    return table


def _sites_table(module: nn.Module, sites: FoundSites) -> Table:
    table = _table("Sites", "site", "path", "answers", "attention", "parameters")
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
        rows.append((name, path, shape, attention, f"{size:,}{tied}"))
    for _, alike in groupby(rows, key=lambda row: row[2:]):
        run = list(alike)
        if len(run) > _ALIKE:
            run[2:-1] = [("…", f"{len(run) - 3} more alike", "", "", "")]
        for row in run:
            table.add_row(*row)
    return table


def _observers_table(found: Inspection) -> Table:
    table = _table(
        "Observers", "observer", "", "what the observer measures, or why the observer does not run"
    )
    for asked in sorted(found.observers, key=lambda a: (bool(a.findings), not a.tried)):
        name = f"{asked.name} (configured)" if asked.configured else asked.name
        if not asked.findings:
            table.add_row(name, "runs", asked.measures + ("" if asked.tried else f" ({_NOT_TRIED})"))
        for i, why in enumerate(asked.why):
            table.add_row("" if i else name, "" if i else "no", why)
    return table

"""``lmdyn claims`` without runs: the studies, and the claims of a study. Imports only small modules."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from lmdyn.claims import STUDIES, Study, study_of_file

__all__ = ["console", "find_study", "list_claims", "list_studies"]


def find_study(name: str) -> Study:
    """Return a study of lmdyn, or the study in a user's file.

    Raises:
        ValueError: if the study is unknown; the message has the nearest name and the list.
    """
    if name.endswith(".py"):
        return study_of_file(Path(name))
    if name in STUDIES:
        return STUDIES[name]
    first = " (the study comes first: lmdyn claims STUDY RUN …)" if Path(name).exists() else ""
    from lmdyn.analysis.inspection.attributes import did_you_mean  # slow import

    near = did_you_mean(name, STUDIES) or ":"
    raise ValueError(f"unknown study {name!r}{near} studies are {', '.join(STUDIES)}{first}")


def list_studies() -> None:
    """Print the studies."""
    table = Table("study", "claims", "publication", box=None, padding=(0, 2))
    for name, study in STUDIES.items():
        table.add_row(name, str(len(study.claims)), f"{study.publication}: {study.title}")
    page = console()
    page.print(table)
    page.print("\nlmdyn claims STUDY lists claims; lmdyn claims STUDY RUN … tests claims on your runs")


def list_claims(name: str) -> None:
    """Print the claims of a study: what each says, and the region in which its number must lie."""
    study = find_study(name)
    page = console()
    page.print(f"{study.name}: {study.publication}, {study.title}\n")
    columns = ("claim", "what the publication says", "number", "true where")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for claim in study.claims:
        for i, part in enumerate(claim.parts):
            own = ("", f"{claim.combine} of these") if i else (claim.name, f"{claim.says} ({claim.where})")
            table.add_row(*own, part.label, str(part.region))
    page.print(table)
    page.print("\nlmdyn claims STUDY RUN … tests these claims on your runs")


def console() -> Console:
    """Return the console on which tables are printed; wide if the output is not a terminal."""
    made = Console(markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = 160
    return made

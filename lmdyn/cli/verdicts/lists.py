"""``lmdyn claims`` without runs: lists of the studies, and of one study's claims. Imports only small modules."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from lmdyn.claims import STUDIES, Study, study_of_file
from lmdyn.cli.verdicts.words import number_words, published_words, region_words

__all__ = ["console", "find_study", "list_claims", "list_studies"]

_WIDTH = 160  # if the output is not a terminal


def find_study(name: str) -> Study:
    """Return a study of lmdyn, or the study in a user's file.

    Raises:
        ValueError: if the study is unknown; the message has the nearest name and the list.
    """
    if name.endswith(".py"):
        return study_of_file(Path(name))
    if name in STUDIES:
        return STUDIES[name]
    from lmdyn.analysis.inspection.attributes import did_you_mean  # slow import

    first = " (the study comes first: lmdyn claims STUDY RUN …)" if Path(name).exists() else ""
    raise ValueError(
        f"unknown study {name!r}{did_you_mean(name, STUDIES) or ';'} studies: {', '.join(STUDIES)}{first}"
    )


def list_studies() -> None:
    """Print the studies."""
    table = Table(box=None, padding=(0, 2), title="Studies", title_justify="left", title_style="bold")
    for column in ("study", "claims", "publication"):
        table.add_column(column, overflow="fold")
    for name in STUDIES:
        study = STUDIES[name]
        table.add_row(name, str(len(study.claims)), f"{study.publication}: {study.title}")
    page = console()
    page.print(table)
    page.print("\nlmdyn claims STUDY: its claims; lmdyn claims STUDY RUN …: which of them hold in your runs")


def list_claims(name: str) -> None:
    """Print the claims of a study: the number, and the region in which it must lie."""
    study = find_study(name)
    page = console()
    page.print(f"{study.name}: {study.publication}, {study.title}\n")
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for column in ("claim", "what the publication says", "the number of a run", "true where", "published"):
        table.add_column(column, overflow="fold")
    for claim in study.claims:
        for i, part in enumerate(claim.parts):
            first = (
                (claim.name, f"{claim.says} ({claim.where})") if i == 0 else ("", f"{claim.combine} of these")
            )
            published = published_words(claim.published) if i == 0 else ""
            table.add_row(*first, number_words(part.number), region_words(part.region), published)
    page.print(table)
    page.print("\nlmdyn claims STUDY RUN …: which of them hold in your runs")


def console() -> Console:
    """Return the console on which tables are printed; wide if the output is not a terminal."""
    made = Console(markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = _WIDTH
    return made

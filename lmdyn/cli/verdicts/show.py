"""``lmdyn claims``: which of a publication's claims hold in some runs."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lmdyn.claims import Study
from lmdyn.claims.judge import ClaimJudgement, judge
from lmdyn.cli.studies.run_folders import find_profiles
from lmdyn.cli.verdicts.lists import console, find_study
from lmdyn.cli.verdicts.tables import Judged, groups_of, heading, reasons_of, tally

__all__ = ["judge_profiles", "show_claims"]

log = logging.getLogger(__name__)

_COLUMNS = {
    "claim": 8, "what the publication says": 8, "number, 95 % interval": 7, "true where": 4, "floor": 7, "verdict": 7,
    "after Holm": 4,
}  # fmt: skip
_LONGEST = 300  # of what is missing
_COLOURS = {"holds": "green", "fails": "red", "undecided": "yellow", "void": "magenta", "not measured": "dim"}


def show_claims(
    name: str,
    given: Sequence[Path],
    *,
    markdown: Path | None = None,
    figures: Path | None = None,
    out: Path | None = None,
    confidence: float = 0.95,
) -> None:
    """The command: judge, print, and write what is asked for.

    Args:
        name: of the study.
        given: run folders (judged together), folders of runs (each by itself), records.
        markdown: file for the tables.
        figures: folder for the figures.
        out: folder of a report, for the page.
        confidence: of intervals.

    Raises:
        FileNotFoundError: no such run.
        ValueError: no such study; no observations; records of another study; runs of different conditions.
    """
    study = find_study(name)
    judged = judge_profiles(study, given, confidence)
    for one in judged:
        _print(one)
    drawn: dict[tuple[str, str], Path] = {}
    if figures is not None:
        from lmdyn.cli.verdicts.page import draw_figures

        drawn = draw_figures(judged, figures)
        log.info("%d figures: %s", len(drawn), figures)
    if markdown is not None:
        from lmdyn.cli.verdicts.markdown import write_markdown

        write_markdown(study, judged, given, markdown, drawn)
        log.info("tables: %s", markdown)
    if out is not None:
        from lmdyn.cli.verdicts.page import write_page

        log.info("page: %s", write_page(study, judged, out))


def judge_profiles(study: Study, given: Sequence[Path], confidence: float = 0.95) -> list[Judged]:
    """Judge the claims of a study in each profile of what is given; see :func:`show_claims`."""
    profiles = find_profiles(given)
    for profile in profiles:
        if profile.study not in (None, study.name):
            raise ValueError(
                f"{profile.name} holds records for the claims of {profile.study}, and they lack what those of "
                f"{study.name} read: lmdyn claims {profile.study} …, or give the runs themselves"
            )
    if not any(run.observers() or run.tested for profile in profiles for run in profile.runs):
        names = ", ".join(run.name for profile in profiles for run in profile.runs)
        raise ValueError(f"{names}: no observations: `lmdyn analyze RUN --config OBSERVERS.yaml` makes them")
    return [Judged(profile, judge(study, profile.runs, confidence)) for profile in profiles]


def _print(judged: Judged) -> None:
    page = console()
    judgement = judged.judgement
    page.print(f"{judgement.study.name}: {heading(judged.profile)}: {tally(judgement)}.\n")
    groups = groups_of(judgement)
    page.print(_table(header=True))
    for group in groups:
        if not group.measured:
            continue
        if len(group.rows) > 1:
            page.print(Text(f"\n{group.title}", style="bold"))
        table = _table(header=False)
        for cells in group.cells():
            number = f"{cells.mean} {cells.interval}".replace("– –", "–").removesuffix(" –")
            word = re.split(r" \(|,|:", cells.verdict)[0]
            verdict = Text(cells.verdict, style=_COLOURS.get(word, ""))
            table.add_row(
                cells.name, cells.says, number, cells.region, cells.floor, verdict, cells.after_holm
            )
        page.print(table)
    page.print()
    for group in groups:
        if group.decides and group.measured:
            page.print(f"{group.title}: {group.decides}")
    _print_reasons(page, [row for row in judgement if row.verdict != "not measured"], "reasons", "")
    _print_reasons(page, list(judgement), "exploratory", "exploratory: ")
    _print_missing(page, [row for row in judgement if row.verdict == "not measured"])
    page.print()


def _table(*, header: bool) -> Table:
    """A table of the width of the page, so that those of all questions have equal columns."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, expand=True, show_header=header)
    for column, ratio in _COLUMNS.items():
        table.add_column(column, overflow="fold", ratio=ratio)
    return table


def _print_reasons(page: Console, rows: Sequence[ClaimJudgement], which: str, prefix: str) -> None:
    for reason, names in reasons_of(rows, which).items():
        told = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        page.print(f"{prefix}{told}: {reason}")


def _print_missing(page: Console, rows: Sequence[ClaimJudgement]) -> None:
    """What is not measured, by the line that would measure it."""
    lines: dict[str, list[ClaimJudgement]] = {}
    for row in rows:
        lines.setdefault(row.reasons[-1], []).append(row)
    for line, found in lines.items():
        page.print(f"not measured: {', '.join(row.claim.name for row in found)}")
        page.print(f"  {line}")
        missing = found[0].reasons[0]
        page.print(f"  missing: {missing[:_LONGEST]}{' …' if len(missing) > _LONGEST else ''}")

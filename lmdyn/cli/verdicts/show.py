"""``lmdyn claims``: which of a publication's claims hold in given runs."""

import fnmatch
import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lmdyn.claims import Study
from lmdyn.claims.judge import ClaimJudgement, StudyJudgement, judge
from lmdyn.claims.runs import RunFolder
from lmdyn.cli.studies.costs import cost_words
from lmdyn.cli.studies.made_by import not_ended_words
from lmdyn.cli.studies.run_folders import Profile, find_profiles
from lmdyn.cli.verdicts.lists import console, find_study
from lmdyn.cli.verdicts.tables import Judged, elsewhere, groups_of, heading, reasons_of, shown, tally

__all__ = ["judge_profiles", "show_claims"]

log = logging.getLogger(__name__)

_COLUMNS = {
    "claim": 8, "what the publication says": 8, "number, 95 % interval": 7, "true where": 4, "floor": 7, "verdict": 7,
    "after Holm": 4,
}  # fmt: skip
_LONGEST = 300  # characters of the text on what is missing
_COLOURS = {"holds": "green", "fails": "red", "undecided": "yellow", "void": "magenta", "not measured": "dim"}


def show_claims(
    name: str,
    given: Sequence[Path],
    *,
    markdown: Path | None = None,
    figures: Path | None = None,
    out: Path | None = None,
    only: Sequence[str] = (),
    confidence: float = 0.95,
) -> None:
    """Run the command: judge, print, and write the requested files.

    Args:
        name: name of the study.
        given: run folders (judged together), folders of runs (each judged separately), records.
        markdown: file for the tables.
        figures: folder for the figures.
        out: folder of a report, for the page.
        only: names of the claims to show, with ``*`` for any text; all claims are judged.
        confidence: confidence of the intervals.

    Raises:
        FileNotFoundError: if a run does not exist.
        ValueError: if study or claim are unknown, there are no observations, records are of another study, or runs
            have different conditions.
    """
    study = find_study(name)
    chosen = _chosen(study, only)
    judged = judge_profiles(study, given, confidence)
    if only:
        judged = [_shown(one, chosen) for one in judged]
    for one in judged:
        _print(one, elsewhere(one, judged))
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
    """Judge the claims of a study in each profile of the given folders; see :func:`show_claims`."""
    profiles = find_profiles(given)
    for profile in profiles:
        if profile.study not in (None, study.name):
            raise ValueError(
                f"{profile.name} contains records for the claims of {profile.study}, which lack what the claims of "
                f"{study.name} read: lmdyn claims {profile.study} …, or give the runs themselves"
            )
    if not any(run.observers() or run.tested for profile in profiles for run in profile.runs):
        names = ", ".join(run.name for profile in profiles for run in profile.runs)
        raise ValueError(
            f"{names}: no observations: make them with `lmdyn analyze RUN --config OBSERVERS.yaml`"
        )
    return [Judged(profile, _judge(study, profile, confidence)) for profile in profiles]


def _judge(study: Study, profile: Profile, confidence: float) -> StudyJudgement:
    try:
        return judge(study, profile.runs, confidence)
    except ValueError as error:
        folders = dict.fromkeys(run.path.parent for run in profile.runs if isinstance(run, RunFolder))
        if profile.name or len(folders) < 2:
            raise
        told = " ".join(os.path.relpath(folder) for folder in folders)
        raise ValueError(
            f"{error}. The runs are in {len(folders)} folders; to judge each separately, give the folders instead of "
            f"their runs: lmdyn claims {study.name} {told}"
        ) from error


def _shown(judged: Judged, names: Collection[str]) -> Judged:
    rows = tuple(row for row in judged.judgement if row.claim.name in names)
    return replace(judged, judgement=replace(judged.judgement, rows=rows))


def _chosen(study: Study, only: Sequence[str]) -> set[str]:
    names = [claim.name for claim in study.claims]
    chosen: set[str] = set()
    for pattern in only:
        if not (found := fnmatch.filter(names, pattern)):
            from lmdyn.analysis.inspection.attributes import did_you_mean

            raise ValueError(
                f"--only: {study.name} has no claim {pattern!r}{did_you_mean(pattern, names) or ';'} "
                f"`lmdyn claims {study.name}` lists its {len(names)}"
            )
        chosen.update(found)
    return chosen


def _print(judged: Judged, measured: Mapping[str, str]) -> None:
    page = console()
    judgement = judged.judgement
    page.print(
        f"{judgement.study.name}: {heading(judged.profile)}:{shown(judgement)} {tally(judgement, measured)}."
    )
    if not_ended := not_ended_words(judged.profile.runs):
        page.print(f"{not_ended[0].upper()}{not_ended[1:]}.")
    if cost := cost_words(judged.profile.costs):
        page.print(f"The runs {cost}.")
    page.print()
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
    lacking = [row for row in judgement if row.verdict == "not measured"]
    _print_missing(page, [row for row in lacking if row.claim.name not in measured])
    page.print()


def _table(*, header: bool) -> Table:
    """Return a table as wide as the page, so that columns of all questions align."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, expand=True, show_header=header)
    for column, ratio in _COLUMNS.items():
        table.add_column(column, overflow="fold", ratio=ratio)
    return table


def _print_reasons(page: Console, rows: Sequence[ClaimJudgement], which: str, prefix: str) -> None:
    for reason, names in reasons_of(rows, which).items():
        told = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        page.print(f"{prefix}{told}: {reason}")


def _print_missing(page: Console, rows: Sequence[ClaimJudgement]) -> None:
    """Print what is not measured, grouped by the command that would measure it."""
    lines: dict[str, list[ClaimJudgement]] = {}
    for row in rows:
        lines.setdefault(row.reasons[-1], []).append(row)
    for line, found in lines.items():
        page.print(f"not measured: {', '.join(row.claim.name for row in found)}")
        page.print(f"  {line}")
        missing = found[0].reasons[0]
        page.print(f"  missing: {missing[:_LONGEST]}{' …' if len(missing) > _LONGEST else ''}")

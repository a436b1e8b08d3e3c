"""``lmdyn claims``: which of a publication's claims hold in given runs."""

import fnmatch
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from lmdyn.analysis.inspection.attributes import did_you_mean
from lmdyn.claims.chains.made_by import not_ended_words
from lmdyn.claims.claim import Study
from lmdyn.claims.judge import judge
from lmdyn.claims.profiles import find_profiles
from lmdyn.claims.rows import Source
from lmdyn.claims.verdicts.coverage import coverage_table, lacking_sources, observers_yaml
from lmdyn.claims.verdicts.lists import console, find_study
from lmdyn.claims.verdicts.tables import Judged, count, heading, measured_elsewhere, questions_of
from lmdyn.claims.verdicts.words import summary_words, verdict_words

__all__ = ["judge_profiles", "show_claims"]

log = logging.getLogger(__name__)

_COLOURS = {
    "holds": "green", "smaller than required": "cyan", "fails": "red", "undecided": "yellow",
    "not within N tokens": "yellow", "void": "magenta", "not measured": "dim",
}  # fmt: skip


def show_claims(
    name: str,
    given: Sequence[Path],
    *,
    markdown: Path | None = None,
    out: Path | None = None,
    only: Sequence[str] = (),
    write: Path | None = None,
    confidence: float = 0.95,
) -> None:
    """Run the command: judge, print, and write the requested files.

    Args:
        name: name of the study.
        given: run folders (judged together), folders of runs (each judged separately), records.
        markdown: file for the summary, with the table of all claims next to it.
        out: folder of a report, for the page.
        only: names of the claims to show, with ``*`` for any text; all claims are judged.
        write: file for a yaml with the observers that would measure the other claims.
        confidence: confidence of the intervals.

    Raises:
        FileNotFoundError: if a run does not exist.
        ValueError: if study or claim are unknown, records are of another study, or runs
            have different conditions.
    """
    study = find_study(name)
    names = [claim.name for claim in study.claims]
    for pattern in only:
        if not fnmatch.filter(names, pattern):
            near = did_you_mean(pattern, names) or ";"
            raise ValueError(
                f"--only: {name} has no claim {pattern!r}{near} `lmdyn claims {name}` lists all claims"
            )
    judged = judge_profiles(study, given, confidence)
    if only:
        chosen = {claim for pattern in only for claim in fnmatch.filter(names, pattern)}
        for i, one in enumerate(judged):
            rows = tuple(row for row in one.judgement if row.claim.name in chosen)
            judged[i] = replace(one, judgement=replace(one.judgement, rows=rows))
    lacking: dict[Source, list[str]] = {}
    for one in judged:
        of_one = lacking_sources(one, measured_elsewhere(one, judged))
        lacking |= of_one
        _print(one, of_one)
    if write is not None:
        write.write_text(observers_yaml(study.name, lacking), encoding="utf-8")
        log.info("written: %s", write)
    if markdown is not None:
        from lmdyn.claims.verdicts.verdict_page import write_summary

        write_summary(study, judged, given, markdown)
        log.info("summary: %s", markdown)
    if out is not None:
        from lmdyn.claims.verdicts.verdict_page import write_page

        log.info("page: %s", write_page(study, judged, out))


def judge_profiles(study: Study, given: Sequence[Path], confidence: float = 0.95) -> list[Judged]:
    """Judge the claims of a study in each profile of the given folders; see :func:`show_claims`."""
    profiles = find_profiles(given)
    for profile in profiles:
        if profile.study not in (None, study.name):
            raise ValueError(
                f"{profile.name} contains records for the claims of {profile.study}, not of {study.name}: use "
                f"lmdyn claims {profile.study} …, or give the runs instead of the records"
            )
    return [Judged(profile, judge(study, profile.runs, confidence)) for profile in profiles]


def _print(one: Judged, lacking: Mapping[Source, list[str]]) -> None:
    """Print which claims the runs can answer, their table, and the reasons of their verdicts."""
    page = console()
    judgement = one.judgement
    some = len(judgement.rows) < len(judgement.study.claims)  # chosen ones, of which more is said
    answered = sum(row.verdict != "not measured" for row in judgement)
    page.print(
        f"{judgement.study.name}: {heading(one.profile)}: the observations answer {answered} of "
        f"{len(judgement.rows)} claim{'s' * (len(judgement.rows) != 1)}"
    )
    page.print(coverage_table(one, lacking))
    page.print(f"\n{count([r.verdict for r in judgement])}")
    if not_ended := not_ended_words(one.profile.runs):
        page.print(not_ended)
    columns = ("claim", "number, 95 % interval", "true where", "floor", "verdict", "after Holm")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for question in (each for each in questions_of(judgement) if each.measured):
        table.add_row(Text(f"\n{question.title}", style="bold"))
        for row in question.rows:
            for i, part in enumerate(row.claim.parts):
                judged = row.parts[i] if row.parts else None
                told = (row.claim.variant or row.claim.name) if some else question.told(row)
                name = told if i == 0 else f"… {part.label}"
                colour = _COLOURS[row.verdict]
                whole = summary_words(row.floor), Text(verdict_words(row), style=colour), row.after_holm
                table.add_row(name, summary_words(judged), str(part.region), *(whole if i == 0 else ()))
    if table.row_count:
        page.print(table)
    reasons: dict[str, list[str]] = {}
    for row in judgement:
        for reason in (*row.reasons, *row.exploratory) if some or row.verdict != "not measured" else ():
            reasons.setdefault(reason, []).append(row.claim.name)
    for reason, names in reasons.items():
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        page.print(f"{', '.join(names[:6])}{more}: {reason}")

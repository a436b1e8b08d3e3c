"""``lmdyn claims``: which of a publication's claims hold in given runs."""

import fnmatch
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from lmdyn.claims.chains.made_by import not_ended_words
from lmdyn.claims.claim import Study
from lmdyn.claims.judge import judge
from lmdyn.claims.profiles import find_profiles
from lmdyn.claims.verdicts.lists import console, find_study, nearest
from lmdyn.claims.verdicts.tables import Judged, count, heading, measured_elsewhere, questions_of
from lmdyn.claims.verdicts.words import summary_words, verdict_words

__all__ = ["judge_profiles", "show_claims"]

log = logging.getLogger(__name__)

_COLOURS = {"holds": "green", "fails": "red", "undecided": "yellow", "void": "magenta", "not measured": "dim"}


def show_claims(
    name: str,
    given: Sequence[Path],
    *,
    markdown: Path | None = None,
    out: Path | None = None,
    only: Sequence[str] = (),
    confidence: float = 0.95,
) -> None:
    """Run the command: judge, print, and write the requested files.

    Args:
        name: name of the study.
        given: run folders (judged together), folders of runs (each judged separately), records.
        markdown: file for the summary, with the table of all claims next to it.
        out: folder of a report, for the page.
        only: names of the claims to show, with ``*`` for any text; all claims are judged.
        confidence: confidence of the intervals.

    Raises:
        FileNotFoundError: if a run does not exist.
        ValueError: if study or claim are unknown, there are no observations, records are of another study, or runs
            have different conditions.
    """
    study = find_study(name)
    names = [claim.name for claim in study.claims]
    for pattern in only:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"--only: {study.name} has no claim {pattern!r}{nearest(pattern, names)}")
    judged = judge_profiles(study, given, confidence)
    if only:
        chosen = {claim for pattern in only for claim in fnmatch.filter(names, pattern)}
        rows = [tuple(row for row in one.judgement if row.claim.name in chosen) for one in judged]
        judged = [
            replace(one, judgement=replace(one.judgement, rows=of))
            for one, of in zip(judged, rows, strict=True)
        ]
    for one in judged:
        _print(one, measured_elsewhere(one, judged))
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
                f"{profile.name} contains records for the claims of {profile.study}, which lack what the claims of "
                f"{study.name} read: lmdyn claims {profile.study} …, or give the runs themselves"
            )
    runs = [run for profile in profiles for run in profile.runs]
    if not any(run.observers() or run.tested for run in runs):
        raise ValueError(
            f"{', '.join(run.name for run in runs)}: no observations: make them with `lmdyn analyze RUN --config "
            "OBSERVERS.yaml`"
        )
    return [Judged(profile, judge(study, profile.runs, confidence)) for profile in profiles]


def _print(one: Judged, elsewhere: set[str]) -> None:
    """Print a table of the claims that were measured, the reasons of their verdicts, and what is missing."""
    page = console()
    judgement = one.judgement
    shown, of = len(judgement.rows), len(judgement.study.claims)
    told = f"{shown} of {of} claims are shown: " if shown < of else ""
    page.print(
        f"{judgement.study.name}: {heading(one.profile)}: {told}{count([r.verdict for r in judgement])}"
    )
    if not_ended := not_ended_words(one.profile.runs):
        page.print(not_ended)
    columns = ("claim", "number, 95 % interval", "true where", "floor", "verdict", "after Holm")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for question in questions_of(judgement):
        if question.measured:
            table.add_row(Text(f"\n{question.title}", style="bold"))
        for row in question.rows if question.measured else ():
            for i, part in enumerate(row.claim.parts):
                judged = row.parts[i] if row.parts else None
                name = (row.claim.variant or row.claim.name) if i == 0 else f"… {part.label}"
                colour = _COLOURS[row.verdict]
                whole = summary_words(row.floor), Text(verdict_words(row), style=colour), row.after_holm
                table.add_row(name, summary_words(judged), str(part.region), *(whole if i == 0 else ()))
    page.print(table)
    reasons: dict[str, list[str]] = {}
    for row in judgement:
        if row.verdict != "not measured":
            for reason in (*row.reasons, *row.exploratory):
                reasons.setdefault(reason, []).append(row.claim.name)
        elif row.claim.name not in elsewhere:
            reasons.setdefault(f"not measured: {'; '.join(row.reasons)}", []).append(row.claim.name)
    for reason, names in reasons.items():
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        page.print(f"{', '.join(names[:6])}{more}: {reason}")

"""The verdicts of a study as files: a summary in Markdown with a CSV table, and a page of a report with figures."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lmdyn.claims.chains.made_by import made_by
from lmdyn.claims.claim import Study
from lmdyn.claims.judge import ClaimJudgement
from lmdyn.claims.rendering import render
from lmdyn.claims.verdicts.question_figures import question_figure
from lmdyn.claims.verdicts.tables import (
    Judged,
    count,
    heading,
    measured_elsewhere,
    questions_of,
    verdict_table,
)
from lmdyn.claims.verdicts.words import HOW, number_words, published_words, summary_words, verdict_words
from lmdyn.cli.pages.html_parts import Place, html_table, page, picture
from lmdyn.cli.pages.linked_pages import CLAIMS_PAGE, links_between, renew, write_verdicts
from lmdyn.runs.atomic_files import write_file

__all__ = ["write_page", "write_summary"]

_HEAD = ("claim", "number", "seeds alone", "texts alone", "true where", "floor", "verdict", "after Holm")


def write_summary(study: Study, judged: Sequence[Judged], given: Sequence[Path], path: Path) -> None:
    """Write one row for each question as Markdown, and all numbers next to it as CSV; equal observations, equal files.

    Args:
        study: the study.
        judged: its profiles.
        given: the arguments that were judged, for the line that says how the file was made.
        path: the Markdown file; the table has its name with the ending ``.csv``.
    """
    table = verdict_table(judged)
    write_file(
        path.with_suffix(".csv"),
        lambda unfinished: table.to_csv(unfinished, index=False, float_format="%.6g", lineterminator="\n"),
    )
    notes = path.with_name(f"{path.stem}_notes.md")
    text = render(
        __package__,
        "summary.md",
        study=study,
        given=" ".join(map(_portable, given)),
        csv=path.with_suffix(".csv").name,
        notes=notes.name if notes.exists() else "",
        profiles=[_profile(one, judged) for one in judged],
        first_number=_first_number,
        cell=lambda text: str(text).replace("|", "\\|").replace("\n", " "),
    )
    write_file(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))


def write_page(study: Study, judged: Sequence[Judged], out: Path) -> Path:
    """Write ``<out>/claims.html``, self-contained, and its figures as PNG and SVG next to it.

    A report in the same folder and this page link to each other.
    """
    out.mkdir(parents=True, exist_ok=True)
    profiles = [_profile(one, judged) for one in judged]
    contents = []
    for profile, one in zip(profiles, judged, strict=True):
        contents.append(Place(profile["anchor"], profile["heading"]))
        base = out / "_".join(part for part in (study.name, one.profile.name) if part)
        for question in profile["questions"]:
            contents.append(Place(f"{profile['anchor']}_{question.name}", question.title, inner=True))
            figure = question_figure(question.title, question.rows)
            profile["pictures"][question.name] = Markup(
                picture(figure, base, question.name) if figure else ""
            )
    body = render(
        __package__,
        "claims.html",
        study=study,
        how=HOW,
        links=Markup("".join(links_between(out))),
        profiles=profiles,
        table=lambda question: Markup(
            html_table(_HEAD, [c for row in question.rows for c in _cells(row, question.told(row))])
        ),
        details=_details,
    )
    text = page(f"lmdyn: {study.name}", [body], contents)
    write_file(out / CLAIMS_PAGE, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))
    told = [
        {
            "heading": profile["heading"],
            "tally": profile["counts"],
            "claims": [_told(row) for row in one.judgement],
        }
        for profile, one in zip(profiles, judged, strict=True)
    ]
    write_verdicts(out, study.title, told)
    renew(out, CLAIMS_PAGE)
    return out / CLAIMS_PAGE


def _told(row: ClaimJudgement) -> dict[str, str]:
    claim = row.claim
    return {"name": claim.name, "says": claim.says, "verdict": row.verdict, "after_holm": row.after_holm}


def _profile(one: Judged, judged: Sequence[Judged]) -> dict[str, Any]:
    """Return what summary and page say of one group of runs; what other runs of the page measure is left out."""
    elsewhere = measured_elsewhere(one, judged)
    asked = [q for q in questions_of(one.judgement) if not {row.claim.name for row in q.rows} <= elsewhere]
    commands: dict[str, list[str]] = {}
    for row in one.judgement:
        if row.verdict == "not measured" and row.claim.name not in elsewhere:
            commands.setdefault(row.reasons[-1], []).append(row.claim.name)
    return {
        "anchor": f"runs{[other is one for other in judged].index(True)}",
        "name": one.profile.name or "runs",
        "heading": heading(one.profile),
        "counts": f"questions: {count([q.answer() for q in asked])}",
        "made": list(made_by(one.profile.runs)),
        "changed": [r for r in one.judgement if r.rules_1 not in (None, (r.verdict, r.after_holm))],
        "not_measured": commands,
        "questions": [question for question in asked if question.measured],
        "pictures": {},
    }


def _first_number(row: ClaimJudgement) -> str:
    """Return the first number of a claim, with its variant; the table has the others."""
    if not row.parts:
        return row.claim.variant or "–"
    part, variant = row.parts[0], f" ({row.claim.variant})" if row.claim.variant else ""
    return f"{part.label or row.claim.name}{variant}: {summary_words(part)}; true where {part.region}"


def _cells(row: ClaimJudgement, name: str) -> Iterator[list[str]]:
    for i, part in enumerate(row.claim.parts):
        judged = row.parts[i] if row.parts else None
        seeds, text = (judged.seeds_interval, judged.text_interval) if judged else (None, None)
        intervals = ["–" if ends is None else f"[{ends[0]:.3g}, {ends[1]:.3g}]" for ends in (seeds, text)]
        whole = [summary_words(row.floor), verdict_words(row), row.after_holm] if i == 0 else [""] * 3
        label = part.label if len(row.claim.parts) > 1 else ""
        yield [
            ": ".join(filter(None, (name, label))),
            summary_words(judged),
            *intervals,
            str(part.region),
            *whole,
        ]


def _details(row: ClaimJudgement) -> Iterator[tuple[str, str]]:
    """Yield further facts about a claim that its table does not show, by name."""
    claim = row.claim
    yield "says", f"{claim.says} ({claim.where})"
    for part, judged in zip(claim.parts, row.parts or [None] * len(claim.parts), strict=True):
        yield part.label or "number", number_words(part.number)
        if judged is not None:
            yield "seeds", ", ".join(f"{seed}: {e.value:.4g}" for seed, e in judged.estimates.items())
            if judged.components is not None:
                yield (
                    "variance of initialisation, order of data, rest",
                    "{:.3g}, {:.3g}, {:.3g}".format(*judged.components[:3]),
                )
            if judged.of_texts is not None:
                yield "variance of texts, of seeds with one text", "{:.3g}, {:.3g}".format(*judged.of_texts)
    yield "smallest difference that matters", claim.matters
    yield "published", published_words(claim.published)
    yield "floor", claim.floor if isinstance(claim.floor, str) else number_words(claim.floor)
    yield "judged only where", "; ".join(f"{c.says} ({c.region})" for c in claim.void_unless)
    if row.rules_1 not in (None, (row.verdict, row.after_holm)):
        yield "by version 1 of the rules", "{}, after Holm {}".format(*row.rules_1)
    yield "why", "; ".join(row.reasons)
    yield "exploratory", "; ".join(row.exploratory)


def _portable(path: Path) -> str:
    """Return a path fit for a repository: relative to the working directory, or only its name."""
    path = path.resolve()
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.name

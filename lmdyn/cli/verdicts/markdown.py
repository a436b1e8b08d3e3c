"""The verdicts of a study as Markdown; ``docs/results/<study>.md`` is written from records by it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from lmdyn.claims import Study
from lmdyn.claims.judge import ClaimJudgement
from lmdyn.cli.studies.costs import cost_words
from lmdyn.cli.studies.made_by import made_by
from lmdyn.cli.verdicts.tables import Group, Judged, details_of, elsewhere, groups_of, heading, shown, tally
from lmdyn.cli.verdicts.words import how_words, number_words

__all__ = ["markdown", "write_markdown"]

_MANY = 12  # maximum number of claims with the same missing data that are listed with their statements


def write_markdown(
    study: Study,
    judged: Sequence[Judged],
    given: Sequence[Path],
    path: Path,
    figures: Mapping[tuple[str, str], Path],
) -> None:
    """Write the tables of a study.

    study: the study.
    judged: its profiles.
    given: the arguments that were judged, for the line that says how the file was made.
    path: the file.
    figures: files of the figures to show, by profile and group.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    links = {key: _relative(figure, path.parent) for key, figure in figures.items()}
    path.write_text(markdown(study, judged, [_shown(p) for p in given], path, links), encoding="utf-8")


def markdown(
    study: Study,
    judged: Sequence[Judged],
    given: Sequence[str],
    path: Path,
    figures: Mapping[tuple[str, str], str],
) -> str:
    """Return the text of :func:`write_markdown`; equal observations give equal text."""
    notes = path.with_name(f"{path.stem}_notes.md")
    own = f", and what we make of it is in [{notes.name}]({notes.name})" if notes.exists() else ""
    confidence = judged[0].judgement.confidence if judged else 0.95
    lines = [
        f"# {_escaped(study.title)}",
        "",
        f"{_escaped(study.publication)}. Written by `lmdyn claims {study.name} {' '.join(given)} --markdown …`; "
        f"nothing here is typed by hand{own}.",
        "",
        how_words(confidence),
        "",
    ]  # fmt: skip
    if study.terms:
        lines += [*(f"- *{_escaped(term)}*: {_escaped(meaning)}" for term, meaning in study.terms), ""]
    if len(judged) > 1:
        rows = [[_name(one), tally(one.judgement, elsewhere(one, judged))] for one in judged]
        lines += [*_table(["runs", "claims"], rows), ""]
    for one in judged:
        lines += _profile(one, figures, elsewhere(one, judged))
    return "\n".join(lines).rstrip() + "\n"


def _profile(
    judged: Judged, figures: Mapping[tuple[str, str], str], measured: Mapping[str, str]
) -> Iterator[str]:
    yield f"## {_escaped(_name(judged))}"
    yield ""
    yield f"{_escaped(heading(judged.profile))}:{shown(judged.judgement)} {tally(judged.judgement, measured)}."
    yield ""
    for line in (*made_by(judged.profile.runs), cost_words(judged.profile.costs)):
        if line:
            yield f"- {_escaped(line)}"
    yield ""
    groups = groups_of(judged.judgement)
    for group in groups:
        if group.measured:
            yield from _group(group, figures.get((judged.profile.name, group.slug)))
    lacking = [row for group in groups if not group.measured for row in group.rows]
    missing = [row for row in lacking if row.claim.name not in measured]
    if missing:
        yield "### Not measured"
        yield ""
        yield from _table(
            ["claim", "what the publication says", "what is missing, and what would measure it"],
            _missing(missing),
        )
        yield ""


def _missing(rows: Sequence[ClaimJudgement]) -> list[list[str]]:
    """Return rows of claims that were not measured; many claims with the same missing data become one row."""
    alike: dict[tuple[str, ...], list[ClaimJudgement]] = {}
    for row in rows:
        alike.setdefault(row.reasons, []).append(row)
    told = []
    for reasons, found in alike.items():
        why = "; ".join(reasons)
        if len(found) > _MANY:
            told.append([", ".join(r.claim.name for r in found), f"{len(found)} claims", why])
        else:
            said = [why, *["as above"] * (len(found) - 1)]
            told += [
                [r.claim.name, f"{r.claim.says} ({r.claim.where})", one]
                for r, one in zip(found, said, strict=True)
            ]
    return told


def _group(group: Group, figure: str | None) -> Iterator[str]:
    yield f"### {_escaped(group.title)}"
    yield ""
    first = group.rows[0].claim
    shared = len({(row.claim.says, row.claim.where) for row in group.rows}) == 1
    if shared:
        yield f"{_escaped(first.says)} ({_escaped(first.where)})."
        yield ""
    head = ["variant" if len(group.rows) > 1 else "claim", "number", "other seeds and texts", "other seeds, this text",
            "these models, other texts or words", "true where", "floor", "verdict", "after Holm"]  # fmt: skip
    cells = [
        [c.name, c.mean, c.interval, c.seeds, c.text, c.region, c.floor, _strong(c.verdict), c.after_holm]
        for c in group.cells()
    ]
    yield from _table(head, cells)
    yield ""
    if group.decides:
        yield f"*Of all variants:* {_escaped(group.decides)}"
        yield ""
    for row in group.rows:
        claim = row.claim
        says = "" if shared else f" {_escaped(claim.says)} ({_escaped(claim.where)})."
        numbers = list(dict.fromkeys(number_words(part.number) for part in claim.parts))
        told = f" {claim.combine.capitalize()} of: " if len(numbers) > 1 else " Number: "
        yield f"- **{_escaped(claim.name)}**.{says}{told}{_escaped('; '.join(numbers))}."
        for name, text in details_of(row):
            yield f"  - {name}: {_escaped(text)}"
    yield ""
    if figure is not None:
        yield f"![{_escaped(group.title)}]({quote(figure)})"
        yield ""


def _name(judged: Judged) -> str:
    return judged.profile.name or "the runs"


def _strong(verdict: str) -> str:
    word, rest = verdict, ""
    for end in (" (", ", "):
        if end in word:
            word, _, tail = word.partition(end)
            rest = f"{end}{tail}{rest}"
    return f"**{word}**{rest}" if word in ("holds", "fails") else verdict


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_escaped(cell) if '**' not in cell else cell for cell in row)} |"


def _escaped(text: str) -> str:
    """Escape text so that it starts no table cell, emphasis or tag."""
    for sign in ("\\", "|", "*", "_", "<", "[", "`"):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _shown(path: Path) -> str:
    """Return a path fit for a repository: relative to the working directory, or only its name."""
    path = path.resolve()
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.name

"""Rows shared by all tables of claims: claims grouped by question, each number in words."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lmdyn.claims.judge import ClaimJudgement, StudyJudgement
from lmdyn.claims.summary import FEWEST, Interval, Summary
from lmdyn.cli.studies.run_folders import Profile
from lmdyn.cli.verdicts.words import (
    components_words,
    decimals,
    estimate_words,
    interval_words,
    number_words,
    published_words,
    region_words,
    rounded,
    what_decides,
)

__all__ = [
    "Cells",
    "Group",
    "Judged",
    "details_of",
    "elsewhere",
    "groups_of",
    "heading",
    "reasons_of",
    "shown",
    "tally",
    "verdict_words",
]

VERDICTS = ("holds", "fails", "undecided", "void", "not measured")


@dataclass(frozen=True)
class Judged:
    """A profile, and the judged claims of a study in its runs."""

    profile: Profile
    judgement: StudyJudgement


@dataclass(frozen=True)
class Cells:
    """One number of a claim, as shown in tables; if a claim has several numbers, the first has the verdict."""

    name: str
    says: str
    mean: str
    interval: str
    seeds: str
    text: str
    region: str
    floor: str
    verdict: str
    after_holm: str


@dataclass(frozen=True)
class Group:
    """Claims of one question, with its variants; or a single claim."""

    title: str
    rows: Sequence[ClaimJudgement]

    @property
    def slug(self) -> str:
        """A name for files, unique in the study: the name of the first claim."""
        return re.sub(r"\W+", "_", self.rows[0].claim.name).strip("_")

    @property
    def measured(self) -> bool:
        """Whether any of it was measured."""
        return any(row.verdict != "not measured" for row in self.rows)

    @property
    def decides(self) -> str:
        """Which choice decides between variants of one statement, computed from their verdicts.

        Empty for one variant or too few seeds; other statements about the same question are not variants of it.
        """
        by_statement: dict[str, list[ClaimJudgement]] = {}
        for row in self.rows:
            by_statement.setdefault(row.claim.says, []).append(row)
        found = []
        for says, rows in by_statement.items():
            if len(rows) < 2 or all(_too_few(row) or not row.parts for row in rows):
                continue
            words = what_decides([(row.claim.variant or row.claim.name, row.verdict) for row in rows])
            found.append(f"“{says}” {words}" if len(by_statement) > 1 and words else words)
        return " ".join(word for word in found if word)

    def cells(self) -> Iterator[Cells]:
        """Yield a row for each number; the statement is given if it differs from that in the row above."""
        said = ""
        for row in self.rows:
            for cells in _cells(row, variants=len(self.rows) > 1):
                yield replace(cells, says="") if cells.says == said else cells
                said = cells.says or said


def groups_of(judgement: StudyJudgement) -> list[Group]:
    """Return the claims of a study grouped by question, in the study's order."""
    found: dict[str, list[ClaimJudgement]] = {}
    for row in judgement:
        found.setdefault(row.claim.question or row.claim.name, []).append(row)
    return [Group(title, rows) for title, rows in found.items()]


def _cells(row: ClaimJudgement, *, variants: bool) -> Iterator[Cells]:
    claim = row.claim
    name = (claim.variant or claim.name) if variants else claim.name
    for i, part in enumerate(claim.parts):
        judged = row.parts[i] if row.parts else None
        digits = _digits(judged)
        told = f"{name}: {part.label}" if part.label and len(claim.parts) > 1 else name
        if i > 0 and part.label:
            told = f"… {part.label}"  # the first row has the variant
        yield Cells(
            told if i == 0 or part.label else f"{name} ({i + 1})",
            claim.says if i == 0 else "",
            "–" if judged is None else _mean_words(judged, digits),
            _interval(judged.interval if judged else None, digits),
            _interval(judged.seeds_interval if judged else None, digits),
            _interval(judged.text_interval if judged else None, digits),
            region_words(part.region),
            _floor(row, digits) if i == 0 else "",
            verdict_words(row) if i == 0 else "",
            row.after_holm if i == 0 and row.p is not None else "–" if i == 0 else "",
        )


def _digits(judged: Summary | None) -> int:
    if judged is None:
        return 3
    low, high = judged.interval or judged.range
    if judged.interval is None and low == high:
        return 3
    return decimals(low, high)


def _mean_words(judged: Summary, digits: int) -> str:
    if judged.censored:
        low, high = judged.range
        return f"{rounded(low, digits)} … {rounded(high, digits)}"
    return rounded(judged.mean, digits)


def _interval(interval: Interval | None, digits: int) -> str:
    return "–" if interval is None else interval_words(*interval, digits)


def _floor(row: ClaimJudgement, digits: int) -> str:
    if isinstance(row.claim.floor, str):
        return "none"
    if row.floor is None:
        return "–"
    own = max(digits, min(_digits(row.floor), 4))
    return f"{_mean_words(row.floor, own)} {_interval(row.floor.interval, own)}".removesuffix(" –")


def verdict_words(row: ClaimJudgement) -> str:
    """Return the verdict with its limits: for this text only, exploratory."""
    words: str = row.verdict
    if row.verdict == "undecided" and _too_few(row):
        n = row.parts[0].n
        s, where = "s" * (n > 1), "in" if _all_inside(row) else "not in"
        words += f": {n} seed{s}, number{s} {where} the region"
    if row.verdict in ("holds", "fails") and row.of_this_text:
        words += " (of this text)"
    if row.floor_too:
        words += ", and so does its floor"
    return f"{words}, exploratory" if row.exploratory and row.parts else words


def _too_few(row: ClaimJudgement) -> bool:
    return bool(row.parts) and row.parts[0].n < FEWEST


def _all_inside(row: ClaimJudgement) -> bool:
    """Return whether the number of each seed lies in the claim's region."""
    inside = [all(e.value in part.region for e in part.estimates.values()) for part in row.parts]
    return all(inside) if row.claim.combine == "all" else any(inside)


def details_of(row: ClaimJudgement) -> Iterator[tuple[str, str]]:
    """Yield further facts about a claim that its table does not show, by name."""
    claim = row.claim
    if claim.matters:
        yield "smallest difference that matters", claim.matters
    if claim.published is not None:
        yield "published", published_words(row.published or claim.published)
    if isinstance(claim.floor, str):
        yield "no floor", claim.floor
    else:
        yield "floor", number_words(claim.floor)
    for part, judged in zip(claim.parts, row.parts, strict=False):
        digits = _digits(judged)
        seeds = ", ".join(f"{seed}: {estimate_words(e, digits)}" for seed, e in judged.estimates.items())
        yield f"seeds{f' of {part.label}' if part.label else ''}", seeds
        if judged.components is not None:
            yield f"variance{f' of {part.label}' if part.label else ''}", components_words(judged.components)
    if len(row.parts) > 1:
        each = ", ".join(f"{part.label or i + 1} {part.verdict}" for i, part in enumerate(row.parts))
        yield f"parts, of which {'each' if claim.combine == 'all' else 'one'} is to hold", each
    for condition in claim.void_unless:
        yield "judged only where", f"{condition.says} ({region_words(condition.region)})"
    if row.reasons:
        yield "why", "; ".join(row.reasons)
    if row.exploratory:
        yield "exploratory", "; ".join(row.exploratory)


def reasons_of(rows: Sequence[ClaimJudgement], which: str) -> Mapping[str, list[str]]:
    """Return the claims of each reason (``reasons`` or ``exploratory``), each reason once."""
    found: dict[str, list[str]] = {}
    for row in rows:
        reasons: Sequence[str] = getattr(row, which)
        if reasons:
            found.setdefault("; ".join(reasons), []).append(row.claim.name)
    return found


def elsewhere(one: Judged, judged: Sequence[Judged]) -> dict[str, str]:
    """Return claims not measured in one group of runs but in another one on the page, with that group's name."""
    lacking = [row.claim.name for row in one.judgement if row.verdict == "not measured"]
    found: dict[str, str] = {}
    for other in (other for other in judged if other is not one):
        measured = {row.claim.name for row in other.judgement if row.verdict != "not measured"}
        found |= {name: other.profile.name or "other runs" for name in lacking if name in measured}
    return found


def tally(judgement: StudyJudgement, measured: Mapping[str, str] | None = None) -> str:
    """Count the claims of each verdict, and how many remain after Holm's correction.

    Args:
        judgement: the claims' judgement.
        measured: claims that are measured in another group of runs, see :func:`elsewhere`.

    Returns:
        A text such as ``3 hold, 1 fails, 2 are undecided, 1 is void, 4 are not measured; after Holm 2 hold, 1 fails``.
    """
    said = _tally([row.verdict for row in judgement], VERDICTS)
    if measured:
        where = ", ".join(dict.fromkeys(measured.values()))
        said = f"{said} ({len(measured)} of them in {where})"
    tested = [row.after_holm for row in judgement if row.p is not None]
    return f"{said}; after Holm {_tally(tested, ('holds', 'fails'))}" if tested else said


def shown(judgement: StudyJudgement) -> str:
    """Return how many claims are shown, if not all are."""
    n, of = len(judgement.rows), len(judgement.study.claims)
    return f" {n} of {of} claims are shown:" if n < of else ""


def _tally(found: Sequence[str], verdicts: Sequence[str]) -> str:
    counts = {verdict: found.count(verdict) for verdict in verdicts}
    words = []
    for verdict, n in counts.items():
        if verdict in ("holds", "fails"):
            words.append(f"{n} {verdict if n == 1 else verdict.removesuffix('s')}")
        else:
            words.append(f"{n} {'is' if n == 1 else 'are'} {verdict}")
    return ", ".join(words)


def heading(profile: Profile) -> str:
    """Return a profile's name, runs and seeds in a line."""
    numbered = sorted(
        {run.seeds for run in profile.runs}, key=lambda pair: [-1 if n is None else n for n in pair]
    )
    seeds = list(dict.fromkeys(map(str, numbered)))
    runs = f"{len(profile.runs)} run{'s' * (len(profile.runs) > 1)}"
    return f"{f'{profile.name}, ' if profile.name else ''}{runs} of seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
